"""Tessera's CPU engine beside OpenBLAS, BLIS, oneDNN and MKL, interleaved in one run: rates by size, layout and
threads, the cost of small products, accuracy against K, and what the machine can do at most.

    bench/cpu/run BUILD [--quick] [--peer NAME]... [--threads N]... [--shape M,N,K]... [--layout nn]...
                        [--topic TOPIC]... [--quiet-cores] [--save FILE]

Each library has a process of its own (library.c). They take turns: all but one are stopped, so that no library's idle
threads spin on the cores another is being timed on. For each problem a process makes fresh matrices, several sets of
them, together twice the last-level cache, and goes round the sets, so that every call finds its operands in memory;
only products of the topics `calls` and `squares` stay in the caches. A batch is one call where the library has a
function for it, else a call for each product.

Debian's OpenBLAS and BLIS do not know newer chips and fall back to kernels several times slower, so where there is
AVX-512 they are told which to take. An interrupted run goes on where it was.
"""

import argparse
import importlib.metadata
import importlib.util
import os
import pathlib
import signal
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "bench"))
from harness import data, errors, machine, results, timing  # noqa: E402

import quiet  # noqa: E402
from binding import PRECISIONS  # noqa: E402

# In all layouts, by the name of their series.
LARGE = [(1024, 1024, 1024), (1031, 743, 517), (2048, 2048, 2048), (4096, 4096, 4096), (2048, 4096, 8192)]
STANDING = [("layouts", shape) for shape in [*LARGE, (8205, 5921, 2949)]]
STANDING += [("thin", shape) for shape in [(8192, 32, 512), (32, 8192, 512), (256, 256, 16384), (8192, 8192, 32)]]
STANDING += [("vectors", shape) for shape in [(1, 4096, 4096), (4096, 1, 4096)]]
BATCHES = [(1000, 16), (1000, 32)]  # products, and the size of each
CACHED_SQUARES = sorted({*range(4, 257, 4), *range(7, 258, 10)})
SQUARES = (64, 128, 256, 512, 1024, 2048)
LAYOUTS = ("nn", "tn", "nt", "tt")
SMALL = (2, 4, 8, 16, 32, 64, 128)
BLAS_SIZES = (2, 4, 8, 16, 32, 48, 64, 96, 128, 256, 512, 1024, 2048)
BLAS = {"cblas_sgemm": "tessera blas", "tsr_gemm": "tessera", "openblas": "openblas"}  # library of each function
DEPTHS = (64, 256, 1024, 4096, 16384, 65536)
IN_CACHES = "squares in the caches"
EDGE = 128  # rows and columns of the products whose accuracy is measured
TOPICS = ("ceilings", "rates", "squares", "calls", "accuracy")  # and, only where it is asked for, "blas"

# A sample lasts at least this long, so that it shows a library at work and not its threads being woken.
SAMPLE_SECONDS = 0.02
MOST_SAMPLES = 64
QUICK_FLOPS = 5e10  # a quick run leaves out larger products
LONG_FLOPS = 1e11  # of larger ones a single thread computes only one layout: a round of all libraries takes a minute


# ---- The libraries --------------------------------------------------------------------------------------------------

def file_of_distribution(name, beginning):
    """A shared library that came with a package of PyPI."""
    try:
        files = importlib.metadata.files(name) or []
    except importlib.metadata.PackageNotFoundError:
        return []
    return [str(file.locate().resolve()) for file in files if file.name.startswith(beginning)]


def file_of_torch():
    found = importlib.util.find_spec("torch")
    return [str(pathlib.Path(found.origin).parent / "lib/libtorch_cpu.so")] if found and found.origin else []


def environments(threads):
    skylake = " avx512f " in machine.read("/proc/cpuinfo")
    count = str(threads)
    return {"tessera blas": {"TESSERA_NUM_THREADS": count, "TESSERA_DEVICE": "cpu"},
            "openblas": {"OPENBLAS_NUM_THREADS": count, **({"OPENBLAS_CORETYPE": "SkylakeX"} if skylake else {})},
            "blis": {"BLIS_NUM_THREADS": count, **({"BLIS_ARCH_TYPE": "0"} if skylake else {})},
            "onednn": {"OMP_NUM_THREADS": count},
            "mkl": {"OMP_NUM_THREADS": count, "MKL_NUM_THREADS": count, "MKL_THREADING_LAYER": "GNU"}}


