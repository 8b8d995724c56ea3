#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Models against transformers, in both directions:  transformers_test.py ATTUNE

For every family a random model of transformers is loaded and compared by `attune model --check`, and a random model of
ours is saved, loaded by transformers and compared. Skipped without torch and transformers."""
import importlib.util
import pathlib
import subprocess
import sys
import tempfile
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "scripts"))
import model_numbers

ATTUNE = ""
MISSING = [name for name in ("torch", "transformers", "safetensors") if not importlib.util.find_spec(name)]


class Transformers(unittest.TestCase):
    def check(self, folder):
        model_numbers.numbers(folder, batch=2, length=23, prompt=5, count=256, seed=11)
        done = subprocess.run([ATTUNE, "model", folder, "--check", f"{folder}/numbers.safetensors"],
                              check=False, capture_output=True, text=True)
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)

    def test_a_model_of_theirs(self):
        for family in model_numbers.FAMILIES:
            with self.subTest(family), tempfile.TemporaryDirectory() as folder:
                model_numbers.make(folder, family, seed=5)
                self.check(folder)

    def test_a_model_of_ours(self):
        for family in model_numbers.FAMILIES:
            with self.subTest(family), tempfile.TemporaryDirectory() as folder:
                config = ROOT / "tests/models/data" / family / "config.json"
                subprocess.run([ATTUNE, "model", config, "--seed", "3", "--save", f"{folder}/made"], check=True,
                               capture_output=True)
                self.check(f"{folder}/made")


if __name__ == "__main__":
    if MISSING:
        print(f"skipped: not here: {', '.join(MISSING)}")
        sys.exit(77)
    ATTUNE = sys.argv.pop(1)
    unittest.main()
