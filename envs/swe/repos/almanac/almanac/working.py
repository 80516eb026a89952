"""Working days, Easter, and a month as text."""

from almanac.dates import add_days, days_between, days_in_month, weekday

SATURDAY = 5


def is_working_day(date, holidays=()):
    """Whether a date is neither at a weekend nor a holiday."""
    return weekday(date) < SATURDAY and date not in holidays


def working_days(first, last, holidays=()):
    """How many working days there are from the first date to the last, both included."""
    count = 0
    for offset in range(days_between(first, last) + 1):
        if is_working_day(add_days(first, offset), holidays):
            count += 1
    return count


def add_working_days(date, number, holidays=()):
    """The date so many working days later (earlier if negative). Zero gives the date itself."""
    step = 1 if number > 0 else -1
    left = abs(number)
    while left > 0:
        date = add_days(date, step)
        if is_working_day(date, holidays):
            left -= 1
    return date


def easter(year):
    """Easter Sunday of a Gregorian year (the anonymous algorithm)."""
    golden = year % 19
    century, rest = divmod(year, 100)
    leap, skipped = divmod(century, 4)
    moon = (century - (century + 8) // 25 + 1) // 3
    epact = (19 * golden + century - leap - moon + 15) % 30
    quarter, left = divmod(rest, 4)
    shift = (32 + 2 * skipped + 2 * quarter - epact - left) % 7
    late = (golden + 11 * epact + 22 * shift) // 451
    month, day = divmod(epact + shift - 7 * late + 114, 31)
    return (year, month, day + 1)


def month_grid(year, month, first=0):
    """A month as rows of seven days, 0 where a day belongs to another month. `first` is the weekday rows begin with."""
    offset = (weekday((year, month, 1)) - first) % 7
    cells = [0] * offset + list(range(1, days_in_month(year, month) + 1))
    while len(cells) % 7:
        cells.append(0)
    return [cells[at : at + 7] for at in range(0, len(cells), 7)]
