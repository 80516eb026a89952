"""Days, weeks and months."""

from almanac.dates import add_days, add_months, day_of_year, days_between, days_in_month, is_leap, weekday
from almanac.working import add_working_days, easter, month_grid, working_days

__all__ = [
    "add_days",
    "add_months",
    "add_working_days",
    "day_of_year",
    "days_between",
    "days_in_month",
    "easter",
    "is_leap",
    "month_grid",
    "weekday",
    "working_days",
]
