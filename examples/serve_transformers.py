# SPDX-License-Identifier: Apache-2.0
"""Continuous batching of transformers with two implementations of attention: the same weights, the same tokens.

    PYTHONPATH=build/python python3 examples/serve_transformers.py
    PYTHONPATH=build/python python3 examples/serve_transformers.py --model Qwen/Qwen3-0.6B --dtype bfloat16

Without --model a small Llama with random weights."""

from __future__ import annotations

import argparse
import time

import torch
import transformers

import attune.transformers


def small() -> transformers.LlamaConfig:
    return transformers.LlamaConfig(vocab_size=64, hidden_size=64, intermediate_size=96, num_hidden_layers=2,
                                    num_attention_heads=4, num_key_value_heads=2, max_position_embeddings=256)


def generate(name: str, arguments: argparse.Namespace, prompts: list[list[int]]) -> list[list[int]]:
    dtype = getattr(torch, arguments.dtype)
    torch.manual_seed(1)
    if arguments.model:
        model = transformers.AutoModelForCausalLM.from_pretrained(arguments.model, attn_implementation=name,
                                                                  dtype=dtype)
    else:
        model = transformers.AutoModelForCausalLM.from_config(small(), attn_implementation=name).to(dtype)
    model = model.to("cuda" if torch.cuda.is_available() else "cpu").eval()
    settings = transformers.ContinuousBatchingConfig(num_blocks=256, max_batch_tokens=128,
                                                     auto_switch_to_flash=False)
    greedy = transformers.GenerationConfig(max_new_tokens=arguments.tokens, do_sample=False, eos_token_id=-1,
                                           pad_token_id=0)
    begin = time.perf_counter()
    found = model.generate_batch(inputs=prompts, generation_config=greedy, continuous_batching_config=settings,
                                 progress_bar=False)
    print(f"{name}: {time.perf_counter() - begin:.2f} s")
    return [found[key].generated_tokens for key in sorted(found)]


def run(words: list[str]) -> bool:
    """Whether the tokens agree."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--model", default="")
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--tokens", type=int, default=16)
    arguments = parser.parse_args(words)
    attune.transformers.register()
    prompts = [torch.randint(2, 64, (length,)).tolist() for length in (5, 30, 12, 47)]
    both = [generate(name, arguments, prompts) for name in ("sdpa", "attune")]
    print("the tokens agree" if both[0] == both[1] else "the tokens differ")
    return both[0] == both[1]


if __name__ == "__main__":
    import sys

    sys.exit(not run(sys.argv[1:]))
