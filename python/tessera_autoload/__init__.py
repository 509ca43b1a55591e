"""What torch calls when it is imported (it imports tessera, which then enables itself, where TESSERA_ENABLE asks for
that), and the command `tessera` of the wheel.

A package of its own, because importing anything inside tessera would import tessera.
"""

import os
import sys
from typing import Mapping


def is_set(environment: Mapping[str, str]) -> bool:
    """Whether TESSERA_ENABLE says so: it is there, and not one of the ways to say no."""
    return environment.get("TESSERA_ENABLE", "").strip().lower() not in ("", "0", "false", "no", "off")


def enable_by_environment() -> None:
    if not is_set(os.environ):
        return
    try:
        import tessera  # noqa: F401
    except ImportError as error:  # the program did not ask for it: it goes on without
        import warnings
        warnings.warn(f"TESSERA_ENABLE is set, but tessera cannot be imported: {error}", RuntimeWarning, stacklevel=2)


def run_command() -> None:
    """The program that the wheel carries, in place of this one."""
    from importlib.util import find_spec
    for folder in find_spec("tessera").submodule_search_locations:
        program = os.path.join(folder, "bin", "tessera")
        if os.path.exists(program):
            os.execv(program, sys.argv)
    sys.exit("tessera: the command is not part of this installation of the Python package")
