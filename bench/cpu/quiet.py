"""Cores that no neighbour slows, for bench/cpu/run --quiet-cores.

On a shared machine the other half of a core may belong to somebody else; AMX, which the halves share, then runs at 0.4
x for tenths of a second. So the cores for a sample are chosen right before it, by how quick bare instructions are on
them (disturbed.c) and have been the last few times; for several threads such as keep that speed when they work at once,
which halves of one core do not. The rule knows nothing of the library whose turn it is: each gets the cores that are
best at its time.
"""

import collections
import os
import subprocess
import time

QUIET = 0.8  # of the highest rate seen: clocks take a tenth away, neighbours more than half
REMEMBERED = 8  # looks at a core that count, the last of them most
PATIENCE = 1.0  # seconds to wait for quiet cores before the least disturbed are taken


class QuietCores:
    def __init__(self, program, cores=None):
        self.program, self.cores = program, sorted(cores or os.sched_getaffinity(0))
        self.seen = {core: collections.deque(maxlen=REMEMBERED) for core in self.cores}
        self.highest, self.looks, self.quiet_looks = 0.0, 0, 0

    def rates(self, groups):
        """Of the slowest core in each group, when its cores work at once."""
        arguments = [",".join(map(str, group)) for group in groups]
        told = subprocess.run([self.program, *arguments], stdout=subprocess.PIPE, check=True).stdout
        return list(map(float, told.split()))

    def look(self):
        for core, rate in zip(self.cores, self.rates([core] for core in self.cores)):
            self.seen[core].append(rate)
            self.highest = max(self.highest, rate)

    def promise(self, core):
        """By its last rate, or by what is usual there where that is less."""
        rates = self.seen[core]
        return min(rates[-1], (sum(rates) / len(rates) + rates[-1]) / 2)

    def best(self, count):
        """That many cores, and whether they are quiet."""
        self.look()
        order = sorted(self.cores, key=self.promise, reverse=True)
        if count >= len(order):
            return order, False
        chosen, left = [order[0]], order[1:]
        for core in order[1:]:
            if len(chosen) == count or self.seen[core][-1] < QUIET * self.highest:
                break
            if self.rates([[*chosen, core]])[0] >= QUIET * self.highest:
                chosen.append(core)
                left.remove(core)
        quiet = len(chosen) == count and self.seen[chosen[0]][-1] >= QUIET * self.highest
        return (chosen + left)[:count], quiet

    def choose(self, count):
        """The cores for that many threads."""
        begin = time.monotonic()
        while True:
            chosen, quiet = self.best(count)
            if quiet or count >= len(self.cores) or time.monotonic() - begin > PATIENCE:
                self.looks += 1
                self.quiet_looks += quiet
                return chosen

    def share(self):
        """Of the choices since this was asked last, how many were quiet."""
        share = self.quiet_looks / self.looks if self.looks else 0.0
        self.looks = self.quiet_looks = 0
        return share


def move(process, cores):
    """The threads of a process to these cores, each to one of its own where there are as many: the system would bring
    two that meet on one apart too late for a short sample."""
    threads = sorted(os.listdir(f"/proc/{process}/task"), key=int)
    apart = len(threads) == len(cores)
    for i, thread in enumerate(threads):
        os.sched_setaffinity(int(thread), [cores[i]] if apart else cores)
