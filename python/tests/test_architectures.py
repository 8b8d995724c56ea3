# SPDX-License-Identifier: Apache-2.0
"""attn_implementation="attune" in every architecture of the installed transformers that takes tokens: tiny models with
random weights have the logits, gradients and greedy tokens of "eager", without and with padding on both sides, or are
refused with attune.Error.

ATTUNE_ARCHITECTURES="llama gemma2" selects some; after ATTUNE_SWEEP_SECONDS (900) the rest is left out. A report of
what was served, refused and left out goes to stderr."""

from __future__ import annotations

import collections
import copy
import inspect
import os
import sys
import time
import unittest
import unittest.mock
import warnings

os.environ.setdefault("HF_HUB_OFFLINE", "1")
import needs

needs.pytorch()
try:
    import transformers
except ImportError:
    raise unittest.SkipTest("transformers is not here")

import torch

import attune.transformers
import tiny

# Its indexer also attends to left padding (stated in the model), whose rows see no key: "eager" gives them the mean of
# all values, and "sdpa" gives 0, as attune does. Their logits differ by 3 %; attune's match "sdpa".
UNLIKE = ("minimax_m3_vl_text",)
# With larger weights, the gradients of "eager" in f32 are 5e-4 away from those in f64.
STEEP = ("mobilebert",)
LENGTH, PROMPT = 20, 12
NEAR, NEAR_GRADIENT = 2e-5, 2e-4  # relative, of whole tensors; roundoff is about 1e-6


def far(got, wanted):
    """The relative distance of two lists of tensors."""
    got, wanted = (torch.cat([t.double().flatten() for t in ts]) for ts in (got, wanted))
    return ((got - wanted).norm() / wanted.norm().clamp_min(1e-30)).item()


def padding():
    """A sequence without padding, one padded on the right and one on the left."""
    mask = torch.ones(3, LENGTH).long()
    mask[1, -6:] = mask[2, :5] = 0
    return mask


def randomize(model, name, named):
    """Weights that make attention far from uniform, as large as the model stays finite with."""
    for width in (0.2, 0.05, 0.01)[name in STEEP:]:
        torch.manual_seed(2)
        with torch.no_grad():
            for p in model.parameters():
                p.normal_(0, width) if p.dim() > 1 else p.nan_to_num_()
            if tiny.first_of(model(**named)).isfinite().all():
                return
    raise tiny.LeftOut("its output is not finite")


def ran(model, named, mask):
    """The output, at places that are not padding, and the gradients of all parameters, by name; None where the model
    itself cannot be trained like this."""
    model.zero_grad()
    torch.manual_seed(3)
    masks = {} if mask is None else {"attention_mask": mask}
    if masks and not model.config.is_encoder_decoder and "decoder_input_ids" in named:  # a decoder that reads the cache
        canvas = torch.ones_like(named["decoder_input_ids"])
        masks["decoder_attention_mask"] = torch.cat([mask, canvas], 1)
    out = tiny.first_of(model(**named, **masks))
    if mask is not None and out.dim() > 1 and "decoder_input_ids" not in named:
        if out.shape[1] > LENGTH:  # a token of its own at the end
            mask = torch.nn.functional.pad(mask, (0, out.shape[1] - LENGTH), value=1)
        if out.shape[1] >= LENGTH - 1:  # the first token may have no output; other outputs are of whole sequences
            out = out[mask[:, mask.shape[1] - out.shape[1]:].bool()]
    torch.manual_seed(4)
    loss = (out * torch.randn(out.shape).to(out.dtype)).sum()
    gradients = {}
    if loss.requires_grad:
        try:
            loss.backward()
        except attune.Error:
            raise
        except (AssertionError, RuntimeError):
            return out.detach(), None
        gradients = {name: p.grad for name, p in model.named_parameters() if p.grad is not None}
    return out.detach(), gradients


def generated(model, tokens):
    """Greedy tokens and their scores after a prompt with left padding."""
    mask = torch.ones(3, PROMPT).long()
    mask[2, :5] = 0
    begin = {"decoder_start_token_id": 1} if model.config.is_encoder_decoder else {}
    with torch.no_grad():
        made = model.generate(tokens[:, :PROMPT], attention_mask=mask, max_new_tokens=5, do_sample=False,
                              output_scores=True, return_dict_in_generate=True, pad_token_id=0, **begin)
    scores = torch.stack(made.scores)
    return made.sequences, scores[scores.isfinite() & (scores.abs() < 1e20)]


