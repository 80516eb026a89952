import datetime

import pytest

from almanac import add_days, add_months, day_of_year, days_between, days_in_month, is_leap, weekday


@pytest.mark.parametrize(("year", "leap"), [(1900, False), (2000, True), (2023, False), (2024, True), (2100, False)])
def test_leap_years(year, leap):
    assert is_leap(year) is leap


def test_lengths_of_months():
    assert [days_in_month(2023, month) for month in range(1, 13)] == [31, 28, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31]
    assert days_in_month(2024, 2) == 29


@pytest.mark.parametrize("month", [0, 13, -1])
def test_months_that_do_not_exist(month):
    with pytest.raises(ValueError, match="no month"):
        days_in_month(2023, month)


@pytest.mark.parametrize("date", [(2023, 2, 29), (2023, 4, 31), (2023, 1, 0)])
def test_days_that_do_not_exist(date):
    with pytest.raises(ValueError, match="no such day"):
        day_of_year(date)


def test_day_of_year():
    assert day_of_year((2023, 1, 1)) == 1
    assert day_of_year((2023, 12, 31)) == 365
    assert day_of_year((2024, 12, 31)) == 366
    assert day_of_year((2024, 3, 1)) == 61


def test_weekdays_agree_with_the_library():
    start = datetime.date(1999, 12, 25)
    for offset in range(0, 1500, 7 * 13 + 1):
        date = start + datetime.timedelta(days=offset)
        assert weekday((date.year, date.month, date.day)) == date.weekday()


def test_adding_days_agrees_with_the_library():
    start = datetime.date(1996, 2, 27)
    for days in [0, 1, 2, 3, 300, 308, 309, 366, 1461, 10000, -1, -58, -365]:
        date = start + datetime.timedelta(days=days)
        assert add_days((1996, 2, 27), days) == (date.year, date.month, date.day)


def test_days_between_counts_both_ways():
    assert days_between((2024, 2, 28), (2024, 3, 1)) == 2
    assert days_between((2024, 3, 1), (2024, 2, 28)) == -2
    assert days_between((2024, 3, 1), (2024, 3, 1)) == 0


def test_adding_months():
    assert add_months((2023, 1, 15), 1) == (2023, 2, 15)
    assert add_months((2023, 11, 30), 2) == (2024, 1, 30)
    assert add_months((2023, 12, 5), 12) == (2024, 12, 5)
    assert add_months((2023, 1, 5), -1) == (2022, 12, 5)


def test_a_day_that_is_missing_becomes_the_last():
    assert add_months((2023, 1, 31), 1) == (2023, 2, 28)
    assert add_months((2024, 1, 31), 1) == (2024, 2, 29)
    assert add_months((2023, 3, 31), -1) == (2023, 2, 28)


def test_a_day_that_is_missing_is_an_error_without_clip():
    with pytest.raises(ValueError, match="no day 31"):
        add_months((2023, 3, 31), 1, clip=False)
    assert add_months((2023, 3, 30), 1, clip=False) == (2023, 4, 30)
