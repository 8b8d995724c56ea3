# SPDX-License-Identifier: Apache-2.0
"""attn_implementation="attune": the same logits, losses and tokens as "sdpa", with random weights."""

from __future__ import annotations

import copy
import itertools
import os
import unittest

os.environ.setdefault("HF_HUB_OFFLINE", "1")
import needs

needs.pytorch()
try:
    import transformers
except ImportError:
    raise unittest.SkipTest("transformers is not here")

import torch

import attune.transformers
import attune.torch

DEVICES = ["cpu"] + (["cuda"] if torch.cuda.is_available() else [])


def llama(**more):
    return transformers.LlamaConfig(vocab_size=64, hidden_size=64, intermediate_size=96, num_hidden_layers=2,
                                    num_attention_heads=4, num_key_value_heads=2, max_position_embeddings=256,
                                    pad_token_id=0, bos_token_id=1, eos_token_id=None, **more)


def gpt2():
    return transformers.GPT2Config(vocab_size=64, n_positions=128, n_embd=64, n_layer=2, n_head=4, resid_pdrop=0.0,
                                   embd_pdrop=0.0, attn_pdrop=0.0, pad_token_id=0, bos_token_id=1, eos_token_id=None)


def mistral():
    return transformers.MistralConfig(vocab_size=64, hidden_size=64, intermediate_size=96, num_hidden_layers=2,
                                      num_attention_heads=4, num_key_value_heads=2, max_position_embeddings=256,
                                      sliding_window=5, pad_token_id=0, bos_token_id=1, eos_token_id=None)


