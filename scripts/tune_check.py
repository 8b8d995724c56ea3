#!/usr/bin/env python3
# How often the planner's choice is the fastest, or within the A/A spread of it, at shapes that `attune tune` has not
# seen. Measures a grid, tunes on it, measures other shapes and compares the rules with them. docs/measuring.md has the
# results.
#   tune_check.py BUILD                    exit code 1 if the choice is right at less than 98 % of the rows
#   tune_check.py BUILD --show             only the rows, for tuning and for testing, and how long they take
#   tune_check.py BUILD -- WORDS           with other words for `attune bench`: --max-seconds 0.2
# The test shapes have other heads and other lengths, between those of the grid and not powers of two: there the last
# key tile, and the last CTAs on a GPU, are filled to any degree.
# SPDX-License-Identifier: Apache-2.0
import argparse
import pathlib
import subprocess
import sys
import tempfile

WORDS = ["--max-seconds", "0.06"]
KINDS = [(a, m, d) for a in ("forward", "backward") for m in ("full", "causal") for d in (64, 128)]
# (batch, heads): lengths. By the usual buckets of batch x heads, 1 ... 16 and 17 ... 64.
TUNE = {(1, 8): (512, 768, 1024, 1536, 2048, 4096), (1, 16): (512, 768, 1024, 1536, 2048, 4096, 8192),
        (2, 16): (512, 768, 1024, 1536, 2048, 4096), (4, 16): (512, 1024, 2048)}
ASK = {(1, 6): (1280, 2560), (1, 12): (640, 896, 1280, 1792, 2560, 3584, 5120), (2, 12): (640, 1280, 2560, 3584),
       (4, 10): (896, 1792)}


def lines(shapes, divide):
    return ["%s bf16 b%d h%d q%d k%d d%d %s" % (what, batch, heads, length // divide, length // divide, dim, mask)
            for what, mask, dim in KINDS for (batch, heads), lengths in shapes.items() for length in lengths]


def main(words):
    own = words[words.index("--") + 1:] if "--" in words else []
    parser = argparse.ArgumentParser(description="How often the choice of tuned rules is right at other shapes")
    parser.add_argument("build", type=pathlib.Path)
    parser.add_argument("--device", default="cuda:0")
    parser.add_argument("--divide", type=int, default=1, help="lengths by this: for a CPU")
    parser.add_argument("--keep", type=pathlib.Path, help="a folder for the records and the tuned file")
    parser.add_argument("--show", action="store_true", help="only the rows, and how long they take")
    asked = parser.parse_args(words[:words.index("--")] if "--" in words else words)
    attune = str(asked.build / "attune")
    with tempfile.TemporaryDirectory() as temporary:
        folder = asked.keep or pathlib.Path(temporary)
        folder.mkdir(parents=True, exist_ok=True)
        files = {}
        for name, shapes in (("tune", TUNE), ("ask", ASK)):
            rows = folder / (name + ".txt")
            rows.write_text("".join(line + "\n" for line in lines(shapes, asked.divide)))
            files[name] = folder / (name + ".jsonl")
            bench = [attune, "bench", "--device", asked.device, "--backend", "all", "--lines", str(rows)]
            bench += own or WORDS
            files[name].unlink(missing_ok=True)
            code = (subprocess.run(bench + ["--dry-run"]) if asked.show else
                    subprocess.run(bench + ["--out", str(files[name])], stdout=subprocess.DEVNULL)).returncode
            if code > 1:  # 1: a row failed and is excluded
                return code
        if asked.show:
            return 0
        return subprocess.run([attune, "tune", str(files["tune"]), "--fresh", "--out", str(folder / "tuned.tsv"),
                               "--check", str(files["ask"])]).returncode


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
