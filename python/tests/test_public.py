# SPDX-License-Identifier: Apache-2.0
"""scripts/public_tests.py: runs the tests of a checkout against attune, and reports failures."""

from __future__ import annotations

import contextlib
import importlib.util
import io
import pathlib
import re
import sys
import tempfile
import unittest
import unittest.mock

import needs

needs.pytorch()

import torch

SCRIPT = pathlib.Path(__file__).resolve().parents[2] / "scripts" / "public_tests.py"
TESTS = """
import torch
from flash_attn import flash_attn_func
from flash_attn.helpers import three

class parametrize:
    def __init__(self, names, values): self.name, self.args = "parametrize", (names, values)
    def __call__(self, test):
        test.pytestmark = getattr(test, "pytestmark", []) + [self]
        return test

class param:  # of pytest
    def __init__(self, *values): self.values, self.marks = values, ()

@parametrize("heads", [1, param(2)])
@parametrize("named", [{"like": 3}])
@parametrize("rows,keys", [(3, 4), (5, 5)])
def test_shape(heads, named, rows, keys):
    assert named["like"] == 3
    q, k = torch.randn(three(), rows, heads, 8, device="cuda"), torch.randn(three(), keys, heads, 8, device="cuda")
    assert flash_attn_func(q, k, k).shape == q.shape

@parametrize("heads", [1, 2])
def test_wrong(heads):
    assert heads == 1, "heads differ"

def test_of_insides_paged_kv_num_splits():
    raise AssertionError
"""

OF_PYTORCH = """
import unittest
import torch
import torch.nn.functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

class TestSDPA(unittest.TestCase):
    @classmethod
    def setUpClass(cls): cls.rows = 3

    def test_kernels(self):
        q = torch.randn(1, 2, self.rows, 8)
        with sdpa_kernel(SDPBackend.FLASH_ATTENTION):
            got = F.scaled_dot_product_attention(q, q, q)
        with sdpa_kernel(SDPBackend.MATH):
            torch.testing.assert_close(got, F.scaled_dot_product_attention(q, q, q))

    def test_wrong(self):
        raise AssertionError("heads differ")

    def test_choice_of_kernels(self):
        raise AssertionError
"""


class Public(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        spec = importlib.util.spec_from_file_location("public_tests", SCRIPT)
        cls.script = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(cls.script)

    def run_script(self, *arguments):
        """The return value and output of the script; in this process, which imports PyTorch only once."""
        printed, before = io.StringIO(), set(sys.modules)
        with unittest.mock.patch.object(sys, "argv", ["public_tests.py", *arguments]), \
                unittest.mock.patch.object(sys, "path", list(sys.path)), \
                contextlib.redirect_stdout(printed), contextlib.redirect_stderr(printed):
            try:
                answer = self.script.main()
            except SystemExit as left:
                answer = left.code
        for name in set(sys.modules) - before:  # its stand-ins must not affect other tests
            if name.startswith("flash_attn") or getattr(sys.modules[name], "__spec__", None) is None:
                del sys.modules[name]
        return answer, printed.getvalue()

    def test_every_parameter_is_run_and_failures_are_told(self):
        with tempfile.TemporaryDirectory() as folder:
            root = pathlib.Path(folder)
            for name in ("tests", "flash_attn"):
                (root / name).mkdir()
            (root / "tests" / "test_flash_attn.py").write_text(TESTS)
            (root / "flash_attn" / "helpers.py").write_text("def three():\n    return 3\n")
            answer, printed = self.run_script("flash_attn", folder, "--part", "1/1")
            self.assertIn("4 passed   test_shape", printed)
            self.assertIn("1 failed   test_wrong", printed)
            self.assertIn("heads differ", printed)
            self.assertIn("5 passed, 1 failed, 0 skipped", printed)
            self.assertEqual(answer, 1)
            parts = [self.run_script("flash_attn", folder, "--part", f"{n}/4")[1] for n in (1, 2, 3, 4)]
            ran = [re.search(r"(\d+) passed, (\d+) failed", printed) for printed in parts]
            self.assertEqual([sum(int(counts[n]) for counts in ran) for n in (1, 2)], [5, 1])
            self.assertLess(max(int(counts[1]) for counts in ran), 5)
            answer, printed = self.run_script("flash_attn", folder, "--part", "1/1", "--only", "shape", "--most", "4")
            self.assertIn("2 passed, 0 failed", printed)
            answer, printed = self.run_script("flash_attn", folder, "--seconds", "0.2", "--only", "shape")
            self.assertIn(" 0 failed", printed)
            self.assertEqual(answer, 0, printed)

    def test_attune_takes_the_place_of_every_kernel_but_math(self):
        with tempfile.TemporaryDirectory() as folder:
            (pathlib.Path(folder) / "test").mkdir()
            (pathlib.Path(folder) / "test" / "test_transformers.py").write_text(OF_PYTORCH)
            answer, printed = self.run_script("sdpa", folder)
            self.assertIn("1 passed, 1 failed, 0 skipped, 0 not run", printed)
            self.assertIn("attune ran 1, PyTorch 1: {\"a choice among PyTorch's backends\": 1}", printed)
            self.assertIn("test_wrong: AssertionError: heads differ", printed)
            self.assertEqual(answer, 1)
            self.assertEqual(self.run_script("sdpa", folder, "--skip", "wrong|choice")[0], 0)

    def test_tolerances_are_those_of_a_gpu_where_that_is_asked_for(self):
        of_fa3 = """
import torch
from flash_attn_interface import flash_attn_func

def test_tolerance():
    dq_ref = torch.zeros(3, dtype=torch.bfloat16).cuda()
    assert (dq_ref + 0.3 - 0.3 - dq_ref).abs().max().item() == 0.000782012939453125  # as on a GPU
"""
        with tempfile.TemporaryDirectory() as folder:
            (pathlib.Path(folder) / "hopper").mkdir()
            for suite, name in (("fa3", "test_flash_attn.py"), ("export", "test_torch_compile_and_export.py")):
                (pathlib.Path(folder) / "hopper" / name).write_text(of_fa3)
                answer, printed = self.run_script(suite, folder, "--part", "1/1", "--gpu-tolerance")
                self.assertIn("1 passed, 0 failed", printed)
                self.assertEqual(answer, 0)
            if not torch.cuda.is_available():
                self.assertIn("0 passed, 1 failed", self.run_script("fa3", folder, "--part", "1/1")[1])

    def test_a_part_that_is_none_is_refused(self):
        for wrong in ("0/4", "5/4", "1", "a/b"):
            answer, printed = self.run_script("fa3", "/nowhere", "--part", wrong)
            self.assertEqual(answer, 2)
            self.assertIn(f"'{wrong}' is not I/N", printed)

    def test_a_folder_that_is_no_checkout_is_refused(self):
        answer, printed = self.run_script("fa3", "/nowhere")
        self.assertEqual(answer, 2)
        self.assertIn("needs a checkout that has hopper/test_flash_attn.py", printed)


if __name__ == "__main__":
    unittest.main()
