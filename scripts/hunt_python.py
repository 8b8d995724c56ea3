#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Hunts in the Python package: random calls against definitions in double.

    PYTHONPATH=build/python scripts/hunt_python.py 2000                      # a fresh seed
    PYTHONPATH=build/python scripts/hunt_python.py 500 --kinds cache --seed 7
    PYTHONPATH=build/python scripts/hunt_python.py --case '{"kind": "sdpa", ...}'

Kinds: cache (attune.Cache: appends, attends and drops in any order), sdpa, flash, kvcache (flash_attn) and module
(llama, multihead), the last four with PyTorch. Problems run in a process of their own: one that hangs or crashes is a
finding, and the hunt goes on. A failing problem shrinks: numbers are halved and options dropped as long as it fails.
The last line is "N passed, N failed".
"""

from __future__ import annotations

import argparse
import json
import os
import pathlib
import random
import select
import subprocess
import sys
import time

HERE = pathlib.Path(__file__).resolve()
sys.path.insert(0, str(HERE.parents[1] / "python" / "tests"))
KINDS = ("cache", "sdpa", "flash", "kvcache", "module")
LENGTHS = (1, 1, 2, 3, 5, 7, 8, 15, 16, 17, 31, 33, 63, 64, 65, 100, 129)
DIMS = (8, 16, 16, 24, 32, 64, 72, 128)
BASE = 10000.0  # of a llama's rotary embedding
ROUNDING = 2.0 ** -24  # of f32


class Wrong(Exception):
    pass


# Cases: dicts of numbers and words, so that they print, repeat and shrink. 0, False and "" are the plain values.
def draw(kind: str, d: random.Random) -> dict:
    kv, group = d.choice((1, 1, 2, 3)), d.choice((1, 1, 2, 4, 7))
    c = {"kind": kind, "seed": d.randrange(1 << 20), "kv": kv, "group": group, "dim": d.choice(DIMS)}
    if d.random() < .3 and kind != "module":
        c["dim_v"] = d.choice(DIMS)
    if kind == "cache":
        return c | {"sequences": d.randint(1, 4), "capacity": d.choice((4, 16, 33, 70)), "steps": d.randint(1, 14),
                    "page": d.choice((0, 0, 1, 3, 16)), "causal": d.random() < .7, "softcap": d.random() < .2,
                    "left": d.choice((0, 0, 0, 3, 20))}
    if kind == "module":
        return c | {"batch": d.randint(1, 3), "len_q": d.choice(LENGTHS), "dim": d.choice((8, 16, 32)),
                    "llama": d.random() < .5, "causal": d.random() < .7, "norm": d.random() < .4}
    c |= {"batch": d.randint(1, 3), "len_q": d.choice(LENGTHS), "len_k": d.choice(LENGTHS),
          "dtype": d.choice(("", "", "float16", "bfloat16")), "causal": d.random() < .5, "scale": d.random() < .2}
    if kind == "sdpa":
        c["mask"] = d.choice(("", "", "bool", "float"))
        c |= {"once": d.randrange(16), "turned": d.random() < .3, "causal": c["causal"] and not c["mask"]}
    else:
        c |= {"left": d.choice((0, 0, 0, 1, 5, 40)), "right": d.choice((0, 0, 2, 9)), "softcap": d.random() < .2,
              "slopes": d.random() < .2}
    if kind == "flash":
        c["packed"] = d.random() < .3
    if kind == "kvcache":
        c.update(dtype="", new=d.choice((0, 1, 1, 2, 5)), page=d.choice((0, 0, 16)))
        c.pop("dim_v", None)
    return c


def near(what, got, wanted, tolerance) -> None:
    import numpy as np
    got, wanted = np.asarray(got, "float64"), np.asarray(wanted, "float64")
    if got.shape != wanted.shape:
        raise Wrong(f"{what} has shape {got.shape}, not {wanted.shape}")
    with np.errstate(invalid="ignore"):
        off = np.where(got == wanted, 0, np.abs(got - wanted))
        bad = (off != 0) & ~(np.isfinite(off) & (off <= tolerance * (1 + np.abs(wanted))))
    if bad.any():
        at = tuple(int(n) for n in np.argwhere(bad)[0])
        raise Wrong(f"{what}{list(at)} is {got[at]}, not {wanted[at]}; {int(bad.sum())} of {bad.size} elements")


def run_cache(c: dict, device: str) -> None:
    """Every step is compared with attention over the keys that the model kept."""
    import attune
    import numpy as np
    import reference
    d, values = random.Random(c["seed"]), np.random.default_rng(c["seed"])
    heads, dim, dim_v = c["kv"], c["dim"], c.get("dim_v") or c["dim"]
    cache = attune.Cache(heads=heads, dim=dim, dim_v=dim_v, sequences=c["sequences"], capacity=c["capacity"],
                         page=c.get("page", 0))
    kept = [(np.zeros((0, heads, dim)), np.zeros((0, heads, dim_v))) for _ in range(c["sequences"])]
    normal = lambda *shape: values.standard_normal(shape).astype("float32")
    options = {"causal": bool(c.get("causal"))}
    if c.get("softcap"):
        options["softcap"] = 2.0
    if c.get("left"):
        options |= {"window": (c["left"], 0), "causal": False}
    compared = 0
    for step in range(c["steps"]):
        order = d.sample(range(c["sequences"]), d.randint(1, c["sequences"]))
        act = d.random()
        if act < .15:
            n = order[0]
            rows = d.randint(0, len(kept[n][0]))
            cache.resize(n, rows)
            kept[n] = tuple(x[:rows] for x in kept[n])
        elif act < .25:
            cache.resize(order[0], 0)
            kept[order[0]] = tuple(x[:0] for x in kept[order[0]])
        else:
            new, queries = d.choice((0, 1, 1, 2, 5, 17)), d.choice((1, 1, 2, 5, 9))
            q, k, v = normal(len(order), queries, heads * c["group"], dim), *(
                normal(len(order), new, heads, n) for n in (dim, dim_v))
            given = (k, v) if new else ()
            if any(len(kept[n][0]) + new > c["capacity"] for n in order):
                try:
                    cache.attend(q, *given, sequences=order, **options)
                except attune.Error:
                    continue
                raise Wrong(f"step {step}: more keys than the capacity are taken")
            out, lse = cache.attend(q, *given, sequences=order, return_lse=True, **options)
            for b, n in enumerate(order):
                kept[n] = tuple(np.concatenate(both) for both in zip(kept[n], (k[b], v[b])))
                seen = reference.visible(queries, len(kept[n][0]), options["causal"], options.get("window", (-1, -1)))
                wanted, wanted_lse = reference.attention(q[b], *kept[n], seen=seen, softcap=options.get("softcap", 0))
                compared += int(np.isfinite(wanted_lse).any())
                near(f"step {step}: out of sequence {n}", out[b], wanted, 2e-5)
                near(f"step {step}: lse of sequence {n}", lse[b], wanted_lse, 2e-5)
        lengths = [cache.length(n) for n in range(c["sequences"])]
        if lengths != [len(k) for k, _ in kept]:
            raise Wrong(f"step {step}: lengths are {lengths}, not {[len(k) for k, _ in kept]}")
    c["compared"] = compared


TOLERANCE = {"": (3e-5, 3e-4), "float16": (4e-3, 3e-2), "bfloat16": (3e-2, 2e-1)}


def tensors(c: dict, device: str, *shapes):
    import torch
    torch.manual_seed(c["seed"])
    made = [torch.randn(s, device=device).to(getattr(torch, c.get("dtype") or "float32")) for s in shapes]
    return [x.requires_grad_() for x in made], [x.detach().double().requires_grad_() for x in made]


def compare(c: dict, out, wanted, ours, exact) -> None:
    import torch
    tolerance, of_gradients = TOLERANCE[c.get("dtype", "")]
    near("out", out.detach().double().cpu(), wanted.detach().cpu(), tolerance)
    d = torch.randn_like(out)
    got = torch.autograd.grad(out, ours, d, allow_unused=True)
    for name, g, w in zip("qkvm", got, torch.autograd.grad(wanted, exact, d.double())):
        largest = max(1.0, float(w.abs().max())) if w.numel() else 1.0
        near(f"d{name}", g.double().cpu() / largest, w.cpu() / largest, of_gradients)
    c["compared"] = int((wanted != 0).any())


def attention(q, k, v, hidden=None, added=None, scale=None, softcap=0.0):
    """[..., head, seq, dim] in double, with the query heads of a KV head side by side."""
    import torch
    k, v = (x.repeat_interleave(q.shape[-3] // x.shape[-3], -3) for x in (k, v))
    scores = q @ k.transpose(-1, -2) * (scale or q.shape[-1] ** -0.5)
    if softcap:
        scores = softcap * torch.tanh(scores / softcap)
    if added is not None:
        scores = scores + added
    if hidden is not None:
        scores = scores.masked_fill(hidden, float("-inf"))
    top = scores.amax(-1, keepdim=True).clamp(min=-1e300) if scores.shape[-1] else scores.new_zeros(1)
    weights = (scores - top.detach()).exp()
    return weights / weights.sum(-1, keepdim=True).clamp(min=1e-300) @ v


def run_sdpa(c: dict, device: str) -> None:
    import attune.torch as at
    import torch
    turned = c.get("turned")
    shape = lambda heads, rows, dim: (c["batch"], rows, heads, dim) if turned else (c["batch"], heads, rows, dim)
    heads, dim_v = c["kv"] * c["group"], c.get("dim_v") or c["dim"]
    ours, exact = tensors(c, device, shape(heads, c["len_q"], c["dim"]), shape(c["kv"], c["len_k"], c["dim"]),
                          shape(c["kv"], c["len_k"], dim_v))
    q, k, v = (x.transpose(1, 2) if turned else x for x in ours)
    a, b, e = (x.transpose(1, 2) if turned else x for x in exact)
    named, hidden, added = {}, None, None
    if c.get("mask"):
        full = (c["batch"], heads, c["len_q"], c["len_k"])
        mask = torch.randn([1 if c["once"] >> n & 1 else x for n, x in enumerate(full)], device=device)
        if c["mask"] == "bool":
            mask = mask > 0
            mask[..., :1] = True  # PyTorch's answer for a row that sees nothing depends on its version
            hidden = ~mask
        else:
            mask = mask.to(q.dtype)
            added = mask.double()
        named["attn_mask"] = mask
    if c.get("causal"):
        named["is_causal"] = True
        hidden = torch.ones(c["len_q"], c["len_k"], dtype=torch.bool, device=device).triu(1)
    if c.get("scale"):
        named["scale"] = 0.3
    out = at.scaled_dot_product_attention(q, k, v, enable_gqa=c["group"] > 1, **named)
    compare(c, out, attention(a, b, e, hidden, added, named.get("scale")), ours, exact)


def flash_options(c: dict, device: str):
    import torch
    left, right = c.get("left") or -1, c.get("right") or -1
    named = {"causal": bool(c.get("causal")), "window_size": (left, right)}
    if c.get("softcap"):
        named["softcap"] = 2.0
    if c.get("scale"):
        named["softmax_scale"] = 0.3
    if c.get("slopes"):
        named["alibi_slopes"] = torch.rand(c["kv"] * c["group"], device=device)
    return named


def flash_wanted(q, k, v, named):
    """[seq, head, dim] of one sequence."""
    import torch
    left, right = named["window_size"]
    right = 0 if named["causal"] else right
    apart = torch.arange(len(k), device=k.device) - (torch.arange(len(q), device=k.device)[:, None] + len(k) - len(q))
    hidden = torch.zeros_like(apart, dtype=torch.bool)
    if left >= 0:
        hidden |= apart < -left
    if right >= 0:
        hidden |= apart > right
    slopes = named.get("alibi_slopes")
    added = None if slopes is None else -slopes.double()[:, None, None] * apart.abs()
    q, k, v = (x.transpose(0, 1) for x in (q, k, v))
    return attention(q, k, v, hidden, added, named.get("softmax_scale"), named.get("softcap", 0)).transpose(0, 1)


def run_flash(c: dict, device: str) -> None:
    import attune.flash_attn as fa
    import torch
    heads, dim_v, named = c["kv"] * c["group"], c.get("dim_v") or c["dim"], flash_options(c, device)
    if not c.get("packed"):
        ours, exact = tensors(c, device, (c["batch"], c["len_q"], heads, c["dim"]),
                              (c["batch"], c["len_k"], c["kv"], c["dim"]), (c["batch"], c["len_k"], c["kv"], dim_v))
        out = fa.flash_attn_func(*ours, **named)
        return compare(c, out, torch.stack([flash_wanted(*x, named) for x in zip(*exact)]), ours, exact)
    d = random.Random(c["seed"])
    rows_q, rows_k = ([d.randint(0, c[n]) for _ in range(c["batch"])] for n in ("len_q", "len_k"))
    rows_q[0], rows_k[0] = c["len_q"], c["len_k"]
    ours, exact = tensors(c, device, (sum(rows_q), heads, c["dim"]), (sum(rows_k), c["kv"], c["dim"]),
                          (sum(rows_k), c["kv"], dim_v))
    cu_q, cu_k = (torch.tensor([0, *x], device=device).cumsum(0).int() for x in (rows_q, rows_k))
    out = fa.flash_attn_varlen_func(*ours, cu_q, cu_k, max(rows_q), max(rows_k), **named)
    parts = zip(exact[0].split(rows_q), exact[1].split(rows_k), exact[2].split(rows_k))
    compare(c, out, torch.cat([flash_wanted(*x, named) for x in parts]), ours, exact)


def run_kvcache(c: dict, device: str) -> None:
    import attune.flash_attn as fa
    import torch
    heads, named, d = c["kv"] * c["group"], flash_options(c, device), random.Random(c["seed"])
    new, page = c.get("new", 0), c.get("page", 0)
    rows = -(-(c["len_k"] + new) // page) * page if page else c["len_k"] + new
    used = [d.randint(0 if new else 1, c["len_k"]) for _ in range(c["batch"])]
    (q, k, v, k_new, v_new), _ = tensors(c, device, (c["batch"], c["len_q"], heads, c["dim"]),
                                         *[(c["batch"], rows, c["kv"], c["dim"])] * 2,
                                         *[(c["batch"], new, c["kv"], c["dim"])] * 2)
    q, k, v, k_new, v_new = (x.detach() for x in (q, k, v, k_new, v_new))
    wanted_k, wanted_v = k.clone(), v.clone()
    for b, n in enumerate(used):
        wanted_k[b, n:n + new], wanted_v[b, n:n + new] = k_new[b], v_new[b]
    table = None
    if page:  # pages of all sequences in another order
        order = torch.randperm(c["batch"] * rows // page)
        table = order.argsort().reshape(c["batch"], -1).int().to(device)
        k, v = (x.reshape(-1, page, c["kv"], c["dim"])[order].contiguous() for x in (k, v))
    fresh = {"k": k_new, "v": v_new} if new else {}
    out = fa.flash_attn_with_kvcache(q, k, v, cache_seqlens=torch.tensor(used, dtype=torch.int32, device=device),
                                     block_table=table, **fresh, **named)
    if page:
        k, v = (x[table.long().flatten()].reshape(c["batch"], rows, c["kv"], c["dim"]) for x in (k, v))
    near("k", k.cpu(), wanted_k.cpu(), 0), near("v", v.cpu(), wanted_v.cpu(), 0)
    wanted = [flash_wanted(q[b].double(), wanted_k[b, :n + new].double(), wanted_v[b, :n + new].double(), named)
              for b, n in enumerate(used)]
    near("out", out.double().cpu(), torch.stack(wanted).cpu(), 3e-5)
    c["compared"] = int(any((x != 0).any() for x in wanted))


class Exact:
    """How module_wanted computes: in double."""

    def kept(self, x):
        return x

    def plus_bias(self, y, bias):
        return y + bias

    def attention(self, q, k, v, hidden, scale):
        return attention(q, k, v, hidden, scale=scale)


class Naive(Exact):
    """Or in f32, as a naive kernel does: what it keeps (values, gradients, scores, lse, dP, D, dS) is moved by up to
    four roundings, P comes from lse in both passes, and a bias's gradient is summed row by row."""

    def __init__(self, seed: int, roundings: int = 4) -> None:
        import torch
        generator = torch.Generator().manual_seed(seed)

        def by(x):
            return x * (1 + roundings * ROUNDING * (2 * torch.rand(x.shape, generator=generator).to(x.device) - 1))

        class Kept(torch.autograd.Function):
            @staticmethod
            def forward(_, x):
                return by(x)

            @staticmethod
            def backward(_, d):
                return by(d)

        class PlusBias(torch.autograd.Function):
            @staticmethod
            def forward(_, y, bias):
                return y + bias

            @staticmethod
            def backward(_, d):
                return d, sum(d.flatten(0, -2).unbind(), torch.zeros_like(d[0, 0]))

        class Attention(torch.autograd.Function):
            @staticmethod
            def forward(at, q, k, v, hidden, scale):
                scores = by(q @ k.mT * scale)
                scores = scores if hidden is None else scores.masked_fill(hidden, float("-inf"))
                P = (scores - by(scores.logsumexp(-1, keepdim=True))).exp()
                out = by(P @ v)
                at.save_for_backward(q, k, v, P, out)
                at.scale = scale
                return out

            @staticmethod
            def backward(at, d):
                q, k, v, P, out = at.saved_tensors
                dS = by(P * (by(d) @ v.mT - (by(d) * out).sum(-1, keepdim=True))) * at.scale
                return dS @ k, dS.mT @ q, P.mT @ d, None, None

        self.kept, self.plus_bias, self.apply = Kept.apply, PlusBias.apply, Attention.apply

    def attention(self, q, k, v, hidden, scale):
        k, v = (x.repeat_interleave(q.shape[1] // x.shape[1], 1) for x in (k, v))
        return self.apply(q, k, v, hidden, scale)


def module_wanted(c: dict, p: dict, x, how):
    """The module of a case in the dtype of x."""
    import torch
    from torch.nn import functional as F
    heads, kv, rows = c["kv"] * c["group"], c["kv"], x.shape[1]
    causal = torch.ones(rows, rows, dtype=torch.bool, device=x.device).triu(1) if c.get("causal") else None

    def turned(y):  # rotary by halves of [batch, seq, head, dim]
        half = y.shape[-1] // 2
        at, pairs = torch.arange(rows, device=y.device), torch.arange(half, device=y.device)
        angle = at[:, None] * BASE ** (-pairs.double() / half)
        cos, sin = (turn[:, None].to(y.dtype) for turn in (angle.cos(), angle.sin()))
        a, b = y[..., :half], y[..., half:]
        return torch.cat((a * cos - b * sin, a * sin + b * cos), -1)

    def linear(y, name):
        y, bias = F.linear(y, p[name + ".weight"]), p.get(name + ".bias")
        return how.kept(y) if bias is None else how.plus_bias(how.kept(y), bias)

    def attend(y, name, turn=lambda y: y):
        q, k, v = (linear(y, f"{name}{n}_proj").unflatten(-1, (count, -1)) for n, count in (
            ("q", heads), ("k", kv), ("v", kv)))
        q, k, v = (t.transpose(1, 2) for t in (turn(q), turn(k), v))
        scale = q.shape[-1] ** -0.5
        return how.kept(how.attention(q, k, v, causal, scale).transpose(1, 2).flatten(2))

    if not c.get("llama"):
        y = attend(x, "")
        if c.get("norm"):
            name = next(n for n in p if "norm" in n and n.endswith("weight"))
            y = how.kept(F.layer_norm(y, y.shape[-1:], p[name], p[name[:-6] + "bias"], 1e-5))
        return linear(y, "out_proj")
    rms = lambda y, name: how.kept(y * torch.rsqrt(y.pow(2).mean(-1, keepdim=True) + 1e-5) * p[name + ".weight"])
    y = rms(x, "input_layernorm")
    x = how.kept(x + linear(attend(y, "self_attn.", turned), "self_attn.o_proj"))
    y = rms(x, "post_attention_layernorm")
    return x + linear(how.kept(F.silu(linear(y, "mlp.gate_proj")) * linear(y, "mlp.up_proj")), "mlp.down_proj")


def values_of(y, d, inputs) -> list:
    import torch
    return [x.detach().double().cpu() for x in (y, *torch.autograd.grad(y, inputs, d.to(y.dtype)))]


def near_as_f32(names, got, right, naive) -> None:
    """verify/tolerance.h: an error is at most three times that of a naive computation in f32, plus a floor."""
    for name, g, w, *others in zip(names, got, right, *naive):
        off = (g - w).abs()
        for word, of in (("largest", lambda x: float(x.max())), ("mean", lambda x: float(x.mean()))):
            allowed = 3 * max(of((x - w).abs()) for x in others) + 4 * ROUNDING * of(w.abs())
            if not of(off) <= allowed:  # NaN too
                at = int(off.argmax())
                raise Wrong(f"{name}: the {word} error is {of(off):.3g}, allowed are {allowed:.3g}; element {at} of "
                            f"{off.numel()} is {float(g.flatten()[at])}, not {float(w.flatten()[at])}")


def run_module(c: dict, device: str) -> None:
    import attune.torch as at
    import torch
    embed = c["kv"] * c["group"] * c["dim"]
    kind = f"llama f32 b1 s8 e{embed} h{c['kv'] * c['group']}/{c['kv']} ffn={embed}" if c.get("llama") else (
        f"multihead f32 b1 s8 e{embed} h{c['kv'] * c['group']}/{c['kv']}" + (" norm=1" if c.get("norm") else ""))
    layer = at.Module(f"{kind} | {'causal' if c.get('causal') else 'full'}", device)
    torch.manual_seed(c["seed"])
    with torch.no_grad():
        for parameter in layer.parameters():
            parameter.add_(0.1 * torch.randn_like(parameter))
    names, parameters = zip(*layer.named_parameters())
    (x,), (x_exact,) = tensors(c, device, (c["batch"], c["len_q"], embed))
    inputs, exact = (x, *parameters), (x_exact, *(p.detach().double().requires_grad_() for p in parameters))
    out = layer(x)
    d = torch.randn_like(out)
    wanted = lambda given, how: values_of(module_wanted(c, dict(zip(names, given[1:])), given[0], how), d, given)
    near_as_f32(("y", "d x", *(f"d {n}" for n in names)), values_of(out, d, inputs), wanted(exact, Exact()),
                [wanted(inputs, Naive(c["seed"] + n)) for n in range(3)])
    c["compared"] = 1


RUN = {"cache": run_cache, "sdpa": run_sdpa, "flash": run_flash, "kvcache": run_kvcache, "module": run_module}


def attempt(case: dict, device: str) -> str:
    """A sentence if the case fails, "" if it passes, "empty" if nothing was compared."""
    case.pop("compared", None)
    try:
        RUN[case["kind"]](case, device)
    except Wrong as e:
        return str(e)
    except Exception as e:  # an error of any kind is a finding too: every drawn call is valid
        return f"{type(e).__name__}: {str(e).splitlines()[0] if str(e) else ''}"
    return "" if case.pop("compared", 0) else "empty"


def smaller(case: dict):
    """Cases that are simpler in one respect."""
    for key, value in case.items():
        if key in ("kind", "seed") or not value:
            continue
        plain = {True: False, "float16": "", "bfloat16": "", "bool": "", "float": ""}
        least = 1 if key in ("kv", "group", "batch", "len_q", "len_k", "sequences", "capacity", "steps") else 0
        if isinstance(value, (bool, str)):
            yield {**case, key: plain.get(value, "")}
        elif key == "dim" or key == "dim_v":
            if value > 8:
                yield {**case, key: value // 16 * 8 or 8}
        else:
            for less in {least, value // 2, value - 1}:
                if least <= less < value:
                    yield {**case, key: less}


def shrink(case: dict, fails, seconds: float = 30) -> dict:
    until, changed = time.monotonic() + seconds, True
    while changed and time.monotonic() < until:
        changed = False
        for one in smaller(case):
            if fails(one):
                case, changed = one, True
                break
    return case


def case_of(seed: int, index: int, kinds) -> dict:
    d = random.Random(f"{seed} {index}")
    return draw(d.choice(kinds), d)


def child(asked) -> None:
    """Runs cases from --first on; a line before and after each."""
    for index in range(asked.first, asked.problems):
        case = case_of(asked.seed, index, asked.kinds)
        print(json.dumps(["run", index]), flush=True)
        why = attempt(case, asked.device)
        if why and why != "empty":
            case = shrink(case, lambda c: attempt(dict(c), asked.device) not in ("", "empty"))
            why = attempt(dict(case), asked.device) or why
        print(json.dumps(["ran", index, why, case]), flush=True)
        if time.time() > asked.until:
            return


def lines(process, watchdog: float):
    """Lines of a child as JSON; ends with None if it is silent for too long."""
    text = b""
    while True:
        ready, _, _ = select.select([process.stdout], [], [], watchdog)
        if not ready:
            yield None
            return
        more = os.read(process.stdout.fileno(), 1 << 16)
        if not more:
            return
        text += more
        *whole, text = text.split(b"\n")
        for line in whole:
            if line.startswith(b'["'):
                yield json.loads(line)


def hunt(asked) -> int:
    first, passed, empty, findings, ended = 0, 0, 0, [], False
    words = [sys.executable, str(HERE), str(asked.problems), "--seed", str(asked.seed), "--device", asked.device,
             "--kinds", ",".join(asked.kinds), "--until", str(asked.until), "--child", "--first"]
    while first < asked.problems and not ended and time.time() < asked.until:
        process = subprocess.Popen([*words, str(first)], stdout=subprocess.PIPE)
        running = None
        for line in lines(process, asked.watchdog):
            if line is None:
                process.kill()
                break
            if line[0] == "run":
                running = line[1]
                continue
            _, index, why, case = line
            running, first = None, index + 1
            passed, empty = passed + (why == ""), empty + (why == "empty")
            if why not in ("", "empty"):
                findings.append((why, case))
        status = process.wait()
        if running is not None:
            findings.append(("HANG" if status == -9 else f"CRASH: status {status}",
                             case_of(asked.seed, running, asked.kinds)))
            first = running + 1
        elif status:  # it failed before its first case
            print(f"hunt_python: the process ended with status {status}", file=sys.stderr)
            return 3
        else:
            ended = True
    for why, case in findings:
        print(f"\nWRONG  {why}\n      scripts/hunt_python.py --device {asked.device} --case '{json.dumps(case)}'")
    print(f"\n{passed + len(findings)} problems of seed {asked.seed} ({','.join(asked.kinds)})\n{empty} empty")
    print(f"{passed} passed, {len(findings)} failed")
    return 1 if findings or not passed else 0


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("problems", type=int, nargs="?", default=500)
    parser.add_argument("--seed", type=int, default=None)
    parser.add_argument("--kinds", default="")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--watchdog", type=float, default=120, help="seconds without a word that count as a hang")
    parser.add_argument("--max-seconds", type=float, default=1e9)
    parser.add_argument("--case", help="run this case only")
    for hidden in ("--first", "--until", "--child"):
        kind = {"action": "store_true"} if hidden == "--child" else {"type": float if hidden == "--until" else int}
        parser.add_argument(hidden, help=argparse.SUPPRESS, **kind)
    asked = parser.parse_args()
    if asked.case:
        why = attempt(json.loads(asked.case), asked.device)
        print(why or "passed")
        return 1 if why else 0
    import importlib.util as find
    here = [k for k in KINDS if k == "cache" or find.find_spec("torch")]
    asked.kinds = asked.kinds.split(",") if asked.kinds else here
    unknown = [k for k in asked.kinds if k not in KINDS]
    if unknown:
        parser.error(f"--kinds {','.join(unknown)}: not one of {', '.join(KINDS)}")
    if len(here) == 1 and not asked.child:
        print("left out: sdpa, flash, kvcache, module: PyTorch is not here")
    asked.seed = random.randrange(1 << 31) if asked.seed is None else asked.seed
    asked.first = asked.first or 0
    asked.until = asked.until or time.time() + asked.max_seconds
    if asked.child:
        child(asked)
        return 0
    return hunt(asked)


if __name__ == "__main__":
    sys.exit(main())