class Transformers(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        attune.transformers.register()

    def pair(self, config, device="cpu", dtype=torch.float32, other="sdpa"):
        """The same weights with another implementation and with "attune"."""
        torch.manual_seed(2)
        theirs = transformers.AutoModelForCausalLM.from_config(copy.deepcopy(config), attn_implementation=other)
        ours = transformers.AutoModelForCausalLM.from_config(copy.deepcopy(config), attn_implementation="attune")
        ours.load_state_dict(theirs.state_dict())
        return theirs.to(device, dtype).eval(), ours.to(device, dtype).eval()

    def test_logits_are_those_of_sdpa_with_and_without_padding(self):
        for device in DEVICES:
            for config in (llama(), gpt2(), mistral()):
                with self.subTest(device=device, model=config.model_type):
                    theirs, ours = self.pair(config, device)
                    tokens = torch.randint(1, 64, (2, 12), device=device)
                    mask = torch.ones_like(tokens)
                    mask[0, :4] = 0
                    for attention_mask in (None, mask):
                        with torch.no_grad():
                            wanted, got = (m(tokens, attention_mask=attention_mask).logits for m in (theirs, ours))
                        shown = mask.bool() if attention_mask is not None else slice(None)
                        torch.testing.assert_close(got[shown], wanted[shown], rtol=1e-4, atol=1e-4)

    def test_logits_in_bf16_are_as_near_to_f32_as_those_of_sdpa(self):
        for device in DEVICES:
            for config in (llama(), gpt2(), mistral()):
                config.initializer_range = 0.3  # makes attention far from uniform
                with self.subTest(device=device, model=config.model_type), torch.no_grad():
                    exact, _ = self.pair(config, device)
                    tokens = torch.randint(1, 64, (2, 40), device=device)
                    mask = torch.ones_like(tokens)
                    mask[0, :7] = 0
                    wanted = exact(tokens, attention_mask=mask).logits[mask.bool()]
                    far = []
                    for model in self.pair(config, device, torch.bfloat16):
                        got = model(tokens, attention_mask=mask).logits[mask.bool()]
                        far.append((got.float() - wanted).abs())
                    self.assertLess(far[1].mean().item(), 1.3 * far[0].mean().item())
                    self.assertLess(far[1].max().item(), 2 * far[0].max().item())

    def test_softcap_and_sinks_are_those_of_eager(self):
        shape = dict(vocab_size=64, hidden_size=64, intermediate_size=96, num_hidden_layers=2, num_attention_heads=4,
                     num_key_value_heads=2, head_dim=16, max_position_embeddings=256, sliding_window=5,
                     pad_token_id=0, bos_token_id=1, eos_token_id=None)
        for config in (transformers.Gemma2Config(attn_logit_softcapping=2.0, query_pre_attn_scalar=16, **shape),
                       transformers.GptOssConfig(num_local_experts=2, num_experts_per_tok=1, **shape)):
            with self.subTest(model=config.model_type):
                theirs, ours = self.pair(config, other="eager")
                with torch.no_grad():
                    for model in (theirs, ours):  # random sinks, the same for both
                        torch.manual_seed(5)
                        for name, parameter in model.named_parameters():
                            if name.endswith("sinks"):
                                parameter.copy_(torch.randn_like(parameter))
                    tokens = torch.randint(1, 64, (2, 12))
                    wanted, got = (m(tokens).logits for m in (theirs, ours))
                torch.testing.assert_close(got, wanted, rtol=1e-4, atol=1e-4)

    def test_greedy_tokens_are_those_of_sdpa_with_dynamic_and_static_caches(self):
        for device in DEVICES:
            for config in (llama(), gpt2(), mistral()):
                theirs, ours = self.pair(config, device)
                tokens = torch.randint(1, 64, (2, 6), device=device)
                mask = torch.ones_like(tokens)
                mask[1, :2] = 0
                for cache in (None, "static"):
                    with self.subTest(device=device, model=config.model_type, cache=cache):
                        named = dict(attention_mask=mask, max_new_tokens=8, do_sample=False, cache_implementation=cache,
                                     disable_compile=True)
                        wanted, got = (m.generate(tokens, **named) for m in (theirs, ours))
                        self.assertEqual(got.tolist(), wanted.tolist())

    def trained(self, model, tokens, mask, steps=50):
        """Losses of steps on one batch, which the model memorizes. Several threads would only wait for each other."""
        threads = torch.get_num_threads()
        torch.set_num_threads(1)
        self.addCleanup(torch.set_num_threads, threads)
        labels = tokens.masked_fill(mask == 0, -100)
        optimizer = torch.optim.AdamW(model.train().parameters(), 3e-3)
        losses = []
        for _ in range(steps):
            loss = model(tokens, attention_mask=mask, labels=labels).loss
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
        return torch.tensor(losses)

    def batch(self, device):
        """Sequences, two of them padded on the left, and the mask of valid tokens."""
        torch.manual_seed(4)
        tokens = torch.randint(1, 64, (4, 24), device=device)
        mask = torch.ones_like(tokens)
        mask[1, :9] = mask[3, :2] = 0
        return tokens.masked_fill(mask == 0, 0), mask

    def test_training_follows_sdpa_and_what_was_learned_is_generated(self):
        for config, device in itertools.product((llama(), gpt2(), mistral()), DEVICES):
            with self.subTest(model=config.model_type, device=device):
                tokens, mask = self.batch(device)
                pair = self.pair(config, device)
                wanted, got = (self.trained(model, tokens, mask) for model in pair)
                self.assertLess(wanted[-1], 0.1 * wanted[0])  # guards against a trivial task
                # Rounding grows with the steps: to 2e-4 of a loss after 50, whereas a missing mask causes 7e-2.
                torch.testing.assert_close(got, wanted, rtol=5e-3, atol=1e-3)
                theirs, ours = pair
                ours.load_state_dict(theirs.state_dict())
                for cache in (None, "static"):
                    named = dict(attention_mask=mask[:, :12], max_new_tokens=12, do_sample=False,
                                 cache_implementation=cache, disable_compile=True)
                    wanted, got = (m.eval().generate(tokens[:, :12], **named) for m in (theirs, ours))
                    self.assertEqual(got.tolist(), wanted.tolist())
                    whole = mask.bool().all(1)  # GPT-2 counts padding as positions in training, but not in generate()
                    learned = (wanted == tokens)[whole, 12:].float().mean().item()
                    self.assertGreater(learned, 0.8, "greedy tokens are those that were learned")

    def gradients(self, model, tokens, mask):
        model.train().zero_grad()
        model(tokens, attention_mask=mask, labels=tokens.masked_fill(mask == 0, -100)).loss.backward()
        return torch.cat([p.grad.float().flatten() for p in model.parameters()])

    def test_gradients_in_bf16_are_as_near_to_f32_as_those_of_sdpa_and_it_learns(self):
        # The distance of losses from those of f32 after many steps proves nothing: on a CPU, eager's losses are half as
        # far as sdpa's, with gradients that are twenty times as wrong.
        for device, config in itertools.product(DEVICES, (llama(), gpt2(), mistral())):
            with self.subTest(model=config.model_type, device=device):
                tokens, mask = self.batch(device)
                learned = self.trained(self.pair(config, device, torch.bfloat16)[1], tokens, mask)
                self.assertLess(learned[-1], 0.2 * learned[0])
                config.initializer_range = 0.3  # makes attention far from uniform
                exact, _ = self.pair(config, device)
                pair = self.pair(config, device, torch.bfloat16)
                exact.load_state_dict({name: t.float() for name, t in pair[0].state_dict().items()})
                far = torch.zeros(2)
                for _ in range(4):
                    tokens = torch.randint(1, 64, tokens.shape, device=device).masked_fill(mask == 0, 0)
                    wanted = self.gradients(exact, tokens, mask)
                    far += torch.stack([(self.gradients(m, tokens, mask) - wanted).norm() / wanted.norm()
                                        for m in pair]).cpu()
                self.assertLess(far[1].item(), 1.3 * far[0].item())

    def test_a_mask_of_other_rows_is_refused_and_more_keys_are_cut(self):
        q, k = torch.randn(1, 4, 1, 16), torch.randn(1, 4, 7, 16)
        module = torch.nn.Module()
        with self.assertRaisesRegex(attune.Error, "attention_mask has 7 rows"):
            attune.transformers.attention(module, q, k, k, torch.ones(1, 1, 7, 7, dtype=torch.bool))
        mask = torch.rand(1, 1, 1, 9) > 0.5
        mask[..., 0] = True
        got, _ = attune.transformers.attention(module, q, k, k, mask)
        wanted = torch.nn.functional.scaled_dot_product_attention(q, k, k, attn_mask=mask[..., :7])
        torch.testing.assert_close(got.transpose(1, 2), wanted, rtol=1e-4, atol=1e-5)

    def test_a_keyword_that_nobody_knows_is_refused_and_one_of_others_is_not(self):
        q = torch.randn(2, 4, 8, 16)
        module, mask = torch.nn.Module(), torch.ones(2, 1, 8, 8, dtype=torch.bool).tril()
        keys = torch.zeros(2, 8, 2).long()
        for named, sentence in (
                (dict(sofcap=3.0), "the keyword 'sofcap' may change .* does not serve it; served are softcap, s_aux"),
                (dict(head_mask=torch.ones(4)), "the keyword 'head_mask' may change"),
                (dict(indices=keys, attention_mask=None), "indices are given without an attention_mask"),
                (dict(indices=keys[:, :3]), r"indices are \[2, 3, 2\] of torch.int64, and .* integers \[2, 8, n\]"),
                (dict(indices=keys.float()), "indices are .* of torch.float32, and accepted are integers"),
                (dict(block_indices=torch.zeros(2, 2, 8, 1).long()), "block_indices are given by Module, whose"),
                (dict(sinks=torch.zeros(1, 4, 8, 1)), r"sinks is \[1, 4, 8, 1\], and .* \[4\], .* \[2, 4, 8, 1\]"),
                (dict(s_aux=torch.zeros(2, 4, 8, 1)), r"s_aux is \[2, 4, 8, 1\], and accepted are \[4\], one for each"),
                (dict(s_aux=torch.zeros(4), sinks=torch.zeros(4)), "s_aux and sinks are both given")):
            with self.subTest(sentence), self.assertRaisesRegex(attune.Error, sentence):
                attune.transformers.attention(module, q, q, q, **{"attention_mask": mask, **named})
        wanted, _ = attune.transformers.attention(module, q, q, q, mask)
        got, _ = attune.transformers.attention(module, q, q, q, mask, use_cache=True, sliding_window=5, sofcap=None,
                                               position_ids=torch.arange(8)[None], output_router_logits=False)
        torch.testing.assert_close(got, wanted, rtol=0, atol=0)

    def test_keys_that_were_selected_are_all_that_is_seen(self):
        q, k, v = (torch.randn(2, 4, n, 16) for n in (8, 11, 11))
        keys = torch.rand(2, 8, 11).argsort(-1)[..., :4]
        seen = torch.zeros(2, 8, 11, dtype=torch.bool).scatter(-1, keys, True)[:, None]
        mask = torch.ones(8, 11, dtype=torch.bool).tril(3)[None, None].expand(2, 1, 8, 11)
        some = (seen & mask).any(-1)[:, 0]
        wanted = torch.nn.functional.scaled_dot_product_attention(q, k, v, attn_mask=seen & mask).transpose(1, 2)
        for given in (mask, torch.zeros(mask.shape).masked_fill(~mask, torch.finfo(torch.float32).min)):
            got, _ = attune.transformers.attention(torch.nn.Module(), q, k, v, given, indices=keys.int())
            torch.testing.assert_close(got[some], wanted[some], rtol=1e-4, atol=1e-5)

    def test_sinks_of_every_query_are_one_more_term_of_the_sum(self):
        q, k, v = (torch.randn(2, 4, 8, 16, requires_grad=True) for _ in range(3))
        sinks = torch.randn(2, 4, 8, 1, requires_grad=True)
        scores = (q @ k.transpose(2, 3) / 4).masked_fill(torch.ones(8, 8).triu(1).bool(), -torch.inf)
        wanted = (torch.cat([scores, sinks], -1).softmax(-1)[..., :-1] @ v).transpose(1, 2)
        got, _ = attune.transformers.attention(torch.nn.Module(), q, k, v, None, sinks=sinks)
        torch.testing.assert_close(got, wanted, rtol=1e-4, atol=1e-5)
        weights = torch.randn_like(wanted)
        for g, w in zip(*(torch.autograd.grad((out * weights).sum(), (q, k, v, sinks)) for out in (got, wanted))):
            torch.testing.assert_close(g, w, rtol=1e-4, atol=1e-5)

    def test_rows_of_any_stride_are_served(self):
        q, v = torch.randn(2, 4, 8, 16), torch.randn(2, 4, 8, 16)
        k = torch.randn(2, 4, 16, 8).transpose(2, 3)
        bias = torch.randn(8, 8, 4).permute(2, 0, 1)[None]  # the layout of T5
        mask = torch.ones(2, 1, 8, 8, dtype=torch.bool).tril()
        for given in (None, mask):
            got, _ = attune.transformers.attention(torch.nn.Module(), q, k, v, given, is_causal=False,
                                                   position_bias=bias)
            both = bias.expand(2, 4, 8, 8) if given is None else bias.masked_fill(~given, -torch.inf)
            wanted = torch.nn.functional.scaled_dot_product_attention(q, k, v, attn_mask=both.contiguous())
            torch.testing.assert_close(got.transpose(1, 2), wanted, rtol=1e-4, atol=1e-5)

    def masks(self, config, **named):
        """The masks that the attention of a model receives."""
        _, model = self.pair(config, other="eager")
        seen = []

        def noted(module, query, key, value, attention_mask, **more):
            seen.append(attention_mask)
            return attune.transformers.attention(module, query, key, value, attention_mask, **more)

        transformers.AttentionInterface.register("noted", noted)
        transformers.masking_utils.ALL_MASK_ATTENTION_FUNCTIONS.register("noted", attune.transformers._mask)
        model.set_attn_implementation("noted")
        with torch.no_grad():
            model(torch.randint(1, 64, (2, 12)), **named)
        return seen

    def test_there_is_no_mask_where_it_is_plainly_causal(self):
        mask = torch.ones(2, 12).long()
        mask[0, :4] = 0
        capped = transformers.Gemma2Config(vocab_size=64, hidden_size=64, intermediate_size=96, num_hidden_layers=2,
                                           num_attention_heads=4, num_key_value_heads=2, head_dim=16, pad_token_id=0)
        for config, dtype in ((llama(), torch.bool), (capped, torch.float32)):
            self.assertEqual(self.masks(config), [None, None])
            self.assertEqual([m.dtype for m in self.masks(config, attention_mask=mask)], [dtype] * 2)

    def test_a_model_without_the_interface_says_that_its_own_attention_runs(self):
        config = transformers.BloomConfig(vocab_size=64, hidden_size=64, n_layer=2, n_head=4)
        _, model = self.pair(config, other="eager")
        attune.transformers._kinds.clear()
        with self.assertWarnsRegex(UserWarning, "models of BloomConfig do not use the attention interface"):
            model(torch.ones(1, 4, dtype=torch.long))

    def test_a_model_with_a_table_of_attention_classes_is_refused_in_words(self):
        small = dict(vocab_size=64, hidden_size=64, num_hidden_layers=2, num_attention_heads=4)
        for config, table in (
                (transformers.FalconConfig(**small), "FALCON_ATTENTION_CLASSES; accepted .*'eager', 'sdpa'"),
                (transformers.GPTJConfig(vocab_size=64, n_embd=64, n_layer=2, n_head=4, rotary_dim=8), "GPTJ_ATTENTION"),
                (transformers.GPTNeoConfig(vocab_size=64, hidden_size=64, num_layers=2, num_heads=4,
                                           attention_types=[[["global", "local"], 1]]), "GPT_NEO_ATTENTION_CLASSES")):
            with self.subTest(config.model_type), self.assertRaisesRegex(attune.Error, f"selects a class from {table}"):
                transformers.AutoModelForCausalLM.from_config(config, attn_implementation="attune")
            transformers.AutoModelForCausalLM.from_config(config, attn_implementation="eager")

    def test_masks_are_made_in_one_graph(self):
        for config in (llama(), transformers.BloomConfig(vocab_size=64, hidden_size=64, n_layer=2, n_head=4)):
            _, model = self.pair(config, other="eager")
            compiled = torch.compile(model, fullgraph=True, backend="aot_eager")
            tokens, mask = torch.randint(1, 64, (2, 12)), torch.ones(2, 12).long()
            mask[0, :4] = 0
            with self.subTest(config.model_type), torch.no_grad():
                wanted, got = (m(tokens, attention_mask=mask, use_cache=False).logits for m in (model, compiled))
                torch.testing.assert_close(got, wanted, rtol=1e-4, atol=1e-5)

    def test_what_weights_would_need_is_refused(self):
        _, model = self.pair(llama())
        with self.assertRaisesRegex(ValueError, "eager|output_attentions"):
            model(torch.ones(1, 4, dtype=torch.long), output_attentions=True)


if __name__ == "__main__":
    unittest.main()
