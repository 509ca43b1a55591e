"""The operator cache: only what this user compiled is loaded, whole; anything else is compiled again or refused."""

import os
import stat
import subprocess
import sys

import pytest

import tessera
from tessera import _build

PRODUCT = "import tessera, torch; print(tessera.matmul(torch.ones(2, 3), torch.ones(3, 4)).sum().item())"

# A compiler that "compiles" in no time: its output is a copy of the operator that these tests run on.
COMPILER = """#!/bin/sh
while [ $# -gt 1 ]; do
    if [ "$1" = -o ]; then out=$2; fi
    shift
done
echo run >> {log}
cp {operator} "$out"
"""


@pytest.fixture
def cache(tmp_path, monkeypatch):
    """An empty cache, a quick compiler that counts its runs, and an open umask."""
    operator, compiler = _build.build(), tmp_path / "c++"
    compiler.write_text(COMPILER.format(log=tmp_path / "log", operator=operator))
    compiler.chmod(0o700)
    monkeypatch.setenv("CXX", str(compiler))
    monkeypatch.setenv("TESSERA_CACHE", str(tmp_path / "cache"))
    former = os.umask(0)
    yield tmp_path / "cache"
    os.umask(former)


def compilations(cache):
    """How many operators were compiled since the last time."""
    log = cache.parent / "log"
    runs = log.read_text().count("run") if log.exists() else 0
    log.unlink(missing_ok=True)
    return runs // (len(_build.UNITS) + 1)


def mode(path):
    return stat.S_IMODE(path.stat().st_mode)


def test_only_the_user_may_read_or_write_it(cache):
    operator = _build.build()
    assert compilations(cache) == 1 and _build.is_built(operator)
    assert mode(cache) == mode(operator) == 0o700
    assert {path.name for path in cache.iterdir()} == {operator.name, operator.name + ".sha256", "lock"}
    assert mode(cache / "lock") == mode(cache / (operator.name + ".sha256")) == 0o600
    assert _build.build() == operator and compilations(cache) == 0


def truncated(operator):
    os.truncate(operator, operator.stat().st_size - 1)