def ways(precision, build):
    """How each library may be found and called: style and function of library.c, and the files to try."""
    return {
        "tessera": [("tessera", precision, [])],
        "tessera blas": [("cblas", "cblas_sgemm", [str(build / "libtessera_blas.so")])],
        "openblas": [("cblas", "cblas_sgemm", ["libopenblas.so.0", "libopenblas.so"]),
                     ("cblas64", "scipy_cblas_sgemm64_", file_of_distribution("numpy", "libscipy_openblas64_"))],
        "blis": [("cblas", "cblas_sgemm", ["libblis.so.4", "libblis.so"])],
        "onednn": [("dnnl", "dnnl_sgemm", ["libdnnl.so.3", "libdnnl.so.2", "libdnnl.so"])],
        # torch's own builds carry MKL inside; Debian's does not, and has no function of this name.
        "mkl": [("cblas", "cblas_sgemm", [
            *file_of_distribution("mkl", "libmkl_rt.so"), "libmkl_rt.so.3", "libmkl_rt.so.2", "libmkl_rt.so"
        ]), ("fortran", "SGEMM", file_of_torch())],
    }


class Library:
    """A library's process; `version` is None where the library is not here, and `why` says why."""

    def __init__(self, program, name, precision, threads):
        self.name, self.version, self.why = name, None, "none of its files is here"
        for style, function, files in ways(precision, program.parent)[name]:
            self.process = subprocess.Popen([program, style, function, str(threads), *files], stdin=subprocess.PIPE,
                                            stdout=subprocess.PIPE,
                                            env={**os.environ, **environments(threads).get(name, {})})
            word, _, rest = self.process.stdout.readline().decode().strip().partition(" ")
            if word == "here":
                self.version = rest
                self.process.send_signal(signal.SIGSTOP)
                return
            self.why = rest or "its process ended"
            self.end()

    def end(self):
        self.process.stdin.close()
        self.process.send_signal(signal.SIGCONT)
        self.process.wait()

    def ask(self, line, *matrices, answer=None):
        """The number it answers with, or that many bytes."""
        self.process.send_signal(signal.SIGCONT)
        self.process.stdin.write(line.encode() + b"\n" + b"".join(matrices))
        self.process.stdin.flush()
        said = self.process.stdout.read(answer) if answer else self.process.stdout.readline()
        self.process.send_signal(signal.SIGSTOP)
        if not said:
            raise results.BadResults(f"the process of {self.name} ended at the request: {line}")
        return said if answer else float(said)

    def set_up(self, m, n, k, layout, batch, sets):
        self.call = self.ask(f"problem {m} {n} {k} {layout} {batch} {sets}")
        if not self.call:
            raise results.BadResults(f"{self.name}: a wrong result at {m} x {n} x {k} {layout}")
        self.calls = int(SAMPLE_SECONDS / self.call) + 1 if self.call < SAMPLE_SECONDS else 1

    def sample(self):
        seconds = self.ask(f"time {int(self.call < 10 * SAMPLE_SECONDS)} {self.calls}") / self.calls
        self.call = seconds
        return seconds


class Libraries:
    """The processes of all libraries, started anew when the number of threads changes. cores: a QuietCores, or None."""

    def __init__(self, program, names, precision="fp32", cores=None):
        self.program, self.names, self.precision = program, names, precision
        self.threads, self.here, self.absent = None, [], {}
        self.cores = cores

    def with_threads(self, threads):
        if threads != self.threads:
            self.end()
            started = [Library(self.program, name, self.precision, threads) for name in self.names]
            self.here, self.threads = [library for library in started if library.version is not None], threads
            self.absent = {library.name: library.why for library in started if library.version is None}
        return self.here

    def sample(self, library):
        if self.cores:
            quiet.move(library.process.pid, self.cores.choose(self.threads))
        return library.sample()

    def end(self):
        for library in self.here:
            library.end()
        self.here = []


# ---- What is measured -----------------------------------------------------------------------------------------------

def bytes_of(m, n, k):
    return 4 * (m * k + k * n + m * n)


def sets_beyond_cache(m, n, k, batch):
    total = 2 * machine.last_cache() or 64 << 20
    return total // (batch * bytes_of(m, n, k)) + 1


