#!/usr/bin/env python3
"""Other people's attention as peers of `attune bench`: what needs no GPU. Leaves with 77 where PyTorch is not here."""
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
sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "tool/peers"))
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


if __name__ == "__main__":
    unittest.main()
