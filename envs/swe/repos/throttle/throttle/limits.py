"""Two ways to bound a rate."""

from collections import deque


class TokenBucket:
    """`rate` tokens a second flow into a bucket that holds `size` of them and is full at first."""

    def __init__(self, rate, size, now=0.0):
        if rate <= 0 or size <= 0:
            raise ValueError("rate and size must be positive")
        self.rate = rate
        self.size = size
        self._tokens = float(size)
        self._seen = now

    def _flow(self, now):
        if now > self._seen:
            self._tokens = min(self.size, self._tokens + (now - self._seen) * self.rate)
            self._seen = now

    def available(self, now):
        """Tokens in the bucket."""
        self._flow(now)
        return self._tokens

    def take(self, now, number=1):
        """Takes tokens if there are enough; says whether there were."""
        self._flow(now)
        if number > self._tokens:
            return False
        self._tokens -= number
        return True

    def wait(self, now, number=1):
        """Seconds until there will be so many tokens."""
        if number > self.size:
            raise ValueError("more tokens than the bucket holds")
        self._flow(now)
        return max(0.0, (number - self._tokens) / self.rate)


class SlidingWindow:
    """At most `most` events in any `seconds`; each key is counted for itself."""

    def __init__(self, most, seconds):
        if most < 1 or seconds <= 0:
            raise ValueError("a window holds at least one event and has a length")
        self.most = most
        self.seconds = seconds
        self._events = {}

    def _recent(self, key, now):
        events = self._events.setdefault(key, deque())
        while events and events[0] <= now - self.seconds:
            events.popleft()
        return events

    def allow(self, key, now):
        """Whether an event may happen; if so, it counts."""
        events = self._recent(key, now)
        if len(events) >= self.most:
            return False
        events.append(now)
        return True

    def remaining(self, key, now):
        """How many events may still happen now."""
        return self.most - len(self._recent(key, now))

    def retry_after(self, key, now):
        """Seconds until the next event may happen; 0 if it may now."""
        events = self._recent(key, now)
        if len(events) < self.most:
            return 0.0
        return events[0] + self.seconds - now

    def forget_idle(self, now):
        """Forgets keys without recent events; returns how many."""
        idle = [key for key in list(self._events) if not self._recent(key, now)]
        for key in idle:
            del self._events[key]
        return len(idle)
