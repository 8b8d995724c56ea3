#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Checks that the GPU check is newer than the last change of its sources. CI has no GPU, so it reads the record of the
last check.

    gpu_sources.py hash            hash of all files that GPU code is built from, without comments
    gpu_sources.py list            those files
    gpu_sources.py check RECORD    fails if the record is for other sources, or for a failed check. Sources with
                                   identical kernels count as checked (scripts/machine_code.py)
    gpu_sources.py failed RECORD   failures in a check of these sources: sanitizer tool and backend, or CUDA test
    gpu_sources.py again RECORD    writes the results of repeated runs, from stdin, into the record
"""
import hashlib
import json
import pathlib
import re
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
# Files compiled only in a build with CUDA; the files they include count too.
PATTERNS = ["src/**/*.cu", "src/attention/cudnn/*.cpp", "src/machine/cuda/*.cpp"]
PART = re.compile(r"(?P<name>.*): (?P<passed>\d+) passed, (?P<failed>\d+) failed")
INCLUDE = re.compile(r'^\s*#\s*include\s*"([^"]+)"', re.MULTILINE)


def sources(root=ROOT):
    open_ends = {path for pattern in PATTERNS for path in root.glob(pattern) if not path.name.startswith("absent")}
    found = set()
    while open_ends:
        path = open_ends.pop()
        found.add(path)
        for name in INCLUDE.findall(path.read_text(errors="replace")):
            header = root / "src" / name
            if header.is_file() and header not in found:
                open_ends.add(header)
    return sorted(found)


# A comment, or a string, which may contain something that looks like one.
COMMENT = re.compile(r'//[^\n]*|/\*.*?\*/|"(?:[^"\\\n]|\\.)*"|\'(?:[^\'\\\n]|\\.)*\'', re.DOTALL)


def code_of(text):
    """The text without comments and with normalized white space: comments do not change the hash."""
    kept = COMMENT.sub(lambda m: " " if m.group().startswith("/") else m.group(), text)
    return " ".join(kept.split())


def source_hash(root=ROOT):
    whole = hashlib.sha256()
    for path in sources(root):
        code = code_of(path.read_text(errors="replace"))
        whole.update(str(path.relative_to(root)).encode() + b"\0" + code.encode() + b"\0")
    return whole.hexdigest()[:24]


ALONE = ("compute-sanitizer ", "CUDA tests ")  # parts that can be repeated
AGAIN = "run scripts/gpu_check on a machine with a GPU and commit tests/gpu/record.json"


def read(record):
    try:
        return json.loads(pathlib.Path(record).read_text())
    except (OSError, ValueError) as error:
        sys.exit(f"there is no record of a GPU check ({error}): {AGAIN}")


def check(record, root=ROOT):
    """Returns a message, or None if all is well; raises SystemExit without a record."""
    last = read(record)
    if last.get("failed") != 0 or not last.get("passed"):
        return (f"the GPU check of {last.get('date')} passed {last.get('passed')} and failed {last.get('failed')}: "
                f"{AGAIN}")
    same = {entry["sources"] for entry in last.get("same_code", [])}
    if source_hash(root) not in {last.get("sources"), *same}:
        return (f"GPU sources are not those that were checked on {last.get('date')} on {last.get('device')} "
                f"(commit {last.get('commit')}): {AGAIN}")
    return None


def failed_runs(record, root=ROOT):
    """Returns tool and backend of each failure, or "CUDA tests" and a name; raises SystemExit if nothing can be
    repeated."""
    last = read(record)
    if last["sources"] != source_hash(root):
        sys.exit(f"{record} is of other sources (commit {last['commit']}): run scripts/gpu_check")
    parts = [PART.fullmatch(part) for part in last["parts"]]
    names = [part["name"] for part in parts if part["failed"] != "0"]
    if not names:
        sys.exit(f"in {record} nothing failed")
    if others := [name for name in names if not name.startswith(ALONE)]:
        sys.exit(f"{', '.join(others)} failed, which only the whole check runs: scripts/gpu_check")
    return [name.removeprefix("compute-sanitizer ") for name in names]


def write_again(record, parts):
    last = read(record)
    given = {PART.fullmatch(part)["name"]: part for part in parts}
    last["parts"] = [given.get(PART.fullmatch(part)["name"], part) for part in last["parts"]]
    last["again"] = sorted({*last.get("again", []), *given})
    for count in ("passed", "failed"):
        last[count] = sum(int(PART.fullmatch(part)[count]) for part in last["parts"])
    pathlib.Path(record).write_text(json.dumps(last, indent=2) + "\n")


if __name__ == "__main__":
    if sys.argv[1:] == ["hash"]:
        print(source_hash())
    elif sys.argv[1:] == ["list"]:
        print("\n".join(str(path.relative_to(ROOT)) for path in sources()))
    elif len(sys.argv) == 3 and sys.argv[1] == "check":
        sys.exit(check(sys.argv[2]))
    elif len(sys.argv) == 3 and sys.argv[1] == "failed":
        print("\n".join(failed_runs(sys.argv[2])))
    elif len(sys.argv) == 3 and sys.argv[1] == "again":
        write_again(sys.argv[2], [line for line in sys.stdin.read().splitlines() if line.startswith(ALONE)])
    else:
        sys.exit(__doc__)
