# SPDX-License-Identifier: Apache-2.0
"""The time of a training step of a Llama model with a billion parameters, with each attention implementation.

Random weights and tokens, bf16, one sequence, no gradient checkpointing. Steps of the implementations are interleaved
with alternating order, each after --rest seconds for the GPU to cool. Prints the median and the spread of each."""

from __future__ import annotations

import argparse
import copy
import os
import statistics
import time

os.environ.setdefault("HF_HUB_OFFLINE", "1")

import torch
import transformers

import attune.transformers


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tokens", type=int, default=8192)
    parser.add_argument("--layers", type=int, default=16)
    parser.add_argument("--steps", type=int, default=7)
    parser.add_argument("--rest", type=float, default=0.0, help="seconds before every step")
    parser.add_argument("--implementations", default="sdpa,attune")
    options = parser.parse_args()
    attune.transformers.register()
    config = transformers.LlamaConfig(vocab_size=32000, hidden_size=2048, intermediate_size=8192,
                                      num_hidden_layers=options.layers, num_attention_heads=16, num_key_value_heads=8,
                                      max_position_embeddings=options.tokens, use_cache=False)
    models = {}
    for name in options.implementations.split(","):
        torch.manual_seed(0)
        with torch.device("cuda"):
            model = transformers.LlamaForCausalLM._from_config(copy.deepcopy(config), attn_implementation=name,
                                                               dtype=torch.bfloat16)
        models[name] = model.train(), torch.optim.AdamW(model.parameters(), 1e-4, fused=True)
    count = sum(p.numel() for p in model.parameters())
    tokens = torch.randint(0, 32000, (1, options.tokens), device="cuda")
    times: dict[str, list[float]] = {name: [] for name in models}
    losses: dict[str, list[float]] = {name: [] for name in models}
    for step in range(options.steps + 2):
        for name in list(models)[::-1 if step % 2 else 1]:
            model, optimizer = models[name]
            time.sleep(options.rest)
            begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            begin.record()
            loss = model(tokens, labels=tokens).loss
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            end.record()
            end.synchronize()
            losses[name].append(loss.item())
            if step > 1:
                times[name].append(begin.elapsed_time(end))
    print(f"{torch.cuda.get_device_name()}, torch {torch.__version__}, {count / 1e9:.2f}e9 parameters, "
          f"{options.tokens} tokens, bf16")
    for name, ms in times.items():
        print(f"{name:8} {statistics.median(ms):8.2f} ms a step ({min(ms):.2f} ... {max(ms):.2f}), "
              f"losses {losses[name][0]:.4f} ... {losses[name][-1]:.4f}")


if __name__ == "__main__":
    main()
