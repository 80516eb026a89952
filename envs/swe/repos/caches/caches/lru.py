"""Least recently used goes first."""

import time
from collections import OrderedDict


class Stats:
    """How a cache did."""

    def __init__(self):
        self.hits = 0
        self.misses = 0
        self.evictions = 0

    @property
    def ratio(self):
        """Share of hits among all look-ups; 0 before the first."""
        asked = self.hits + self.misses
        if asked == 0:
            return 0.0
        return self.hits / asked


class Cache:
    """Keeps entries up to a capacity.

    Each entry weighs 1, or what `weigh(value)` says. Entries older than `max_age` seconds count as gone.
    """

    def __init__(self, capacity, weigh=None, max_age=None, clock=time.monotonic):
        if capacity <= 0:
            raise ValueError("capacity must be positive")
        self.capacity = capacity
        self.stats = Stats()
        self._weigh = weigh
        self._max_age = max_age
        self._clock = clock
        self._entries = OrderedDict()
        self.weight = 0

    def __len__(self):
        return len(self._entries)

    def __contains__(self, key):
        return key in self._entries and not self._expired(key)

    def _expired(self, key):
        if self._max_age is None:
            return False
        _, _, born = self._entries[key]
        return self._clock() - born > self._max_age

    def get(self, key, default=None):
        """The value of a key, which is now the most recently used."""
        if key in self._entries and self._expired(key):
            self.remove(key)
        if key not in self._entries:
            self.stats.misses += 1
            return default
        self.stats.hits += 1
        self._entries.move_to_end(key)
        return self._entries[key][0]

    def peek(self, key, default=None):
        """The value of a key, without any trace of the look-up."""
        if key not in self:
            return default
        return self._entries[key][0]

    def put(self, key, value):
        """Keeps a value, and forgets others until there is room. Returns the keys that were forgotten."""
        weight = 1 if self._weigh is None else self._weigh(value)
        if weight > self.capacity:
            raise ValueError(f"{key!r} weighs {weight}, more than the capacity {self.capacity}")
        if key in self._entries:
            self.remove(key)
        forgotten = []
        while self.weight + weight > self.capacity:
            oldest, (_, old_weight, _) = self._entries.popitem(last=False)
            self.weight -= old_weight
            self.stats.evictions += 1
            forgotten.append(oldest)
        self._entries[key] = (value, weight, self._clock())
        self.weight += weight
        return forgotten

    def remove(self, key):
        """Forgets a key; says whether it was there."""
        entry = self._entries.pop(key, None)
        if entry is None:
            return False
        self.weight -= entry[1]
        return True

    def keys(self):
        """All keys that are not too old, the least recently used first."""
        return [key for key in self._entries if not self._expired(key)]

    def resize(self, capacity):
        """Changes the capacity and forgets what no longer fits."""
        if capacity <= 0:
            raise ValueError("capacity must be positive")
        self.capacity = capacity
        while self.weight > self.capacity:
            _, (_, weight, _) = self._entries.popitem(last=False)
            self.weight -= weight
            self.stats.evictions += 1


def memoize(capacity=128):
    """A decorator that remembers results by positional and keyword arguments."""

    def decorate(function):
        cache = Cache(capacity)
        missing = object()

        def wrapper(*args, **kwargs):
            key = (args, tuple(sorted(kwargs.items())))
            found = cache.get(key, missing)
            if found is missing:
                found = function(*args, **kwargs)
                cache.put(key, found)
            return found

        wrapper.cache = cache
        return wrapper

    return decorate
