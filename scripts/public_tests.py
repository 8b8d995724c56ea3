#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Runs third-party tests of the interfaces that attune implements, against attune: those of flash_attn 2, of
FlashAttention-3, and of PyTorch's scaled_dot_product_attention. The caller provides their sources.

    scripts/public_tests.py flash_attn PATH_OF_FLASH_ATTENTION --seconds 60
    scripts/public_tests.py fa3 PATH_OF_FLASH_ATTENTION --part 3/40
    scripts/public_tests.py export PATH_OF_FLASH_ATTENTION --part 1/1      # torch.export and packages; writes model.pt2
    scripts/public_tests.py sdpa PATH_OF_PYTORCH            # its test/test_transformers.py
    scripts/public_tests.py samples                         # SDPA samples of the installed PyTorch

The first two have tens of thousands of parameter sets per test, which are drawn at random until the time is over.
--part I/N runs the I-th of N parts, which together cover all of them in a fixed shuffled order; with --seconds, as many
as fit into the time. Without a GPU, "cuda" in the test sources is read as "cpu". The PyTorch tests select one of its
kernels, which attune replaces, except "math", which they compare with. Tests of a kernel's own errors, of kernel
selection and of nested tensors are excluded. FlashAttention-3's tests derive tolerances from the rounding error of x +
0.3 - 0.3. A CPU rounds 0.3 to x's dtype first, so the tolerance of a gradient of 0 is 0 there; --gpu-tolerance uses the
value of a GPU. --only and --skip select tests by a regular expression."""

from __future__ import annotations

import argparse
import collections
import math
import os
import pathlib
import random
import re
import sys
import time
import traceback
import types
import unittest
from typing import Any, Callable, Iterator

import torch

import attune.flash_attn
import attune.torch
import attune.torch._route as inside

# Tests of flash_attn internals: its C++ functions and the schemas of its operators.
INSIDES = "generator_arg|paged_kv_num_splits|bw_compat"
# Tests of PyTorch's kernel selection and refusals; the last checks that a seed drops the same elements as its kernels.
CHOICES = "_fail|invalid|choice|priority|determinism|nested|heuristic|Xpu|encoderlayer_subclass"


def stand_in(checkout: pathlib.Path) -> None:
    """Makes `import flash_attn` load attune. The rest comes from the checkout: padding and rotary embeddings, which use
    Triton on a GPU."""
    attune.flash_attn.install()
    attune.flash_attn.__path__.insert(0, str(checkout / "flash_attn"))
    for name in ("bert_padding", "layers", "layers.rotary") if torch.cuda.is_available() else ():
        if (checkout / "flash_attn" / "layers" / "rotary.py").is_file():
            del sys.modules["flash_attn." + name]
    for name in ("flash_attn_3", "flash_attn_3._C"):
        sys.modules[name] = types.ModuleType(name)


def lost_on_gpu(x: torch.Tensor) -> torch.Tensor:
    """x + 0.3 - 0.3 - x as a GPU rounds it: Python scalars are f32 there."""
    return ((x.float() + 0.3).to(x.dtype).float() - 0.3).to(x.dtype) - x


def load(path: pathlib.Path, knows_cpu: bool = False, gpu_tolerance: bool = False) -> types.ModuleType:
    source = path.read_text()
    if gpu_tolerance:
        source = re.sub(r"\((\w+) \+ 0\.3 - 0\.3 - \1\)", r"lost_on_gpu(\1)", source)
    if not knows_cpu and not torch.cuda.is_available():
        source = source.replace('"cuda"', '"cpu"').replace(".cuda()", "")
        torch.cuda.get_device_capability = lambda *_: (9, 0)  # type: ignore[assignment]
    sys.path.insert(0, str(path.parent))
    module = types.ModuleType("public_" + path.stem)
    module.__dict__.update(__file__=str(path), lost_on_gpu=lost_on_gpu)
    sys.modules[module.__name__] = module
    exec(compile(source, str(path), "exec"), module.__dict__)
    return module


def parameters(test: Callable[..., None]) -> tuple[int, Callable[[int], dict[str, Any]]]:
    """The number of parameter sets, and a function that returns the n-th."""
    names: list[list[str]] = []
    values: list[list[Any]] = []
    for mark in getattr(test, "pytestmark", []):
        if mark.name == "parametrize":
            given = mark.args[0]
            names.append([n.strip() for n in given.split(",")] if isinstance(given, str) else list(given))
            several = len(names[-1]) > 1
            values.append([v.values if hasattr(v, "marks") else v if several else (v,) for v in mark.args[1]])

    def one(n: int) -> dict[str, Any]:
        named: dict[str, Any] = {}
        for several, known in zip(names, values):
            n, at = divmod(n, len(known))
            named.update(zip(several, known[at]))
        return named

    return math.prod(map(len, values)), one


def chosen(count: int, part: tuple[int, int] | None, draw: random.Random) -> Iterator[int]:
    """Numbers below count: endless at random, or those of the part."""
    if part is None:
        while count:
            yield draw.randrange(count)
    else:
        order = list(range(count))
        random.Random(0).shuffle(order)
        yield from order[part[0] - 1::part[1]]


def is_small(given: dict[str, Any], most: float) -> bool:
    return all(not isinstance(value, int) or value <= most for value in given.values())


def read_part(text: str) -> tuple[int, int]:
    found = re.fullmatch(r"(\d+)/(\d+)", text)
    if not found or not 1 <= int(found[1]) <= int(found[2]):
        raise argparse.ArgumentTypeError(f"{text!r} is not I/N with I from 1 to N")
    return int(found[1]), int(found[2])


class Results:
    def __init__(self) -> None:
        self.counts: collections.Counter[tuple[str, str]] = collections.Counter()
        self.why: collections.Counter[tuple[str, str, str]] = collections.Counter()
        self.first: dict[tuple[str, str, str], str] = {}

    def run(self, test: Callable[..., None], named: dict[str, Any]) -> None:
        try:
            with open(os.devnull, "w") as nowhere:
                out, sys.stdout = sys.stdout, nowhere
                try:
                    test(**named)
                finally:
                    sys.stdout = out
            self.counts[test.__name__, "passed"] += 1
        except KeyboardInterrupt:
            raise
        except BaseException as error:  # pytest's Skipped does not derive from Exception
            skipped = type(error).__name__ == "Skipped"
            self.counts[test.__name__, "skipped" if skipped else "failed"] += 1
            if not skipped:
                at = traceback.extract_tb(error.__traceback__)[-1]
                where = f"{os.path.basename(at.filename)}:{at.lineno}"
                kind = test.__name__, type(error).__name__, where
                given = {name: re.sub(r"\s+", " ", str(value))[:80] for name, value in named.items()}
                self.why[kind] += 1
                self.first.setdefault(kind, f"{str(error)[:200]!r} with {given}")

    def print(self) -> int:
        for (name, result), count in sorted(self.counts.items()):
            print(f"{count:6} {result:8} {name}")
        for kind, count in self.why.most_common(24):
            print(f"{count:6} times {': '.join(kind)}, first {self.first[kind][:600]}")
        total = {r: sum(count for (_, result), count in self.counts.items() if result == r)
                 for r in ("passed", "failed", "skipped")}
        print(", ".join(f"{count} {result}" for result, count in total.items()))
        return 0 if total["passed"] and not total["failed"] else 1


def run_file(path: pathlib.Path, options: argparse.Namespace) -> int:
    found = vars(load(path, gpu_tolerance=options.gpu_tolerance))
    tests = [t for name, t in found.items() if name.startswith("test_") and re.search(options.only, name)
             and not re.search(options.skip, name)]
    if not tests:
        print(f"{path} has no test that is asked for")
        return 1
    results, draw = Results(), random.Random(options.seed)
    seconds = options.seconds or (math.inf if options.part else 60)
    end = time.monotonic() + seconds
    torch.manual_seed(options.seed)
    turns = []
    for test in tests:
        count, one = parameters(test)
        turns.append((test, one, chosen(count, options.part, draw)))
    while turns and time.monotonic() < end:
        for turn in list(turns):
            test, one, numbers = turn
            if (n := next(numbers, None)) is None:
                turns.remove(turn)
            elif is_small(given := one(n), options.most):
                results.run(test, given)
            if time.monotonic() > end:
                break
    if options.part:
        print(f"part {options.part[0]} of {options.part[1]}" + (", not to its end" if turns else ""))
    return results.print()


def without_expecttest() -> None:
    """PyTorch's test helpers import expecttest, even for tests that do not use it."""
    try:
        import expecttest  # noqa: F401
    except ImportError:
        made = sys.modules["expecttest"] = types.ModuleType("expecttest")
        made.TestCase = unittest.TestCase  # type: ignore[attr-defined]


