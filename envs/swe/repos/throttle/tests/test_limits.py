import pytest

from throttle import SlidingWindow, TokenBucket


def test_a_bucket_is_full_at_first():
    bucket = TokenBucket(rate=1, size=3)
    assert [bucket.take(0) for _ in range(4)] == [True, True, True, False]


def test_tokens_flow_in():
    bucket = TokenBucket(rate=2, size=4)
    assert bucket.take(0, 4)
    assert bucket.available(1) == 2
    assert bucket.take(1, 2)
    assert not bucket.take(1.25)
    assert bucket.take(1.5)


def test_a_bucket_does_not_overflow():
    bucket = TokenBucket(rate=2, size=4)
    assert bucket.available(100) == 4


def test_the_clock_may_stand_or_go_back():
    bucket = TokenBucket(rate=1, size=2, now=10)
    assert bucket.take(10, 2)
    assert bucket.available(5) == 0
    assert bucket.available(11) == 1


def test_waiting():
    bucket = TokenBucket(rate=2, size=4)
    assert bucket.wait(0, 4) == 0
    bucket.take(0, 4)
    assert bucket.wait(0, 3) == 1.5
    assert bucket.wait(1, 3) == 0.5
    with pytest.raises(ValueError, match="more tokens"):
        bucket.wait(0, 5)


@pytest.mark.parametrize(("rate", "size"), [(0, 1), (1, 0), (-1, 1), (1, -1)])
def test_buckets_that_make_no_sense(rate, size):
    with pytest.raises(ValueError, match="positive"):
        TokenBucket(rate, size)


def test_a_window_bounds_events():
    window = SlidingWindow(2, seconds=10)
    assert [window.allow("a", now) for now in (0, 1, 2, 9.9)] == [True, True, False, False]
    assert window.allow("a", 10)
    assert not window.allow("a", 10.5)
    assert window.allow("a", 11)


def test_keys_are_counted_for_themselves():
    window = SlidingWindow(1, seconds=10)
    assert window.allow("a", 0)
    assert window.allow("b", 0)
    assert not window.allow("a", 1)


def test_what_remains():
    window = SlidingWindow(3, seconds=10)
    window.allow("a", 0)
    window.allow("a", 5)
    assert window.remaining("a", 5) == 1
    assert window.remaining("a", 10) == 2
    assert window.remaining("new", 0) == 3


def test_when_to_come_back():
    window = SlidingWindow(2, seconds=10)
    window.allow("a", 1)
    assert window.retry_after("a", 1) == 0
    window.allow("a", 4)
    assert window.retry_after("a", 5) == 6
    assert window.retry_after("a", 11) == 0


def test_idle_keys_are_forgotten():
    window = SlidingWindow(2, seconds=10)
    window.allow("a", 0)
    window.allow("b", 8)
    assert window.forget_idle(12) == 1
    assert window.remaining("b", 12) == 1
    assert window.forget_idle(18) == 1


@pytest.mark.parametrize(("most", "seconds"), [(0, 1), (1, 0), (1, -1)])
def test_windows_that_make_no_sense(most, seconds):
    with pytest.raises(ValueError, match="window"):
        SlidingWindow(most, seconds)
    assert SlidingWindow(1, 0.5).allow("a", 0)
