# SPDX-License-Identifier: Apache-2.0
"""python -m attune: what this installation is, and the plan of a problem line. The command `attune`, which benchmarks
and checks, comes with wheels of scripts/wheels.py and with a build of the library."""

from __future__ import annotations

import argparse
import sys

from . import Error, plan, threads, version


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m attune", description=__doc__)
    commands = parser.add_subparsers(dest="command")
    asked = commands.add_parser("plan", help="plan a problem line")
    asked.add_argument("line", help='for example "forward bf16 b2 h32/8 q4096 k4096 d128 causal"')
    asked.add_argument("--device", help="cpu, cuda:0, h200, ...; it need not be present")
    asked.add_argument("--backend", help="plan this backend, or state why it refuses")
    given = parser.parse_args()
    if given.command is None:
        print(f"attune {version()}, {threads()} CPU threads, Python {sys.version.split()[0]}, {__file__}")
        return 0
    try:
        made = plan(given.line, given.device, given.backend)
    except Error as error:
        print(error, file=sys.stderr)
        return 1
    print(f"backend    {made.backend}\nworkspace  {made.workspace} bytes\nwhy        {made.why}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
