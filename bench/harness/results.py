"""Saved results: what a record holds, reading and writing them, and runs that go on where they were interrupted.

A result file is a JSON list of records, one for each thing measured. `what` names the kind of a record; KINDS has the
fields that each kind must have, FIELDS what they mean.
"""

import itertools
import json
import os
import pathlib
import signal
import sys

from . import machine
from .progress import Progress


class BadResults(Exception):
    """A file that cannot be used; its text says why and what to do."""


# ---- The schema -----------------------------------------------------------------------------------------------------

TEXT, COUNT, NUMBER, TRUTH = "text", "count", "number", "truth"
TYPES = {TEXT: str, COUNT: int, NUMBER: (int, float), TRUTH: bool}

FIELDS = {
    "what": (TEXT, "the kind of the record"),
    "m": (COUNT, "rows of A and C"),
    "n": (COUNT, "columns of B and C"),
    "k": (COUNT, "columns of A, rows of B"),
    "layout": (TEXT, "how A and B lie in memory: n as they are, t transposed"),
    "data": (TEXT, "what is multiplied: rand, uniform in [0, 1), or randn, standard normal; or a family of "
             "bench/harness/data.py"),
    "problem": (TEXT, "one of the five reference problems, or the series the record belongs to"),
    "precision": (TEXT, "ieee, fp32 or tf32"),
    "packed": (TRUTH, "whether B was packed beforehand"),
    "peer": (TEXT, "the library that took turns with Tessera"),
    "library": (TEXT, "whose measurement this is: tessera, with a precision where it has several, or a peer"),
    "threads": (COUNT, "CPU threads"),
    "tessera_ms": (NUMBER, "median milliseconds of one product"),
    "peer_ms": (NUMBER, "the same of the peer"),
    "speedup": (NUMBER, "the peer's time over Tessera's"),
    "tflops": (NUMBER, "2 m n k over Tessera's time"),
    "error": (NUMBER, "relative Frobenius error against float64"),
    "peer_error": (NUMBER, "the same of the peer"),
    "torch_error": (NUMBER, "the same of torch; of gradients the largest of the three"),
    "worst_units": (NUMBER, "worst error of an element, in units of 2^-24 (|A||B|); the contract allows k + 2"),
    "gflops_best": (NUMBER, "2 m n k over the shortest sample"),
    "peer_gflops": (NUMBER, "the same of the peer"),
    "ratio_to_best_peer": (NUMBER, "Tessera's rate over that of the best other library"),
    "gflops_median": (NUMBER, "the same over the median"),
    "samples": (COUNT, "samples of each library"),
    "spread": (NUMBER, "half the distance between the samples' quartiles, relative to the median"),
    "host_us": (NUMBER, "host microseconds of one call: on a GPU to queue it, on a CPU the whole product"),
    "value": (NUMBER, "the ceiling's height"),
    "unit": (TEXT, "of the value"),
    "name": (TEXT, "of the ceiling"),
    "origin": (TEXT, "how the value was measured"),
    "why": (TEXT, "why the library could not be measured"),
    "batch": (COUNT, "rows of a layer's input; items of attention's batch"),
    "kind": (TEXT, "of random products: bench/gpu/sweep.py"),
    "kernel": (TEXT, "the kernel that multiplies"),
    "padding": (COUNT, "floats behind each line of A and B"),
    "limit_share": (NUMBER, "the least time that the copy rate and the tensor cores allow, over Tessera's"),
    "yardstick_us": (NUMBER, "of copies of both operands and three of cuBLAS's fp16 products"),
    "seed": (COUNT, "of random shapes"),
    "heads": (COUNT, "of queries"),
    "kv_heads": (COUNT, "of keys and values"),
    "q_length": (COUNT, "queries of a head"),
    "k_length": (COUNT, "keys of a head"),
    "dim": (COUNT, "dimension of queries, keys and values"),
    "causal": (TRUTH, "whether query i sees keys 0 to i only"),
    "mask": (TEXT, "none"),
    "direction": (TEXT, "forward or backward, with all three gradients"),
    "in": (COUNT, "features in"),
    "out": (COUNT, "features out"),
    "taken": (TRUTH, "whether the drop-in took the layer or attention, or left it to torch"),
    "tessera_us": (NUMBER, "microseconds of Tessera's product or attention"),
    "torch_us": (NUMBER, "of torch's"),
    "c_library_us": (NUMBER, "of the C library by itself"),
    "packed_us": (NUMBER, "of Tessera's with B packed beforehand"),
    "fp16_third_us": (NUMBER, "three times cuBLAS's fp16 product of the same size, sizes rounded up to multiples of 8"),
    "clock_mhz": (NUMBER, "clock of the GPU's SMs, while Tessera's fp32 ran where several libraries were measured"),
    "watts": (NUMBER, "power of the GPU, likewise"),
    "drop_in_us": (NUMBER, "of the layer with the drop-in on"),
    "always_us": (NUMBER, "with it taking everything"),
    "always_speedup": (NUMBER, "torch's time over that"),
    "of_c_library": (NUMBER, "the C library's time over tessera.matmul's"),
    "gpu_ms_best": (NUMBER, "milliseconds of a product from and to host memory"),
    "copies_alone_ms": (NUMBER, "of its copies by themselves"),
    "ratio_to_copies": (NUMBER, "the one over the other"),
    "cpu_ms_best": (NUMBER, "milliseconds of the CPU engine"),
    "speedup_over_cpu": (NUMBER, "its time over the GPU's"),
    "nanoseconds_best": (NUMBER, "of one call"),
    "operand": (TEXT, "a or b"),
    "rows": (COUNT, "of A, or columns of B, that are packed"),
    "pack_us": (NUMBER, "microseconds of packing an operand by itself"),
    "copy_us": (NUMBER, "of copying a matrix of its size"),
    "of_copy": (NUMBER, "the latter over the former"),
    "program": (TEXT, "the program that calls a BLAS"),
    "own_blas": (TEXT, "the BLAS it has by itself"),
    "seconds_own": (NUMBER, "of a product with that"),
    "seconds_tessera": (NUMBER, "with Tessera's"),
    "model": (TEXT, "the model that is trained, and its batch"),
    "compiled": (TRUTH, "whether steps ran under torch.compile; products are measured without"),
    "step_torch_ms": (NUMBER, "milliseconds of a step with torch float32"),
    "step_tf32_ms": (NUMBER, "with torch TF32"),
    "step_tessera_ms": (NUMBER, "with tessera.enable()"),
    "loss_difference_tf32": (NUMBER, "largest relative difference of TF32's losses from float32's"),
    "loss_difference_tessera": (NUMBER, "of Tessera's"),
    "gpu": (TEXT, "the GPU"),
    "driver": (TEXT, "its driver"),
    "torch": (TEXT, "version"),
    "machine": (TEXT, "the processor"),
    "host": (TEXT, "which machine of its model, as a number"),
    "commit": (TEXT, "of Tessera"),
    "date": (TEXT, "of the measurement"),
}

