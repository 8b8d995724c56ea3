# SPDX-License-Identifier: Apache-2.0
"""The Python blocks of the documentation, executed: those of a page one after another, in one process and namespace.

A block that begins with `# torchrun ...` runs under torchrun. A fence says why its block cannot run, as in ```python
skip: needs a model. Blocks of shell and C: tests/house/docs_test.py."""

from __future__ import annotations

import os
import pathlib
import re
import subprocess
import sys
import tempfile
import unittest

import needs

needs.pytorch()

import torch

ROOT = pathlib.Path(__file__).resolve().parents[2]
BLOCK = re.compile(r"^```python *(.*)\n((?:.*\n)*?)```$", re.M)
NEEDS = {"from attune.jax": "jax", "import attune.transformers": "transformers"}
TORCH = tuple(map(int, torch.__version__.split(".")[:2]))
GENERATED = {"python_api.md"}


def has(module: str) -> bool:
    return subprocess.run([sys.executable, "-c", f"import {module}"], capture_output=True).returncode == 0


class Docs(unittest.TestCase):
    def setUp(self) -> None:
        self.left_out: list[str] = []
        self.ran = 0

    def run_block(self, place: str, text: str, names: dict[str, object]) -> None:
        launched = re.match(r"# (torchrun [^\n]*?)\s+\S+\.py\n", text)
        if launched:
            with tempfile.NamedTemporaryFile("w", suffix=".py") as file:
                file.write(text)
                file.flush()
                words = [sys.executable, "-m", "torch.distributed.run", *launched[1].split()[1:], file.name]
                done = subprocess.run(words, capture_output=True, text=True,
                                      env={**os.environ, "OMP_NUM_THREADS": "1"}, timeout=120)
            self.assertEqual(done.returncode, 0, f"{place}\n{done.stderr[-3000:]}")
            return
        try:
            exec(compile(text, place, "exec"), names)
        except Exception as error:
            raise AssertionError(f"{place}: {type(error).__name__}: {error}") from error

    def test_every_block_runs_or_says_why_not(self) -> None:
        torch.manual_seed(1)
        for page in [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md")), *sorted(ROOT.glob("docs/guides/*.md"))]:
            if page.name in GENERATED:
                continue
            names: dict[str, object] = {"__name__": "docs"}
            text = page.read_text()
            for block in BLOCK.finditer(text):
                place = f"{page.relative_to(ROOT)}:{text.count(chr(10), 0, block.start()) + 1}"
                lacks = next((module for word, module in NEEDS.items() if word in block[2] and not has(module)), "")
                if "flex_attention(" in block[2] and TORCH < (2, 6):
                    lacks = "FlexAttention on a CPU, since PyTorch 2.6,"
                why = block[1] or (lacks and f"skip: {lacks} is not here")
                if why:
                    self.assertRegex(why, r"^skip: \S.{5,}$", place)
                    self.left_out.append(f"{place}: {why[6:]}")
                    continue
                with self.subTest(place):
                    self.run_block(place, block[2], names)
                self.ran += 1
        print(f"{self.ran} blocks ran; left out: {'; '.join(self.left_out) or 'none'}")
        self.assertGreater(self.ran, 12)

    def test_a_block_that_fails_is_named(self) -> None:
        with self.assertRaisesRegex(AssertionError, "a.md:3: ZeroDivisionError"):
            self.run_block("a.md:3", "1 / 0\n", {})


if __name__ == "__main__":
    unittest.main()
