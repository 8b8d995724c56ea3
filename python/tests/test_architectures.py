"""attn_implementation="attune" in architectures unlike Llama: those with sparsity in a keyword, those that bypass the
attention interface, and those with unusual strides in biases and keys. Each must match the output of "eager", with and
without padding."""

from __future__ import annotations

import copy
import inspect
import os
import unittest
import warnings

os.environ.setdefault("HF_HUB_OFFLINE", "1")
import needs

needs.pytorch()
try:
    import transformers
    from transformers.models.auto import modeling_auto as auto
except ImportError:
    raise unittest.SkipTest("transformers is not here")

import torch

import attune.transformers

# Sizes by the names that configs use; a config gets those that it has.
SMALL = dict(
    hidden_size=64, d_model=64, n_embd=64, embedding_size=64, input_embedding_size=64, output_embedding_size=64,
    num_hidden_layers=2, n_layer=2, num_layers=2, encoder_layers=2, decoder_layers=2, num_decoder_layers=2,
    num_attention_heads=4, n_head=4, num_heads=4, encoder_attention_heads=4, decoder_attention_heads=4,
    attention_heads=4, num_key_value_heads=2, head_dim=16, d_kv=16, intermediate_size=64, d_ff=64, ffn_dim=64,
    encoder_ffn_dim=64, decoder_ffn_dim=64, vocab_size=128, max_position_embeddings=128, n_positions=128, n_ctx=128,
    moe_intermediate_size=32, num_experts=4, num_local_experts=4, n_routed_experts=4, num_experts_per_tok=2,
    n_group=1, topk_group=1, q_lora_rank=32, kv_lora_rank=32, qk_rope_head_dim=8, qk_nope_head_dim=8, v_head_dim=16,
    index_topk=4, index_n_heads=2, index_head_dim=16, sliding_window=5, o_groups=2, o_lora_rank=16, rotary_dim=8,
    block_size=4, num_random_blocks=1, attention_window=4, type_vocab_size=2, pad_token_id=0, bos_token_id=1,
    eos_token_id=2, decoder_start_token_id=1, attention_dropout=0.0, dropout=0.0, hidden_dropout=0.0,
    hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0, embd_pdrop=0.0, attn_pdrop=0.0, resid_pdrop=0.0,
    swa_head_dim=16, swa_num_attention_heads=4, swa_num_key_value_heads=2)

LATENT = dict(num_key_value_heads=4, head_dim=8, first_k_dense_replace=1)  # keys of one latent head for all

# Sparsity in a keyword, or in the mask's dtype.
KEYWORDS = {"deepseek_v32": LATENT, "glm_moe_dsa": LATENT, "mistral_large4_text": LATENT, "axk2": LATENT,
            "hy_v4": {}, "deepseek_v4": {},
            "minimax_m3_vl_text": dict(index_block_size=4, index_topk_blocks=2, index_local_blocks=1,
                                       layer_types=["full_attention", "minimax_m3_sparse"])}
# Some or all of their attention is their own code, which adds the mask.
OWN = {name: {} for name in (
    "bloom", "codegen", "gpt_neox_japanese", "xglm", "mvp", "trocr", "led", "longformer", "bigbird_pegasus", "nllb-moe",
    "pegasus_x", "splinter", "big_bird", "megatron-bert", "rembert", "roformer", "canine", "convbert", "ibert", "mpnet",
    "nystromformer", "squeezebert", "tapas", "visual_bert")}
STRIDES = {name: {} for name in ("t5", "mt5", "umt5", "switch_transformers", "inkling_text", "inkling2_text")}

# Its indexer also attends to left padding (stated in the model), whose rows see no key: "eager" gives them the mean of
# all values, and "sdpa" gives 0, as attune does. Their logits differ by 3 %; attune's match "sdpa".
UNLIKE = ("minimax_m3_vl_text",)


def config_of(name, more):
    """A small config."""
    kind = transformers.CONFIG_MAPPING[name]
    usual = kind()
    sizes = {key: size for key, size in SMALL.items() if hasattr(usual, key)}
    types = list(dict.fromkeys(getattr(usual, "layer_types", None) or ()))
    if types and len(types) > 1:  # one layer of every kind
        sizes.update(layer_types=types, num_hidden_layers=len(types))
    return kind(**{**sizes, **more})