# The fields of each kind of record.
KINDS = {
    # Tessera beside one peer on a GPU (bench/gpu/compare.py)
    "product": "m n k problem layout data precision packed peer tessera_ms peer_ms speedup tflops error peer_error gpu "
               "driver torch commit date",
    # packing one operand of a reference problem, in turns with a copy on the device
    "packing": "problem operand layout rows k precision pack_us copy_us of_copy gpu commit date",
    # each library alone on a GPU for a second and more (bench/gpu/sustained.py)
    "sustained": "m n k layout data torch_us tessera_us packed_us fp16_third_us clock_mhz watts gpu driver torch "
                 "commit date",
    # one library's rate on one problem, measured in turns with the others
    "library": "m n k library layout gflops_best gflops_median samples commit date",
    # one library's error on one family of data
    "accuracy": "m n k library data error worst_units commit date",
    # one library's cost of a call on a small product
    "call": "m n k library host_us commit date",
    # what the hardware can do at most, as measured
    "ceiling": "name value unit origin",
    # a peer that is not on this machine
    "absent": "library why",
    # a module of kernelbench/ by KernelBench's own measure
    "module": "problem precision speedup error gpu commit date",
    # host time of tessera.matmul beside torch.matmul (bench/pytorch/compare.py)
    "host": "m n k precision tessera_us torch_us gpu torch commit date",
    # a reference problem through tessera.matmul, beside the C library and torch
    "reference": "m n k problem layout tessera_us c_library_us torch_us of_c_library gpu torch commit date",
    # an nn.Linear with and without the drop-in
    "linear": "batch in out taken torch_us drop_in_us always_us speedup always_speedup gpu torch commit date",
    # random products beside torch (bench/gpu/sweep.py)
    "sweep": "kind batch m n k layout padding torch_us tessera_us speedup limit_share kernel worst_units seed gpu "
             "torch commit date",
    # one of them: errors on uniform or on normal data
    "sweep accuracy": "kind batch m n k layout padding data error torch_error kernel seed gpu torch commit date",
    # random products on the CPU beside the best of the other libraries (bench/cpu/sweep.py)
    "cpu_sweep": "m n k layout threads seed gflops_best peer peer_gflops ratio_to_best_peer samples machine commit "
                 "date",
    # float32 attention beside torch's efficient attention (bench/gpu/attention.py)
    "attention": "problem batch heads kv_heads q_length k_length dim causal mask direction taken torch_us tessera_us "
                 "speedup error torch_error gpu torch commit date",
    # training steps of a model, and, if eager, their products (bench/pytorch/models.py)
    "model": "model compiled step_torch_ms step_tf32_ms step_tessera_ms loss_difference_tf32 loss_difference_tessera "
             "gpu torch commit date",
    # a product that is not a model's, beside copies and three fp16 products (bench/pytorch/models.py)
    "product alone": "batch m n k layout torch_us tessera_us yardstick_us gpu torch commit date",
    # sgemm_ on matrices in host memory, by a GPU (bench/gpu/offload.py)
    "offload": "n gpu_ms_best copies_alone_ms ratio_to_copies cpu_ms_best speedup_over_cpu samples machine commit date",
    # cblas_sgemm beside tsr_gemm and OpenBLAS, on small products
    "cblas_sgemm": "library n layout threads nanoseconds_best gflops_best machine commit date",
    # a program with its own BLAS and with Tessera's (bench/blas/programs.py)
    "program": "program n seconds_own seconds_tessera own_blas machine commit date",
}