def altered(operator):
    content = bytearray(operator.read_bytes())
    content[len(content) // 2] ^= 1
    operator.write_bytes(content)


def without_checksum(operator):
    operator.with_name(operator.name + ".sha256").unlink()


def with_an_empty_checksum(operator):
    operator.with_name(operator.name + ".sha256").write_bytes(b"")


def writable_by_others(operator):
    operator.chmod(0o722)


def checksum_writable_by_others(operator):
    operator.with_name(operator.name + ".sha256").chmod(0o620)


def behind_a_link(operator):
    operator.rename(operator.parent.parent / "elsewhere.so")
    operator.symlink_to(operator.parent.parent / "elsewhere.so")


def a_pipe(operator):
    operator.unlink()
    os.mkfifo(operator)


def of_another_user(operator):
    if os.geteuid() != 0:
        pytest.skip("only root may give files away")
    os.chown(operator, 65534, 65534)


@pytest.mark.parametrize("damage", [truncated, altered, without_checksum, with_an_empty_checksum, writable_by_others,
                                    checksum_writable_by_others, behind_a_link, a_pipe, of_another_user],
                         ids=lambda damage: damage.__name__)
def test_damaged_operators_are_compiled_again(cache, damage):
    operator = _build.build()
    compiled = operator.read_bytes()
    assert compilations(cache) == 1
    damage(operator)
    assert not _build.is_built(operator)
    assert _build.build() == operator and compilations(cache) == 1
    assert not operator.is_symlink() and operator.read_bytes() == compiled
    assert _build.is_built(operator) and operator.stat().st_uid == os.geteuid()


@pytest.mark.parametrize("permissions", [0o770, 0o702, 0o777], ids=oct)
def test_folder_that_others_may_write_to(cache, permissions):
    cache.mkdir()
    cache.chmod(permissions)
    with pytest.raises(_build.BuildError, match=f"others may write to it .mode {permissions:04o}.; set TESSERA_CACHE"):
        _build.build()
    assert list(cache.iterdir()) == [] and compilations(cache) == 0


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may give files away")
def test_folder_of_another_user(cache):
    """Even one that holds the very operator that would have been compiled."""
    operator = _build.build()
    for path in (cache, operator, operator.with_name(operator.name + ".sha256")):
        os.chown(path, 65534, 65534)
    with pytest.raises(_build.BuildError, match="belongs to another user \\(uid 65534\\)"):
        _build.build()


def test_failed_compilation_leaves_nothing(cache):
    compiler = cache.parent / "c++"
    compiler.write_text("#!/bin/sh\ncase $* in *-shared*) exit 1;; esac\n")
    with pytest.raises(_build.BuildError, match="could not compile"):
        _build.build()
    assert [path.name for path in cache.iterdir()] == ["lock"]


@pytest.mark.parametrize("compiler, said", [("kill -9 $$", "ended by signal 9"),
                                            ("printf '\\377 error'; exit 1", "\N{REPLACEMENT CHARACTER} error")])
def test_compilers_that_fail(cache, compiler, said):
    """Killed for want of memory, or speaking another encoding."""
    (cache.parent / "c++").write_text(f"#!/bin/sh\n{compiler}\n")
    with pytest.raises(_build.BuildError, match=said):
        _build.build()


def test_after_a_build_that_was_killed(cache):
    (cache / "building").mkdir(parents=True)
    (cache / "building" / "gemm.cpp.o").write_text("half of")
    cache.chmod(0o700)
    operator = _build.build()
    assert {path.name for path in cache.iterdir()} == {operator.name, operator.name + ".sha256", "lock"}


def test_an_operator_that_cannot_be_loaded(cache):
    """Whole, but made for another machine, say: ImportError, which TESSERA_ENABLE makes a warning of."""
    (cache.parent / "c++").write_text('#!/bin/sh\nwhile [ "$1" != -o ]; do shift; done\n: >"$2"\n')
    with pytest.raises(_build.BuildError, match="cannot load its operator .*file too short"):
        _build.load()


def test_folders_that_depend_on_the_current_one(monkeypatch):
    monkeypatch.delenv("TESSERA_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", "cache")
    monkeypatch.setenv("HOME", "/home/somebody")
    assert str(_build.operator_path()).startswith("/home/somebody/.cache/tessera/")
    monkeypatch.setenv("HOME", "home")
    with pytest.raises(_build.BuildError, match="no home folder .*: set TESSERA_CACHE"):
        _build.operator_path()
    assert "operator: tessera has no home folder" in tessera.info()


def test_waiting_for_another_process(cache):
    """The one that compiles says where to and how long, the one that waits says so, and both have the operator."""
    (cache.parent / "c++").write_text("#!/bin/sh\nuntil [ -e {0} ]; do sleep 0.1; done\n{1}".format(
        cache.parent / "go", (cache.parent / "c++").read_text().partition("\n")[2]))
    first, second = (subprocess.Popen([sys.executable, "-m", "tessera", "build"], stderr=subprocess.PIPE, text=True,
                                      stdout=subprocess.PIPE) for _ in range(2))
    lines = {first.stderr.readline(), second.stderr.readline()}
    (cache.parent / "go").touch()
    paths = {process.communicate(timeout=300)[0] for process in (first, second)}
    assert paths == {f"{_build.operator_path()}\n"} and compilations(cache) == 1
    waits, compiles = sorted(lines, key=lambda line: "compiling" in line)
    assert "tessera: waiting for another process, which compiles the operator" in waits
    assert f"once, into {cache}: about a minute (`python -m tessera build` does so beforehand)" in compiles


def build_says(**environment):
    """What `python -m tessera build` says where it cannot: a sentence, not a traceback."""
    ran = subprocess.run([sys.executable, "-m", "tessera", "build"], env={**os.environ, **environment}, text=True,
                         capture_output=True, timeout=300)
    assert ran.returncode == 1 and ran.stdout == "" and "Traceback" not in ran.stderr, ran.stderr
    return ran.stderr


def test_sentences(cache):
    (cache.parent / "file").write_text("")
    assert "cannot write its cache" in build_says(TESSERA_CACHE=str(cache.parent / "file"))
    assert "cannot write its cache" in build_says(TESSERA_CACHE="/proc/nowhere")
    assert "CXX names /no/such/c++, which cannot be run (No such file" in build_says(CXX="/no/such/c++")
    cache.chmod(0o777)
    assert "will not load code from its cache" in build_says()


def test_a_product_after_damage(cache):
    """From the command line: the operator is compiled, used, cut short, compiled again and used."""
    for _ in range(2):
        ran = subprocess.run([sys.executable, "-c", PRODUCT], text=True, capture_output=True, timeout=300)
        assert ran.stdout.split() == ["24.0"], ran.stderr
        assert "compiling its operator" in ran.stderr and compilations(cache) == 1
        os.truncate(_build.operator_path(), 1000)