class Architectures(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        attune.transformers.register()
        threads, level = torch.get_num_threads(), transformers.logging.get_verbosity()
        torch.set_num_threads(1)  # in such small models, threads would only wait for each other
        transformers.logging.set_verbosity_error()
        cls.addClassCleanup(transformers.logging.set_verbosity, level)
        cls.addClassCleanup(torch.set_num_threads, threads)

    def agrees(self, name):
        """Fails, or returns how many checks agreed and how often attune ran. attune.Error is a refusal."""
        theirs, config = tiny.tiny(name)
        torch.manual_seed(1)
        named = tiny.inputs_of(theirs, 3, LENGTH)
        randomize(theirs, name, named)
        ours = type(theirs)._from_config(copy.deepcopy(config), attn_implementation="attune").eval()
        ours.load_state_dict(theirs.state_dict())
        masks = [None, padding()] if "attention_mask" in inspect.signature(theirs.forward).parameters else [None]
        calls = unittest.mock.Mock(side_effect=attune.transformers.attend)
        with unittest.mock.patch.object(attune.transformers, "attend", calls):
            for mask in masks:
                if mask is not None and name in UNLIKE:
                    theirs = type(theirs)._from_config(copy.deepcopy(config), attn_implementation="sdpa").eval()
                    theirs.load_state_dict(ours.state_dict())
                (wanted, wanted_gradients), (got, gradients) = (ran(m, named, mask) for m in (theirs, ours))
                say = f"{name}, {'no padding' if mask is None else 'padding'}"
                self.assertTrue(wanted.isfinite().all(), say)
                self.assertLess(far([got], [wanted]), NEAR, say)
                if wanted_gradients is not None:
                    self.assertEqual(set(gradients or ()), set(wanted_gradients), say)
                if wanted_gradients and all(g.isfinite().all() for g in wanted_gradients.values()):
                    self.assertLess(far(gradients.values(), [wanted_gradients[n] for n in gradients]), NEAR_GRADIENT,
                                    f"{say}, gradients")
            makes = "none"
            if theirs.can_generate() and hasattr(theirs, "generate"):
                try:
                    wanted, scores = generated(theirs, named["input_ids"])
                    makes = "same"
                except Exception as error:
                    makes = f"eager's generate: {type(error).__name__}"
                if makes == "same":
                    got, mine = generated(ours, named["input_ids"])
                    self.assertEqual(got.tolist(), wanted.tolist(), f"{name}, greedy tokens")
                    self.assertLess(far([mine], [scores]), NEAR, f"{name}, scores of greedy tokens")
        return calls.call_count, makes

    def test_every_architecture_is_as_eager_or_refused(self):
        chosen = os.environ.get("ATTUNE_ARCHITECTURES", "").split()
        end = time.monotonic() + float(os.environ.get("ATTUNE_SWEEP_SECONDS", "900"))
        seen = collections.defaultdict(list)
        for name in chosen or sorted(transformers.CONFIG_MAPPING):
            if time.monotonic() > end:
                seen["not reached"].append(name)
                continue
            with self.subTest(name), warnings.catch_warnings():
                warnings.simplefilter("ignore")
                try:
                    calls, makes = self.agrees(name)
                    seen["served" if calls else "own attention"].append(name)
                    if makes.startswith("eager's"):
                        seen["without generate()"].append(f"{name}: {makes}")
                except attune.Error as error:
                    seen["refused"].append(f"{name}: {error}")
                except tiny.LeftOut as why:
                    if str(why) != tiny.NO_TOKENS:
                        seen["left out"].append(f"{name}: {why}")
        print("", *(f"{what}: {len(names)}\n    " + ("\n    " if ":" in names[0] else " ").join(names)
                    for what, names in seen.items()), sep="\n", file=sys.stderr)
        if not chosen and not seen["not reached"]:  # a sweep that compares little does not pass
            self.assertGreater(len(seen["served"]), 2 * len(seen["left out"]))

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
            make = transformers.AutoModelForCausalLM.from_config
            theirs, ours = (make(copy.deepcopy(config), attn_implementation=how) for how in ("eager", "attune"))
            ours.load_state_dict(theirs.state_dict())
            tokens = torch.randint(3, 128, (2, 24))
            for count in (0, 1, 5):
                with self.subTest(name, last=count), torch.no_grad():
                    wanted, got = (m.eval()(tokens, logits_to_keep=count).logits for m in (theirs, ours))
                    torch.testing.assert_close(got, wanted, rtol=1e-4, atol=1e-5)


if __name__ == "__main__":
    unittest.main()
