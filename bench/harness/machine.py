"""This machine, the commit and the date, as every record names them; and the state of the hardware while something
runs."""

import ctypes
import datetime
import functools
import hashlib
import os
import pathlib
import platform
import re
import subprocess

ROOT = pathlib.Path(__file__).resolve().parents[2]


def output(*command):
    """What a command prints, or nothing where it fails or is not there."""
    try:
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return ""


def commit():
    """TESSERA_COMMIT where it is set, as for a copy of the tree without its history."""
    return os.environ.get("TESSERA_COMMIT") or output("git", "-C", str(ROOT), "rev-parse", "--short=12",
                                                      "HEAD") or "unknown"


def date():
    return datetime.datetime.now(datetime.timezone.utc).strftime("%Y-%m-%d")


def slug(name):
    """A machine's name as part of a file's."""
    return re.sub(r"[^a-z0-9]+", "-",
                  name.lower().replace("(r)", "").replace("(tm)", "").replace("nvidia ", "")).strip("-")


@functools.lru_cache()
def host():
    """This very machine, not its model: a number that tells nothing else of it."""
    identity = read("/etc/machine-id") or platform.node()
    return hashlib.sha256(f"tessera {identity}".encode()).hexdigest()[:12]


# ---- The processor --------------------------------------------------------------------------------------------------

def read(path):
    try:
        return pathlib.Path(path).read_text().strip()
    except OSError:
        return ""


@functools.lru_cache()
def processor():
    named = re.search(r"^model name\s*:\s*(.*)", read("/proc/cpuinfo"), re.M)
    return named[1] if named else "unknown processor"


def cores():
    return len(os.sched_getaffinity(0))


def last_cache():
    """Bytes of the last-level cache; 0 where the machine does not tell."""
    sizes = [read(path) for path in sorted(pathlib.Path("/sys/devices/system/cpu/cpu0/cache").glob("index*/size"))]
    return max((int(size[:-1]) << 10 for size in sizes if size.endswith("K")), default=0)


def cpu():
    """What a record of the CPU says of where and when it was made."""
    return {"machine": processor(), "cores": cores(), "host": host(), "commit": commit(), "date": date()}


def processor_state():
    """Clock in MHz and temperature in degrees Celsius, where this machine tells them: virtual ones seldom do."""
    state = {}
    clocks = [
        int(read(path)) for path in pathlib.Path("/sys/devices/system/cpu").glob("cpu[0-9]*/cpufreq/scaling_cur_freq")
        if read(path)
    ]
    zones = [int(read(path)) for path in pathlib.Path("/sys/class/thermal").glob("thermal_zone*/temp") if read(path)]
    if clocks:
        state["clock_mhz"] = max(clocks) // 1000
    if zones:
        state["temperature_c"] = max(zones) // 1000
    return state


# ---- The GPU --------------------------------------------------------------------------------------------------------

class Gpu:
    """The first GPU through NVML, the library behind nvidia-smi: asking it costs microseconds, so it can be asked while
    kernels run."""

    NAME_LENGTH, TEMPERATURE_OF_GPU, CLOCK_OF_SM = 96, 0, 1

    def __init__(self, index=0):
        self.nvml, self.handle = None, ctypes.c_void_p()
        try:
            nvml = ctypes.CDLL("libnvidia-ml.so.1")
        except OSError:
            return
        if nvml.nvmlInit_v2() == 0 and nvml.nvmlDeviceGetHandleByIndex_v2(index, ctypes.byref(self.handle)) == 0:
            self.nvml = nvml

    def __bool__(self):
        return self.nvml is not None

    def text(self, function, *leading):
        buffer = ctypes.create_string_buffer(self.NAME_LENGTH)
        failed = getattr(self.nvml, function)(*leading, buffer, self.NAME_LENGTH)
        return "unknown" if failed else buffer.value.decode()

    def number(self, function, *leading):
        value = ctypes.c_uint()
        return None if getattr(self.nvml, function)(self.handle, *leading, ctypes.byref(value)) else value.value

    def description(self):
        if not self:
            return {"gpu": "unknown GPU", "driver": "unknown"}
        return {"gpu": self.text("nvmlDeviceGetName", self.handle), "driver": self.text("nvmlSystemGetDriverVersion")}

    def state(self):
        """Clock, temperature and power at this moment; what NVML does not tell is left out."""
        if not self:
            return {}
        power = self.number("nvmlDeviceGetPowerUsage")
        state = {"clock_mhz": self.number("nvmlDeviceGetClockInfo", self.CLOCK_OF_SM),
                 "temperature_c": self.number("nvmlDeviceGetTemperature", self.TEMPERATURE_OF_GPU),
                 "power_w": None if power is None else power // 1000}
        return {name: value for name, value in state.items() if value is not None}


@functools.lru_cache()
def first_gpu():
    return Gpu()


def gpu(**also):
    """What a record of the GPU says of where and when it was made; `also`: versions of what was measured beside
    Tessera."""
    return {**first_gpu().description(), **also, "host": host(), "commit": commit(), "date": date()}
