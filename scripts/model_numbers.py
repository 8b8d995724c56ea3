#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes the numbers of a model in transformers, for `attune model FOLDER --check FOLDER/numbers.safetensors`.

    model_numbers.py FOLDER                  logits, loss, gradients and greedy tokens of the model in FOLDER
    model_numbers.py FOLDER --random FAMILY  first makes a small random model of a family there: gpt2, gptj, gpt_neox,
                                             llama, mistral, qwen2, gemma2

Logits, loss and gradients are computed in f64 from weights in f32; greedy tokens in f32, with a cache."""
import argparse
import os
import pathlib

os.environ.setdefault("HF_HUB_OFFLINE", "1")

# Sizes of random models: small, and unlike each other where a mistake would hide (heads and their dims, widths).
SIZES = {"vocab_size": 61, "hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 4,
         "num_key_value_heads": 2, "intermediate_size": 24, "max_position_embeddings": 512}
GPT = {"vocab_size": 61, "n_embd": 16, "n_layer": 2, "n_head": 2, "n_positions": 272}
DROPS = {"resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0}
FAMILIES = {
    "gpt2": ("GPT2Config", {**GPT, **DROPS, "n_inner": 24}),
    "gptj": ("GPTJConfig", {**GPT, **DROPS, "rotary_dim": 4, "n_inner": 24}),
    "gpt_neox": ("GPTNeoXConfig", {**SIZES, "hidden_dropout": 0.0, "num_attention_heads": 2, "hidden_act": "gelu",
                                   "rotary_pct": 0.25}),
    "llama": ("LlamaConfig", {**SIZES, "head_dim": 6, "rope_parameters": {
        "rope_type": "llama3", "rope_theta": 10000.0, "factor": 4.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
        "original_max_position_embeddings": 32}}),
    "mistral": ("MistralConfig", {**SIZES, "sliding_window": 7}),
    "qwen2": ("Qwen2Config", {**SIZES, "tie_word_embeddings": True}),
    "gemma2": ("Gemma2Config", {**SIZES, "num_hidden_layers": 3, "head_dim": 10, "sliding_window": 6,
                                "query_pre_attn_scalar": 12, "attn_logit_softcapping": 2.0,
                                "final_logit_softcapping": 3.0}),
}


def make(folder, family, seed):
    import torch
    import transformers
    name, sizes = FAMILIES[family]
    sizes = {key: size for key, size in sizes.items() if family != "gpt_neox" or key != "num_key_value_heads"}
    torch.manual_seed(seed)
    config = getattr(transformers, name)(bos_token_id=0, eos_token_id=1, pad_token_id=None, **sizes)
    model = transformers.AutoModelForCausalLM.from_config(config)
    with torch.no_grad():  # the defaults are too small to tell a wrong model from a right one
        for parameter in model.parameters():
            parameter.add_(0.15 * torch.randn_like(parameter))
    model.save_pretrained(folder)


def greedy(model, text, count):
    """The likeliest token after the text, and so on, with a cache."""
    import torch
    cache, tokens = None, []
    with torch.no_grad():
        for _ in range(count):
            result = model(text, past_key_values=cache, use_cache=True)
            cache, text = result.past_key_values, result.logits[:, -1:].argmax(-1)
            tokens.append(text)
    return torch.cat(tokens, 1)


def numbers(folder, batch, length, prompt, count, seed):
    import safetensors.torch
    import torch
    import transformers
    load = transformers.AutoModelForCausalLM.from_pretrained
    model = load(folder, dtype=torch.float64, attn_implementation="eager").eval()
    torch.manual_seed(seed)
    vocab = model.config.vocab_size
    tokens = torch.randint(0, vocab, (batch, length))
    result = model(tokens, labels=tokens)
    result.loss.backward()
    out = {"tokens": tokens.float(), "logits": result.logits.float(), "loss": result.loss.float().reshape(1)}
    for name, parameter in model.named_parameters():
        name = "embed_out.weight" if model.config.model_type == "gpt_neox" and name == "lm_head.weight" else name
        out["gradient." + name] = parameter.grad.float()  # by the names of the checkpoint
    model = load(folder, dtype=torch.float32, attn_implementation="eager").eval()
    text = torch.randint(0, vocab, (batch, prompt))
    out["prompt"], out["greedy"] = text.float(), greedy(model, text, count).float()
    safetensors.torch.save_file({name: t.detach().contiguous() for name, t in out.items()},
                                pathlib.Path(folder, "numbers.safetensors"))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder")
    parser.add_argument("--random", metavar="FAMILY", choices=FAMILIES)
    parser.add_argument("--batch", type=int, default=2)
    parser.add_argument("--length", type=int, default=17)
    parser.add_argument("--prompt", type=int, default=9)
    parser.add_argument("--tokens", type=int, default=256)
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    if given.random:
        make(given.folder, given.random, given.seed)
    numbers(given.folder, given.batch, given.length, given.prompt, given.tokens, given.seed)


if __name__ == "__main__":
    main()
