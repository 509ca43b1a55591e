"""The benchmarks of bench/gpu and bench/pytorch, on stand-ins for torch.cuda: what they measure, check and save."""

import pathlib
import subprocess
import sys

from tensors import since

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "bench"))
from harness import results  # noqa: E402

pytestmark = since(2, 0)  # older ones have no fp16 products on the CPU


def run(*words):
    ran = subprocess.run([sys.executable, ROOT / "tests/pytorch/bench_without_gpu.py", *map(str, words)],
                         capture_output=True, text=True)
    assert ran.returncode == 0, ran.stderr
    return ran.stdout


def load(folder, topic):
    (path, ) = folder.glob(f"{topic}-*.json")
    return results.load(path)


def test_beside_torch(tmp_path):
    said = run("compare", "--seconds", "0.001", "--save", tmp_path / "r.json")
    assert "geometric mean" in said and "left]" in said
    records = results.load(tmp_path / "r.json")
    products = [r for r in records if r["what"] == "product"]
    packing = [r for r in records if r["what"] == "packing"]
    assert len(products) == 41 and len(packing) == 10 and len(records) == 51, "35 of the reference problems, 6 squares"
    assert {(r["operand"], r["layout"]) for r in packing} == {("a", "n"), ("a", "t"), ("b", "n"), ("b", "t")}
    assert {r["layout"] for r in products} == {"nn", "tn", "tt"}
    accurate = [r for r in products if r["precision"] != "tf32" and r["m"] > 48]
    assert accurate and all(0 < r["error"] < 1e-6 and r["worst_units"] < r["k"] + 2 for r in accurate), "all, rightly"


def test_beside_every_library(tmp_path, monkeypatch):
    monkeypatch.setenv("TESSERA_RESULTS", str(tmp_path))
    said = run("survey", "--seconds", "0.001", "--topic", "peers", "--topic", "accuracy", "--topic", "overhead")
    absent = {r["library"] for r in load(tmp_path, "peers") if r["what"] == "absent"}
    assert "torch float32" not in absent and all(f"{name} is not here" in said for name in absent)
    accuracy = [r for r in load(tmp_path, "accuracy") if r["what"] == "accuracy"]
    assert {r["data"] for r in accuracy} == {"uniform", "normal", "wide"}
    assert all(r["worst_units"] < r["k"] + 2 for r in accuracy)
    assert {"tessera fp32", "torch TF32"} <= {r["library"] for r in load(tmp_path, "overhead")}


def test_from_host_memory(tmp_path):
    run("offload", 40, 64, "--save", tmp_path / "r.json")
    records = results.load(tmp_path / "r.json")
    assert [r["n"] for r in records] == [40, 64] and all(r["gpu_ms_best"] > 0 for r in records)


def test_each_library_alone(tmp_path):
    said = run("sustained", "--seconds", "0.001", "--save", tmp_path / "r.json")
    records = results.load(tmp_path / "r.json")
    assert len(records) == 12 and "left]" in said, "five reference problems and a large one, two kinds of data"
    assert {(r["problem"], r["data"]) for r in records} >= {("transposed both", "randn"), ("64 cubed", "rand")}
    assert all(r["clock_mhz"] == 1500 and r["watts"] == 700 for r in records)
    assert all(min(r["torch_us"], r["tessera_us"], r["packed_us"], r["fp16_third_us"]) > 0 for r in records)


def test_through_the_package(tmp_path):
    said = run("package", "--seconds", "0.001", "--save", tmp_path / "r.json")
    records = results.load(tmp_path / "r.json")
    layers = [r for r in records if r["what"] == "linear"]
    assert len(layers) == 2 and len(records) == 9 and "left]" in said, (
        "2 host times, 5 of the reference problems, 2 layers")
    assert {r["batch"]: r["taken"] for r in layers} == {1: False, 64: True} and all(
                ("torch_beside_itself" in r) != r["taken"] for r in layers)


def test_attention(tmp_path):
    said = run("attention", "--sweep", "8", "--seconds", "0.001", "--save", tmp_path / "r.json")
    records = results.load(tmp_path / "r.json")
    assert len(records) == 2 * (6 + 8) and "bars, backward: geometric mean" in said and "left]" in said
    assert [r["direction"] for r in records[:2]] == ["forward", "backward"]
    assert all(0 <= r["error"] == r["torch_error"] < 2e-6 for r in records if r["k_length"] > 1), "both are Tessera's"
    assert all(r["dim"] % 4 == 0 and 16 <= r["dim"] <= 256 for r in records)


def test_models(tmp_path):
    """Each product of a step is found, the backward pass's and those of second derivatives among them."""
    said = run("models", "--seconds", "0.001", "--quick", "--tf32", "--yardstick", "--products", "--save",
               tmp_path / "r.json")
    pinn, encoder = results.load(tmp_path / "r.json")
    assert "products" in said and (pinn["model"], encoder["model"]) == ("PINN", "encoder layer")
    shapes = {(r["m"], r["n"], r["k"]) for r in encoder["products"]}
    forward = {(10, 96, 32), (10, 32, 32), (10, 2048, 32), (10, 32, 2048)}  # tokens, out, in
    backward = {(m, k, n) for m, n, k in forward} - {(10, 32, 96)}  # its input needs no gradient
    assert shapes >= forward | backward | {(n, k, m) for m, n, k in forward}
    assert sum(r["count"] for r in pinn["products"] if (r["m"], r["n"], r["k"]) == (30, 40, 40)) > 6
    for record in (pinn, encoder):
        assert record["products_limit_ms"] >= sum(r["count"] for r in record["products"]) * 2e-3
        assert record["products_torch_tf32_ms"] > 0 and record["products_yardstick_ms"] > 0
        assert record["loss_difference_tessera"] < 1e-4


def test_an_unknown_library_is_refused():
    ran = subprocess.run([sys.executable, ROOT / "tests/pytorch/bench_without_gpu.py", "survey", "--peer", "nosuch"],
                         capture_output=True, text=True)
    assert ran.returncode == 1 and "no library called 'nosuch' here; those known are: tessera fp32" in ran.stderr
