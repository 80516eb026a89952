import pytest

from almanac import add_working_days, easter, month_grid, working_days


def test_working_days_of_a_week():
    assert working_days((2024, 1, 1), (2024, 1, 7)) == 5


def test_working_days_include_both_ends():
    assert working_days((2024, 1, 5), (2024, 1, 5)) == 1
    assert working_days((2024, 1, 6), (2024, 1, 7)) == 0
    assert working_days((2024, 1, 5), (2024, 1, 8)) == 2


def test_holidays_are_no_working_days():
    assert working_days((2024, 1, 1), (2024, 1, 5), holidays=[(2024, 1, 1)]) == 4


def test_adding_working_days_skips_weekends():
    assert add_working_days((2024, 1, 5), 1) == (2024, 1, 8)
    assert add_working_days((2024, 1, 5), 6) == (2024, 1, 15)


def test_adding_working_days_skips_holidays():
    assert add_working_days((2024, 1, 5), 1, holidays=[(2024, 1, 8)]) == (2024, 1, 9)


def test_going_back_in_working_days():
    assert add_working_days((2024, 1, 8), -1) == (2024, 1, 5)


def test_no_working_days_is_the_same_day():
    assert add_working_days((2024, 1, 6), 0) == (2024, 1, 6)


@pytest.mark.parametrize(
    ("year", "month", "day"), [(1818, 3, 22), (1943, 4, 25), (2000, 4, 23), (2008, 3, 23), (2024, 3, 31), (2025, 4, 20)]
)
def test_easter(year, month, day):
    assert easter(year) == (year, month, day)


def test_a_month_of_full_weeks():
    grid = month_grid(2021, 2)
    assert grid[0] == [1, 2, 3, 4, 5, 6, 7]
    assert len(grid) == 4


def test_a_month_is_padded():
    grid = month_grid(2024, 5)
    assert grid[0] == [0, 0, 1, 2, 3, 4, 5]
    assert grid[-1] == [27, 28, 29, 30, 31, 0, 0]


def test_weeks_may_begin_on_sunday():
    assert month_grid(2024, 5, first=6)[0] == [0, 0, 0, 1, 2, 3, 4]
