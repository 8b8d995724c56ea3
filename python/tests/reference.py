# SPDX-License-Identifier: Apache-2.0
"""Attention by its definition in double, for the tests: one formula over a dense matrix of pairs. NumPy only."""

from __future__ import annotations

import numpy as np


def visible(len_q: int, len_k: int, causal: bool = False, window=(-1, -1), top_left: bool = False) -> np.ndarray:
    """[len_q, len_k]: which query sees which key."""
    at = np.arange(len_q)[:, None] + (0 if top_left else len_k - len_q)
    distance = np.arange(len_k)[None, :] - at
    left, right = window
    seen = np.ones((len_q, len_k), bool)
    if causal:
        right = 0
    if left >= 0:
        seen &= distance >= -left
    if right >= 0:
        seen &= distance <= right
    return seen


def attention(q, k, v, *, seen=None, scale=None, softcap=0.0, slopes=None, bias=None):
    """q [seq, head, dim], k and v [keys, KV heads, dim]: returns (out, lse [head, seq])."""
    q, k, v = (np.asarray(x, np.float64) for x in (q, k, v))
    group = q.shape[1] // k.shape[1]
    k, v = np.repeat(k, group, 1), np.repeat(v, group, 1)
    scores = np.einsum("shd,thd->hst", q, k) * (scale or q.shape[-1] ** -0.5)
    if softcap:
        scores = softcap * np.tanh(scores / softcap)
    if slopes is not None:
        apart = np.abs(np.arange(len(q))[:, None] + len(k) - len(q) - np.arange(len(k))[None, :])
        scores = scores - np.asarray(slopes, np.float64)[:, None, None] * apart
    if bias is not None:
        scores = scores + np.asarray(bias, np.float64)
    if seen is not None:
        scores = np.where(seen, scores, -np.inf)
    with np.errstate(divide="ignore", invalid="ignore"):
        top = np.max(scores, -1, keepdims=True, initial=-np.inf)
        weights = np.where(np.isfinite(scores), np.exp(scores - np.where(np.isfinite(top), top, 0)), 0)
        total = weights.sum(-1, keepdims=True)
        lse = np.log(total[..., 0]) + top[..., 0]
        out = np.einsum("hst,thd->shd", np.where(total > 0, weights / total, 0), v)
    return out, lse
