# SPDX-License-Identifier: Apache-2.0
"""Tiny models of the installed transformers: the default configuration of every architecture that takes tokens, with
all sizes shrunk by their names. What remains inconsistent is tried in a few variants; the first that "eager" runs is
the model."""

from __future__ import annotations

import copy
import importlib
import inspect
import re

import torch
import transformers
from transformers.models.auto import modeling_auto as auto

NO_TOKENS = "takes no tokens"
VOCABULARY = 128
FEW = 256  # a larger number is a size whatever its name
HEADS, HEADS_KV, DIM, WIDTH = 4, 2, 16, 64
MOST_PARAMETERS = 20_000_000

# Sizes by names; the first pattern that matches holds. None: the number is kept. Numbers that are smaller are kept.
SIZES = [(re.compile(words), size) for words, size in (
    (r"hash.*vocab", VOCABULARY),
    (r"index_topk", 4),
    (r"type_vocab|image_size|patch|kernel|mel|bins|sampl|_loc$|_type$|version|theta|factor$|every|interval|period|freq|"
     r"step|stride|groups$|idx$|layer_id|kv_shared|nextn|mtp|hash|scale$|conv|codebooks$", None),
    (r"vocab|num_embeddings|codebook_size", VOCABULARY),
    (r"dense_replace|num_dense_layers|n_dense", 1),
    (r"d_head$", DIM),
    (r"mamba.*heads$", 8),
    (r"(kv|key_value).*heads?$|num_kv|query_groups|kv_n_heads", HEADS_KV),
    (r"heads?$", HEADS),
    (r"layers?$|^depths?$|num_.*blocks$", 2),
    (r"rope_head_dim|nope_head_dim|rotary_dim", DIM // 2),
    (r"head_dim|head_size|d_head|d_kv$|kv_channels|attention_key_size", DIM),
    (r"lora_rank|latent_size$", 32),
    (r"experts_per_tok|top_?k(_experts)?$|moe_k$", 2),
    (r"topk_group|n_group|num_expert_group", 1),
    (r"experts?$|_experts_", 4),
    (r"window|attention_chunk", 6),
    (r"max_.*position|n_positions|n_ctx$|max_seq|max_len|context_length|seq_len", VOCABULARY),
    (r"expert.*(size|dim)|moe.*(size|dim)", 32),
    (r"intermediate|ffn|d_ff|ffw|mlp|n_inner|feed_forward|hidden|d_model|n_embd|embed|dim$|width|channels$|d_inner|"
     r"_size$|units$|d_state", WIDTH),
)]
_TOKEN = re.compile(r"(token_ids?|token_index|(?<!per)_token|_ids?)$")
_DROPPED = ("transformers_version", "model_type", "architectures", "dtype", "out_features", "out_indices",
            "stage_names", "id2label", "label2id", "qk_head_dim", "_name_or_path", "output_attentions",
            "output_hidden_states", "return_dict")

VARIANTS = ((False, 8, False), (True, 8, False), (False, 8, True), (True, 8, True), (False, 4, True), (True, 4, True))

# What a generic rule cannot know.
_WIDE = {"rope_type": "default", "rope_theta": 10000.0}
_MIXED = {"num_hidden_layers": 2, "layer_types": ["linear_attention", "full_attention"]}
_DSA = {"index_topk": 4, "index_kpool": 2}
_QSA = {"indexer_n_heads": 2, "indexer_kv_heads": 1, "indexer_head_dim": 16, "indexer_budget": 8,
        "indexer_compress_ratio": 2, "ngram_vocab_size_base": 128, "seed": 0}
_EXPERTS = {"num_experts": 4, "top_k_experts": 2, "moe_intermediate_size": 32}
_3D = {"rope_parameters": {"rope_theta": 10000.0, "rope_type": "default", "mrope_section": [3, 3, 2]}}
MORE = {
    "bamba": {"attn_layer_indices": [1]},
    "cohere_compass_text": {"rope_parameters": {"full_attention": _WIDE}},
    "cohere_compass": {"text_config": {"rope_parameters": {"full_attention": _WIDE}}},
    "dbrx": {"attn_config": {"rope_theta": 10000.0, "clip_qkv": 8.0}},
    "decision_transformer": {"vocab_size": 128},
    "deepseek_ocr2_text": {"mlp_layer_types": ["dense", "sparse"], "n_group": 1, "topk_group": 1},
    "deepseek_ocr2": {"text_config": {"mlp_layer_types": ["dense", "sparse"], "n_group": 1, "topk_group": 1}},
    "deepseek_v2": {"n_group": 1, "topk_group": 1, "topk_method": "greedy"},
    "diffusion_gemma_text": _EXPERTS,
    "diffusion_gemma": {"text_config": _EXPERTS},
    "dots1": {"sliding_window": 6, "layer_types": ["full_attention", "sliding_attention"]},
    "dots3_note_text": {"head_dim": 16, "index_topk": 4},
    "dots3_note": {"text_config": {"head_dim": 16, "index_topk": 4}},
    "ernie4_5_vl_moe_text": _3D,
    "ernie4_5_vl_moe": {"text_config": _3D},
    "esm": {"vocab_size": 128, "pad_token_id": 0, "mask_token_id": 127},
    "esmc": {"vocab_size": 128},
    "gemma3n_text": {"num_kv_shared_layers": 2, "num_hidden_layers": 4, "intermediate_size": [64] * 4,
                     "layer_types": ["sliding_attention", "full_attention"] * 2,
                     "activation_sparsity_pattern": [0.95, 0.0, 0.0, 0.0]},
    "glm5_next_text": _DSA,
    "glm5_next": {"text_config": _DSA},
    "granitemoehybrid": _MIXED,
    "hrm_text": {"num_hidden_layers": 20, "num_layers_per_stack": 2},
    "jamba": {"attn_layer_period": 2, "attn_layer_offset": 1},
    "lfm2_moe": {"layer_types": ["conv", "full_attention"], "num_dense_layers": 1},
    "mamba2": {"num_heads": 8, "head_dim": 16, "n_groups": 1},
    "markuplm": {"max_xpath_tag_unit_embeddings": 256, "max_xpath_subs_unit_embeddings": 1024},
    "mistral4": {"head_dim": 16},
    "owlv2_text_model": {"max_position_embeddings": 32},
    "owlvit_text_model": {"max_position_embeddings": 32},
    "qwen4_exp_text": _QSA,
    "qwen4_exp": {"text_config": _QSA},
    "qwen2_5_omni_thinker": {"vision_start_token_id": 126},
    "qwen3_omni_moe_thinker": {"vision_start_token_id": 126},
    "recurrent_gemma": {"num_hidden_layers": 3},
    "reformer": {"is_decoder": True, "axial_pos_embds": False, "attn_layers": ["local", "lsh"], "hash_seed": 0,
                 "local_attn_chunk_length": 8, "lsh_attn_chunk_length": 8, "num_buckets": 4, "num_hashes": 1},
    "t5gemma2_text": {"dropout_rate": 0.0},
    "t5gemma2_encoder": {"text_config": {"dropout_rate": 0.0}, "dropout_rate": 0.0},
    "t5gemma2_decoder": {"dropout_rate": 0.0},
    "step3p5": {"sliding_window": 6},
    "step3p7": {"text_config": {"sliding_window": 6}},
    "xmod": {"default_language": "en_XX"},
    "zamba2": {"mamba_d_state": 16, "n_mamba_heads": 8, "mamba_ngroups": 1},
    "minimax_m3_vl_text": {"index_block_size": 4, "index_topk_blocks": 2, "index_local_blocks": 1,
                           "layer_types": ["full_attention", "minimax_m3_sparse"]},
}


# Sizes that some defaults leave open and their models need.
UNSET = {"head_dim": DIM, "num_key_value_heads": HEADS_KV, "num_experts_per_tok": 2, "n_routed_experts": 4,
         "n_shared_experts": 1}


class Shrunk:
    """The fields of a configuration, shrunk. all_heads: as many heads of keys as of queries; sections: the sum of the
    parts of a rotary embedding with several axes."""

    def __init__(self, all_heads: bool, sections: int, more_sections: bool) -> None:
        self.all_heads, self.sections, self.more_sections = all_heads, sections, more_sections
        self.tokens: dict[int, int] = {}

    def fields(self, given: dict) -> dict:
        length = next((given[n] for n in ("num_hidden_layers", "num_layers", "n_layer", "n_layers")
                       if isinstance(given.get(n), int)), 0)
        lists = {n: f for n, f in given.items() if isinstance(f, (list, tuple)) and length > 1 and len(f) == length}
        kinds = list(zip(*(f for f in lists.values() if all(isinstance(x, str) for x in f))))
        kept = sorted({kinds.index(kind) for kind in kinds})  # one layer of every kind
        kept = sorted((kept + [n for n in range(length) if n not in kept])[:max(2, len(kept))])
        made = {}
        for name, value in given.items():
            if name in _DROPPED:
                continue
            if name == "rope_parameters" and self.more_sections and isinstance(value, dict):
                part = self.sections // 3
                value = {**value, "mrope_section": [self.sections - 2 * part, part, part]}
            if name in lists:
                made[name] = [self.value(name, value[n]) for n in kept]
            elif name == "per_layer_config" and value:
                made[name] = {str(at): self.fields(value[key]) for at, n in enumerate(kept) for key in value
                              if int(key) == n}
            elif re.search(r"layers?$", name) and type(value) is int and value == length and length:
                made[name] = len(kept)
            elif value is None and name in UNSET:
                made[name] = HEADS if self.all_heads and name == "num_key_value_heads" else UNSET[name]
            else:
                made[name] = self.value(name, value)
        if "qk_rope_head_dim" in made and "head_dim" in made:
            made["head_dim"] = made["qk_rope_head_dim"]
        return made

    def value(self, name: str, value):
        if isinstance(value, dict):
            return self.fields(value)
        if isinstance(value, (list, tuple)):
            if "section" in name and sum(value) != self.sections:
                parts = [max(1, n * self.sections // sum(value)) for n in value]
                return [self.sections - sum(parts[1:]), *parts[1:]]
            return [self.value(name, one) for one in value]
        if isinstance(value, float):
            return 0.0 if "drop" in name else value
        if type(value) is not int:
            return value
        if _TOKEN.search(name):  # in the vocabulary, and none that is drawn
            return value if value < 10 else self.tokens.setdefault(value, VOCABULARY - 1 - len(self.tokens) % 28)
        for words, size in SIZES:
            if words.search(name):
                if size == HEADS_KV and self.all_heads:
                    size = HEADS
                return value if size is None or value < size else size
        return WIDTH if value > FEW else value


def _merged(fields: dict, more: dict) -> dict:
    return {**fields, **{name: _merged(fields[name], value) if isinstance(value, dict) and isinstance(
        fields.get(name), dict) else value for name, value in more.items()}}


def config_of(name: str, *variant):
    kind = transformers.CONFIG_MAPPING[name]
    return kind(**_merged(Shrunk(*variant).fields(kind().to_dict()), MORE.get(name, {})))


def takes_tokens(kind) -> bool:
    try:
        return "input_ids" in inspect.signature(kind.forward).parameters
    except ImportError:  # the stand-in for a class that needs a package
        return False


def kinds_of(name: str) -> list:
    """The classes of an architecture that take tokens, the one to be tested first."""
    config = transformers.CONFIG_MAPPING[name]
    whole = "MODEL_FOR_MULTIMODAL_LM_MAPPING", "MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING"
    text = "MODEL_FOR_CAUSAL_LM_MAPPING", "MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING", "MODEL_FOR_MASKED_LM_MAPPING"
    composed = any("text" in part for part in getattr(config, "sub_configs", ()))
    found = []
    for group in (*(whole + text if composed else text + whole), "MODEL_MAPPING"):
        models = getattr(auto, group, {})
        try:
            one = models[config] if config in models else ()
        except ValueError:  # a name without a class
            continue
        found += one if isinstance(one, tuple) else (one,)
    try:
        module = importlib.import_module(config.__module__.replace("configuration_", "modeling_"))
        found += [one for _, one in inspect.getmembers(module, inspect.isclass)
                  if issubclass(one, transformers.PreTrainedModel) and vars(one).get("config_class") is config or
                  inspect.get_annotations(one).get("config") is config]
    except ImportError:
        pass
    return [one for one in dict.fromkeys(found) if takes_tokens(one)]


def inputs_of(model, rows: int = 3, length: int = 20) -> dict:
    named = {"input_ids": torch.randint(10, 100, (rows, length))}
    if "decoder_input_ids" in inspect.signature(model.forward).parameters:
        named["decoder_input_ids"] = torch.randint(10, 100, (rows, 11))
    return named


def first_of(out) -> torch.Tensor:
    return out if isinstance(out, torch.Tensor) else out[0]


class LeftOut(Exception):
    """An architecture of which no tiny model runs with "eager"."""


def tiny(name: str):
    """(model with "eager", config) of an architecture."""
    kinds = kinds_of(name)
    if not kinds:
        raise LeftOut(NO_TOKENS)
    why = ""
    for variant in VARIANTS:
        for kind in kinds[:2]:
            try:
                config = config_of(name, *variant)
                with torch.device("meta"):
                    model = kind._from_config(copy.deepcopy(config), attn_implementation="eager")
                count = sum(p.numel() for p in model.parameters())
                if count > MOST_PARAMETERS:
                    raise LeftOut(f"has {count / 1e6:.0f} million parameters")
                torch.manual_seed(1)
                model = kind._from_config(copy.deepcopy(config), attn_implementation="eager").eval()
                with torch.no_grad():
                    out = first_of(model(**inputs_of(model)))
                if not out.isfinite().all() or not out.is_floating_point():
                    raise LeftOut("its output is not finite")
                return model, config
            except Exception as error:
                why = f"{kind.__name__}: {type(error).__name__}: {' '.join(str(error).split())[:160]}"
    raise LeftOut(why)
