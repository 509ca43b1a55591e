"""What torch calls when it is imported: imports tessera, which then enables itself, where TESSERA_ENABLE asks for that.

A package of its own, because importing anything inside tessera would import tessera.
"""

import os


def enable_by_environment() -> None:
    if os.environ.get("TESSERA_ENABLE", "0") not in ("", "0"):
        import tessera  # noqa: F401