def run_samples(options: argparse.Namespace) -> int:
    """PyTorch's own samples of scaled_dot_product_attention, output and gradients. The error relative to f64 may be
    twice PyTorch's, or eight ulps of the largest input or output (out is rounded before a backward reads it), plus one
    f32 ulp per unit of the largest score, which is an exponent."""
    without_expecttest()
    from torch.testing._internal.common_methods_invocations import op_db
    theirs, results = torch.nn.functional.scaled_dot_product_attention, Results()
    op = next(o for o in op_db if o.name == "nn.functional.scaled_dot_product_attention")
    device = "cuda" if torch.cuda.is_available() else "cpu"

    def answer(function: Callable[..., Any], sample: Any, dtype: torch.dtype) -> list[Any]:
        def cast(t: Any) -> Any:
            return t.detach().to(dtype) if isinstance(t, torch.Tensor) and t.is_floating_point() else t

        torch.manual_seed(options.seed)
        tensors = [cast(t).clone().requires_grad_() for t in (sample.input, *sample.args[:2])]
        out = function(*tensors, *map(cast, sample.args[2:]), **{name: cast(t) for name, t in sample.kwargs.items()})
        return [out, *torch.autograd.grad(out.sum(), tensors)]

    def compared(sample: Any) -> None:
        dtype = sample.input.dtype
        got = answer(attune.torch.scaled_dot_product_attention, sample, dtype)
        if sample.kwargs.get("dropout_p"):  # each implementation drops different elements
            return
        given = (sample.input, *sample.args[:2])
        most = max([t.abs().max().item() for t in given if t.numel()], default=0.0)
        score = most * most * sample.input.shape[-1] ** 0.5
        for ours, other, exact in zip(got, answer(theirs, sample, dtype), answer(theirs, sample, torch.float64)):
            assert ours.shape == other.shape and ours.dtype == other.dtype, (ours.shape, ours.dtype)
            far, wanted = ((t.double() - exact).abs().max().item() if t.numel() else 0.0 for t in (ours, other))
            size = max([most, *exact.abs().flatten().tolist()])
            limit = (8 * torch.finfo(dtype).eps + torch.finfo(torch.float32).eps * score) * size
            assert far <= max(2 * wanted, limit), (far, wanted, limit)

    for dtype in (torch.float32, torch.bfloat16, torch.float16, torch.float64):
        compared.__name__ = f"samples_{dtype}"
        for sample in op.sample_inputs(device, dtype, requires_grad=True):
            results.run(compared, {"sample": sample})
    counted = attune.torch.counters
    print(f"attune ran {counted.attune}, PyTorch {counted.torch}: {dict(counted.why)}")
    return results.print()


