#!/usr/bin/env python3
# Checks that two timers agree: torch:flash at five shapes, timed by triton.testing.do_bench and by `attune bench`, in
# one process that loads the tool like the host of its peers. Both flush 256 MB before each sample and take medians of
# events. With do_bench's own warm-up of 25 ms an H200 took 3612 us for the longest shape, and 3503 us two seconds
# later, because the clock was still settling under the power cap. So the clock is locked below the cap if nvidia-smi
# permits, do_bench gets a longer warm-up, and it runs directly before and after the tool.
#   do_bench_agreement.py <folder of the build>
# SPDX-License-Identifier: Apache-2.0
import ctypes
import json
import os
import subprocess
import sys
import tempfile

import torch
from triton.testing import do_bench

LIMIT = 0.02
CLOCK = 1200  # MHz; an H200 sustains it in all of these
WARM_UP, REPEAT = 200, 300  # ms, for do_bench
SHAPES = [  # batch, heads, length, dim, causal
    (32, 32, 512, 64, True),
    (16, 16, 1024, 128, False),
    (8, 16, 2048, 128, True),
    (4, 8, 4096, 256, False),
    (1, 16, 16384, 128, True),
]


def line(batch, heads, length, dim, causal):
    return "forward bf16 b%d h%d q%d k%d d%d %s" % (batch, heads, length, length, dim, "causal" if causal else "full")


def by_do_bench(batch, heads, length, dim, causal):  # nanoseconds
    shape = (batch, length, heads, dim)
    q, k, v = (torch.randn(shape, device="cuda", dtype=torch.bfloat16).transpose(1, 2) for _ in range(3))
    flash = torch.ops.aten._scaled_dot_product_flash_attention
    return 1e6 * do_bench(lambda: flash(q, k, v, 0.0, causal), warmup=WARM_UP, rep=REPEAT, return_mode="median")


class Tool:
    def __init__(self, build):
        sys.path.insert(0, build + "/peers")
        import torch_peer
        import ways
        self.library = ctypes.CDLL(build + "/libattune_tool.so")
        self.peer = torch_peer.register(self.library, "torch:flash", *ways.find("torch:flash"), "")

    def record(self, problem):
        with tempfile.NamedTemporaryFile(suffix=".jsonl") as out:
            words = ["attune", "bench", "--device", "cuda:0", "--layout", "bshd", "--backend", "sm80_forward", "--peer",
                     "torch:flash", "--precision", "0.001", "--max-seconds", "0.7", "--out", out.name, problem]
            sys.stdout.flush()
            kept, nowhere = [os.dup(1), os.dup(2)], os.open(os.devnull, os.O_WRONLY)
            os.dup2(nowhere, 1), os.dup2(nowhere, 2)
            code = self.library.attune_tool_main(len(words), (ctypes.c_char_p * (len(words) + 1))(
                *[word.encode() for word in words], None))
            os.dup2(kept[0], 1), os.dup2(kept[1], 2)
            for file in kept + [nowhere]:
                os.close(file)
            torch.cuda.set_stream(torch.cuda.default_stream())  # the tool's stream is gone
            if code:
                raise RuntimeError("attune bench %s: exit code %d" % (problem, code))
            return next(r for r in map(json.loads, out) if r["subject"] == "torch:flash")


def set_clock(*words):  # whether it may be set
    return subprocess.run(["nvidia-smi", *words], capture_output=True).returncode == 0


def main():
    held = set_clock("-lgc", "%d,%d" % (CLOCK, CLOCK))
    print("the clock is held at %d MHz" % CLOCK if held else "the clock may not be held: it follows power and heat")
    try:
        return compare()
    finally:
        if held:
            set_clock("-rgc")


def compare():
    tool, worst = Tool(sys.argv[1]), 0
    head = ("torch:flash, microseconds", "do_bench", "attune", "do_bench", "apart", "A/A", "MHz")
    print("%-45s %10s %10s %10s %8s %9s %6s" % head)
    for shape in SHAPES:
        before, record, after = by_do_bench(*shape), tool.record(line(*shape)), by_do_bench(*shape)
        apart = record["median_ns"] / ((before + after) / 2) - 1
        worst = max(worst, abs(apart))
        print("%-45s %10.1f %10.1f %10.1f %+7.2f%% %8.2f%% %6.0f" %
              (line(*shape), before / 1e3, record["median_ns"] / 1e3, after / 1e3, 100 * apart,
               100 * (record["aa_spread"] or 0), record["mhz"]))
    print("at most %.2f %% apart, %.0f %% is allowed" % (100 * worst, 100 * LIMIT))
    return 0 if worst <= LIMIT else 1


if __name__ == "__main__":
    sys.exit(main())
