"""scripts/public_tests.py: tests of a checkout run against attune, and what fails is told."""

from __future__ import annotations

import os
import pathlib
import subprocess
import sys
import tempfile
import unittest

try:
    import torch  # noqa: F401
except ImportError:
    raise unittest.SkipTest("PyTorch is not here")

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

@parametrize("heads", [1, 2])
@parametrize("rows,keys", [(3, 4), (5, 5)])
def test_shape(heads, rows, keys):
    q, k = torch.randn(three(), rows, heads, 8, device="cuda"), torch.randn(three(), keys, heads, 8, device="cuda")
    assert flash_attn_func(q, k, k).shape == q.shape

@parametrize("heads", [1, 2])
def test_wrong(heads):
    assert heads == 1, "heads differ"

def test_of_insides_paged_kv_num_splits():
    raise AssertionError
"""


class Public(unittest.TestCase):
    def run_script(self, *arguments):
        return subprocess.run([sys.executable, "-W", "ignore", str(SCRIPT), *arguments], capture_output=True, text=True,
                              env={**os.environ, "OMP_NUM_THREADS": "1"})

    def test_every_parameter_is_run_and_failures_are_told(self):
        with tempfile.TemporaryDirectory() as folder:
            root = pathlib.Path(folder)
            for name in ("tests", "flash_attn"):
                (root / name).mkdir()
            (root / "tests" / "test_flash_attn.py").write_text(TESTS)
            (root / "flash_attn" / "helpers.py").write_text("def three():\n    return 3\n")
            ran = self.run_script("flash_attn", folder, "--whole")
            self.assertIn("4 passed   test_shape", ran.stdout, ran.stderr)
            self.assertIn("1 failed   test_wrong", ran.stdout)
            self.assertIn("heads differ", ran.stdout)
            self.assertIn("5 passed, 1 failed, 0 skipped", ran.stdout)
            self.assertEqual(ran.returncode, 1)
            ran = self.run_script("flash_attn", folder, "--seconds", "0.2", "--only", "shape")
            self.assertIn("0 failed", ran.stdout, ran.stderr)
            self.assertEqual(ran.returncode, 0)

    def test_a_folder_that_is_no_checkout_is_refused(self):
        ran = self.run_script("fa3", "/nowhere")
        self.assertEqual(ran.returncode, 2)
        self.assertIn("needs a checkout that has hopper/test_flash_attn.py", ran.stderr)


if __name__ == "__main__":
    unittest.main()