class Timed(unittest.TestResult):
    def __init__(self, end: float) -> None:
        super().__init__()
        self.end = end

    def stopTest(self, test: unittest.TestCase) -> None:
        super().stopTest(test)
        if time.monotonic() > self.end:
            self.stop()


def run_sdpa(path: pathlib.Path, options: argparse.Namespace) -> int:
    flags, asks = torch.backends.cuda, inside._is_chosen
    inside._is_chosen = lambda: not (inside.is_compiling() or flags.flash_sdp_enabled() or
                                     flags.mem_efficient_sdp_enabled() or flags.cudnn_sdp_enabled())
    without_expecttest()
    attune.torch.counters.clear()
    with attune.torch.installed("always") as counters:
        found = unittest.defaultTestLoader.loadTestsFromModule(load(path, knows_cpu=True))
        asked = [t for t in each(found) if re.search(options.only, t.id()) and not re.search(options.skip, t.id())]
        if options.part or options.seconds:
            random.Random(0).shuffle(asked)
        if options.part:
            asked = asked[options.part[0] - 1::options.part[1]]
        ran = Timed(time.monotonic() + (options.seconds or math.inf))
        unittest.TestSuite(asked).run(ran)  # including class-level setup
        for test, why in ran.failures + ran.errors:
            said = re.findall(r"^[\w.]*(?:Error|Exception)\b.*", why, re.MULTILINE) or why.strip().splitlines()
            print(f"failed {test.id()}: {said[-1][:400]}")
        failed = len(ran.failures) + len(ran.errors)
        # A class that fails to set up counts as a failure, but not as a test.
        passed = max(ran.testsRun - failed - len(ran.skipped), 0)
        print(f"{passed} passed, {failed} failed, {len(ran.skipped)} skipped, "
              f"{len(asked) - ran.testsRun} not run")
        print(f"attune ran {counters.attune}, PyTorch {counters.torch}: {dict(counters.why)}")
    inside._is_chosen = asks
    return 0 if passed > 0 and counters.attune and ran.wasSuccessful() else 1


def each(suite: unittest.TestSuite) -> Iterator[unittest.TestCase]:
    for test in suite:
        if isinstance(test, unittest.TestSuite):
            yield from each(test)
        else:
            yield test


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("suite", choices=("flash_attn", "fa3", "export", "sdpa", "samples"))
    parser.add_argument("checkout", nargs="?", type=pathlib.Path)
    parser.add_argument("--seconds", type=float, help="end after so long; 60 where parameters are drawn")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--part", type=read_part, help="I/N: the I-th of N parts of everything; 1/1 takes hours")
    parser.add_argument("--most", type=float, default=math.inf, help="leave out parameters with greater integers: "
                        "on a CPU their reference of a thousand keys takes a minute")
    parser.add_argument("--gpu-tolerance", action="store_true", help="tolerances of FlashAttention-3 as on a GPU")
    parser.add_argument("--only", default="", help="tests whose names have this")
    parser.add_argument("--skip", help=f"tests whose names have this (default {INSIDES}, of sdpa {CHOICES})")
    options = parser.parse_args()
    if options.skip is None:
        options.skip = CHOICES if options.suite == "sdpa" else INSIDES
    if options.suite == "samples":
        return run_samples(options)
    file = {"flash_attn": "tests/test_flash_attn.py", "fa3": "hopper/test_flash_attn.py",
            "export": "hopper/test_torch_compile_and_export.py", "sdpa": "test/test_transformers.py"}[options.suite]
    if not options.checkout or not (options.checkout / file).is_file():
        parser.error(f"{options.suite} needs a checkout that has {file}")
    if options.suite == "sdpa":
        return run_sdpa(options.checkout / file, options)
    stand_in(options.checkout)
    return run_file(options.checkout / file, options)


if __name__ == "__main__":
    sys.exit(main())
