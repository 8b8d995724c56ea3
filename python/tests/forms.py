# SPDX-License-Identifier: Apache-2.0
"""Every form of an attune.torch.attend call that has a gradient, in small sizes: for tests that apply to all of them.
"""

from __future__ import annotations

import torch

NSA = "nsa d=4 gate=sigmoid l=8 n=3 phi=mean s=8 w=8"


def _draw(*shapes, dtype, device):
    generator = torch.Generator().manual_seed(11)
    return [torch.randn(s, generator=generator, dtype=torch.float64).to(device, dtype) for s in shapes]


def _ints(*numbers, device):
    return torch.tensor(numbers, dtype=torch.int32, device=device)


# Numbers and words only: (len_q, len_k), query heads and KV heads, dim_v, options.
_PLAIN = {
    "full": ((5, 6), (2, 2), 8, {}),
    "causal": ((5, 6), (4, 2), 8, {"causal": True}),
    "top_left": ((5, 6), (2, 2), 8, {"causal": True, "align": "top_left"}),
    "window": ((6, 7), (2, 1), 8, {"window": (2, 1)}),
    "causal window": ((6, 7), (2, 1), 8, {"window": (2, -1), "causal": True}),
    "scale": ((4, 4), (2, 2), 8, {"scale": 0.3}),
    "softcap": ((5, 6), (2, 2), 8, {"softcap": 1.5, "causal": True}),
    "dim_v": ((5, 6), (2, 2), 16, {}),
    "reproducible": ((5, 6), (4, 2), 8, {"reproducible": "run"}),
    "batch": ((5, 6), (2, 2), 8, {"reproducible": "batch", "precision": "tf32x3"}),  # as GPUs guarantee it for f32
    "precision": ((5, 6), (2, 2), 8, {"precision": "tf32x3"}),
    "bhsd": ((4, 2), (5, 6), 8, {"layout": "bhsd", "causal": True}),  # 4 heads over 2, 5 rows, 6 keys
}
NUMBERS = frozenset(_PLAIN) - {"full", "dim_v", "bhsd"}