def model_of(config, implementation):
    lists = (auto.MODEL_FOR_CAUSAL_LM_MAPPING, auto.MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING,
             auto.MODEL_FOR_MASKED_LM_MAPPING, auto.MODEL_MAPPING)
    kind = next(models[type(config)] for models in lists if type(config) in models)
    return kind._from_config(copy.deepcopy(config), attn_implementation=implementation).eval()


class Architectures(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        attune.transformers.register()
        threads = torch.get_num_threads()
        torch.set_num_threads(1)  # in such small models, threads would only wait for each other
        cls.addClassCleanup(torch.set_num_threads, threads)

    def agrees(self, name, more):
        config = config_of(name, more)
        torch.manual_seed(1)
        theirs = model_of(config, "eager")
        with torch.no_grad():
            for p in theirs.parameters():  # makes attention far from uniform
                p.normal_(0, 0.2) if p.dim() > 1 else p.nan_to_num_()
        ours = model_of(config, "attune")
        ours.load_state_dict(theirs.state_dict())
        tokens, right, left = torch.randint(3, 128, (2, 40)), torch.ones(2, 40).long(), torch.ones(2, 40).long()
        right[0, -6:] = left[1, :5] = 0
        named = {"input_ids": tokens}
        if "decoder_input_ids" in inspect.signature(theirs.forward).parameters:
            named["decoder_input_ids"] = torch.randint(3, 128, (2, 11))
        for mask in (None, right, left):
            if mask is left and name in UNLIKE:
                theirs = model_of(config, "sdpa")
                theirs.load_state_dict(ours.state_dict())
            with torch.no_grad(), warnings.catch_warnings():
                warnings.simplefilter("ignore")
                wanted, got = (m(**named, attention_mask=mask)[0] for m in (theirs, ours))
            if mask is not None and wanted.shape[1] == 40:
                wanted, got = wanted[mask.bool()], got[mask.bool()]
            self.assertTrue(wanted.isfinite().all())
            far = ((got - wanted).norm() / wanted.norm()).item()
            self.assertLess(far, 1e-5, f"{name}, padding {'none' if mask is None else mask.tolist()}")

    def test_gemma4_is_as_eager_where_only_the_last_queries_are_left(self):
        if "gemma4_text" not in transformers.CONFIG_MAPPING:
            self.skipTest(f"transformers {transformers.__version__} has no gemma4_text")
        for name in ("gemma4_text", "gemma4_unified_text"):
            config = transformers.CONFIG_MAPPING[name](
                hidden_size=64, intermediate_size=64, vocab_size=128, num_attention_heads=4, num_key_value_heads=2,
                head_dim=16, global_head_dim=16, hidden_size_per_layer_input=16, vocab_size_per_layer_input=128,
                num_kv_shared_layers=2, num_hidden_layers=4, layer_types=["sliding_attention", "full_attention"] * 2,
                sliding_window=64, max_position_embeddings=128)
            torch.manual_seed(1)
            theirs, ours = model_of(config, "eager"), model_of(config, "attune")
            ours.load_state_dict(theirs.state_dict())
            tokens = torch.randint(3, 128, (2, 24))
            for count in (0, 1, 5):
                with self.subTest(name, last=count), torch.no_grad():
                    wanted, got = (m(tokens, logits_to_keep=count).logits for m in (theirs, ours))
                    torch.testing.assert_close(got, wanted, rtol=1e-4, atol=1e-5)


def add(name, more):
    def test(self):
        if name not in transformers.CONFIG_MAPPING:
            self.skipTest(f"transformers {transformers.__version__} has no {name}")
        self.agrees(name, more)
    setattr(Architectures, f"test_{name.replace('-', '_')}_is_as_eager", test)


for group in (KEYWORDS, OWN, STRIDES):
    for name, more in group.items():
        add(name, more)


if __name__ == "__main__":
    unittest.main()
