# SPDX-License-Identifier: Apache-2.0
"""Forward and backward of one attention layer together, as in training, with the memory they take.

Every step is out = attention(q, k, v), then gradients of q, k and v through autograd. Steps of the implementations are
interleaved in a random order per round. Prints the median time of a step, its rate, and the peak memory beyond the
inputs: PyTorch's allocator, and for attune also its own workspace, from its plans."""

from __future__ import annotations

import argparse
import random
import statistics
from typing import Callable

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import scaled_dot_product_attention

import attune.torch

Attention = Callable[[torch.Tensor, torch.Tensor, torch.Tensor, bool], torch.Tensor]


def of_torch(backend: SDPBackend) -> Attention:
    def attention(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, causal: bool) -> torch.Tensor:
        with sdpa_kernel(backend):
            return scaled_dot_product_attention(q, k, v, is_causal=causal, enable_gqa=q.shape[1] != k.shape[1])
    return attention


def of_attune(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, causal: bool) -> torch.Tensor:
    return attune.torch.attend(q, k, v, layout="bhsd", causal=causal)


def of_fa3(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, causal: bool) -> torch.Tensor:
    import flash_attn_interface  # FlashAttention-3, if installed
    out = flash_attn_interface.flash_attn_func(*(x.transpose(1, 2) for x in (q, k, v)), causal=causal)
    return (out[0] if isinstance(out, tuple) else out).transpose(1, 2)


def implementations(names: list[str]) -> dict[str, Attention]:
    known = {"attune": of_attune, "torch:cudnn": of_torch(SDPBackend.CUDNN_ATTENTION),
             "torch:flash": of_torch(SDPBackend.FLASH_ATTENTION), "torch:efficient": of_torch(
                 SDPBackend.EFFICIENT_ATTENTION), "fa3": of_fa3}
    unknown = [name for name in names if name not in known]
    if unknown:
        raise SystemExit(f"unknown: {', '.join(unknown)}; known are {', '.join(known)}")
    return {name: known[name] for name in names}


def step(attention: Attention, leaves: list[torch.Tensor], d_out: torch.Tensor, causal: bool) -> None:
    torch.autograd.grad(attention(*leaves, causal), leaves, d_out)


def peak(attention: Attention, leaves: list[torch.Tensor], d_out: torch.Tensor, causal: bool) -> int:
    torch.cuda.synchronize()
    before = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    step(attention, leaves, d_out, causal)
    torch.cuda.synchronize()
    return torch.cuda.max_memory_allocated() - before


def workspace(batch: int, heads: tuple[int, int], length: int, dim: int, causal: bool) -> int:
    rest = f"bf16 b{batch} h{heads[0]}/{heads[1]} q{length} k{length} d{dim} {'causal' if causal else 'full'}"
    return max(attune.plan(f"{which} {rest}", "cuda:0").workspace for which in ("forward", "backward"))


def measure(all_of_them: dict[str, Attention], tokens: int, length: int, heads: tuple[int, int], dim: int, causal: bool,
            rounds: int) -> None:
    batch = max(1, tokens // length)
    def tensor(count: int) -> torch.Tensor:  # [batch, head, seq, dim], rows of a token adjacent
        return torch.randn(batch, length, count, dim, device="cuda", dtype=torch.bfloat16).transpose(1, 2)
    leaves = [tensor(count).requires_grad_() for count in (heads[0], heads[1], heads[1])]
    d_out = tensor(heads[0])
    memory, times = {}, {name: [] for name in all_of_them}
    for name, attention in list(all_of_them.items()):
        try:
            for _ in range(2):
                step(attention, leaves, d_out, causal)
            memory[name] = peak(attention, leaves, d_out, causal)
            if name == "attune":
                memory[name] += workspace(batch, heads, length, dim, causal)
        except (ImportError, RuntimeError) as error:
            print(f"  {name}: {str(error).splitlines()[0]}")
    for _ in range(rounds):
        for name in random.sample(list(memory), len(memory)):
            begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            torch.cuda._sleep(400_000)  # lets the host get ahead of the GPU
            begin.record()
            step(all_of_them[name], leaves, d_out, causal)
            end.record()
            end.synchronize()
            times[name].append(begin.elapsed_time(end))
    flop = 3.5 * 4 * batch * heads[0] * length * length * dim / (2 if causal else 1)
    print(f"b{batch} h{heads[0]}/{heads[1]} {length} d{dim} {'causal' if causal else 'full'}")
    for name in memory:
        ms = statistics.median(times[name])
        print(f"  {name:16} {ms:8.3f} ms {flop / ms / 1e9:6.0f} TFLOP/s {memory[name] / 2**20:7.0f} MiB")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--implementations", default="attune,torch:cudnn,torch:flash,fa3")
    parser.add_argument("--tokens", type=int, default=16384, help="of all sequences")
    parser.add_argument("--lengths", default="512,2048,8192")
    parser.add_argument("--dims", default="64,128,256")
    parser.add_argument("--width", type=int, default=2048, help="of all heads")
    parser.add_argument("--group", type=int, default=1, help="query heads that share keys")
    parser.add_argument("--rounds", type=int, default=12)
    options = parser.parse_args()
    chosen = implementations(options.implementations.split(","))
    print(f"{torch.cuda.get_device_name()}, torch {torch.__version__}, bf16, forward and backward together")
    for dim in map(int, options.dims.split(",")):
        for length in map(int, options.lengths.split(",")):
            for causal in (False, True):
                heads = options.width // dim
                measure(chosen, options.tokens, length, (heads, heads // options.group), dim, causal, options.rounds)


if __name__ == "__main__":
    main()
