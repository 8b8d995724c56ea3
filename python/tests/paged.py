# SPDX-License-Identifier: Apache-2.0
"""Attention over pages by its definition in double, with plain operators of PyTorch, for the tests of the interfaces of
serving engines."""

from __future__ import annotations

import importlib.util
import math
import pathlib

import torch


def attention(q, k, v, *, causal=False, window_left=-1, scale=None, softcap=0.0, seen=None, bias=None, sinks=None):
    """q [row, head, dim], k and v [key, KV head, dim], seen [row, key]: (out, lse [row, head] in base 2). Queries are
    the last rows of the keys."""
    q, k, v = (t.double() for t in (q, k, v))
    k, v = (t.repeat_interleave(q.shape[1] // t.shape[1], 1) for t in (k, v))
    scores = torch.einsum("qhd,khd->hqk", q, k) * (scale or q.shape[-1] ** -0.5)
    if softcap:
        scores = softcap * torch.tanh(scores / softcap)
    if bias is not None:
        scores = scores + bias.double()
    at, key = torch.arange(len(q))[:, None] + len(k) - len(q), torch.arange(len(k))
    hidden = torch.zeros(len(q), len(k), dtype=torch.bool) if seen is None else ~seen
    if causal:
        hidden |= key > at
    if window_left >= 0:
        hidden |= key < at - window_left
    scores = scores.masked_fill(hidden, -math.inf)
    if sinks is not None:
        scores = torch.cat([scores, sinks.double()[:, None, None].expand(-1, len(q), 1)], -1)
    lse = torch.logsumexp(scores, -1)
    weights = torch.exp(scores - lse.masked_fill(lse.isneginf(), 0)[..., None])
    weights = weights if sinks is None else weights[..., :-1]
    return torch.einsum("hqk,khd->qhd", weights, v), lse.t() / math.log(2)


class Batch:
    """Requests whose keys lie in shuffled pages. pages is [page, 2, row, head, dim]; lists of pages are CSR."""

    def __init__(self, lengths, page, heads_k=2, dim=32, dtype=torch.float32, seed=1):
        make = torch.Generator().manual_seed(seed)
        counts = [-(-n // page) for n in lengths]
        self.lengths, self.page = lengths, page
        self.indptr = torch.tensor([0, *torch.tensor(counts).cumsum(0).tolist()], dtype=torch.int32)
        self.indices = torch.randperm(sum(counts) + 3, generator=make)[:sum(counts)].int()
        self.last = torch.tensor([(n - 1) % page + 1 if n else 0 for n in lengths], dtype=torch.int32)
        self.pages = torch.randn(sum(counts) + 3, 2, page, heads_k, dim, generator=make).to(dtype)
        self.lists = self.indptr, self.indices, self.last

    def table(self):
        """[batch, page] i32; entries behind the last page are no pages."""
        counts = (self.indptr[1:] - self.indptr[:-1]).tolist()
        table = torch.full((len(counts), max(counts) + 1), -7, dtype=torch.int32)
        for n, count in enumerate(counts):
            table[n, :count] = self.indices[self.indptr[n]:self.indptr[n + 1]]
        return table

    def keys(self, n):
        """k and v of a request, one row behind another."""
        found = self.pages[self.indices[self.indptr[n]:self.indptr[n + 1]].long()]
        return (found[:, part].flatten(0, 1)[:self.lengths[n]] for part in (0, 1))

    def each(self, q, rows, **options):
        """(out, lse) of all requests by definition; request n has rows[n] queries. Values of options that are lists
        have one entry a request."""
        parts, first = [], 0
        for n, count in enumerate(rows):
            named = {name: o[n] if isinstance(o, list) else o for name, o in options.items()}
            parts.append(attention(q[first:first + count], *self.keys(n), **named))
            first += count
        return torch.cat([out for out, _ in parts]), torch.cat([lse for _, lse in parts])


def example(name):
    """A program of examples/ as a module."""
    path = pathlib.Path(__file__).resolve().parents[2] / "examples" / f"{name}.py"
    spec = importlib.util.spec_from_file_location(name, path)
    made = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(made)
    return made
