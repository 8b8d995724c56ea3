# SPDX-License-Identifier: Apache-2.0
"""attune.flex: functions of FlexAttention become formulas, with the results and gradients of FlexAttention."""

from __future__ import annotations

import threading
import unittest
import warnings
from collections.abc import Callable
from typing import Any

import needs

needs.pytorch()

import torch

if tuple(map(int, torch.__version__.split(".")[:2])) < (2, 6):
    raise unittest.SkipTest("FlexAttention runs on a CPU since PyTorch 2.6")

import attune
import attune.flex
from torch.nn.attention.flex_attention import BlockMask, create_block_mask, flex_attention

BATCH, HEADS, QUERIES, KEYS, DIM = 2, 4, 48, 80, 32

MASKS: dict[str, Callable[..., Any]] = {
    "q>=k": lambda b, h, q, k: q >= k,
    "q>=k&&q-k<=9": lambda b, h, q, k: (q >= k) & (q - k <= 9),
    "k<7||!(q<k)": lambda b, h, q, k: (k < 7) | ~(q < k),
    "abs(q//8-k//8)<=2": lambda b, h, q, k: abs(q // 8 - k // 8) <= 2,
    "(q-k)%4==0": lambda b, h, q, k: torch.eq((q - k) % 4, 0),
    "h%2==0?q>=k:k<40": lambda b, h, q, k: torch.where(h % 2 == 0, q >= k, k < 40),
    "q>=k&&b>=0": lambda b, h, q, k: torch.logical_and(q >= k, b >= 0),
}
SCORES: dict[str, Callable[..., Any]] = {
    "20*tanh(s/20)": lambda s, b, h, q, k: 20 * torch.tanh(s / 20),
    "s+(q-k)": lambda s, b, h, q, k: s + (q - k),
    "q>=k?s:-inf": lambda s, b, h, q, k: torch.where(q >= k, s, -float("inf")),
    "s*(q>=k?1:0)": lambda s, b, h, q, k: s * (q >= k),
    "min(max(s,-1),0.5)": lambda s, b, h, q, k: torch.clamp(s, min=-1, max=0.5),
    "s*s-1e-05*q": lambda s, b, h, q, k: s ** 2 - 1e-5 * q,
}


def dense(q: Any, k: Any, v: Any, score_mod: Any, block_mask: Any) -> Any:
    at = [torch.arange(n).reshape([-1 if axis == i else 1 for axis in range(4)])
          for i, n in enumerate((BATCH, HEADS, QUERIES, KEYS))]
    s = q @ k.transpose(2, 3) / DIM ** 0.5
    if score_mod:
        s = score_mod(s, *at)
    if block_mask:
        s = s.masked_fill(~(block_mask(*at) & torch.ones_like(s, dtype=torch.bool)), -float("inf"))
    hidden = (s == -float("inf")).all(-1, keepdim=True)
    return torch.softmax(s.masked_fill(hidden, 0), -1).masked_fill(hidden, 0) @ v


class Formulas(unittest.TestCase):
    @classmethod
    def setUpClass(cls) -> None:
        torch.manual_seed(1)
        cls.inputs = [torch.randn(BATCH, HEADS, n, DIM) for n in (QUERIES, KEYS, KEYS)]
        cls.d_out = torch.randn(BATCH, HEADS, QUERIES, DIM)

    def same(self, mask: Callable[..., Any] | None = None, score: Callable[..., Any] | None = None,
             captured: Any = None, trained: bool = True) -> None:
        block_mask = mask and create_block_mask(mask, BATCH, HEADS, QUERIES, KEYS, device="cpu")
        with warnings.catch_warnings(), torch.no_grad():
            warnings.simplefilter("ignore")  # that it is not compiled
            theirs = flex_attention(*self.inputs, score_mod=score, block_mask=block_mask, return_lse=True)
            ours = attune.flex.flex_attention(*self.inputs, score_mod=score, block_mask=mask, return_lse=True)
        for expected, given in zip(theirs, ours):
            torch.testing.assert_close(given, expected, atol=1e-4, rtol=1e-4)
        if not trained:
            return
        gradients = []
        for run in (dense, attune.flex.flex_attention):  # FlexAttention has no gradients on a CPU
            inputs = [x.clone().requires_grad_() for x in self.inputs]
            wanted = inputs if captured is None else [*inputs, captured]
            out = run(*inputs, score_mod=score, block_mask=mask)
            gradients.append(torch.autograd.grad(out, wanted, self.d_out))
        for expected, given in zip(*gradients):
            torch.testing.assert_close(given, expected, atol=1e-3, rtol=1e-3)

    def test_masks(self) -> None:
        for text, mask in MASKS.items():
            with self.subTest(text):
                self.assertEqual(attune.flex.trace(None, mask)[0], f"formula mask={text}")
                self.same(mask, trained=text == "q>=k")

    def test_scores(self) -> None:
        for text, score in SCORES.items():
            with self.subTest(text):
                self.assertEqual(attune.flex.trace(score)[0], f"formula score={text}")
                self.same(None, score)

    def test_captured_tensors(self) -> None:
        doc = torch.arange(KEYS) // 17
        length = torch.tensor([50, 80], dtype=torch.int32)
        allowed = torch.rand(BATCH, QUERIES, KEYS) < 0.7
        self.same(lambda b, h, q, k: doc[q] == doc[k], trained=False)
        self.same(lambda b, h, q, k: k < length[b], trained=False)
        self.same(lambda b, h, q, k: allowed[b, q, k], trained=False)
        self.assertEqual(attune.flex.trace(None, lambda b, h, q, k: allowed[b][q][k])[0], "formula mask=a0[b,q,k]!=0")
        slope = torch.tensor([0.5, 0.25, 0.125, 0.1], requires_grad=True)
        self.same(None, lambda s, b, h, q, k: s + slope[h] * (k - q), slope)
        table = torch.randn(HEADS, QUERIES + KEYS, requires_grad=True)
        self.same(lambda b, h, q, k: q + 40 >= k, lambda s, b, h, q, k: s + table[h, q - k + KEYS], table)

    def test_numbers_are_those_of_pytorch(self) -> None:
        table = torch.randn(HEADS, KEYS)
        self.same(None, lambda s, b, h, q, k: s + table[h, q - k], trained=False)  # -1 is the last
        self.same(None, lambda s, b, h, q, k: s + table[h, -1 - q], trained=False)
        self.same(lambda b, h, q, k: (q / 8).int() == (k / 8).long(), trained=False)
        self.same(lambda b, h, q, k: ((q - k) / 8).to(torch.int32) == 0, trained=False)  # toward zero
        self.same(lambda b, h, q, k: (q % 2).bool() ^ (k % 3 == 0), trained=False)
        table = torch.randn(HEADS, QUERIES + KEYS)
        shape = (BATCH, HEADS, QUERIES, KEYS)
        text = attune.flex.trace(lambda s, b, h, q, k: s + table[h, q - k + KEYS], None, shape)[0]
        self.assertEqual(text, "formula score=s+a0[h,q-k+80]")
        temperature = torch.tensor(0.5, requires_grad=True)
        self.same(None, lambda s, b, h, q, k: s * temperature, temperature)

    def test_indices_that_choose_count_from_the_end(self) -> None:
        table = torch.randn(KEYS)
        self.same(None, lambda s, b, h, q, k: s + table[torch.where(q > k, -1, -2)], trained=False)
        self.same(None, lambda s, b, h, q, k: s + table[torch.where(q > k, q - k - 9, -q - 1)], trained=False)
        self.same(None, lambda s, b, h, q, k: s + table[-(q // 2) - 1], trained=False)

    def test_an_index_beyond_the_tensor_is_refused(self) -> None:
        shape, table = (BATCH, HEADS, QUERIES, KEYS), torch.randn(40)
        for why, mask in (("the index 'q' is 0 ... 47, and the axis of the captured tensor has 40 elements",
                           lambda b, h, q, k: table[q] > 0),
                          ("the index '40' is 40", lambda b, h, q, k: table.reshape(1, 40)[0 * b, 40] > 0),
                          ("the index 'k-200' is -200 ... -121", lambda b, h, q, k: table[k - 200] > 0)):
            with self.subTest(why), self.assertRaisesRegex(attune.Error, why):
                attune.flex.trace(None, mask, shape)

    def test_methods_are_those_of_tensors(self) -> None:
        gain = torch.tensor(0.5, requires_grad=True)
        self.same(None, lambda s, b, h, q, k: s.where(q >= k, -float("inf")), trained=False)
        self.same(None, lambda s, b, h, q, k: s * gain.where(q >= k, 2), gain)

    def test_truths_are_added_as_in_pytorch(self) -> None:
        self.same(lambda b, h, q, k: (((q > k) + (k > 3)) == 2) | (k == 0), trained=False)  # True + True is True
        self.same(lambda b, h, q, k: ~((q > k) * (k > 3)), trained=False)
        self.same(lambda b, h, q, k: sum([q > k, k > 3]) == 2, trained=False)
        self.same(None, lambda s, b, h, q, k: s + (q > k) ** 2, trained=False)

    def test_constants_are_those_that_pytorch_compares(self) -> None:
        for dtype in (torch.float32, torch.float16):
            tenth = torch.where(torch.arange(KEYS) % 3 == 0, 0.1, 0.2).to(dtype)
            self.same(lambda b, h, q, k, x=tenth: x[k] == 0.1, trained=False)
            self.same(lambda b, h, q, k, x=tenth: 0.1 < x[k], trained=False)
        try:
            import numpy
        except ImportError:
            return
        for text, half in (("0.5*s", numpy.float64(0.5)), ("0.5*s", numpy.float32(0.5)), ("2*s", numpy.int64(2))):
            self.assertEqual(attune.flex.trace(lambda s, b, h, q, k, x=half: x * s)[0], f"formula score={text}")
            self.assertEqual(attune.flex.trace(lambda s, b, h, q, k, x=half: s * x)[0],
                             f"formula score=s*{text[:-2]}")

    def test_a_formula_of_the_longest_text(self) -> None:
        text = attune.flex.trace(None, lambda b, h, q, k: q > sum([k] * 70, 1234))[0]
        self.assertEqual(text, "formula mask=q>1234" + "+k" * 70)
        self.assertEqual(len(text) - len("formula "), 151)
        shown = attune.flex.flex_attention(*self.inputs, block_mask=lambda b, h, q, k: q > sum([k] * 70, 1234))
        self.assertEqual(float(shown.abs().max()), 0)
        with self.assertRaisesRegex(attune.Error, "has 152 characters; at most 151 are accepted"):
            attune.flex.trace(None, lambda b, h, q, k: q > sum([k] * 70, 12345))

    def test_threads_trace_by_themselves(self) -> None:
        trained = [torch.tensor(float(n + 1), requires_grad=True) for n in range(2)]
        inside, found = threading.Barrier(2, timeout=60), {}

        def run(n: int) -> None:
            def score(s: Any, b: Any, h: Any, q: Any, k: Any) -> Any:
                inside.wait()  # both are traced now
                return s * trained[n]

            found[n] = attune.flex.trace(score)

        threads = [threading.Thread(target=run, args=(n,)) for n in range(2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        for n, own in enumerate(trained):
            text, captured = found[n]
            self.assertEqual((text, len(captured)), ("formula score=s*a0[0]", 1))
            self.assertIs(captured[0], own)

    def test_a_block_mask_hides_what_it_does_not_list(self) -> None:
        causal = create_block_mask(lambda b, h, q, k: q >= k, None, None, QUERIES, KEYS, device="cpu", BLOCK_SIZE=16)
        first = causal.to_dense().to(torch.int32).sum(-1).clamp(max=1).to(torch.int32)
        indices = torch.zeros(1, 1, QUERIES // 16, KEYS // 16, dtype=torch.int32)
        # PyTorch's compiled kernels read the blocks; its eager definition reads only the function.
        for mask_mod in (None, lambda b, h, q, k: q >= k):
            listed = BlockMask.from_kv_blocks(first, indices, BLOCK_SIZE=16, mask_mod=mask_mod,
                                              seq_lengths=(QUERIES, KEYS))
            ours = attune.flex.flex_attention(*self.inputs, block_mask=listed, kernel_options={"BLOCK_M": 16})
            both = lambda b, h, q, k, of=mask_mod: (k < 16) & (of is None or of(b, h, q, k))
            torch.testing.assert_close(ours, dense(*self.inputs, None, both), atol=1e-4, rtol=1e-4)
        with self.assertRaisesRegex(attune.Error, "made for 48 queries and 80 keys, and there are 47 and 80"):
            attune.flex.flex_attention(self.inputs[0][:, :, :-1], *self.inputs[1:], block_mask=causal)

    def test_what_is_not_a_formula_is_a_sentence(self) -> None:
        def decides(b: Any, h: Any, q: Any, k: Any) -> Any:
            return max(k, q)

        def squared_again_and_again(b: Any, h: Any, q: Any, k: Any) -> Any:
            for _ in range(40):
                q = q * q
            return q > k

        tenth = torch.full((9,), 0.1, dtype=torch.float64)
        refused: list[tuple[str, Callable[..., Any]]] = [
            ("decides by 'if'", decides),
            ("'sin' is not a formula", lambda b, h, q, k: torch.sin(q) > 0),
            ("'cumsum' of a traced value", lambda b, h, q, k: q.cumsum(0) > 0),
            ("a power of 3", lambda b, h, q, k: q ** 3 > k),
            ("'&' of numbers works on their bits", lambda b, h, q, k: (q & 7) == 0),
            ("'~' of a number works on its bits", lambda b, h, q, k: ~q < k),
            ("is an index and is not a whole number", lambda b, h, q, k: torch.zeros(9)[q / 2] > 0),
            ("1 indices", lambda b, h, q, k: torch.zeros(9, 9)[q] > 0),
            ("str is not a formula", lambda b, h, q, k: "no"),
            ("at most 151 are accepted", lambda b, h, q, k: sum(q * n for n in range(60)) > k),
            ("at most 151 are accepted", squared_again_and_again),
            ("'-' of two truths", lambda b, h, q, k: (q > k) - (k > 3) == 0),
            ("'-' of a truth", lambda b, h, q, k: -(q > k) == 0),
            ("is converted to torch.int8, which rounds", lambda b, h, q, k: (q * 100).to(torch.int8) == 0),
            ("is converted to torch.bfloat16, which rounds", lambda b, h, q, k: q.to(torch.bfloat16) > 0),
            ("to the dtype of another", lambda b, h, q, k: (q / 2).to(q) > 0),
            ("'//' of 'q' and '0.1', which rounds", lambda b, h, q, k: q // 0.1 > k),
            ("'%' of 'q' and '0.1', which rounds", lambda b, h, q, k: q % 0.1 > 0),
            ("'add' is not a formula with these arguments", lambda b, h, q, k: torch.add(q, k, alpha=2) > 0),
            ("as a list, or in round", lambda b, h, q, k: sum(torch.zeros(9, 9)[h]) > 0),
            ("as a list, or in round", lambda b, h, q, k: (q >> 3) == (k >> 3)),
            ("whole number 10000", lambda b, h, q, k: q > 10 ** 400),
            ("whole numbers above 2..53", lambda b, h, q, k: torch.tensor([2 ** 60 + 1])[0 * q] == 2.0 ** 60),
            ("is f64 and has numbers that f32 has not", lambda b, h, q, k: tenth[h] > 0.1),
            ("is complex", lambda b, h, q, k: torch.zeros(9, dtype=torch.complex64)[h] == 0),
        ]
        for why, mask in refused:
            with self.subTest(why), self.assertRaisesRegex(attune.Error, why):
                attune.flex.trace(None, mask)
        of_two = create_block_mask(lambda b, h, q, k: q >= k, 2, 3, QUERIES, KEYS, device="cpu")
        with self.assertRaisesRegex(attune.Error, "block_mask was made for 3 heads, and there are 4"):
            attune.flex.flex_attention(*self.inputs, block_mask=of_two)
        with self.assertRaisesRegex(attune.Error, "enable_gqa"):
            attune.flex.flex_attention(self.inputs[0], *(x[:, :2] for x in self.inputs[1:]))


if __name__ == "__main__":
    unittest.main()
