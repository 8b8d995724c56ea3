# SPDX-License-Identifier: Apache-2.0
"""On-disk caches of torch.compile: programs of a process with attune installed are separate from those of one without.
"""

from __future__ import annotations

import os
import pathlib
import shutil
import subprocess
import sys
import tempfile
import unittest
import unittest.mock

import needs

needs.pytorch()

import torch
import torch.nn.functional as F

import attune
import attune.torch as at
from attune.torch import _route

# Each word of the command line is a state in which the same module is compiled; the script prints what ran. A stock
# module is one node of the graph by which PyTorch looks up a program, whatever attention it calls.
SCRIPT = """
import sys, torch
layer = torch.nn.MultiheadAttention(32, 4, batch_first=True)
x = torch.randn(2, 8, 32)
for word in sys.argv[1:]:
    if word != "without":
        import attune.torch
        getattr(attune.torch, word)(*["always"] * (word == "install"))
    torch.compiler.reset()
    compiled = torch.compile(lambda x: layer(x, x, x, need_weights=False)[0])
    with torch.no_grad():
        compiled(x)
        with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as seen:
            compiled(x)
    print("ran", "attune" if any("attune::" in event.key for event in seen.key_averages()) else "torch")
"""

# With a new folder, compiling trial programs and headers would take most of the time.
QUICK = {"TORCHINDUCTOR_VEC_ISA_OK": "0", "TORCHINDUCTOR_CPP_CACHE_PRECOMPILE_HEADERS": "0"}
HAS_TAG = hasattr(getattr(torch.compiler, "config", None), "cache_key_tag")


class OnDisk(unittest.TestCase):
    def setUp(self):
        if not any(map(shutil.which, (os.environ.get("CXX", ""), "g++", "clang++"))):
            self.skipTest("torch.compile needs a C++ compiler, and none is here")

    def ran(self, folder, *words):
        """Which implementation runs attention in each state of a process whose programs are in a folder."""
        done = subprocess.run([sys.executable, "-c", SCRIPT, *words], capture_output=True, text=True,
                              env={**os.environ, **QUICK, "TORCHINDUCTOR_CACHE_DIR": folder})
        self.assertEqual(done.returncode, 0, done.stderr[-2000:])
        return [line.split()[1] for line in done.stdout.splitlines() if line.startswith("ran ")]

    def test_a_program_with_attune_is_not_found_without_it(self):
        with tempfile.TemporaryDirectory() as folder:
            self.assertEqual(self.ran(folder, "install"), ["attune"])
            self.assertTrue(any(pathlib.Path(folder).rglob("*")))
            self.assertEqual(self.ran(folder, "without", "install", "uninstall"), ["torch", "attune", "torch"])

    def test_a_program_without_attune_is_not_found_with_it(self):
        with tempfile.TemporaryDirectory() as folder:
            self.assertEqual(self.ran(folder, "without", "install"), ["torch", "attune"])


class Keys(unittest.TestCase):
    def setUp(self):
        self.addCleanup(at.uninstall)

    @unittest.skipUnless(HAS_TAG, "this PyTorch has no tag for keys")
    def test_the_tag_says_who_is_there_and_a_users_own_stays(self):
        config, version = torch.compiler.config, attune.__version__
        for own, begin in (("", ""), ("mine", "mine "), ("an attune 1 always thing", "an attune 1 always thing ")):
            with self.subTest(own), unittest.mock.patch.object(config, "cache_key_tag", own):
                at.install("always")
                self.assertEqual(config.cache_key_tag, f"{begin}attune {version} always")
                with at.installed():
                    self.assertEqual(config.cache_key_tag, f"{begin}attune {version} measured")
                self.assertEqual(config.cache_key_tag, f"{begin}attune {version} always")
                at.uninstall()
                self.assertEqual(config.cache_key_tag, own)
                at.install()
                config.cache_key_tag = "another"  # set by other code in the meantime
                at.uninstall()
                self.assertEqual(config.cache_key_tag, "another")
                with at.installed(), self.assertRaises(attune.Error):
                    at.install("sometimes")
                self.assertEqual(config.cache_key_tag, "another")
                at.uninstall()
                self.assertEqual(config.cache_key_tag, "another")

    def test_without_a_tag_no_program_is_kept_while_attune_is_there(self):
        from torch._functorch import config

        for before in (True, False):
            with self.subTest(before), unittest.mock.patch.object(_route, "_compiler", None), \
                    unittest.mock.patch.object(config, "enable_autograd_cache", before):
                at.install("always")
                at.install()
                self.assertFalse(config.enable_autograd_cache)
                with at.installed("always"):
                    self.assertFalse(config.enable_autograd_cache)
                self.assertFalse(config.enable_autograd_cache)
                at.uninstall()
                self.assertEqual(config.enable_autograd_cache, before)
                self.assertIs(F.scaled_dot_product_attention, _route._sdpa._torch_sdpa)
                at.uninstall()
                self.assertEqual(config.enable_autograd_cache, before)


if __name__ == "__main__":
    unittest.main()
