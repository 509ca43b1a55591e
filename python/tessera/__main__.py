"""python -m tessera info | build"""

import argparse

import tessera


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tessera", description="float32 matrix multiplication")
    parser.add_argument("command", choices=("info", "build"),
                        help="info: what this machine and build offer; build: compile the operator for the installed torch now")
    if parser.parse_args().command == "info":
        print(tessera.info())
    else:
        from tessera import _build
        print(_build.build())


if __name__ == "__main__":
    main()
