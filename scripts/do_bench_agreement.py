#!/usr/bin/env python3
# Whether two timers agree: torch:flash at five shapes, by triton.testing.do_bench and by `attune bench`. Both flush the
# same 256 MB before each sample and take medians of events; the tool also keeps launches out of its times. do_bench runs
# before and after the tool, so that a drift of the clock is seen as what it is.
#   do_bench_agreement.py <folder of the build>
import json
import subprocess
import sys
import tempfile

import torch
from triton.testing import do_bench

LIMIT = 0.02
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
    return 1e6 * do_bench(lambda: flash(q, k, v, 0.0, causal), warmup=100, rep=200, return_mode="median")


def by_attune(build):
    with tempfile.NamedTemporaryFile(suffix=".jsonl") as out:
        command = [build + "/attune", "bench", "--device", "cuda:0", "--layout", "bshd", "--backend", "sm80_forward",
                   "--peer", "torch:flash", "--python", sys.executable, "--max-seconds", "2", "--out", out.name]
        subprocess.run(command + [line(*shape) for shape in SHAPES], check=True, stdout=subprocess.DEVNULL,
                       stderr=subprocess.DEVNULL)
        records = [json.loads(text) for text in out]
    return {r["problem"]: r for r in records if r["subject"] == "torch:flash"}


def main():
    before = [by_do_bench(*shape) for shape in SHAPES]
    torch.cuda.empty_cache()
    ours = by_attune(sys.argv[1])
    after = [by_do_bench(*shape) for shape in SHAPES]
    worst = 0
    print("%-45s %10s %10s %10s %8s %9s" % ("torch:flash, microseconds", "do_bench", "attune", "do_bench", "apart", "A/A"))
    for shape, first, last in zip(SHAPES, before, after):
        record = ours[line(*shape)]
        apart = record["median_ns"] / ((first + last) / 2) - 1
        worst = max(worst, abs(apart))
        print("%-45s %10.1f %10.1f %10.1f %+7.2f%% %8.2f%%" % (line(*shape), first / 1e3, record["median_ns"] / 1e3,
                                                               last / 1e3, 100 * apart, 100 * record["aa_spread"]))
    print("at most %.2f %% apart, %s is allowed" % (100 * worst, "%.0f %%" % (100 * LIMIT)))
    return 0 if worst <= LIMIT else 1


if __name__ == "__main__":
    sys.exit(main())
