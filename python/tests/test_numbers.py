# SPDX-License-Identifier: Apache-2.0
"""Numbers that the library cannot hold, or that are none: each is an attune.Error that names the argument."""

from __future__ import annotations

import os
import subprocess
import sys
import unittest

import attune

try:
    import numpy as np
except ImportError:
    raise unittest.SkipTest("NumPy is not here")

HUGE = 2**70


class Numbers(unittest.TestCase):
    def setUp(self):
        self.q = np.random.default_rng(1).standard_normal((1, 4, 2, 8)).astype(np.float32)

    def named(self, what, call, *given, **named):
        with self.assertRaises(attune.Error) as caught:
            call(*given, **named)
        self.assertRegex(str(caught.exception), rf"^attune: {what} .*(is not|are not) ")

    def test_of_a_call(self):
        q = self.q
        for name, values in {"scale": ("1", [1.0], 10**400), "softcap": ("1", 10**400, [1]),
                             "max_q": (7.5, "7", HUGE), "max_k": (7.5, HUGE), "window": ((HUGE, 0), (0, HUGE)),
                             "block_size": ((HUGE, 1),)}.items():
            for value in values:
                with self.subTest(name=name, value=str(value)[:20]):
                    self.named(name, attune.attend, q, q, q, **{name: value})
        lse = np.zeros((1, 2, 4), np.float32)
        self.named("scale", attune.attend_backward, q, q, q, q, q, lse, scale="1")
        self.named("softcap", attune.attend_backward, q, q, q, q, q, lse, softcap=10**400)

    def test_of_sizes(self):
        sizes = {"heads": 1, "dim": 8, "sequences": 2, "capacity": 8}
        for name in sizes:
            for value in (HUGE, 7.5, "7", -1):
                with self.subTest(name=name, value=value):
                    self.named(name, attune.Cache, **{**sizes, name: value})
                    self.named(name, attune.NsaCache, "nsa d=4 gate=none l=4 n=2 phi=mean s=4 w=4",
                               **{**sizes, name: value})
        for name in ("batch", "len", "heads", "block"):
            self.named(name, attune.make, "dilated", **{name: HUGE})
        cache = attune.Cache(**sizes)
        q = self.q[:, :, :1]
        for name, value in (("scale", "1"), ("softcap", 10**400), ("max_q", 7.5)):
            self.named(name, cache.attend, q, q, q, sequences=[0], **{name: value})
        self.assertEqual(cache.length(0), 0)

    def test_of_threads(self):
        for value in (HUGE, -HUGE, 2**31, 1.5, "2", None, [2]):
            with self.subTest(value=value):
                self.named("threads", attune.set_threads, value)
        with self.assertRaisesRegex(attune.Error, "threads"):
            attune.set_threads(-1)

    def test_of_the_environment(self):
        for said in ("\N{SUPERSCRIPT TWO}", "9" * 5000, "-1", "1e3", " 1 ,2"):
            with self.subTest(said=said[:20]):
                ran = subprocess.run([sys.executable, "-c", "import attune"], capture_output=True, text=True,
                                     env={**os.environ, "OMP_NUM_THREADS": said})
                self.assertEqual((ran.returncode, ran.stderr), (0, ""))

    def test_what_is_a_number_goes_on_being_one(self):
        q = self.q
        usual = attune.attend(q, q, q, scale=0.5)
        for scale in (np.float32(0.5), np.float64(0.5), True / 2):
            self.assertTrue(np.array_equal(usual, attune.attend(q, q, q, scale=scale)))
        attune.attend(q, q, q, softcap=np.float32(2), window=(2**31 - 1, 0))


if __name__ == "__main__":
    unittest.main()
