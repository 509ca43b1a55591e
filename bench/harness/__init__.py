"""How Tessera is measured: the one place that knows how to time, what an error is, how a machine is described and what
a saved result looks like. The programs in bench/ say what to measure with it.

    machine    describes this machine, the commit and the date; reads clocks and temperatures while something runs
    timing     samples of several libraries taken in turn, and what they come to
    data       the matrices that are multiplied
    errors     how far a product is from float64's
    results    the saved results: their schema, reading, writing, runs that go on where they were interrupted
    progress   what has been measured, and how long the rest will take
"""

import pathlib
import sys

# For `import binding`: tessera.h through ctypes, which the tests use, too.
sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "python/capi"))
