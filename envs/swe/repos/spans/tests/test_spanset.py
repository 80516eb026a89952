import pytest

from spans import SpanSet


def test_intervals_are_sorted():
    assert list(SpanSet([(5, 6), (1, 2)])) == [(1, 2), (5, 6)]


def test_overlapping_intervals_become_one():
    assert list(SpanSet([(1, 4), (3, 6)])) == [(1, 6)]
    assert list(SpanSet([(1, 10), (3, 6)])) == [(1, 10)]
    assert list(SpanSet([(3, 6), (1, 10)])) == [(1, 10)]


def test_touching_intervals_become_one():
    assert list(SpanSet([(1, 3), (3, 5)])) == [(1, 5)]
    assert list(SpanSet([(3, 5), (1, 3)])) == [(1, 5)]


def test_one_interval_may_join_many():
    assert list(SpanSet([(1, 2), (3, 4), (5, 6), (8, 9), (2, 5)])) == [(1, 6), (8, 9)]


def test_empty_intervals_are_nothing():
    assert len(SpanSet([(3, 3)])) == 0


@pytest.mark.parametrize("method", ["add", "remove"])
def test_backward_intervals_are_refused(method):
    with pytest.raises(ValueError, match="before it starts"):
        getattr(SpanSet(), method)(3, 2)


@pytest.mark.parametrize(
    ("point", "inside"), [(0, False), (1, True), (2, True), (3, False), (5, True), (6, False), (9, False)]
)
def test_look_up(point, inside):
    assert (point in SpanSet([(1, 3), (5, 6)])) is inside


def test_total_length():
    assert SpanSet([(1, 3), (5, 9)]).total == 6
    assert SpanSet().total == 0


def test_removal_splits():
    spans = SpanSet([(1, 10)])
    spans.remove(3, 5)
    assert list(spans) == [(1, 3), (5, 10)]


def test_removal_shortens():
    spans = SpanSet([(1, 5), (7, 9)])
    spans.remove(4, 8)
    assert list(spans) == [(1, 4), (8, 9)]


def test_removal_of_all():
    spans = SpanSet([(1, 5), (7, 9)])
    spans.remove(1, 9)
    assert list(spans) == []


def test_removal_of_what_is_not_there():
    spans = SpanSet([(1, 5)])
    spans.remove(5, 8)
    spans.remove(0, 1)
    spans.remove(3, 3)
    assert list(spans) == [(1, 5)]


def test_union():
    assert SpanSet([(1, 3)]).union(SpanSet([(2, 5), (7, 8)])) == SpanSet([(1, 5), (7, 8)])


def test_intersection():
    first = SpanSet([(0, 4), (6, 10), (12, 13)])
    second = SpanSet([(2, 7), (8, 9), (13, 14)])
    assert list(first.intersection(second)) == [(2, 4), (6, 7), (8, 9)]
    assert first.intersection(second) == second.intersection(first)


def test_difference():
    assert list(SpanSet([(0, 10)]).difference(SpanSet([(2, 3), (5, 20)]))) == [(0, 2), (3, 5)]


def test_difference_leaves_the_first_as_it_was():
    first = SpanSet([(0, 10)])
    first.difference(SpanSet([(2, 3)]))
    assert list(first) == [(0, 10)]


def test_gaps():
    spans = SpanSet([(1, 2), (4, 6), (9, 10)])
    assert list(spans.gaps()) == [(2, 4), (6, 9)]
    assert list(spans.gaps(0, 12)) == [(0, 1), (2, 4), (6, 9), (10, 12)]
    assert list(spans.gaps(start=0)) == [(0, 1), (2, 4), (6, 9)]
    assert list(spans.gaps(end=12)) == [(2, 4), (6, 9), (10, 12)]


def test_gaps_of_nothing():
    assert list(SpanSet().gaps()) == []
    assert list(SpanSet().gaps(1, 3)) == [(1, 3)]


def test_shift():
    assert list(SpanSet([(1, 2), (4, 6)]).shift(3)) == [(4, 5), (7, 9)]


@pytest.mark.parametrize(("point", "nearest"), [(2, 2), (3.2, 3), (4.8, 5), (4, 3), (-5, 1), (100, 6)])
def test_nearest(point, nearest):
    assert SpanSet([(1, 3), (5, 6)]).nearest(point) == nearest


def test_nothing_is_near_an_empty_set():
    with pytest.raises(ValueError, match="empty"):
        SpanSet().nearest(1)


def test_comparison_and_text():
    assert SpanSet([(1, 2)]) == SpanSet([(1, 1.5), (1.5, 2)])
    assert SpanSet([(1, 2)]) != [(1, 2)]
    assert repr(SpanSet([(1, 2), (4, 5)])) == "SpanSet([1, 2), [4, 5))"
