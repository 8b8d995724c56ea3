# SPDX-License-Identifier: Apache-2.0
"""The command `attune` of a wheel: starts the program next to this file in place of this process."""

from __future__ import annotations

import os
import pathlib
import sys


def main() -> int:
    program = pathlib.Path(__file__).resolve().with_name("bin") / "attune"
    try:
        os.execv(program, ["attune", *sys.argv[1:]])
    except OSError as error:
        print(f"attune: {program} cannot be started: {error.strerror}; the command is in wheels of scripts/wheels.py, "
              "and in pip install . -C cmake.define.ATTUNE_TOOL=ON -C cmake.define.ATTUNE_PORTABLE=ON", file=sys.stderr)
    return 3


if __name__ == "__main__":
    sys.exit(main())
