# SPDX-License-Identifier: Apache-2.0
"""generate_batch() of transformers with attn_implementation="attune": the tokens of "sdpa", with random weights; and
the attention function by itself, with stand-ins of the caches of transformers 5.17 and 5.23."""

from __future__ import annotations

import copy
import os
import types
import unittest
from unittest import mock

os.environ.setdefault("HF_HUB_OFFLINE", "1")
import needs

needs.pytorch()
try:
    import transformers
    from transformers.generation.continuous_batching import PagedAttentionCache
except ImportError:
    raise unittest.SkipTest("transformers with continuous batching is not here")

import torch

import attune
import attune.transformers
from attune import _continuous
from paged import Batch, attention, example

try:
    from transformers import ContinuousBatchingConfig
except ImportError:
    ContinuousBatchingConfig = None

SIZES = dict(vocab_size=64, hidden_size=64, intermediate_size=96, num_hidden_layers=2, num_attention_heads=4,
             num_key_value_heads=2, max_position_embeddings=256, pad_token_id=0, bos_token_id=1, eos_token_id=None)


def both_kinds():
    """A layer with a sliding window, and one without."""
    return transformers.Qwen3Config(**SIZES, head_dim=16, use_sliding_window=True, sliding_window=6,
                                    layer_types=["sliding_attention", "full_attention"])


