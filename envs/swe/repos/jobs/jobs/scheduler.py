"""Jobs at given times, in a time that only the scheduler moves."""

from jobs.queue import PriorityQueue


class Scheduler:
    """Runs jobs when their time has come."""

    def __init__(self, now=0.0):
        self.now = now
        self.log = []
        self._queue = PriorityQueue()
        self._jobs = {}
        self._next_id = 1

    def at(self, time, job, every=None):
        """Plans a job; `every` repeats it. Returns its number."""
        if time < self.now:
            raise ValueError(f"{time} is in the past")
        if every is not None and every <= 0:
            raise ValueError("a job repeats after a positive time")
        number = self._next_id
        self._next_id += 1
        self._jobs[number] = (job, every)
        self._queue.push(number, time)
        return number

    def after(self, delay, job, every=None):
        """Plans a job some time from now."""
        return self.at(self.now + delay, job, every)

    def cancel(self, number):
        """Gives up a job; says whether it was planned."""
        if number not in self._jobs:
            return False
        del self._jobs[number]
        if number in self._queue:
            self._queue.remove(number)
        return True

    def postpone(self, number, delay):
        """Moves a planned job to a later time."""
        if number not in self._queue:
            raise KeyError(number)
        times = {item: time for time, _, item in self._queue._heap}
        self._queue.change(number, times[number] + delay)

    @property
    def pending(self):
        """How many jobs are planned."""
        return len(self._queue)

    def run_until(self, end):
        """Runs all jobs up to a time, that time included, and returns how many ran."""
        ran = 0
        while self.pending:
            number, time = self._queue.peek()
            if time > end:
                break
            self._queue.pop()
            self.now = time
            job, every = self._jobs[number]
            try:
                result = job()
                self.log.append((time, number, result))
            except Exception as error:
                self.log.append((time, number, error))
            ran += 1
            if every is None:
                self._jobs.pop(number, None)
            elif number in self._jobs:
                self._queue.push(number, time + every)
        self.now = max(self.now, end)
        return ran
