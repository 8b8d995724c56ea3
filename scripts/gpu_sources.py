#!/usr/bin/env python3
"""Whether the GPU was checked since its sources changed. CI has no GPU, so it looks at the record of the last check.

    gpu_sources.py hash            of every file that GPU code is made of
    gpu_sources.py check RECORD    fails where the record is of other sources, or of a check that failed
"""
import hashlib
import json
import pathlib
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
# What is compiled for the GPU, and what it includes.
PATTERNS = ["src/**/*.cu", "src/**/*.sm*.h", "src/**/*.cuda.*", "src/machine/sm*/*", "src/machine/cuda/*",
            "src/core/*.h"]


def sources():
    return sorted({path for pattern in PATTERNS for path in ROOT.glob(pattern) if path.is_file()})


def source_hash():
    whole = hashlib.sha256()
    for path in sources():
        whole.update(str(path.relative_to(ROOT)).encode() + b"\0" + path.read_bytes() + b"\0")
    return whole.hexdigest()[:24]


def check(record):
    again = "run scripts/gpu_check on a machine with a GPU and commit its record"
    try:
        last = json.loads(pathlib.Path(record).read_text())
    except (OSError, ValueError) as error:
        return f"no record of a GPU check: {error}; {again}"
    if last.get("sources") != source_hash():
        return f"GPU sources changed since the check of {last.get('date')} on {last.get('device')}; {again}"
    if last.get("failed") != 0 or not last.get("passed"):
        return f"the last GPU check passed {last.get('passed')} and failed {last.get('failed')}; {again}"
    return None


if __name__ == "__main__":
    if sys.argv[1:] == ["hash"]:
        print(source_hash())
    elif len(sys.argv) == 3 and sys.argv[1] == "check":
        sys.exit(check(sys.argv[2]))
    else:
        sys.exit(__doc__)
