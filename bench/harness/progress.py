"""What has been measured, and how long the rest will take."""

import sys
import time


class Progress:
    """Lines of what was measured, each with the time that is left. Jobs weigh what they are expected to take, in any
    unit."""

    def __init__(self, weights, stream=None):
        self.total, self.done, self.stream = sum(weights), 0.0, stream or sys.stdout
        self.begun, self.timed = time.monotonic(), 0.0

    def skip(self, weight):
        """A job that a run before this one has done."""
        self.done += weight

    def step(self, weight, line):
        self.done += weight
        self.timed += weight
        left = (time.monotonic() - self.begun) / self.timed * (self.total - self.done) if self.timed else 0.0
        print(f"{line}  [{self.words(left)} left]", file=self.stream, flush=True)

    @staticmethod
    def words(seconds):
        return f"{seconds:.0f} s" if seconds < 100 else f"{seconds / 60:.0f} min"
