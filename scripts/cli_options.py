#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes docs/cli_options.md from the help of the command.

    scripts/cli_options.py build/attune docs/cli_options.md
    scripts/cli_options.py --check build/attune docs/cli_options.md"""

from __future__ import annotations

import argparse
import pathlib
import re
import subprocess
import sys

HEAD = """# Options of the command, by its help

Written by `scripts/cli_options.py`; [cli.md](cli.md) is the page to read first.
"""


def said(attune: str, *words: str) -> str:
    return subprocess.run([attune, *words], capture_output=True, text=True, check=True).stdout.rstrip()


def page(attune: str) -> str:
    listed = said(attune, "--help").partition("\nSubcommands:\n")[2].partition("\n\n")[0]
    commands = re.findall(r"^  ([a-z]+) ", listed, re.M)
    if not commands:
        sys.exit(f"{attune} --help lists no commands below 'Subcommands:'")
    parts = [HEAD]
    for name in commands:
        # The examples stand in cli.md, where the tests run them.
        text = re.sub(r"\n\nExamples:\n(?:  .*\n?)+", "\n", said(attune, name, "--help") + "\n").strip()
        parts.append(f"\n## attune {name}\n\n```text\n{text}\n```\n")
    return "".join(parts)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="fail if the page differs")
    parser.add_argument("attune")
    parser.add_argument("page", type=pathlib.Path)
    given = parser.parse_args()
    text = page(given.attune)
    if not given.check:
        given.page.write_text(text)
    elif given.page.read_text() != text:
        print(f"{given.page} is not what --help says; run scripts/cli_options.py {given.attune} {given.page}")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