def measure_rate(libraries, effort, problem, m, n, k, layout, threads, batch=1):
    here, cached = libraries.with_threads(threads), problem == IN_CACHES
    for library in here:
        library.set_up(m, n, k, layout, batch, 1 if cached else sets_beyond_cache(m, n, k, batch))
    state = {}

    def take_round(halfway):
        samples = [libraries.sample(library) for library in here]
        if halfway:
            state.update(machine.processor_state())
        return samples

    timings = timing.interleaved(take_round, effort.seconds / 4 if cached else effort.seconds, effort.least,
                                 MOST_SAMPLES)
    flops = 2e-9 * batch * m * n * k
    if problem == "vectors":
        state["bytes"] = bytes_of(m, n, k)
    if batch > 1:
        state["batch"] = batch
    if libraries.cores:
        state["quiet"] = round(libraries.cores.share(), 3)  # of the samples
    records = [{
        "what": "library", "library": library.name, "problem": problem, "m": m, "n": n, "k": k, "layout": layout,
        "threads": threads, "gflops_best": round(flops / t.best, 2), "gflops_median": round(flops / t.median, 2),
        "samples": len(t.samples), "spread": round(t.spread, 4), "version": library.version, **state
    } for library, t in zip(here, timings)]
    peers = [r["gflops_best"] for r in records if r["library"] != "tessera"]
    ratio = ""
    for r in records:
        if r["library"] == "tessera" and peers:
            r["ratio_to_best_peer"] = round(r["gflops_best"] / max(peers), 3)
            ratio = f"  {r['ratio_to_best_peer']:.3f} of the best"
    if libraries.cores:
        ratio += f", quiet in {100 * state['quiet']:.0f} %"
    return records, (
        f"{threads:3d} threads {f'{batch} of ' if batch > 1 else ''}{m:5d} {n:5d} {k:5d} {layout}  GFLOP/s: " +
        "  ".join(f"{r['library']} {r['gflops_best']:.1f}" for r in records) + ratio)


def time_in_caches(libraries, chosen, effort, size, layout, seconds):
    """Of some of the libraries, on squares that stay in the caches."""
    for library in chosen:
        library.set_up(size, size, size, layout, 1, 1)
    return timing.interleaved(lambda halfway: [libraries.sample(library) for library in chosen], seconds, effort.least,
                              MOST_SAMPLES)


def measure_call(libraries, effort, size):
    here = libraries.with_threads(1)
    timings = time_in_caches(libraries, here, effort, size, "nn", effort.seconds / 2)
    records = [{
        "what": "call", "library": library.name, "m": size, "n": size, "k": size, "threads": 1,
        "host_us": float(f"{1e6 * t.best:.4g}"), "version": library.version
    } for library, t in zip(here, timings)]
    return records, f"{size:3d}^3 in the caches, us: " + "  ".join(f"{r['library']} {r['host_us']:.3g}"
                                                                   for r in records)


def measure_blas(libraries, effort, size, layout):
    """The standard's interface beside the library's own."""
    here = {library.name: library for library in libraries.with_threads(1)}
    functions = [function for function, name in BLAS.items() if name in here]
    chosen = [here[BLAS[function]] for function in functions]
    timings = time_in_caches(libraries, chosen, effort, size, layout, effort.seconds / 4)
    records = [{
        "what": "cblas_sgemm", "library": function, "n": size, "layout": layout, "threads": 1,
        "nanoseconds_best": round(1e9 * t.best, 1), "gflops_best": round(2e-9 * size**3 / t.best, 2)
    } for function, t in zip(functions, timings)]
    return records, f"{size:4d}^3 {layout}, ns: " + "  ".join(f"{r['library']} {r['nanoseconds_best']:.0f}"
                                                              for r in records)


def measure_accuracy(libraries, _effort, family, k):
    import numpy
    here, (a, b) = libraries.with_threads(1), data.matrices(family, k, (EDGE, k), (k, EDGE))
    products = [
        numpy.frombuffer(library.ask(f"product {EDGE} {EDGE} {k}", a.tobytes(), b.tobytes(), answer=4 * EDGE * EDGE),
                         numpy.float32).reshape(EDGE, EDGE) for library in here
    ]
    records = [{
        "what": "accuracy", "library": library.name, "m": EDGE, "n": EDGE, "k": k, "data": family,
        "error": float(f"{error:.3e}"), "worst_units": float(f"{worst:.3g}"), "version": library.version
    } for library, (error, worst) in zip(here, errors.measure(products, a, b))]
    return records, f"{family:8s} K {k:5d}  errors: " + "  ".join(f"{r['library']} {r['error']:.1e}" for r in records)


