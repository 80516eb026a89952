"""Bounded caches."""

from caches.lru import Cache, Stats, memoize

__all__ = ["Cache", "Stats", "memoize"]
