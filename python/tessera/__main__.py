"""python -m tessera info | build"""

import argparse
import sys

import tessera


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tessera", description="float32 matrix multiplication")
    parser.add_argument("command", choices=("info", "build"),
                        help="info: what this machine and build offer; build: compile the operator for this torch now")
    if parser.parse_args().command == "info":
        print(tessera.info())
        return
    from tessera import _build
    try:
        print(_build.build())
    except ModuleNotFoundError as error:
        if error.name != "torch":
            raise
        sys.exit("python -m tessera build: PyTorch is not installed")
    except _build.BuildError as error:
        sys.exit(f"python -m tessera build: {error}")


if __name__ == "__main__":
    main()