def measure_ceilings(program, threads):
    rate, bandwidth = map(
        float,
        subprocess.run([program, str(threads)], capture_output=True, text=True, check=True).stdout.split())
    return [{"what": "ceiling", "name": "multiply-adds", "value": rate, "unit": "GFLOP/s", "threads": threads,
             "origin": "chains of multiply-adds in registers (bench/cpu/ceilings.c)"},
            {"what": "ceiling", "name": "reading", "value": bandwidth, "unit": "GB/s", "threads": threads,
             "origin": "sums over memory beyond the caches (bench/cpu/ceilings.c)"}], (
                 f"{threads:3d} threads: at most {rate:.0f} GFLOP/s, {bandwidth:.1f} GB/s read")


class Effort:
    def __init__(self, quick, seconds):
        self.name = "quick" if quick else "full"
        self.seconds, self.least = seconds or (0.4 if quick else 2.0), 2 if quick else 3


def thread_counts():
    """1, 2, 4 ... and all cores."""
    most = machine.cores()
    return sorted({1, most, *(1 << i for i in range(most.bit_length()) if 1 << i <= most)})


def rate_jobs(options):
    counts = options.threads or sorted({1, machine.cores()})
    if options.shape:
        return [["rates", "chosen", *shape, layout, threads] for threads in counts for shape in options.shape
                for layout in options.layout or LAYOUTS]
    jobs = []
    for threads in options.threads or thread_counts():
        if threads in counts:
            jobs += [["rates", "squares", size, size, size, "nn", threads] for size in SQUARES]
            few = ("nn",) if options.quick else LAYOUTS
            jobs += [["rates", series, *shape, layout, threads] for series, shape in STANDING
                     for layout in (LAYOUTS if series == "layouts" else few)]
            jobs += [["rates", "batches", size, size, size, layout, threads, batch] for batch, size in BATCHES
                     for layout in few]
        else:
            jobs.append(["rates", "squares", 2048, 2048, 2048, "nn", threads])
        if threads == max(counts):
            jobs += [["rates", *problem, threads] for problem in data.REFERENCE]
    jobs = [job for job in jobs if job[5] == "nn" or job[6] > 1 or 2.0 * job[2] * job[3] * job[4] <= LONG_FLOPS]
    if options.quick:
        jobs = [job for job in jobs if 2.0 * job[2] * job[3] * job[4] <= QUICK_FLOPS]
    return without_repeats(jobs)


def square_jobs(options):
    """In a quick run, and beyond the least and the most threads, none: `calls` has some of them."""
    return [] if options.quick else [["squares", IN_CACHES, size, size, size, layout, threads]
                                     for threads in options.threads or sorted({1, machine.cores()})
                                     for size in CACHED_SQUARES for layout in options.layout or LAYOUTS]


def without_repeats(jobs):
    """A reference problem that is also one of another series is measured once, under its own name."""
    named = {tuple(job[2:]): job for job in jobs}  # the last of a kind has the better name
    return list(dict.fromkeys(map(tuple, (named[tuple(job[2:])] for job in jobs))))


def jobs_of(options):
    """In an order that starts each library anew as seldom as possible."""
    jobs = []
    for topic in options.topic or TOPICS:
        if topic == "ceilings":
            jobs += [["ceilings", threads] for threads in options.threads or thread_counts()]
        elif topic == "rates":
            jobs += map(list, rate_jobs(options))
        elif topic == "squares":
            jobs += square_jobs(options)
        elif topic == "calls":
            jobs += [["calls", size] for size in SMALL]
        elif topic == "blas":
            jobs += [["blas", size, layout] for size in BLAS_SIZES for layout in LAYOUTS]
        elif importlib.util.find_spec("numpy"):
            jobs += [["accuracy", family, k] for family in data.FAMILIES for k in DEPTHS]
        else:
            print("accuracy is left out: it needs a python3 with numpy")
    return jobs


def weight(job, libraries, effort):
    """About how many seconds a job takes."""
    if job[0] != "rates":
        return {"ceilings": 2.0, "squares": effort.seconds / 4, "blas": effort.seconds / 4,
                "calls": effort.seconds / 2, "accuracy": 0.3}[job[0]]
    call = 2e-11 * job[2] * job[3] * job[4] / job[6]
    return max(effort.seconds, (2 + effort.least) * libraries * call)


