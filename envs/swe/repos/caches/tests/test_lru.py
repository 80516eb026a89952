import pytest

from caches import Cache, memoize


class Clock:
    def __init__(self):
        self.now = 0.0

    def __call__(self):
        return self.now


def test_what_was_put_is_found():
    cache = Cache(2)
    cache.put("a", 1)
    assert cache.get("a") == 1
    assert cache.get("b") is None
    assert cache.get("b", 7) == 7


def test_the_least_recently_used_goes_first():
    cache = Cache(2)
    cache.put("a", 1)
    cache.put("b", 2)
    assert cache.put("c", 3) == ["a"]
    assert cache.keys() == ["b", "c"]


def test_a_look_up_is_a_use():
    cache = Cache(2)
    cache.put("a", 1)
    cache.put("b", 2)
    cache.get("a")
    assert cache.put("c", 3) == ["b"]


def test_a_peek_is_no_use():
    cache = Cache(2)
    cache.put("a", 1)
    cache.put("b", 2)
    assert cache.peek("a") == 1
    assert cache.put("c", 3) == ["a"]
    assert (cache.stats.hits, cache.stats.misses) == (0, 0)
    assert cache.peek("a", "gone") == "gone"


def test_putting_again_replaces():
    cache = Cache(2)
    cache.put("a", 1)
    cache.put("b", 2)
    assert cache.put("a", 3) == []
    assert (cache.get("a"), len(cache), cache.weight) == (3, 2, 2)
    assert cache.put("c", 3) == ["b"]


def test_weights():
    cache = Cache(10, weigh=len)
    cache.put("a", "xxxx")
    cache.put("b", "yyyy")
    assert cache.weight == 8
    assert cache.put("c", "zzzzz") == ["a"]
    assert cache.weight == 9


def test_a_value_of_exactly_the_capacity_fits():
    cache = Cache(4, weigh=len)
    cache.put("a", "xxxx")
    assert cache.get("a") == "xxxx"


def test_what_can_never_fit_is_refused():
    cache = Cache(4, weigh=len)
    cache.put("a", "xx")
    with pytest.raises(ValueError, match="weighs 5"):
        cache.put("b", "xxxxx")
    assert cache.keys() == ["a"]


@pytest.mark.parametrize("capacity", [0, -1])
def test_a_capacity_must_be_positive(capacity):
    with pytest.raises(ValueError, match="positive"):
        Cache(capacity)
    with pytest.raises(ValueError, match="positive"):
        Cache(1).resize(capacity)


def test_old_entries_are_gone():
    clock = Clock()
    cache = Cache(4, max_age=10, clock=clock)
    cache.put("a", 1)
    clock.now = 10.0
    assert "a" in cache
    clock.now = 10.5
    assert "a" not in cache
    assert cache.peek("a") is None
    assert cache.keys() == []
    assert cache.get("a") is None
    assert (len(cache), cache.weight) == (0, 0)


def test_putting_again_makes_young():
    clock = Clock()
    cache = Cache(4, max_age=10, clock=clock)
    cache.put("a", 1)
    clock.now = 8.0
    cache.put("a", 1)
    clock.now = 15.0
    assert cache.get("a") == 1


def test_figures():
    cache = Cache(1)
    assert cache.stats.ratio == 0.0
    cache.put("a", 1)
    cache.get("a")
    cache.get("b")
    cache.get("a")
    cache.put("b", 2)
    assert (cache.stats.hits, cache.stats.misses, cache.stats.evictions) == (2, 1, 1)
    assert cache.stats.ratio == pytest.approx(2 / 3)


def test_removal():
    cache = Cache(2)
    cache.put("a", 1)
    assert cache.remove("a") is True
    assert cache.remove("a") is False
    assert cache.weight == 0


def test_resize_forgets_the_oldest():
    cache = Cache(3)
    for key in "abc":
        cache.put(key, key)
    cache.resize(2)
    assert cache.keys() == ["b", "c"]
    assert cache.stats.evictions == 1
    cache.resize(5)
    assert cache.put("d", 1) == []


def test_memoize_calls_once():
    calls = []

    @memoize(capacity=2)
    def double(x, plus=0):
        calls.append(x)
        return 2 * x + plus

    assert [double(3), double(3), double(3, plus=1)] == [6, 6, 7]
    assert calls == [3, 3]


def test_memoize_remembers_none():
    calls = []

    @memoize()
    def nothing(x):
        calls.append(x)

    nothing(1)
    nothing(1)
    assert calls == [1]
    assert nothing.cache.stats.hits == 1