def forms(dtype=torch.float32, device="cpu"):
    """name: (tensors that have a gradient by name, q, k and v first; options)."""
    def draw(*shapes):
        return _draw(*shapes, dtype=dtype, device=device)

    def ints(*numbers):
        return _ints(*numbers, device=device)

    made = {}
    for name, ((len_q, len_k), (heads_q, heads_kv), dim_v, options) in _PLAIN.items():
        q, k, v = draw((2, len_q, heads_q, 8), (2, len_k, heads_kv, 8), (2, len_k, heads_kv, dim_v))
        made[name] = ({"q": q, "k": k, "v": v}, options)

    q, k, v, bias, sinks = draw((2, 5, 2, 8), (2, 6, 2, 8), (2, 6, 2, 8), (1, 2, 5, 6), (2,))
    three = {"q": q, "k": k, "v": v}
    made["bias"] = ({**three, "bias": bias}, {})
    made["bias of a row"] = ({**three, "bias": bias[:, :1, :1]}, {"causal": True})
    made["sinks"] = ({**three, "sinks": sinks.float()}, {"causal": True})
    made["slopes"] = (three, {"slopes": torch.tensor([0.5, 0.25], device=device), "causal": True})
    made["dropout"] = (three, {"dropout": 0.3, "seed": torch.tensor([5, 9], device=device)})
    made["positions"] = (three, {"causal": True, "align": "absolute",
                                 "positions": torch.tensor([[4, 2], [6, 3]], device=device)})
    made["lengths"] = (three, {"used_q": ints(3, 5), "used_k": ints(6, 4), "causal": True})
    made["left padding"] = (three, {"used_k": ints(6, 5), "left_pad": ints(2, 0), "causal": True})

    q, k, v = draw((9, 4, 8), (11, 2, 8), (11, 2, 8))
    packed = {"layout": "thd", "cu_q": ints(0, 4, 9), "cu_k": ints(0, 5, 11), "max_q": 5, "max_k": 6}
    made["packed"] = ({"q": q, "k": k, "v": v}, {**packed, "causal": True})
    made["packed with lengths"] = ({"q": q, "k": k, "v": v}, {**packed, "used_q": ints(3, 5), "used_k": ints(5, 4)})
    k, v = draw((2, 6, 2, 8), (2, 6, 2, 8))
    made["packed queries"] = ({"q": q, "k": k, "v": v}, {"layout": "thd", "cu_q": ints(0, 4, 9), "max_q": 5,
                                                        "used_k": ints(5, 6), "causal": True})

    q, k, v = draw((2, 3, 4, 8), (3, 6, 2, 8), (3, 6, 2, 8))
    made["cache index"] = ({"q": q, "k": k, "v": v}, {"cache_index": ints(2, 0), "used_k": ints(4, 6), "causal": True})
    k, v = draw((6, 4, 2, 8), (6, 4, 2, 8))
    made["pages"] = ({"q": q, "k": k, "v": v}, {"page_table": torch.stack([ints(3, 1), ints(5, 0)]),
                                               "used_k": ints(5, 8), "causal": True})

    q, k, v = draw((1, 16, 2, 8), (1, 16, 2, 8), (1, 16, 2, 8))
    lists = {"block_size": (8, 8), "block_begin": ints(0, 1, 3).reshape(1, 1, 3), "block_column": ints(0, 0, 1)}
    made["block lists"] = ({"q": q, "k": k, "v": v}, lists)
    made["block lists by keys too"] = ({"q": q, "k": k, "v": v}, {
        **lists, "block_begin_k": ints(0, 2, 3).reshape(1, 1, 3), "block_row_k": ints(0, 1, 1), "causal": True})
    made["dilated"] = ({"q": q, "k": k, "v": v}, {"causal": True, "variant": "dilated rates=1,2 segments=8,16"})

    q, *streams, gates = draw((1, 24, 2, 8), *((1, 24, 1, 8),) * 6, (1, 24, 2, 3))
    tensors = {"q": q, "k": streams[0], "v": streams[1], **{f"variant{n}": t for n, t in enumerate(streams[2:])},
               "variant4": gates.float()}  # always f32
    made["nsa"] = (tensors, {"causal": True, "variant": NSA})
    shapes = ((1, 8, 1, 8), (1, 1, 1, 8), (1, 8, 1, 8), (1, 1, 1, 8), (1, 4, 1, 16), (1, 1, 1, 4), (1, 1, 1, 4),
              (1, 1, 1, 1), (1, 1, 1, 1))
    q, k, v, *weights = draw((1, 16, 2, 8), (1, 24, 2, 8), (1, 24, 2, 8), *shapes)
    made["adaptive"] = ({"q": q, "k": k, "v": v, **{f"variant{n}": t.float() for n, t in enumerate(weights)}},
                        {"variant": "adaptive block=8 density=0.5 hidden=4"})
    q, k, v = draw((1, 16, 4, 8), (1, 24, 2, 8), (1, 24, 2, 8))
    blocks = ints(0, 2, -1).repeat(1, 16, 2, 1)
    made["selected"] = ({"q": q, "k": k, "v": v}, {"causal": True, "variant": "selected n=3 s=8",
                                                  "variant_tensors": {0: blocks}})
    return made


def call(attend, tensors, options, **more):
    """Calls attend for a form, with variant tensors if it has them."""
    plain = {name: t for name, t in tensors.items() if not name.startswith("variant")}
    numbered = {int(name[7:]): t for name, t in tensors.items() if name.startswith("variant")}
    named = dict(options)
    if numbered:
        named["variant_tensors"] = {**named.get("variant_tensors", {}), **numbered}
    q, k, v = (plain.pop(name) for name in "qkv")
    return attend(q, k, v, **plain, **named, **more)
