import pytest

from jobs import Scheduler


def test_jobs_run_in_time():
    scheduler, ran = Scheduler(), []
    scheduler.at(5, lambda: ran.append("late"))
    scheduler.at(2, lambda: ran.append("soon"))
    assert scheduler.run_until(3) == 1
    assert ran == ["soon"]
    assert scheduler.now == 3
    assert scheduler.run_until(5) == 1
    assert ran == ["soon", "late"]


def test_jobs_see_their_own_time():
    scheduler, seen = Scheduler(10), []
    scheduler.after(2, lambda: seen.append(scheduler.now))
    scheduler.run_until(20)
    assert seen == [12]


def test_the_past_is_over():
    with pytest.raises(ValueError, match="past"):
        Scheduler(10).at(9, print)
    assert Scheduler(10).at(10, print) == 1


def test_repetition():
    scheduler, ran = Scheduler(), []
    number = scheduler.at(1, lambda: ran.append(scheduler.now), every=2)
    scheduler.run_until(6)
    assert ran == [1, 3, 5]
    assert scheduler.pending == 1
    assert scheduler.cancel(number)
    scheduler.run_until(20)
    assert ran == [1, 3, 5]


@pytest.mark.parametrize("every", [0, -1])
def test_repetition_takes_time(every):
    with pytest.raises(ValueError, match="positive"):
        Scheduler().at(1, print, every=every)


def test_cancelling():
    scheduler = Scheduler()
    number = scheduler.at(1, print)
    assert scheduler.cancel(number) is True
    assert scheduler.cancel(number) is False
    assert scheduler.run_until(5) == 0


def test_a_job_that_ran_cannot_be_cancelled():
    scheduler = Scheduler()
    number = scheduler.at(1, int)
    scheduler.run_until(1)
    assert scheduler.cancel(number) is False


def test_a_job_may_cancel_itself():
    scheduler, ran = Scheduler(), []

    def once():
        ran.append(scheduler.now)
        scheduler.cancel(number)

    number = scheduler.at(1, once, every=1)
    scheduler.run_until(5)
    assert ran == [1]
    assert scheduler.pending == 0


def test_a_job_may_plan_another():
    scheduler, ran = Scheduler(), []
    scheduler.at(1, lambda: scheduler.after(1, lambda: ran.append(scheduler.now)))
    assert scheduler.run_until(2) == 2
    assert ran == [2]


def test_postponing():
    scheduler, ran = Scheduler(), []
    number = scheduler.at(1, lambda: ran.append("a"))
    scheduler.at(2, lambda: ran.append("b"))
    scheduler.postpone(number, 2)
    scheduler.run_until(5)
    assert ran == ["b", "a"]
    with pytest.raises(KeyError):
        scheduler.postpone(number, 1)


def test_results_and_failures_are_logged():
    scheduler = Scheduler()
    scheduler.at(1, lambda: 42)
    scheduler.at(2, lambda: 1 / 0)
    scheduler.at(3, lambda: "on")
    assert scheduler.run_until(3) == 3
    assert scheduler.log[0] == (1, 1, 42)
    assert isinstance(scheduler.log[1][2], ZeroDivisionError)
    assert scheduler.log[2] == (3, 3, "on")
