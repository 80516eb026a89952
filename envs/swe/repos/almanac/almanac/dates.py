"""Dates are tuples (year, month, day) of the Gregorian calendar."""

_DAYS = (31, 28, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31)


def is_leap(year):
    """Whether a year has 366 days."""
    return year % 4 == 0 and (year % 100 != 0 or year % 400 == 0)


def days_in_month(year, month):
    """How many days a month has."""
    if month < 1 or month > 12:
        raise ValueError(f"no month {month}")
    if month == 2 and is_leap(year):
        return 29
    return _DAYS[month - 1]


def check(date):
    """The date itself, if it exists."""
    year, month, day = date
    if day < 1 or day > days_in_month(year, month):
        raise ValueError(f"no such day: {year}-{month}-{day}")
    return date


def day_of_year(date):
    """1 for the first of January."""
    year, month, day = check(date)
    passed = sum(days_in_month(year, before) for before in range(1, month))
    return passed + day


def ordinal(date):
    """Days since the first of January of the year 1, which is day 1."""
    year = date[0]
    before = year - 1
    return before * 365 + before // 4 - before // 100 + before // 400 + day_of_year(date)


def from_ordinal(number):
    """The date of an ordinal."""
    year = max(1, number // 366)
    while ordinal((year + 1, 1, 1)) <= number:
        year += 1
    left = number - ordinal((year, 1, 1))
    month = 1
    while left >= days_in_month(year, month):
        left -= days_in_month(year, month)
        month += 1
    return (year, month, left + 1)


def weekday(date):
    """0 for Monday, 6 for Sunday."""
    return (ordinal(date) + 6) % 7


def days_between(first, second):
    """How many days the second date is after the first; negative if it is before."""
    return ordinal(second) - ordinal(first)


def add_days(date, days):
    """The date some days later, or earlier if `days` is negative."""
    return from_ordinal(ordinal(date) + days)


def add_months(date, months, clip=True):
    """The same day some months later. One that does not exist there is the month's last, or an error if not `clip`."""
    year, month, day = check(date)
    at = year * 12 + (month - 1) + months
    year, month = at // 12, at % 12 + 1
    last = days_in_month(year, month)
    if day > last:
        if not clip:
            raise ValueError(f"{year}-{month} has no day {day}")
        day = last
    return (year, month, day)
