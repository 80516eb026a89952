"""Longer and longer pauses, and a breaker that opens after failures."""


class Backoff:
    """Pauses double from `first` to `longest`. After `threshold` failures in a row, nothing is tried for `longest`."""

    def __init__(self, first=1.0, longest=60.0, factor=2.0, threshold=None):
        if first <= 0 or longest < first or factor < 1:
            raise ValueError("pauses must be positive and grow")
        self.first = first
        self.longest = longest
        self.factor = factor
        self.threshold = threshold
        self.failures = 0
        self._open_until = None

    def pause(self):
        """Seconds to wait before the next try; 0 if the last one succeeded."""
        if self.failures == 0:
            return 0.0
        return min(self.longest, self.first * self.factor ** (self.failures - 1))

    def failed(self, now):
        """Counts a failure."""
        self.failures += 1
        if self.threshold is not None and self.failures >= self.threshold:
            self._open_until = now + self.longest

    def succeeded(self):
        """Starts anew."""
        self.failures = 0
        self._open_until = None

    def state(self, now):
        """`closed` (try), `open` (do not), or `half-open` (try once: it decides)."""
        if self._open_until is None:
            return "closed"
        if now < self._open_until:
            return "open"
        return "half-open"

    def schedule(self, tries):
        """The pauses before each of so many tries, if all failed."""
        pauses = []
        pause = self.first
        for number in range(tries):
            if number == 0:
                pauses.append(0.0)
            else:
                pauses.append(min(pause, self.longest))
                pause *= self.factor
        return pauses
