# SPDX-License-Identifier: Apache-2.0
"""PyTorch before 2.10, whose tensors have no C exchange table, and before 2.5, which is refused. With a newer PyTorch
the table is hidden, so that the same code runs."""

from __future__ import annotations

import pathlib
import subprocess
import sys
import unittest
import unittest.mock

import needs

needs.pytorch()

import torch

import attune
import attune.torch

HIDDEN = "import torch; torch.Tensor.__dlpack_c_exchange_api__ = None\n"


class Plain(torch.Tensor):
    """Like a tensor of PyTorch 2.9."""

    __dlpack_c_exchange_api__ = None
    __torch_function__ = torch._C._disabled_torch_function_impl


def plain(*shape, dtype=torch.float32, device="cpu"):
    return torch.randn(shape, generator=torch.Generator().manual_seed(sum(shape))).to(device, dtype).as_subclass(Plain)


class WithoutTable(unittest.TestCase):
    def test_views_of_every_stride_are_read_where_they_are(self):
        qkv = plain(2, 7, 3, 4, 16)
        q, k, v = (qkv[:, :, n] for n in range(3))
        out = torch.zeros(2, 9, 4, 16).as_subclass(Plain)
        got = attune.attend(q, k[:, :5], v[:, :5].flip(1).flip(1), causal=True, out=out[:, 1:8])
        whole = (t.as_subclass(torch.Tensor).contiguous() for t in (q, k[:, :5], v[:, :5]))
        wanted = attune.attend(*whole, causal=True)
        torch.testing.assert_close(torch.as_tensor(got).as_subclass(torch.Tensor), wanted, rtol=0, atol=0)
        self.assertEqual(float(out[:, ::8].abs().max()), 0)
        one = plain(1, 7, 1, 16).expand(2, 7, 4, 16)
        torch.testing.assert_close(attune.attend(one, one, one).as_subclass(torch.Tensor),
                                   attune.attend(*(one.as_subclass(torch.Tensor).contiguous(),) * 3), rtol=0, atol=0)

    def test_every_dtype_that_is_served_is_known(self):
        for dtype, named in ((torch.float32, {}), (torch.bfloat16, {}), (torch.float16, {}),
                             (torch.float64, {"backend": "reference"}),
                             (torch.float8_e4m3fn, {"backend": "reference"})):
            with self.subTest(dtype):
                q = plain(1, 4, 2, 16, dtype=dtype)
                used = torch.tensor([3], dtype=torch.int32).as_subclass(Plain)
                out = torch.empty(1, 4, 2, 16, dtype=torch.bfloat16 if q.element_size() == 1 else dtype)
                attune.attend(q, q, q, used_k=used, out=out.as_subclass(Plain), **named)
                wide = q.as_subclass(torch.Tensor).float()
                wanted = attune.attend(wide, wide[:, :3].contiguous(), wide[:, :3].contiguous())
                torch.testing.assert_close(out.float(), wanted, rtol=0, atol=2e-2 if dtype.itemsize < 4 else 1e-6)

    def test_a_gradient_is_still_not_lost(self):
        q = plain(1, 4, 2, 16).requires_grad_()
        with self.assertRaisesRegex(attune.Error, "attune.attend has no gradient"):
            attune.attend(q, q, q)
        with torch.no_grad():
            attune.attend(q, q, q)

    def test_what_cannot_be_lent_is_named(self):
        q = plain(1, 4, 2, 16)
        out = torch.empty(1, 4, 2, 16)
        for given, sentence in ((plain(1, 4, 2, 16, dtype=torch.complex64), "k: dtype torch.complex64 is not"),
                                (torch.empty(1, 4, 2, 16, device="meta").as_subclass(Plain),
                                 "k: the tensor is neither on the CPU nor on CUDA"),
                                (plain(*(1,) * 9), "k has 9 axes; no tensor here has more than 8"),
                                (plain(1, 4, 2, 16, dtype=torch.int16), "dtype of code 0, 16 bits"),
                                (q[0], "k: axes 'bshd' do not name the 3 axes")):
            with self.subTest(sentence), self.assertRaisesRegex(attune.Error, sentence):
                attune.attend(q, given, q, out=out)

    def test_gradients_caches_and_streams_are_those_of_a_tensor_with_a_table(self):
        names = ("gradients", "append", "packed", "autocast", "current_stream", "cuda_graph", "one_graph")
        chosen = ["", *(word for name in names for word in ("-k", name))]
        script = f"{HIDDEN}import unittest\nunittest.main('test_torch', argv={chosen})"
        done = subprocess.run([sys.executable, "-c", script], cwd=pathlib.Path(__file__).parent, capture_output=True,
                              text=True)
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertRegex(done.stderr, r"Ran ([8-9]|\d\d) tests")


class Versions(unittest.TestCase):
    def asked(self, version):
        """The error of importing attune.torch with that version of PyTorch."""
        with unittest.mock.patch.object(torch, "__version__", type(torch.__version__)(version)), \
                unittest.mock.patch.dict(sys.modules):
            del sys.modules["attune.torch"]
            needs.pytorch()

    def test_a_version_that_is_too_old_is_refused_in_a_sentence_and_leaves_the_tests_out(self):
        before = attune.torch
        for version in ("2.4.1+cpu", "2.0", "1.13.1"):
            with self.assertRaises(unittest.SkipTest) as left_out:
                self.asked(version)
            self.assertEqual(str(left_out.exception),
                             f"attune.torch: PyTorch {version} is here, and 2.5 or later is needed")
        attune.torch = before

    def test_versions_of_other_builds_are_read(self):
        before = attune.torch
        for version in ("2.5.0a0+git", "2.10.1.post3", "3.0"):
            self.asked(version)
        attune.torch = before

    def test_any_other_failure_to_import_is_one_of_the_tests(self):
        with unittest.mock.patch.dict(sys.modules, {"attune.torch": None}), self.assertRaises(ImportError):
            needs.pytorch()


if __name__ == "__main__":
    unittest.main()
