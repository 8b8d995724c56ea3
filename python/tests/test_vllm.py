# SPDX-License-Identifier: Apache-2.0
"""attune.vllm against the definition of attention, through the calls that vLLM makes: registry, plugin, metadata of a
step, writes by slots, and attention over blocks. vLLM itself where it can be imported, else a stand-in of its
interface."""

from __future__ import annotations

import importlib.util
import pathlib
import re
import types
import unittest
from unittest import mock

import needs

needs.pytorch()

import torch

if importlib.util.find_spec("vllm") is None:
    import vllm_standin

    vllm_standin.install()

import vllm.envs
from vllm.v1.attention.backend import AttentionCGSupport, AttentionType, CommonAttentionMetadata
from vllm.v1.attention.backends.registry import AttentionBackendEnum, register_backend

import attune
import attune.vllm
from attune.vllm.backend import AttuneBackend
from paged import Batch, attention

LAYER = types.SimpleNamespace(_k_scale=torch.ones(()), _v_scale=torch.ones(()))


class Step(unittest.TestCase):
    """Decode, a chunk and a prefill in one step; the newest keys are not in the cache yet."""

    BLOCK, ROWS, LENGTHS = 16, [1, 4, 20], [37, 9, 20]

    def setUp(self):
        torch.manual_seed(1)
        self.batch = Batch(self.LENGTHS, self.BLOCK)
        starts = torch.tensor([0, 1, 5, 25], dtype=torch.int32)
        blocks = len(self.batch.pages)
        self.cache = torch.empty(AttuneBackend.get_kv_cache_shape(blocks, self.BLOCK, 2, 32))
        self.slots = []
        for n, (count, length) in enumerate(zip(self.ROWS, self.LENGTHS)):
            pages = self.batch.indices[self.batch.indptr[n]:self.batch.indptr[n + 1]].long()
            self.slots.append((pages[:, None] * self.BLOCK + torch.arange(self.BLOCK)).flatten()[length - count:length])
        slots = torch.cat(self.slots)
        self.filled = self.batch.pages.permute(0, 3, 2, 1, 4).flatten(3)  # [block, head, row, keys and values]
        self.cache.copy_(self.filled)
        rows = self.batch.pages.transpose(1, 2).flatten(0, 1)  # [slot, 2, head, dim]
        self.key, self.value = (torch.cat([rows[slots, part], torch.full((3, 2, 32), 9.0)]) for part in (0, 1))
        for slot in slots.tolist():  # what the step has to write
            self.cache[slot // self.BLOCK, :, slot % self.BLOCK] = 7.0
        self.q = torch.randn(28, 4, 32)  # three tokens of padding
        self.common = CommonAttentionMetadata(
            query_start_loc=starts, query_start_loc_cpu=starts, seq_lens=torch.tensor(self.LENGTHS, dtype=torch.int32),
            num_reqs=3, num_actual_tokens=25, max_query_len=20, max_seq_len=37,
            block_table_tensor=self.batch.table(), slot_mapping=torch.cat([slots, torch.tensor([-1, -1])]))

    def impl(self, **options):
        return AttuneBackend.get_impl_cls()(4, 32, options.pop("scale", 32 ** -0.5), 2, options.pop("alibi", None),
                                            options.pop("window", None), "auto", **options)

    def builder(self):
        return AttuneBackend.get_builder_cls()(None, ["layer"], None, torch.device("cpu"))

    def ran(self, impl, metadata, flat=False):
        impl.do_kv_cache_update(LAYER, self.key, self.value, self.cache, metadata.slot_mapping)
        out = torch.full((28, 4 * 32) if flat else (28, 4, 32), 5.0)
        got = impl.forward(LAYER, self.q, self.key, self.value, self.cache, metadata, out)
        self.assertIs(got, out)
        return out.view(28, 4, 32)

    def close(self, got, wanted):
        torch.testing.assert_close(got[:25].double(), wanted, rtol=2e-5, atol=2e-5)
        self.assertTrue(bool((got[25:] == 5).all()), "tokens of padding are written")

    def test_a_mixed_step(self):
        metadata = self.builder().build(0, self.common)
        self.close(self.ran(self.impl(), metadata, flat=True), self.batch.each(self.q[:25], self.ROWS, causal=True)[0])
        self.assertTrue(torch.equal(self.cache, self.filled), "the cache has what the slots say, and nothing else")
        sinks = torch.randn(4)
        slopes = [0.5, 0.25, 0.1, 0.0]
        distance = [-torch.tensor(slopes)[:, None, None] * (torch.arange(a)[:, None] + b - a - torch.arange(b)).abs()
                    for a, b in zip(self.ROWS, self.LENGTHS)]
        for options, named in (({"window": 6}, {"window_left": 5}), ({"logits_soft_cap": 1.5}, {"softcap": 1.5}),
                               ({"sinks": sinks}, {"sinks": sinks}), ({"scale": 0.4}, {"scale": 0.4}),
                               ({"alibi": slopes}, {"bias": distance})):
            with self.subTest(str(options)):
                self.close(self.ran(self.impl(**options), metadata),
                           self.batch.each(self.q[:25], self.ROWS, causal=True, **named)[0])
        impl = self.impl(sinks=sinks.half())
        impl.process_weights_after_loading(torch.float16)
        self.close(self.ran(impl, metadata),
                   self.batch.each(self.q[:25], self.ROWS, causal=True, sinks=sinks.half())[0])
        self.common.causal = False
        near = [(torch.arange(a)[:, None] + b - a - torch.arange(b)).abs() < 6 for a, b in zip(self.ROWS, self.LENGTHS)]
        self.close(self.ran(self.impl(window=6), self.builder().build(0, self.common)),
                   self.batch.each(self.q[:25], self.ROWS, seen=near)[0])  # to both sides, as in vLLM's backends

    def test_a_cache_of_rows_before_heads(self):
        self.cache = self.cache.transpose(1, 2).contiguous().transpose(1, 2)  # vLLM's layout NHD, in memory
        self.close(self.ran(self.impl(), self.builder().build(0, self.common)),
                   self.batch.each(self.q[:25], self.ROWS, causal=True)[0])

    def test_encoders_have_no_cache(self):
        metadata = self.builder().build(0, self.common)
        for kind in (AttentionType.ENCODER_ONLY, AttentionType.ENCODER):
            for window in (None, 3):
                before = self.cache.clone()
                got, first = self.ran(self.impl(attn_type=kind, window=window), metadata), 0
                self.assertTrue(torch.equal(self.cache, before))
                for count in self.ROWS:
                    here, at = slice(first, first + count), torch.arange(count)
                    seen = (at[:, None] - at).abs() < (window or 99)
                    wanted, _ = attention(self.q[here], self.key[here], self.value[here], seen=seen)
                    torch.testing.assert_close(got[here].double(), wanted, rtol=2e-5, atol=2e-5)
                    first += count

    def test_batch_invariance_is_asked_of_the_planner(self):
        with mock.patch.object(vllm.envs, "VLLM_BATCH_INVARIANT", True, create=True):
            impl = self.impl()
        self.assertEqual({spec.reproducible for spec in impl._specs}, {"batch"})
        self.close(self.ran(impl, self.builder().build(0, self.common)),
                   self.batch.each(self.q[:25], self.ROWS, causal=True)[0])

    def test_graphs(self):
        builder = self.builder()
        self.assertIs(builder.get_cudagraph_support(None, None), AttentionCGSupport.ALWAYS)
        self.common.max_seq_len, self.common.max_query_len = 4096, 25  # the bounds of a capture
        self.common.seq_lens.fill_(4096)
        metadata = builder.build_for_cudagraph_capture(self.common)
        self.assertEqual(metadata.seq_lens.tolist(), [1, 1, 1])
        for name, given in (("query_start_loc", "query_start_loc"), ("seq_lens", "seq_lens"),
                            ("block_table", "block_table_tensor"), ("slot_mapping", "slot_mapping")):
            self.assertEqual(getattr(metadata, name).data_ptr(), getattr(self.common, given).data_ptr(), name)
        impl = self.impl()
        self.ran(impl, metadata)
        self.common.seq_lens.copy_(torch.tensor(self.LENGTHS))  # a replay: new lengths in the same memory
        self.close(self.ran(impl, metadata), self.batch.each(self.q[:25], self.ROWS, causal=True)[0])
        other = builder.update_block_table(metadata, self.common.block_table_tensor + 0, metadata.slot_mapping[:5])
        self.assertEqual((len(other.slot_mapping), other.lengths), (5, metadata.lengths))

    def test_compiled_as_one_graph(self):
        metadata, impl = self.builder().build(0, self.common), self.impl(window=9)
        wanted = self.ran(impl, metadata)
        self.cache[0] = 7.0

        def step(q, k, v, cache, out):
            impl.do_kv_cache_update(LAYER, k, v, cache, metadata.slot_mapping)
            return impl.forward(LAYER, q * 1.0, k, v, cache, metadata, out)

        out, cache = torch.full((28, 4, 32), 5.0), self.filled.clone()
        got = torch.compile(step, fullgraph=True, backend="aot_eager")(self.q, self.key, self.value, cache, out)
        torch.testing.assert_close(got, wanted)

    def test_memory_is_measured_without_metadata(self):
        out = torch.ones(28, 4, 32)
        self.impl().forward(LAYER, self.q, self.key, self.value, self.cache, None, out)
        self.assertEqual(out.abs().sum().item(), 0)

    def test_what_is_not_served_is_refused(self):
        for options, message in (({"attn_type": AttentionType.ENCODER_DECODER}, "is not served; served are decoder"),
                                 ({"use_alibi_sqrt": True}, "use_alibi_sqrt is True, which attune does not serve"),
                                 ({"chunk_lookback": 3}, "chunk_lookback is 3")):
            with self.assertRaisesRegex(attune.Error, message):
                self.impl(**options)
        self.impl(use_alibi_sqrt=False, chunk_lookback=-1)
        with self.assertRaisesRegex(attune.Error, "kv_cache_dtype 'fp8' is not one of auto, float16, bfloat16"):
            AttuneBackend.get_impl_cls()(4, 32, 1.0, 2, kv_cache_dtype="fp8")
        metadata = self.builder().build(0, self.common)
        with self.assertRaisesRegex(attune.Error, "a quantized output is not served"):
            self.impl().forward(LAYER, self.q, self.key, self.value, self.cache, metadata, self.q, torch.ones(1))
        with self.assertRaisesRegex(attune.Error, r"the cache is \[.*\]; accepted is \[block, 2, row, 64\]"):
            self.impl().forward(LAYER, self.q, self.key, self.value, self.batch.pages, metadata, self.q)
        with self.assertRaisesRegex(attune.Error, "slot 4096 is not one of"):
            self.impl().do_kv_cache_update(LAYER, self.key, self.value, self.cache, torch.tensor([4096]))
        for name, value in (("mm_req_doc_ranges", {}), ("rswa_prefix_lens", torch.ones(3)),
                            ("dcp_local_seq_lens", torch.ones(3))):
            common = types.SimpleNamespace(**{**vars(self.common), name: value})
            with self.assertRaisesRegex(attune.Error, f"{name} changes which keys a query sees"):
                self.builder().build(0, common)
        self.common.causal = torch.ones(3, dtype=torch.bool)
        with self.assertRaisesRegex(attune.Error, "with and without a causal mask are not served together"):
            self.builder().build(0, self.common)


class Registry(unittest.TestCase):
    def tearDown(self):
        AttentionBackendEnum.CUSTOM.clear_override()

    def test_the_plugin_registers_the_backend(self):
        attune.vllm.register()
        attune.vllm.register()
        self.assertIs(AttentionBackendEnum.CUSTOM.get_class(), AttuneBackend)
        self.assertEqual(AttentionBackendEnum[AttuneBackend.get_name()], AttentionBackendEnum.CUSTOM)
        project = (pathlib.Path(__file__).resolve().parents[2] / "pyproject.toml").read_text()
        self.assertTrue(re.search(r'^\[project.entry-points."vllm.general_plugins"\]\nattune = "attune.vllm:register"$',
                                  project, re.M))

    def test_the_backend_of_another_plugin_stays(self):
        register_backend(AttentionBackendEnum.CUSTOM, "theirs.Backend")
        with self.assertLogs("attune.vllm", "WARNING") as said:
            attune.vllm.register()
        self.assertIn("the backend CUSTOM is theirs.Backend", said.output[0])
        self.assertEqual(AttentionBackendEnum.CUSTOM.get_path(), "theirs.Backend")

    def test_what_the_backend_says_of_itself(self):
        self.assertEqual([AttuneBackend.supports_head_size(n) for n in (32, 80, 128, 256, 100, 320)],
                         [True, True, True, True, False, False])
        self.assertEqual(AttuneBackend.get_kv_cache_shape(5, 16, 2, 32), (5, 2, 16, 64))
        self.assertFalse(AttuneBackend.forward_includes_kv_cache_update)
        self.assertNotIn("fp8", AttuneBackend.supported_kv_cache_dtypes)
        for name in ("sink", "sliding_window", "non_causal", "batch_invariance"):
            self.assertTrue(getattr(AttuneBackend, f"supports_{name}")())
        self.assertFalse(AttuneBackend.supports_attn_type(AttentionType.ENCODER_DECODER))


if __name__ == "__main__":
    unittest.main()
