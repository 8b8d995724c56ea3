#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The licence line of every source file: `scripts/spdx.py write` adds missing ones, `check` lists them and fails.

It is the first line, or the one behind the comment that a script begins with, because some scripts print that comment
as their help. Hashes of GPU sources ignore comments, so adding it needs no GPU."""

from __future__ import annotations

import pathlib
import subprocess
import sys

TAG = "SPDX-License-" "Identifier: Apache-2.0"
SLASHES = {".h", ".hpp", ".c", ".cpp", ".cu", ".def"}
HASHES = {".py", ".pyi", ".sh", ".cmake", ".yml", ".yaml", ".toml"}


def style(path: pathlib.Path, text: str) -> str:
    """The line for this file; empty if it needs none."""
    if path.suffix in SLASHES:
        return f"/* {TAG} */" if path.suffix == ".c" or path.name == "attune.h" else f"// {TAG}"
    if path.suffix in HASHES or path.name == "CMakeLists.txt" or text.startswith("#!"):
        return f"# {TAG}"
    return ""


def with_line(text: str, line: str) -> str:
    lines = text.splitlines(keepends=True)
    at = 0
    if text.startswith("#!"):
        at = next((n for n, one in enumerate(lines) if not one.startswith("#")), len(lines))
    return "".join(lines[:at]) + line + "\n" + "".join(lines[at:])


def missing(root: pathlib.Path) -> list[tuple[pathlib.Path, str]]:
    listed = subprocess.run(["git", "-C", root, "ls-files", "-z"], capture_output=True, check=True).stdout
    found = []
    for name in filter(None, listed.decode().split("\0")):
        path = root / name
        if name.startswith("fuzz/corpus/") or not path.is_file() or path.is_symlink():
            continue
        try:
            text = path.read_text(encoding="utf-8")
        except UnicodeDecodeError:
            continue
        line = style(path, text)
        if line and TAG not in text and text:  # an empty file has nothing to license
            found.append((path, with_line(text, line)))
    return found


def main(words: list[str]) -> int:
    if words not in (["write"], ["check"]):
        print(__doc__)
        return 2
    found = missing(pathlib.Path(__file__).resolve().parents[1])
    for path, text in found:
        if words == ["write"]:
            path.write_text(text, encoding="utf-8")
        else:
            print(f"{path}: no line with {TAG}")
    return 1 if found and words == ["check"] else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