def check(record, where):
    if not isinstance(record, dict) or not isinstance(record.get("what"), str):
        raise BadResults(f"{where} does not say what it is: it was written by another version of Tessera; "
                         "measure again with this one")
    kind = record["what"]
    if kind not in KINDS:
        raise BadResults(f"{where} is of a kind this version does not know, \"{kind}\" (it knows {', '.join(KINDS)}): "
                         "measure again, or read it with the version that wrote it")
    for field in KINDS[kind].split():
        # The modules' `problem` is KernelBench's number.
        expected = (str, int) if field == "problem" else TYPES[FIELDS[field][0]]
        if field not in record:
            raise BadResults(f"{where}, a record of the kind \"{kind}\", has no \"{field}\": it was written by another "
                             "version of Tessera; measure again with this one")
        if not isinstance(record[field], expected) or (isinstance(record[field], bool) and expected is not bool):
            raise BadResults(f"{where} has {json.dumps(record[field])} as its \"{field}\", "
                             f"which should be a {FIELDS[field][0]}: measure again")


def parse(text, name):
    try:
        records = json.loads(text)
    except json.JSONDecodeError as error:
        if not text[error.pos:].strip() or not text.strip().endswith(("]", "}")):
            raise BadResults(
                f"{name} ends in the middle (line {error.lineno}): it is not whole; measure again, or take it from git"
            ) from None
        raise BadResults(
            f"{name} is not JSON (line {error.lineno}: {error.msg}): measure again, or take it from git") from None
    if not isinstance(records, list):
        raise BadResults(f"{name} is no list of records: it was written by something else than Tessera's benchmarks")
    if not records:
        raise BadResults(f"{name} has no records: measure again")
    for number, record in enumerate(records, 1):
        check(record, f"{name}, record {number},")
    return records


