"""A binary heap that knows where each item is."""


class PriorityQueue:
    """Items by priority, the smallest first; of equal ones, the one that came first. Each item is in it once."""

    def __init__(self):
        self._heap = []
        self._places = {}
        self._count = 0

    def __len__(self):
        return len(self._heap)

    def __contains__(self, item):
        return item in self._places

    def push(self, item, priority):
        """Adds an item."""
        if item in self._places:
            raise ValueError(f"{item!r} is already queued")
        self._count += 1
        self._heap.append((priority, self._count, item))
        self._places[item] = len(self._heap) - 1
        self._up(len(self._heap) - 1)

    def peek(self):
        """The first item and its priority."""
        if not self._heap:
            raise IndexError("the queue is empty")
        priority, _, item = self._heap[0]
        return item, priority

    def pop(self):
        """Takes the first item out; returns it and its priority."""
        item, priority = self.peek()
        self.remove(item)
        return item, priority

    def remove(self, item):
        """Takes any item out."""
        at = self._places.pop(item)
        last = self._heap.pop()
        if at < len(self._heap):
            self._put(at, last)
            self._down(at)
            self._up(at)

    def change(self, item, priority):
        """Gives an item another priority; it keeps its turn among equal ones."""
        at = self._places[item]
        _, count, _ = self._heap[at]
        self._put(at, (priority, count, item))
        self._down(at)
        self._up(at)

    def _put(self, at, entry):
        self._heap[at] = entry
        self._places[entry[2]] = at

    def _up(self, at):
        entry = self._heap[at]
        while at > 0:
            parent = (at - 1) // 2
            if self._heap[parent][:2] <= entry[:2]:
                break
            self._put(at, self._heap[parent])
            at = parent
        self._put(at, entry)

    def _down(self, at):
        entry = self._heap[at]
        size = len(self._heap)
        while True:
            child = 2 * at + 1
            if child >= size:
                break
            if child + 1 < size and self._heap[child + 1][:2] < self._heap[child][:2]:
                child += 1
            if self._heap[child][:2] >= entry[:2]:
                break
            self._put(at, self._heap[child])
            at = child
        self._put(at, entry)


def merge(*streams):
    """One sorted list of several; of equal values, those of the earlier stream come first."""
    queue = PriorityQueue()
    found = []
    for number, stream in enumerate(streams):
        if stream:
            queue.push((number, 0), (stream[0], number))
    while len(queue):
        (number, at), (value, _) = queue.pop()
        found.append(value)
        if at + 1 < len(streams[number]):
            queue.push((number, at + 1), (streams[number][at + 1], number))
    return found