@unittest.skipIf(ContinuousBatchingConfig is None, "a transformers with ContinuousBatchingConfig is not here")
class Tokens(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        attune.transformers.register()

    def generated(self, model, prompts):
        page = "page_size" if "page_size" in ContinuousBatchingConfig.__dataclass_fields__ else "block_size"
        settings = ContinuousBatchingConfig(num_blocks=64, max_batch_tokens=24, **{page: 8})
        generation = transformers.GenerationConfig(max_new_tokens=6, do_sample=False, eos_token_id=-1, pad_token_id=0)
        found = model.generate_batch(inputs=prompts, generation_config=generation, progress_bar=False,
                                     continuous_batching_config=settings)
        self.assertEqual({one.error for one in found.values()}, {None})
        return [found[name].generated_tokens for name in sorted(found)]

    def test_tokens_are_those_of_sdpa_and_pages_are_read_in_place(self):
        for config in (transformers.LlamaConfig(**SIZES), both_kinds()):
            torch.manual_seed(2)
            theirs, ours = (transformers.AutoModelForCausalLM.from_config(
                copy.deepcopy(config), attn_implementation=name).eval() for name in ("sdpa", "attune"))
            ours.load_state_dict(theirs.state_dict())
            # Prompts beyond 24 tokens come in parts, beside the decode steps of others.
            prompts = [torch.randint(2, 64, (n,)).tolist() for n in (5, 40, 1, 31, 18)]
            with self.subTest(type(config).__name__):
                wanted, layers = self.generated(theirs, prompts), []
                update = PagedAttentionCache.update

                def counted(cache, *args, **named):
                    layers.append((named["layer_idx"], [one.numel() for one in (
                        named["kwargs"] if "kwargs" in named else named)["read_index"]]))
                    return update(cache, *args, **named)

                with mock.patch.object(PagedAttentionCache, "update", counted):
                    self.assertEqual(self.generated(ours, prompts), wanted)
                full = 1 if config.model_type == "qwen3" else 0
                group = 0 if config.model_type == "llama" else None
                for layer, counts in layers:  # the cache is gathered for sliding windows alone
                    if layer >= full and group is not None:
                        self.assertEqual(counts[group], 0)
                self.assertTrue(layers)
            self.assertEqual(ours.config._attn_implementation, "attune")
            tokens = torch.tensor([prompts[1]])
            torch.testing.assert_close(ours(tokens).logits, theirs(tokens).logits)


@unittest.skipIf(ContinuousBatchingConfig is None or "auto_switch_to_flash" not in
                 ContinuousBatchingConfig.__dataclass_fields__, "a transformers of the example's interface is not here")
class Example(unittest.TestCase):
    def test_the_tokens_agree(self):
        self.assertTrue(example("serve_transformers").run(["--tokens", "3"]))


def layer(**more):
    return types.SimpleNamespace(layer_idx=0, **more)


class Steps(unittest.TestCase):
    """One step over pages in a cache that was filled before."""

    PAGE = 8

    def setUp(self):
        torch.manual_seed(1)
        self.rows, self.lengths = [1, 3, 9], [20, 3, 17]
        self.batch = Batch(self.lengths, self.PAGE)
        k, v = (self.batch.pages[:, part].clone() for part in (0, 1))
        self.k, self.v = k, v
        self.q = torch.randn(1, 4, sum(self.rows), 32)
        self.reset()

    def reset(self):
        """Hides the newest keys, which the step has to write."""
        self.new, self.read, self.write = [], [], []
        for n, (count, length) in enumerate(zip(self.rows, self.lengths)):
            pages = self.batch.indices[self.batch.indptr[n]:self.batch.indptr[n + 1]].long()
            flat = (pages[:, None] * self.PAGE + torch.arange(self.PAGE)).flatten()[:length]
            self.read.append(flat)
            self.write.append(flat[length - count:])
        write = torch.cat(self.write)
        self.new = [self.batch.pages[:, part].flatten(0, 1)[write].transpose(0, 1)[None].clone() for part in (0, 1)]
        for t, part in ((self.k, 0), (self.v, 1)):
            t.copy_(self.batch.pages[:, part])
            t.view(-1, 2, 32)[write] = 7.0

    def caches(self):
        """The interface of 5.23, and that of 5.17."""
        own = types.SimpleNamespace(layer_type="full_attention", index=0,
                                    get_cache_for_block_table=lambda layer: (self.k, self.v))
        yield "5.23", types.SimpleNamespace(layer_to_allocator=[own])
        yield "5.17", types.SimpleNamespace(
            layer_index_to_group_indices=[(0, 0)], sliding_windows=[1], block_size=self.PAGE, num_key_value_heads=2,
            head_dim=32, key_cache=[self.k.view(-1, 2, 32)], value_cache=[self.v.view(-1, 2, 32)])

    def step(self, **more):
        starts = [torch.tensor([0, *torch.tensor(counts).cumsum(0).tolist()], dtype=torch.int32)
                  for counts in (self.rows, self.lengths)]
        return {"cu_seq_lens_q": starts[0], "cu_seq_lens_k": {"full_attention": starts[1]}, "max_length_q": 9,
                "max_length_k": {"full_attention": 20}, "read_index": [torch.cat(self.read)],
                "write_index": [torch.cat(self.write)], **more}

    def ran(self, cache, step, **more):
        return attune.transformers.attention(layer(), self.q, *self.new, None, cache=cache, **more, **step)[0]

    def test_writes_and_attends_in_place(self):
        for name, cache in self.caches():
            for options, named in (({}, {}), ({"scaling": 0.3, "softcap": 2.0}, {"scale": 0.3, "softcap": 2.0}),
                                   ({"s_aux": torch.arange(4.0)}, {"sinks": torch.arange(4.0)})):
                with self.subTest(name, **{n: str(o) for n, o in options.items()}):
                    self.reset()
                    got = self.ran(cache, self.step(), **options)
                    wanted, _ = self.batch.each(self.q[0].transpose(0, 1), self.rows, causal=True, **named)
                    torch.testing.assert_close(got[0].double(), wanted, rtol=1e-5, atol=1e-5)
                    for t, part in ((self.k, 0), (self.v, 1)):
                        self.assertTrue(torch.equal(t, self.batch.pages[:, part]))

    def test_the_ring_says_how_long_a_window_is(self):
        """A module may not name its window."""
        keys = [torch.cat([list(self.batch.keys(n))[part] for n in range(3)]).transpose(0, 1)[None] for part in (0, 1)]
        ring = types.SimpleNamespace(layer_type="sliding_attention", index=0, sliding_window=6)
        starts = self.step()["cu_seq_lens_k"]["full_attention"]
        step = self.step(cu_seq_lens_k={"sliding_attention": starts}, max_length_k={"sliding_attention": 20})
        wanted, _ = self.batch.each(self.q[0].transpose(0, 1), self.rows, causal=True, window_left=5)
        for cache in (types.SimpleNamespace(layer_to_allocator=[ring], update=lambda **_: keys),
                      types.SimpleNamespace(layer_index_to_group_indices=[(0, 0)], sliding_windows=[6],
                                            update=lambda **_: [t[0].transpose(0, 1) for t in keys])):
            torch.testing.assert_close(self.ran(cache, step)[0].double(), wanted, rtol=1e-5, atol=1e-5)
        ring.layer_type = "chunked_attention"
        with self.assertRaisesRegex(attune.Error, "layers of 'chunked_attention' is not served"):
            self.ran(types.SimpleNamespace(layer_to_allocator=[ring]), step)

    def test_a_table_of_another_step_is_not_used(self):
        _, cache = next(self.caches())
        step = self.step()
        self.ran(cache, step)
        index = step["read_index"][0]
        other = torch.cat([self.read[2], self.read[1], self.read[0]])
        index.copy_(other)  # the same memory, as in a graph
        step["cu_seq_lens_k"]["full_attention"].copy_(torch.tensor([0, 17, 20, 40]))
        got = self.ran(cache, step)[0]
        first = 0
        for n, count in zip((2, 1, 0), self.rows):
            k, v = self.batch.keys(n)
            wanted, _ = attention(self.q[0].transpose(0, 1)[first:first + count], k, v, causal=True)
            torch.testing.assert_close(got[first:first + count].double(), wanted, rtol=1e-5, atol=1e-5)
            first += count

    def test_one_token_a_request_by_a_table(self):
        self.rows = [1, 1, 1]
        self.q = torch.randn(1, 4, 4, 32)  # a padded batch: two more requests, without keys, and one more token
        table = torch.full((1, 5, 4), -1, dtype=torch.int32)
        table[0, :3, :4] = self.batch.table()
        table[0, 3:] = self.batch.indices[0]  # a page in use: what has no keys must not be written
        for name, cache in self.caches():
            self.reset()
            self.new = [torch.cat([t, torch.full((1, 2, 1, 32), 9.0)], 2) for t in self.new]
            lengths = torch.tensor([0, 20, 23, 40, 40], dtype=torch.int32)
            step = self.step(block_table=table[:, :4], cu_seq_lens_k={"full_attention": lengths})
            got = self.ran(cache, step)
            wanted, _ = self.batch.each(self.q[0, :, :3].transpose(0, 1), self.rows, causal=True)
            torch.testing.assert_close(got[0, :3].double(), wanted, rtol=1e-5, atol=1e-5)
            self.assertEqual(got[0, 3].abs().sum().item(), 0)
            for t, part in ((self.k, 0), (self.v, 1)):
                self.assertTrue(torch.equal(t, self.batch.pages[:, part]), name)

    def test_compiled_as_one_graph(self):
        for _, cache in self.caches():
            step = self.step()
            self.reset()
            wanted = self.ran(cache, step)
            self.reset()
            own = layer()

            def run(q, k, v):
                return _continuous.attention(own, q, k, v, cache, None, {}, step)

            got = torch.compile(run, fullgraph=True, backend="aot_eager")(self.q, *self.new)
            torch.testing.assert_close(got, wanted)
            self.assertTrue(torch.equal(self.k, self.batch.pages[:, 0]))

    def test_what_is_not_served_is_refused(self):
        _, cache = next(self.caches())
        mask = torch.zeros(1, 1, 13, 40)
        for given, message in (({"position_bias": mask}, "continuous batching with position_bias is not served"),
                               ({"indices": mask}, "continuous batching with indices"),
                               ({"dropout": 0.1}, "continuous batching with dropout"),
                               ({"sinks": torch.zeros(1, 4, 13, 1)}, "with sinks of queries is not served"),
                               ({"other": 1}, "the keyword 'other' may change")):
            with self.assertRaisesRegex(attune.Error, message):
                self.ran(cache, self.step(), **given)
        with self.assertRaisesRegex(attune.Error, "continuous batching with attention_mask is not served"):
            attune.transformers.attention(layer(), self.q, *self.new, mask, cache=cache, **self.step())
        with self.assertRaisesRegex(attune.Error, "SimpleNamespace is not a cache of continuous batching"):
            self.ran(types.SimpleNamespace(), self.step())
        with self.assertRaisesRegex(attune.Error, "called without the cache of generate_batch"):
            attune.transformers._paged(layer(), self.q, *self.new)


if __name__ == "__main__":
    unittest.main()
