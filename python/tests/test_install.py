# SPDX-License-Identifier: Apache-2.0
"""attune.torch.install(): what its measurements cost and leave alone, and that uninstall() leaves nothing behind."""

from __future__ import annotations

import itertools
import math
import unittest
import unittest.mock

import needs

needs.pytorch()

import torch
import torch.nn.functional as F
from torch.nn.attention.bias import causal_lower_right, causal_upper_left

import attune.torch as at
from attune.torch import _route, _sdpa

theirs = F.scaled_dot_product_attention
DEVICES = ["cpu"] + (["cuda"] if torch.cuda.is_available() else [])


class Measuring(unittest.TestCase):
    def setUp(self):
        torch.manual_seed(1)
        _route._faster.clear()
        self.addCleanup(_route._faster.clear)
        self.addCleanup(at.uninstall)

    def counted(self, also=lambda: None):
        """The calls of both implementations."""
        calls = {"attune": 0, "torch": 0}

        def count(name, function):
            def counting(*args, **named):
                calls[name] += 1
                also()
                return function(*args, **named)
            return counting

        for name, of in (("by_attune", "attune"), ("_torch_sdpa", "torch")):
            patch = unittest.mock.patch.object(_sdpa, name, count(of, getattr(_sdpa, name)))
            patch.start()
            self.addCleanup(patch.stop)
        return calls

    def test_the_first_call_of_a_size_costs_at_most_ten_calls(self):
        calls = self.counted()
        for grad, mask in itertools.product((False, True), (None, torch.ones(8, 8, dtype=torch.bool))):
            q, k, v = (torch.randn(1, 2, 8, 16, requires_grad=grad) for _ in range(3))
            calls.update(attune=0, torch=0)
            with at.installed():
                F.scaled_dot_product_attention(q, k, v, attn_mask=mask)
                first = sum(calls.values())
                F.scaled_dot_product_attention(q, k, v, attn_mask=mask)
            self.assertTrue(2 <= first - 1 <= 9, first)  # both ran, and the call itself
            self.assertLessEqual(sum(calls.values()), first + 1)

    def test_one_measurement_serves_all_batches(self):
        with unittest.mock.patch.object(_route, "_measure", return_value=False) as measured, at.installed():
            for batch in (1, 2, 3, 7, 64):
                q = torch.randn(batch, 2, 8, 16)
                F.scaled_dot_product_attention(q, q, q)
                F.scaled_dot_product_attention(q, q, q, attn_mask=torch.zeros(batch, 1, 8, 8))
            self.assertEqual(measured.call_count, 4)  # one sequence or several, with and without a mask
            F.scaled_dot_product_attention(*(torch.randn(2, 4, 8, 16),) * 3)
            self.assertEqual(measured.call_count, 5)

    def seconds(self, *each):
        """Makes runs take as long as listed; returns which of two implementations is taken, and after how many runs."""
        now, ran = 0.0, 0
        waits = [itertools.chain(runs, itertools.repeat(runs[-1])) for runs in each]

        def run(which):
            nonlocal now, ran
            wait = next(waits[which])
            ran += 1
            if wait == math.inf:
                raise torch.OutOfMemoryError("full")
            now += wait

        with unittest.mock.patch.object(_route.time, "perf_counter", lambda: now):
            first = _route._is_first_faster(lambda: run(0), lambda: run(1), torch.device("cpu"))
        return "attune" if first else "torch", ran

    def test_measuring_stops_where_the_runs_differ(self):
        for wanted, ours, their in ((("torch", 2), [12.0], [0.45]), (("attune", 2), [0.03], [0.1]),
                                    (("attune", 4), [1e-3, 1e-5], [1e-4]),  # the first run plans and starts threads
                                    (("torch", 8), [1.1e-4], [1e-4]), (("attune", 8), [10.0], [10.1]),
                                    (("torch", 8), [1e-4, 1e-4, 9e-5], [1e-4, 1e-4, 1e-4, 8e-5]),
                                    (("torch", 2), [math.inf], [1.0]), (("attune", 2), [1.0], [math.inf]),
                                    (("torch", 2), [math.inf], [math.inf])):
            with self.subTest(ours=ours, theirs=their):
                self.assertEqual(self.seconds(ours, their), wanted)

    def test_random_numbers_of_the_program_are_not_used(self):
        for device, dropout, mask in itertools.product(DEVICES, (0.0, 0.3), (None, "bool", "lower", "upper")):
            q, k = torch.randn(2, 4, 8, 16, device=device), torch.randn(2, 4, 9, 16, device=device)
            given = {"lower": causal_lower_right, "upper": causal_upper_left}[mask](8, 9) if mask in (
                "lower", "upper") else mask and torch.ones(8, 9, dtype=torch.bool, device=device)
            for grad in (False, True):
                with self.subTest(device=device, dropout=dropout, mask=mask, grad=grad):
                    before = torch.get_rng_state(), [torch.cuda.get_rng_state()] if device == "cuda" else []
                    ran = []
                    with unittest.mock.patch.object(_route, "_is_first_faster",
                                                    lambda *runs: ran.extend(run() for run in runs[:2])):
                        _route._measure(q, k, k, given, dropout, False, None, False, grad)
                    after = torch.get_rng_state(), [torch.cuda.get_rng_state()] if device == "cuda" else []
                    self.assertEqual(len(ran), 2)
                    self.assertTrue(torch.equal(before[0], after[0]))
                    self.assertTrue(all(map(torch.equal, before[1], after[1])))

    def test_other_threads_draw_no_number_twice(self):
        drawn = []
        self.counted(also=lambda: drawn.append(torch.rand(()).item()))  # as another thread would, meanwhile
        q = torch.randn(1, 2, 8, 16)
        with at.installed():
            F.scaled_dot_product_attention(q, q, q)
            F.scaled_dot_product_attention(q, q, q, dropout_p=0.5)
        drawn += [torch.rand(()).item() for _ in range(20)]
        self.assertEqual(len(set(drawn)), len(drawn))

    def test_programs_are_compiled_without_random_numbers(self):
        state = torch.get_rng_state()
        shape = ((2, 2, 16, 8),) * 3
        for drops, turned in itertools.product((False, True), repeat=2):
            _route._choice(torch.device("cpu"), torch.float32, shape, (turned,) * 3, None, drops, False, False, True)
        self.assertTrue(torch.equal(state, torch.get_rng_state()))


class Uninstalled(unittest.TestCase):
    def test_a_reference_that_was_kept_calls_pytorch(self):
        q = torch.randn(1, 2, 8, 16)
        for route in ("always", "measured"):
            with at.installed(route):
                kept = F.scaled_dot_product_attention
            self.assertIsNot(kept, theirs)
            at.counters.clear()
            with unittest.mock.patch.object(_sdpa, "by_attune", side_effect=AssertionError("attune ran")):
                torch.testing.assert_close(kept(q, q, q), theirs(q, q, q), rtol=0, atol=0)
            self.assertEqual((at.counters.attune, at.counters.torch), (0, 0))

    def test_a_program_that_was_compiled_meanwhile_calls_pytorch(self):
        q = torch.randn(1, 2, 8, 16)
        torch._dynamo.reset()
        run = torch.compile(lambda q: F.scaled_dot_product_attention(q, q, q), backend="aot_eager")
        with at.installed("always"):
            run(q)
        with unittest.mock.patch.object(_sdpa, "by_attune", side_effect=AssertionError("attune ran")):
            torch.testing.assert_close(run(q), theirs(q, q, q))


if __name__ == "__main__":
    unittest.main()
