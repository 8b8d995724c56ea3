# SPDX-License-Identifier: Apache-2.0
"""scripts/hunt_python.py: a few problems of every kind, what is wrong is found and made small, and every case that a
hunt found."""

from __future__ import annotations

import importlib.util
import pathlib
import unittest
import unittest.mock

try:
    import numpy as np
except ImportError:
    raise unittest.SkipTest("NumPy is not here")

SCRIPT = pathlib.Path(__file__).resolve().parents[2] / "scripts" / "hunt_python.py"
spec = importlib.util.spec_from_file_location("hunt_python", SCRIPT)
hunt = importlib.util.module_from_spec(spec)
spec.loader.exec_module(hunt)
HERE = [k for k in hunt.KINDS if k == "cache" or importlib.util.find_spec("torch")]

FOUND: list[dict] = []  # cases that a hunt shrank


class Hunt(unittest.TestCase):
    def test_every_kind_agrees_and_compares(self):
        for kind in HERE:
            compared = 0
            for index in range(8):
                case = hunt.case_of(5, index, [kind])
                with self.subTest(**case):
                    why = hunt.attempt(dict(case), "cpu")
                    self.assertIn(why, ("", "empty"))
                    compared += why == ""
            self.assertGreater(compared, 4, kind)

    def test_draws_are_those_of_the_seed(self):
        self.assertEqual(hunt.case_of(1, 7, hunt.KINDS), hunt.case_of(1, 7, hunt.KINDS))
        self.assertNotEqual(hunt.case_of(1, 7, hunt.KINDS), hunt.case_of(2, 7, hunt.KINDS))
        self.assertEqual({hunt.case_of(1, n, hunt.KINDS)["kind"] for n in range(99)}, set(hunt.KINDS))

    def test_what_is_wrong_is_found_and_made_small(self):
        case = {"kind": "cache", "seed": 3, "kv": 2, "group": 2, "dim": 16, "sequences": 3, "capacity": 33, "steps": 9,
                "page": 3, "causal": True, "softcap": False, "left": 0}
        self.assertEqual(hunt.attempt(dict(case), "cpu"), "")
        import reference
        right = reference.attention
        reference.attention = lambda q, k, v, **named: right(q, k, v[::-1], **named)
        self.addCleanup(setattr, reference, "attention", right)
        self.assertRegex(hunt.attempt(dict(case), "cpu"), "out of sequence")
        small = hunt.shrink(case, lambda c: hunt.attempt(dict(c), "cpu") not in ("", "empty"), 20)
        self.assertNotIn(hunt.attempt(dict(small), "cpu"), ("", "empty"))
        self.assertLess(small["kv"] * small["group"] * small["dim"], 64)
        self.assertEqual((small["page"], small["causal"]), (0, False))

    @unittest.skipUnless("module" in HERE, "PyTorch is not here")
    def test_a_module_with_a_constant_off_by_a_thousandth_is_found(self):
        case = {"kind": "module", "seed": 7, "kv": 2, "group": 2, "dim": 16, "batch": 2, "len_q": 17, "causal": True}
        right = hunt.module_wanted
        scores = lambda c, p, *rest: right(c, {n: 1.001 * w if "q_proj" in n else w for n, w in p.items()}, *rest)
        for llama, name, wrong in ((False, "module_wanted", scores), (True, "module_wanted", scores),
                                   (True, "BASE", 10010.0)):
            with self.subTest(llama=llama, name=name):
                self.assertEqual(hunt.attempt(case | {"llama": llama}, "cpu"), "")
                with unittest.mock.patch.object(hunt, name, wrong):
                    self.assertRegex(hunt.attempt(case | {"llama": llama}, "cpu"), "^y: the largest error is .*, not ")

    @unittest.skipUnless("module" in HERE, "PyTorch is not here")
    def test_without_rounding_the_naive_module_is_the_exact_one(self):
        import torch
        torch.manual_seed(3)
        q, k, v, d = (torch.randn(2, heads, 5, 8, dtype=torch.float64) for heads in (4, 2, 2, 4))
        hidden = torch.ones(5, 5, dtype=torch.bool).triu(1)
        results = []
        for how in hunt.Exact(), hunt.Naive(1, roundings=0):
            given = [x.clone().requires_grad_() for x in (q, k, v)]
            results.append(hunt.values_of(how.attention(*given, hidden, 0.3), d, given))
        for exact, naive in zip(*results):
            torch.testing.assert_close(exact, naive, rtol=1e-12, atol=1e-12)

    def test_a_nan_and_a_wrong_shape_are_wrong(self):
        hunt.near("out", np.array([-np.inf, 1]), np.array([-np.inf, 1]), 0)
        for got in ([np.nan, 1], [0, 1], [-np.inf, 1.1], [-np.inf]):
            with self.assertRaises(hunt.Wrong):
                hunt.near("out", np.array(got), np.array([-np.inf, 1]), 1e-3)

    def test_what_hunts_found_stays_right(self):
        for case in FOUND:
            with self.subTest(**case):
                self.assertIn(hunt.attempt(dict(case), "cpu"), ("", "empty"))


if __name__ == "__main__":
    unittest.main()
