"""A sorted list of intervals that neither overlap nor touch."""

from bisect import bisect_right


class SpanSet:
    """Numbers, as half-open intervals [start, end)."""

    def __init__(self, spans=()):
        self._spans = []
        for start, end in spans:
            self.add(start, end)

    def __iter__(self):
        return iter(self._spans)

    def __len__(self):
        return len(self._spans)

    def __eq__(self, other):
        if not isinstance(other, SpanSet):
            return NotImplemented
        return self._spans == other._spans

    def __repr__(self):
        inside = ", ".join(f"[{start}, {end})" for start, end in self._spans)
        return f"SpanSet({inside})"

    def __contains__(self, point):
        at = bisect_right(self._spans, (point, float("inf"))) - 1
        if at < 0:
            return False
        start, end = self._spans[at]
        return start <= point < end

    @property
    def total(self):
        """Length of all intervals together."""
        return sum(end - start for start, end in self._spans)

    def add(self, start, end):
        """Adds an interval; those it overlaps or touches become one with it."""
        if end < start:
            raise ValueError(f"an interval cannot end before it starts: [{start}, {end})")
        if start == end:
            return
        kept = []
        for low, high in self._spans:
            if high < start or low > end:
                kept.append((low, high))
            else:
                start = min(start, low)
                end = max(end, high)
        kept.append((start, end))
        kept.sort()
        self._spans = kept

    def remove(self, start, end):
        """Takes an interval out; others are shortened or split."""
        if end < start:
            raise ValueError(f"an interval cannot end before it starts: [{start}, {end})")
        kept = []
        for low, high in self._spans:
            if low < start:
                kept.append((low, min(high, start)))
            if high > end:
                kept.append((max(low, end), high))
        self._spans = sorted(set(kept)) if start < end else self._spans

    def union(self, other):
        """What is in either set."""
        return SpanSet([*self, *other])

    def intersection(self, other):
        """What is in both sets."""
        found = SpanSet()
        mine, theirs = list(self), list(other)
        i = j = 0
        while i < len(mine) and j < len(theirs):
            start = max(mine[i][0], theirs[j][0])
            end = min(mine[i][1], theirs[j][1])
            if start < end:
                found.add(start, end)
            if mine[i][1] < theirs[j][1]:
                i += 1
            else:
                j += 1
        return found

    def difference(self, other):
        """What is in this set and not in the other."""
        left = SpanSet(self)
        for start, end in other:
            left.remove(start, end)
        return left

    def gaps(self, start=None, end=None):
        """What is between the intervals; with bounds, also what is between these and the first and last."""
        spans = list(self)
        if start is not None or end is not None:
            low = start if start is not None else (spans[0][0] if spans else end)
            high = end if end is not None else (spans[-1][1] if spans else start)
            return SpanSet([(low, high)]).difference(self)
        found = SpanSet()
        for (_, before), (after, _) in zip(spans, spans[1:]):
            found.add(before, after)
        return found

    def shift(self, by):
        """The same intervals, moved."""
        return SpanSet([(start + by, end + by) for start, end in self])

    def nearest(self, point):
        """The number in the set (or at an interval's end) that is closest to a point; the lower of two."""
        if not self._spans:
            raise ValueError("an empty set has no nearest number")
        if point in self:
            return point
        edges = [edge for span in self._spans for edge in span]
        best = edges[0]
        for edge in edges:
            if abs(edge - point) < abs(best - point):
                best = edge
        return best
