"""scripts/public_tests.py: tests of a checkout run against attune, and what fails is told."""

from __future__ import annotations

import contextlib
import importlib.util
import io
import pathlib
import sys
import tempfile
import unittest
import unittest.mock

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


class Public(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        spec = importlib.util.spec_from_file_location("public_tests", SCRIPT)
        cls.script = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(cls.script)

    def run_script(self, *arguments):
        """Its answer and what it prints; in this process, which imports PyTorch once."""
        printed = io.StringIO()
        with unittest.mock.patch.object(sys, "argv", ["public_tests.py", *arguments]), \
                contextlib.redirect_stdout(printed), contextlib.redirect_stderr(printed):
            try:
                answer = self.script.main()
            except SystemExit as left:
                answer = left.code
        return answer, printed.getvalue()

    def test_every_parameter_is_run_and_failures_are_told(self):
        with tempfile.TemporaryDirectory() as folder:
            root = pathlib.Path(folder)
            for name in ("tests", "flash_attn"):
                (root / name).mkdir()
            (root / "tests" / "test_flash_attn.py").write_text(TESTS)
            (root / "flash_attn" / "helpers.py").write_text("def three():\n    return 3\n")
            answer, printed = self.run_script("flash_attn", folder, "--whole")
            self.assertIn("4 passed   test_shape", printed)
            self.assertIn("1 failed   test_wrong", printed)
            self.assertIn("heads differ", printed)
            self.assertIn("5 passed, 1 failed, 0 skipped", printed)
            self.assertEqual(answer, 1)
            answer, printed = self.run_script("flash_attn", folder, "--seconds", "0.2", "--only", "shape")
            self.assertIn(" 0 failed", printed)
            self.assertEqual(answer, 0, printed)

    def test_a_folder_that_is_no_checkout_is_refused(self):
        answer, printed = self.run_script("fa3", "/nowhere")
        self.assertEqual(answer, 2)
        self.assertIn("needs a checkout that has hopper/test_flash_attn.py", printed)


if __name__ == "__main__":
    unittest.main()
