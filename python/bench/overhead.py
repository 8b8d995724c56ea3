"""What a call costs beside the work: microseconds of the host a call, at a size whose work is nothing.

Rounds of the candidates are interleaved, and each line is a median of rounds with the fastest and the slowest. On a GPU
calls are enqueued and waited for after every hundred, outside the time."""

from __future__ import annotations

import argparse
import statistics
import time
from typing import Callable

import torch
import torch.nn.functional as F

import attune
import attune.torch
from attune import _core, _spec


def candidates(device: str, dtype: torch.dtype, shape: list[int]) -> dict[str, Callable[[], object]]:
    q = torch.randn(shape, device=device, dtype=dtype)
    g = q.clone().requires_grad_()
    out = torch.empty_like(q)
    handle = _spec.spec("bhsd", True, None, "no").forward
    return {
        "attune._core.run, out given": lambda: _core.run(handle, 0.0, 0.0, 0.0, 0, 0, None, q, q, q, out, None),
        "attune.attend, out given": lambda: attune.attend(q, q, q, layout="bhsd", causal=True, out=out),
        "attune.torch.attend": lambda: attune.torch.attend(q, q, q, layout="bhsd", causal=True),
        "attune.torch sdpa": lambda: attune.torch.scaled_dot_product_attention(q, q, q, is_causal=True),
        "torch sdpa": lambda: F.scaled_dot_product_attention(q, q, q, is_causal=True),
        "attune.torch.attend, grad": lambda: attune.torch.attend(g, g, g, layout="bhsd", causal=True),
        "attune.torch sdpa, grad": lambda: attune.torch.scaled_dot_product_attention(g, g, g, is_causal=True),
        "torch sdpa, grad": lambda: F.scaled_dot_product_attention(g, g, g, is_causal=True),
        "torch.empty_like": lambda: torch.empty_like(q),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--rounds", type=int, default=21)
    parser.add_argument("--calls", type=int, default=100)
    parser.add_argument("--shape", default="1,8,64,64", help="batch, heads, rows and dim (1,8,64,64)")
    parser.add_argument("--without-table", action="store_true", help="lend tensors as those of PyTorch before 2.10")
    options = parser.parse_args()
    if options.without_table:
        torch.Tensor.__dlpack_c_exchange_api__ = None  # type: ignore[attr-defined]
    wait = torch.cuda.synchronize if options.device.startswith("cuda") else lambda: None
    run = candidates(options.device, torch.bfloat16, [int(n) for n in options.shape.split(",")])
    times: dict[str, list[float]] = {name: [] for name in run}
    for call in run.values():
        for _ in range(20):
            call()
    for _ in range(options.rounds):
        for name, call in run.items():
            wait()
            begin = time.perf_counter()
            for _ in range(options.calls):
                call()
            times[name].append((time.perf_counter() - begin) / options.calls * 1e6)
    print(f"torch {torch.__version__}, attune {attune.version()}, {options.device}")
    for name, us in times.items():
        print(f"{name:32} {statistics.median(us):8.2f} us ({min(us):.2f} ... {max(us):.2f})")


if __name__ == "__main__":
    main()