def load(path):
    """The records of a file, checked."""
    path = pathlib.Path(path)
    try:
        text = path.read_text()
    except FileNotFoundError:
        raise BadResults(f"there is no {path}: `make bench-cpu` or `make bench-gpu` measures this machine") from None
    except (OSError, UnicodeDecodeError) as error:
        raise BadResults(f"{path} cannot be read: {error}") from None
    return parse(text, path.name)


def machine_of(record):
    """The name of what was measured: the GPU where there was one."""
    return record.get("gpu") or record.get("machine")


# ---- Writing --------------------------------------------------------------------------------------------------------

def write(path, text):
    """Whole or not at all."""
    path = pathlib.Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(path.name + ".unfinished")
    partial.write_text(text)
    partial.replace(path)


def save(path, records):
    """One line for each series of products."""
    def series(record):
        return [record.get(field) for field in ("what", "problem", "threads")]

    lines = [", ".join(map(json.dumps, group)) for _, group in itertools.groupby(records, series)]
    write(path, "[\n" + ",\n".join(lines) + "\n]\n")


class Run:
    """A list of jobs, measured one after the other. What has been measured is noted in FILE.partial, a line a job;
    where that is of the same run (machine, commit, what was asked for) the jobs in it are not measured again.

        run = Run(FILE or None, about, asked)
        records = run.measure(jobs, weight, measure)

    weight(job) is how many seconds a job takes at least; their sum is said beforehand. measure(job) returns its
    records, to which `about` is added, and the line to show for it."""
    def __init__(self, path, about, asked=""):
        self.path, self.about = pathlib.Path(path) if path else None, about
        self.identity = {"asked": str(asked), **{name: value for name, value in about.items() if name != "date"}}
        self.journal = self.path.with_name(self.path.name + ".partial") if path else None
        self.done = self.resume() if path else {}

    def resume(self):
        if not self.journal.exists():
            return {}
        done, lines = {}, self.journal.read_text().splitlines()
        try:
            if json.loads(lines[0]) != self.identity:
                print(f"{self.journal.name} is of another run (machine, commit or options differ): starting anew")
                return {}
            for line in lines[1:]:
                noted = json.loads(line)
                done[noted["job"]] = noted["records"]
        except (IndexError, json.JSONDecodeError):
            pass  # interrupted while writing: what is whole counts
        if done:
            print(f"{len(done)} measurements of a run that was interrupted are there already; the rest follows")
        return done

    def note(self, value, begin=False):
        if self.journal:
            self.journal.parent.mkdir(parents=True, exist_ok=True)
            with open(self.journal, "w" if begin else "a") as file:
                file.write(json.dumps(value) + "\n")

    def measure(self, jobs, weight, measure):
        progress = Progress([weight(job) for job in jobs])
        left = sum(weight(job) for job in jobs if json.dumps(job) not in self.done)
        print(f"{len(jobs)} measurements: {Progress.words(left)} at least, longer if the machine is busy", flush=True)
        self.note(self.identity, begin=True)
        for job, records in self.done.items():
            self.note({"job": job, "records": records})
        records = []

        def end(*_):
            raise KeyboardInterrupt

        signal.signal(signal.SIGTERM, end)
        try:
            for job in jobs:
                key = json.dumps(job)
                if key in self.done:
                    records += self.done[key]
                    progress.skip(weight(job))
                    continue
                made, line = measure(job)
                made = [{**record, **self.about} for record in made]
                self.note({"job": key, "records": made})
                records += made
                progress.step(weight(job), line)
        except KeyboardInterrupt:
            sys.exit("\ninterrupted" +
                     (f": what was measured is kept in {self.journal}; the same command goes on from there" if self.
                      journal else ""))
        return records

    def finish(self, records):
        if self.path:
            save(self.path, records)
            self.journal.unlink(missing_ok=True)
            print(f"{len(records)} records in {self.path}")


def default_path(topic, name):
    """bench/results/TOPIC-MACHINE.json, or in the folder that TESSERA_RESULTS names."""
    folder = pathlib.Path(os.environ.get("TESSERA_RESULTS") or machine.ROOT / "bench/results")
    return folder / ("-".join(filter(None, [topic, machine.slug(name)])) + ".json")
