"""Samples of several libraries, taken in turn, and what they come to.

Turns, because a machine's clocks and neighbours change from second to second: what is measured in turns is slowed
alike. Whoever takes a round calls everything once before the first, so that nothing is timed that happens once
(loading, tuning, page faults).
"""

import statistics
import time

LEAST_ROUNDS = 7


class Timing:
    """Samples of one library, each the seconds of one call."""

    def __init__(self, samples):
        self.samples = samples
        self.median, self.best = statistics.median(samples), min(samples)

    @property
    def spread(self):
        """Half the distance between the quartiles, relative to the median."""
        if len(self.samples) < 2:
            return 0.0
        low, _, high = statistics.quantiles(self.samples, n=4)
        return (high - low) / 2 / self.median


def interleaved(take_round, seconds, least=LEAST_ROUNDS, most=10**9):
    """The Timing of each library. take_round(halfway) takes one sample of each and returns their seconds; halfway is
    true once, in the middle, for the time to read clocks is while they run. Rounds follow for that many seconds, though
    never fewer than `least` nor more than `most`."""
    rounds, begin, middle_passed = [], time.monotonic(), False
    while len(rounds) < most:
        passed = time.monotonic() - begin
        if passed >= seconds and len(rounds) >= least:
            break
        halfway = not middle_passed and (passed >= seconds / 2 or len(rounds) + 1 >= most)
        middle_passed |= halfway
        rounds.append(take_round(halfway))
    return [Timing(samples) for samples in zip(*rounds)]


def host_microseconds(function, synchronize, calls=50, samples=20):
    """Host time of one call of a function that queues work: so few calls to a sample that the queue never fills."""
    taken = []
    for _ in range(samples):
        synchronize()
        begin = time.perf_counter()
        for _ in range(calls):
            function()
        taken.append((time.perf_counter() - begin) / calls * 1e6)
    synchronize()
    return statistics.median(taken)
