# SPDX-License-Identifier: Apache-2.0
"""Your own attention in `attune bench`:

    attune bench --len 256,512 --peer examples/my_attention.py:attention,torch:sdpa

The parameters say what the function serves: tool/peers/own.py lists them all. A problem that needs more is a row that
says so. Results are checked like everyone's; a wrong one is not timed, and the common mistakes are named. The backward
is torch.autograd's, so a torch.autograd.Function brings its own."""

import torch


def attention(q, k, v, *, scale, mask=None):
    """q, k and v are [batch, head, seq, dim]; mask is True where a query sees a key, or None."""
    group = q.shape[1] // k.shape[1]
    k, v = k.repeat_interleave(group, 1), v.repeat_interleave(group, 1)
    scores = (q @ k.transpose(2, 3)).float() * scale
    if mask is not None:
        scores = scores.masked_fill(~mask, -torch.inf)
    return torch.softmax(scores, -1).to(q.dtype) @ v
