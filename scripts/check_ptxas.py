#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Fails if a GPU kernel spills registers, or if ptxas warns (C75xx: wgmma serialized, and similar).

    check_ptxas.py BUILD_FOLDER EXCEPTIONS

Reads the *.ptxas files that scripts/nvcc_log.sh writes next to the objects. A line of the exceptions file is a regular
expression that a kernel's "name, sm_xx" must match, two spaces, and the reason.
"""
import pathlib
import re
import subprocess
import sys


def demangled(names):
    names = sorted(names)
    if not names:
        return {}
    try:
        done = subprocess.run(["c++filt"], input="\n".join(names), capture_output=True, text=True, check=True)
        return dict(zip(names, done.stdout.splitlines()))
    except (OSError, subprocess.CalledProcessError):
        return {name: name for name in names}


def findings(text):
    """Returns (mangled kernel or "", arch, message) for every problem in one log."""
    kernel = arch = ""
    for line in text.splitlines():
        if found := re.search(r"Compiling entry function '(\w+)' for '(\w+)'", line):
            kernel, arch = found.groups()
        elif found := re.search(r"Function properties for (\w+)", line):
            kernel = found.group(1)
        elif found := re.search(r"(\d+) bytes spill stores, (\d+) bytes spill loads", line):
            if found.groups() != ("0", "0"):
                yield kernel, arch, f"spills: {found.group(1)} bytes stored, {found.group(2)} loaded"
        elif re.search(r"C75\d\d", line):
            yield kernel, arch, line.strip()


def main(build, exceptions):
    logs = sorted(pathlib.Path(build).rglob("*.ptxas"))
    if not logs:
        sys.exit(f"check_ptxas: no *.ptxas below {build}")
    allowed = []
    for line in pathlib.Path(exceptions).read_text().splitlines():
        if line.strip() and not line.startswith("#"):
            pattern, _, reason = line.partition("  ")
            if not reason.strip():
                sys.exit(f"check_ptxas: {exceptions}: '{line}' gives no reason")
            allowed.append(re.compile(pattern))
    kernels, bad = 0, []
    for log in logs:
        text = log.read_text(errors="replace")
        kernels += text.count("Compiling entry function")
        bad += findings(text)
    names = demangled({kernel for kernel, _, _ in bad})
    wrong = 0
    for kernel, arch, sentence in bad:
        who = f"{names.get(kernel, kernel)}, {arch}"
        if not any(pattern.search(who) for pattern in allowed):
            print(f"{who}: {sentence}")
            wrong += 1
    print(f"{kernels} kernels in {len(logs)} files, {len(bad) - wrong} excepted, {wrong} wrong")
    return 1 if wrong or not kernels else 0


if __name__ == "__main__":
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    sys.exit(main(*sys.argv[1:]))
