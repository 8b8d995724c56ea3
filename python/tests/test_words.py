# SPDX-License-Identifier: Apache-2.0
"""What the package says about itself: help, python -m attune, threads, counted operations, and refusals in words."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
import unittest

import attune
from attune._spec import Options

try:
    import torch

    import attune.torch
except ImportError:
    torch = None


def ran(*arguments, **environment):
    return subprocess.run([sys.executable, *arguments], capture_output=True, text=True,
                          env={**os.environ, **environment})


class Words(unittest.TestCase):
    def test_help_names_every_option(self):
        functions = [attune.attend] + ([attune.torch.attend] if torch else [])
        for function in functions:
            missing = [name for name in Options.__annotations__ if name not in function.__doc__]
            self.assertEqual(missing, [])

    def test_the_package_runs_as_a_command(self):
        done = ran("-m", "attune")
        self.assertEqual((done.returncode, done.stdout.split()[:2]), (0, ["attune", attune.__version__ + ","]))
        done = ran("-m", "attune", "plan", "forward f32 b1 h2 q8 k8 d16 causal", "--device", "cpu")
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertIn(attune.plan("forward f32 b1 h2 q8 k8 d16 causal", "cpu").backend, done.stdout)
        done = ran("-m", "attune", "plan", "forward f32 b1")
        self.assertEqual((done.returncode, done.stdout), (1, ""))
        self.assertTrue(done.stderr)

    def test_the_number_of_threads_of_openmp_is_heeded(self):
        script = "import attune; print(attune.threads())"
        most = int(ran("-c", script, OMP_NUM_THREADS="").stdout)
        for said, wanted in (("1", 1), ("1,2", 1), ("0", most), ("many", most), (str(most + 7), most)):
            self.assertEqual(int(ran("-c", script, OMP_NUM_THREADS=said).stdout), wanted, said)

    @unittest.skipUnless(torch, "PyTorch is not here")
    def test_flops_are_counted(self):
        import torch.nn.functional as F
        from torch.utils.flop_counter import FlopCounterMode

        q, k, v = (torch.randn(2, 4, n, 16, requires_grad=True) for n in (8, 12, 12))
        with FlopCounterMode(display=False) as wanted:
            F.scaled_dot_product_attention(q, k, v)
        with FlopCounterMode(display=False) as got:
            out = attune.torch.attend(q, k, v, layout="bhsd")
        self.assertEqual(got.get_total_flops(), wanted.get_total_flops())
        self.assertEqual(got.get_total_flops(), 2 * 2 * 4 * 8 * 12 * 32)
        with FlopCounterMode(display=False) as back:
            out.sum().backward()
        with FlopCounterMode(display=False) as both:
            attune.torch.attend(q, k, v, layout="bhsd").sum().backward()
        self.assertEqual(both.get_total_flops(), got.get_total_flops() * 7 // 2)
        self.assertIn(back.get_total_flops(), (0, got.get_total_flops() * 5 // 2))
        packed, cu = torch.randn(20, 4, 16), torch.tensor([0, 8, 20], dtype=torch.int32)
        with FlopCounterMode(display=False) as counted:
            attune.torch.attend(packed, packed, packed, layout="thd", cu_q=cu, cu_k=cu, max_q=12, max_k=12)
        self.assertEqual(counted.get_total_flops(), 2 * 20 * 4 * 12 * 32)

    @unittest.skipUnless(torch, "PyTorch is not here")
    def test_a_mask_is_not_a_bias_and_a_tensor_is_not_a_flag(self):
        q = torch.randn(1, 4, 2, 8)
        with self.assertRaisesRegex(attune.Error, "bias: torch.bool is the dtype of a mask, .* give floats"):
            attune.torch.attend(q, q, q, bias=torch.ones(4, 4, dtype=torch.bool)[None, None])
        for function in (attune.torch.attend, attune.attend):
            with self.assertRaisesRegex(attune.Error, r"causal tensor\(True\) is not True or False"):
                function(q, q, q, causal=torch.tensor(True))

    @unittest.skipUnless(importlib.util.find_spec("numpy"), "NumPy is not here")
    def test_a_flag_of_numpy_is_a_flag(self):
        import numpy as np

        x = np.random.default_rng(1).standard_normal((1, 4, 2, 8), "float32")
        np.testing.assert_array_equal(attune.attend(x, x, x, causal=np.True_), attune.attend(x, x, x, causal=True))


if __name__ == "__main__":
    unittest.main()
