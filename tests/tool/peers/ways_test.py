#!/usr/bin/env python3
"""Other libraries' attention as peers of `attune bench`, without a GPU. Exits with 77 if PyTorch is not installed."""
import contextlib
import gc
import pathlib
import sys
import types
import unittest
import warnings
import weakref
from unittest import mock

warnings.filterwarnings("ignore", message=".*NumPy.*")
try:
    import torch
except ImportError:
    sys.exit(77)
sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[3] / "tool/peers"))
import ways


class Graph:
    def replay(self):
        pass


class Captured(unittest.TestCase):
    def test_a_replay_keeps_what_its_graph_reads(self):
        tensors = [torch.randn(1, 2, 4, 8) for _ in range(4)]
        problem = types.SimpleNamespace(q=tensors[0], k=tensors[1], v=tensors[2], d_out=tensors[3], gpu=0, stream=None)
        made = []

        def forward(q, k, v):
            out = torch.softmax(q @ k.transpose(2, 3), -1) @ v
            made.append(weakref.ref(out))
            return out

        nothing = contextlib.nullcontext()
        with mock.patch.object(torch.cuda, "CUDAGraph", Graph), mock.patch.object(torch.cuda, "synchronize"), \
                mock.patch.object(torch.cuda, "graph", lambda *words, **named: nothing):
            replay = ways.captured_backward(problem, forward)
        gc.collect()
        self.assertTrue(replay.captured)
        self.assertEqual([g.shape for g in replay()], [x.shape for x in tensors[:3]])
        self.assertIsNotNone(made[0](), "the result of the forward, and with it what autograd saved, is gone")
        del replay
        gc.collect()
        self.assertIsNone(made[0](), "it outlives the replay")


# The operators that FlashAttention-3 registers with PyTorch: [batch, seq, head, dim], lse as [batch, head, seq].
class Operators:
    @staticmethod
    def attend(q, k, v, scale, causal):
        scores = torch.einsum("bqhd,bkhd->bhqk", q, k) * scale
        if causal:
            scores = scores.masked_fill(torch.ones_like(scores[0, 0]).triu(1).bool(), -torch.inf)
        return torch.einsum("bhqk,bkhd->bqhd", scores.softmax(-1), v), scores.logsumexp(-1)

    def fwd(self, q, k, v, softmax_scale, is_causal, num_splits):
        self.splits = num_splits
        return *self.attend(q, k, v, softmax_scale, is_causal), torch.empty(0), torch.empty(0)

    def bwd(self, d_out, q, k, v, out, lse, dq, dk, dv, softmax_scale, is_causal):
        leaves = [x.detach().requires_grad_() for x in (q, k, v)]
        again = self.attend(*leaves, softmax_scale, is_causal)
        if not all(torch.equal(x, y) for x, y in zip((out, lse), again)):
            raise ValueError("out and lse are not those of a forward")
        for x, grad in zip((dq, dk, dv), torch.autograd.grad(again[0], leaves, d_out)):
            x.copy_(grad)


class Fa3(unittest.TestCase):
    def test_its_operators_are_called_where_they_are(self):
        tensors = [torch.randn(2, 3, 5, 8) for _ in range(4)]
        problem = types.SimpleNamespace(q=tensors[0], k=tensors[1], v=tensors[2], d_out=tensors[3], gpu=-1, scale=0.3)
        way = ways.Fa3(None)
        self.assertIsNone(way.ops, "they are not registered here")
        way.ops = Operators()
        for problem.causal in (False, True):
            leaves = [x.clone().requires_grad_() for x in tensors[:3]]
            want = torch.nn.functional.scaled_dot_product_attention(*leaves, is_causal=problem.causal, scale=0.3)
            torch.testing.assert_close(way.attend(problem, *tensors[:3]), want)
            grads = torch.autograd.grad(want, leaves, tensors[3])
            for got, grad in zip(way.backward(problem)(), grads, strict=True):
                torch.testing.assert_close(got, grad)

    def test_it_chooses_its_splits_where_queries_are_few(self):
        problem = types.SimpleNamespace(scale=0.3, causal=False)
        way = ways.Fa3(None)
        way.ops = Operators()
        k = torch.randn(2, 3, 5, 8)
        for queries, splits in ((5, 1), (1, 0)):
            way.attend(problem, torch.randn(2, 3, queries, 8), k, k)
            self.assertEqual(way.ops.splits, splits)

    def test_without_operators_its_functions_are(self):
        def function(q, k, v, softmax_scale, causal):
            return Operators.attend(q, k, v, softmax_scale, causal)
        problem = types.SimpleNamespace(scale=0.3, causal=True)
        q, k, v = (torch.randn(2, 3, 5, 8) for _ in range(3))
        want = torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True, scale=0.3)
        torch.testing.assert_close(ways.Fa3(function).attend(problem, q, k, v), want)


if __name__ == "__main__":
    unittest.main()
