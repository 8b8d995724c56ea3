# SPDX-License-Identifier: Apache-2.0
"""The host overhead of a call in microseconds, at a size with negligible work.

Rounds of the candidates are interleaved; each line is the median of the rounds with the fastest and the slowest. On a
GPU, calls are enqueued, and waited for after every hundred, outside the timed region."""

from __future__ import annotations

import argparse
import functools
import statistics
import time
from typing import Callable

import torch
import torch.nn.functional as F

import attune
import attune.torch
from attune import _core, _spec


def routed(route: str) -> Callable[..., torch.Tensor]:
    """The function that install() puts in place of F.scaled_dot_product_attention."""
    with attune.torch.installed(route):  # type: ignore[arg-type]
        return F.scaled_dot_product_attention


def candidates(device: str, dtype: torch.dtype, shape: list[int]) -> dict[str, Callable[[], object]]:
    q = torch.randn(shape, device=device, dtype=dtype)
    g = q.clone().requires_grad_()
    out = torch.empty_like(q)
    handle = _spec.spec("bhsd", True, None, "no").forward
    run: dict[str, Callable[[], object]] = {
        "attune._core.run, out given": lambda: _core.run(handle, 0.0, 0.0, 0.0, 0, 0, None, q, q, q, out, None),
        "attune.attend, out given": lambda: attune.attend(q, q, q, layout="bhsd", causal=True, out=out),
        "torch.empty_like": lambda: torch.empty_like(q)}
    functions: dict[str, Callable[..., torch.Tensor]] = {
        "attune.torch.attend": lambda *t: attune.torch.attend(*t, layout="bhsd", causal=True),
        "attune.torch sdpa": lambda *t: attune.torch.scaled_dot_product_attention(*t, is_causal=True)}
    for name, sdpa in (("install()", routed("measured")), ("install('always')", routed("always")),
                       ("torch sdpa", F.scaled_dot_product_attention)):
        functions[name] = functools.partial(sdpa, is_causal=True)
    for name, function in functions.items():
        run[name] = lambda f=function: f(q, q, q)
    for name, function in functions.items():
        run[name + ", grad"] = lambda f=function: f(g, g, g)
    for name, function in functions.items():
        run[name + ", backward too"] = lambda f=function: torch.autograd.grad(f(g, g, g), g, q)
    return run


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
    counted = attune.torch.counters
    print(f"torch {torch.__version__}, attune {attune.version()}, {options.device}; of the drop-ins attune ran "
          f"{counted.attune} calls and PyTorch {counted.torch}, {dict(counted.why)}")
    for name, us in times.items():
        print(f"{name:36} {statistics.median(us):8.2f} us ({min(us):.2f} ... {max(us):.2f})")


if __name__ == "__main__":
    main()
