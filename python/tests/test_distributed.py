# SPDX-License-Identifier: Apache-2.0
"""attune.torch.distributed: two processes with gloo compute the same as one, in both passes."""

from __future__ import annotations

import os
import tempfile
import unittest
import unittest.mock

import needs

needs.pytorch()

import torch
import torch.distributed as dist
import torch.multiprocessing as multiprocessing

if not (dist.is_available() and dist.is_gloo_available()):
    raise unittest.SkipTest("gloo is not here")

import attune
import attune.torch as at
import attune.torch.distributed as ranks

TOKENS = 21


def rank_of_two(rank: int, store: str, errors) -> None:
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=2)
    try:
        torch.manual_seed(4)
        q, k, v, d = (torch.randn(1, TOKENS, 2, 16) for _ in range(4))
        whole = [t.clone().requires_grad_() for t in (q, k, v)]
        wanted = at.attend(*whole, causal=True)
        gradients = torch.autograd.grad(wanted, whole, d)
        ranks.connect()
        for layout in ("zigzag", "striped"):
            rows = ranks.tokens(layout, TOKENS)
            mine = [t[:, rows].requires_grad_() for t in (q, k, v)]
            out = at.attend(*mine, causal=True, **ranks.options(layout, TOKENS))
            torch.testing.assert_close(out, wanted[:, rows], rtol=1e-4, atol=1e-5)
            for g, t in zip(torch.autograd.grad(out, mine, d[:, rows].contiguous()), gradients):
                torch.testing.assert_close(g, t[:, rows], rtol=1e-4, atol=1e-5)
        ranks.disconnect()
        if rank == 0:  # alone
            with unittest.mock.patch.object(dist, "get_backend", lambda _: "nccl"):
                try:
                    ranks.connect(seconds=1)
                    raise AssertionError("connected alone")
                except attune.Error as error:
                    assert "not every rank of the group connected in 1 s" in str(error), error
        dist.barrier()
        patch = unittest.mock.patch.object
        with patch(torch.cuda, "is_available", lambda: True), patch(torch.cuda, "current_device", lambda: 0):
            with patch(attune._core, "nccl_id", side_effect=attune.Error("no NCCL")):
                try:
                    ranks.connect(by="nccl")
                    raise AssertionError("connected without NCCL")
                except attune.Error as error:  # on both ranks
                    assert str(error) == "no NCCL", error
            name = bytes(range(128, 256)) if rank == 0 else b"of another"
            with patch(attune._core, "nccl_id", lambda: name), patch(attune._core, "connect_nccl") as connected:
                ranks.connect(by="nccl")
                connected.assert_called_once_with(bytes(range(128, 256)), rank, 2, "cuda:0")
        dist.barrier()  # neither leaves while the other still reads
    except BaseException as error:
        errors.put(f"rank {rank}: {error!r}")
        raise
    finally:
        dist.destroy_process_group()


class Distributed(unittest.TestCase):
    def test_two_ranks_compute_what_one_would(self):
        context = multiprocessing.get_context("spawn")
        errors = context.SimpleQueue()
        with tempfile.TemporaryDirectory() as folder:
            processes = [context.Process(target=rank_of_two, args=(n, os.path.join(folder, "store"), errors))
                         for n in range(2)]
            for process in processes:
                process.start()
            for process in processes:
                process.join(120)
                if process.is_alive():
                    process.kill()
            self.assertEqual([p.exitcode for p in processes], [0, 0], None if errors.empty() else errors.get())

    def test_a_group_beside_one_that_is_not_gloos_is_made_by_its_ranks_alone(self):
        # Otherwise groups of other ranks that connect at the same time would have the same name in the store.
        made = []
        backend, group = dist.get_backend, dist.new_group

        def spy(*given, **named):
            made.append(named.get("use_local_synchronization"))
            return group(*given, **named)

        with tempfile.TemporaryDirectory() as folder:
            dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=0, world_size=1)
            dist.get_backend, dist.new_group = lambda _: "mpi", spy
            try:
                ranks.connect()
                self.assertEqual(ranks.tokens("ring", 3), [0, 1, 2])
            finally:
                dist.get_backend, dist.new_group = backend, group
                ranks.disconnect()
                dist.destroy_process_group()
        self.assertEqual(made, [True])

    def test_nccl_connects_a_gpu_or_is_refused_in_words(self):
        with tempfile.TemporaryDirectory() as folder:
            cuda = torch.cuda.is_available() and dist.is_nccl_available()
            dist.init_process_group("nccl" if cuda else "gloo", init_method=f"file://{folder}/store", rank=0,
                                    world_size=1)
            try:
                with self.assertRaisesRegex(attune.Error, "by gloo or nccl, not 'mpi'"):
                    ranks.connect(by="mpi")
                if not cuda:
                    with self.assertRaisesRegex(attune.Error, "NCCL connects GPUs"):
                        ranks.connect(by="nccl")
                    return
                ranks.connect(by="nccl")
                q, k, v = (torch.randn(1, TOKENS, 2, 16, device="cuda", requires_grad=True) for _ in range(3))
                out = at.attend(q, k, v, causal=True, **ranks.options("zigzag", TOKENS))
                wanted = at.attend(q, k, v, causal=True)
                torch.testing.assert_close(out, wanted, rtol=1e-4, atol=1e-5)
                for g, t in zip(*(torch.autograd.grad(x.sum(), (q, k, v)) for x in (out, wanted))):
                    torch.testing.assert_close(g, t, rtol=1e-4, atol=1e-5)
            finally:
                ranks.disconnect()
                dist.destroy_process_group()

    def test_who_is_not_connected_is_told(self):
        with self.assertRaisesRegex(attune.Error, "not initialised"):
            ranks.connect()
        with self.assertRaisesRegex(attune.Error, "no group"):
            ranks.tokens("ring", 8)
        q = torch.randn(1, 4, 2, 16)
        with self.assertRaisesRegex(attune.Error, "communicator"):
            at.attend(q, q, q, variant="ring layout=ring ranks=2 tokens=8")


if __name__ == "__main__":
    unittest.main()
