"""Limits on how often something happens."""

from throttle.backoff import Backoff
from throttle.limits import SlidingWindow, TokenBucket

__all__ = ["Backoff", "SlidingWindow", "TokenBucket"]
