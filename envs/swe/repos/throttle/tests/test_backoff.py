import pytest

from throttle import Backoff


def test_pauses_double():
    backoff, pauses = Backoff(first=1, longest=10), []
    for _ in range(6):
        pauses.append(backoff.pause())
        backoff.failed(now=0)
    assert pauses == [0, 1, 2, 4, 8, 10]


def test_success_starts_anew():
    backoff = Backoff(threshold=2)
    backoff.failed(0)
    backoff.failed(0)
    backoff.succeeded()
    assert backoff.pause() == 0
    assert backoff.state(0) == "closed"
    backoff.failed(0)
    assert backoff.state(0) == "closed"


def test_a_breaker_opens_and_half_opens():
    backoff = Backoff(first=1, longest=30, threshold=3)
    backoff.failed(0)
    backoff.failed(1)
    assert backoff.state(1) == "closed"
    backoff.failed(2)
    assert backoff.state(2) == "open"
    assert backoff.state(31.9) == "open"
    assert backoff.state(32) == "half-open"
    backoff.failed(40)
    assert backoff.state(41) == "open"


def test_without_a_threshold_it_stays_closed():
    backoff = Backoff()
    for _ in range(100):
        backoff.failed(0)
    assert backoff.state(0) == "closed"


def test_the_schedule_is_that_of_the_pauses():
    assert Backoff(first=1, longest=5, factor=3).schedule(5) == [0, 1, 3, 5, 5]
    assert Backoff().schedule(0) == []
    assert Backoff(first=2).schedule(2) == [0, 2]


@pytest.mark.parametrize("values", [{"first": 0}, {"first": 5, "longest": 4}, {"factor": 0.5}])
def test_pauses_that_make_no_sense(values):
    with pytest.raises(ValueError, match="pauses"):
        Backoff(**values)


def test_pauses_may_stay_the_same():
    assert Backoff(first=2, longest=2, factor=1).schedule(3) == [0, 2, 2]