def shape(text):
    m, n, k = map(int, text.split(","))
    if min(m, n, k) < 1:
        raise ValueError(text)
    return m, n, k


def main():
    parser = argparse.ArgumentParser(description="Tessera's CPU engine beside its peers, interleaved")
    # The folder that bench/cpu/run built them in.
    parser.add_argument("programs", type=pathlib.Path, help=argparse.SUPPRESS)
    parser.add_argument("--compiler", default="unknown", help=argparse.SUPPRESS)
    parser.add_argument("--quick", action="store_true",
                        help="a minute or two: fewer samples, and not the largest problems")
    parser.add_argument("--peer", action="append", metavar="NAME",
                        help="beside Tessera only this one (may be repeated)")
    parser.add_argument("--threads", action="append", type=int, metavar="N",
                        help="this many threads (may be repeated); default 1, 2, 4 ... all")
    parser.add_argument("--shape", action="append", type=shape, metavar="M,N,K",
                        help="only this problem (may be repeated)")
    parser.add_argument("--layout", action="append", choices=LAYOUTS,
                        help="that problem in this layout (may be repeated); default all four")
    parser.add_argument("--precision", choices=PRECISIONS, default="fp32",
                        help="Tessera's (default fp32, which without AMX is computed as ieee)")
    parser.add_argument("--topic", action="append", choices=(*TOPICS, "blas"),
                        help="only this one (may be repeated)")
    parser.add_argument("--seconds", type=float, help="time for the samples of one problem (default 2, quick 0.4)")
    parser.add_argument("--quiet-cores", action="store_true",
                        help="each sample on the cores that neighbours slow least at its time (quiet.py)")
    parser.add_argument(
        "--save", metavar="FILE",
        help="where to save the records; default bench/results/cpu-MACHINE.json, for chosen shapes nowhere")
    options = parser.parse_args()
    known = [name for name in ways(options.precision, options.programs) if name != "tessera blas"]
    for name in options.peer or []:
        if name not in known:
            peers = ", ".join(peer for peer in known if peer != "tessera")
            sys.exit(f"bench/cpu: there is no peer called {name}; those known are {peers}")
    if "blas" in (options.topic or []) and options.topic != ["blas"]:
        sys.exit("bench/cpu: the topic blas has libraries of its own; measure it alone")
    if options.shape and not options.topic:
        options.topic = ["rates"]

    about, effort = {**machine.cpu(), "compiler": options.compiler}, Effort(options.quick, options.seconds)
    about.update(effort=effort.name, precision=options.precision)
    libraries = Libraries(options.programs / "bench-cpu-library",
                          list(BLAS.values()) if options.topic == ["blas"] else
                          ["tessera", *options.peer] if options.peer else known, options.precision,
                          quiet.QuietCores(options.programs / "bench-cpu-disturbed") if options.quiet_cores else None)
    print(f"{about['machine']}, {about['cores']} cores, commit {about['commit']}; here: " +
          ", ".join(f"{library.name} {library.version}"
                    for library in libraries.with_threads(min(options.threads or [1]))))
    for name, why in libraries.absent.items():
        print(f"{name} is not here: {why}")
    measures = {"rates": measure_rate, "squares": measure_rate, "calls": measure_call, "blas": measure_blas,
                "accuracy": measure_accuracy}

    def measure(job):
        if job[0] == "ceilings":
            return measure_ceilings(options.programs / "bench-cpu-ceilings", job[1])
        return measures[job[0]](libraries, effort, *job[1:])

    chosen = options.shape or options.peer or options.topic or options.threads or options.precision != "fp32"
    save = options.save or (None if chosen else results.default_path("cpu", about["machine"]))
    run = results.Run(save, about, [effort.seconds, libraries.names, options.precision, options.quiet_cores])
    try:
        records = run.measure(jobs_of(options), lambda job: weight(job, len(libraries.names), effort), measure)
        run.finish(records + [{"what": "absent", "library": name, "why": why, **about}
                              for name, why in libraries.absent.items()])
    finally:
        libraries.end()


if __name__ == "__main__":
    try:
        main()
    except results.BadResults as error:
        sys.exit(f"bench/cpu: {error}")
