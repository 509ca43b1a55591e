"""What torch calls when it is imported: imports tessera, which then enables itself, where TESSERA_ENABLE asks for that.

A package of its own, because importing anything inside tessera would import tessera.
"""

import os
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
