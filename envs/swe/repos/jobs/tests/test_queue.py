import random

import pytest

from jobs import PriorityQueue, merge


def drain(queue):
    return [queue.pop()[0] for _ in range(len(queue))]


def filled(**priorities):
    queue = PriorityQueue()
    for item, priority in priorities.items():
        queue.push(item, priority)
    return queue


def test_the_smallest_comes_first():
    assert drain(filled(a=3, b=1, c=2)) == ["b", "c", "a"]


def test_equal_ones_come_in_order():
    assert drain(filled(a=1, b=0, c=1, d=0, e=1)) == ["b", "d", "a", "c", "e"]


def test_an_item_is_queued_once():
    queue = filled(a=1)
    with pytest.raises(ValueError, match="already queued"):
        queue.push("a", 2)
    queue.pop()
    queue.push("a", 2)
    assert queue.peek() == ("a", 2)


def test_an_empty_queue_has_no_first():
    with pytest.raises(IndexError, match="empty"):
        PriorityQueue().pop()


def test_membership():
    queue = filled(a=1, b=2)
    assert "a" in queue
    queue.pop()
    assert "a" not in queue
    assert len(queue) == 1


def test_removal():
    queue = filled(a=1, b=2, c=3, d=4)
    queue.remove("b")
    assert drain(queue) == ["a", "c", "d"]
    with pytest.raises(KeyError):
        queue.remove("b")


def test_priorities_change():
    queue = filled(a=1, b=2, c=3)
    queue.change("c", 0)
    queue.change("a", 5)
    assert drain(queue) == ["c", "b", "a"]


def test_a_changed_item_keeps_its_turn():
    queue = filled(a=1, b=2, c=2)
    queue.change("a", 2)
    assert drain(queue) == ["a", "b", "c"]


def test_it_sorts_whatever_happens():
    rng = random.Random(7)
    for _ in range(60):
        queue = PriorityQueue()
        expected = {}
        for number in range(rng.randrange(1, 40)):
            expected[number] = rng.randrange(20)
            queue.push(number, expected[number])
        for number in rng.sample(sorted(expected), len(expected) // 3):
            if rng.random() < 0.5:
                queue.remove(number)
                del expected[number]
            else:
                expected[number] = rng.randrange(20)
                queue.change(number, expected[number])
        assert drain(queue) == sorted(expected, key=lambda number: (expected[number], number))


def test_merging():
    assert merge([1, 4, 9], [], [2, 4, 4, 10]) == [1, 2, 4, 4, 4, 9, 10]
    assert merge() == []


def test_merging_keeps_the_streams_order():
    ones, others = [1.0, 2.0], [1, 2]
    assert [type(value) for value in merge(ones, others)] == [float, int, float, int]
