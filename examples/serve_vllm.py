# SPDX-License-Identifier: Apache-2.0
"""vLLM with its own attention and with attune, one after another: tokens a second, and whether the tokens agree. Needs
vLLM and a GPU.

    python3 examples/serve_vllm.py --model Qwen/Qwen3-8B
    python3 examples/serve_vllm.py --model /path/with/config.json --load dummy"""

from __future__ import annotations

import argparse
import subprocess
import sys
import time


def generate(backend: str, model: str, load: str, requests: int, tokens: int) -> None:
    """Prints the tokens; in a process of its own, as an engine keeps its GPU."""
    from vllm import LLM, SamplingParams

    engine = LLM(model=model, load_format=load, attention_config={"backend": backend}, skip_tokenizer_init=True)
    prompts = [{"prompt_token_ids": [1 + (n * 7 + i) % 999 for i in range(128 + n)]} for n in range(requests)]
    settings = SamplingParams(temperature=0.0, max_tokens=tokens, ignore_eos=True, detokenize=False)
    engine.generate(prompts[:1], settings)
    begin = time.perf_counter()
    found = engine.generate(prompts, settings)
    took = time.perf_counter() - begin
    print(f"{backend}: {requests * tokens / took:.0f} tokens/s", file=sys.stderr)
    print([one.outputs[0].token_ids for one in found])


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--model", required=True)
    parser.add_argument("--load", default="auto")
    parser.add_argument("--requests", type=int, default=64)
    parser.add_argument("--tokens", type=int, default=128)
    parser.add_argument("--backend", help="internal: run this one")
    given = parser.parse_args()
    if given.backend:
        generate(given.backend, given.model, given.load, given.requests, given.tokens)
        return
    said = [subprocess.run([sys.executable, __file__, *sys.argv[1:], "--backend", name], check=True, text=True,
                           stdout=subprocess.PIPE).stdout.splitlines()[-1] for name in ("FLASH_ATTN", "CUSTOM")]
    print("the tokens agree" if said[0] == said[1] else "the tokens differ")


if __name__ == "__main__":
    main()
