# SPDX-License-Identifier: Apache-2.0
# A function of the user's own as a peer: --peer path/to/file.py:function. Its parameters say what it serves:
#   def attention(q, k, v, *, scale, causal, window, mask, softcap, alibi_slopes, bias, sinks, cu_q, cu_k, max_q,
#                 max_k)
# q, k and v are [batch, head, seq, dim], or [batch, seq, head, dim] if the function has the attribute layout = "bshd".
# It returns out in the same layout, or a tuple that begins with it. It gets those of these parameters that it has:
#   scale         float: factor of q . k
#   causal        bool: aligned at the bottom right
#   window        (left, right): keys that a query sees behind and ahead of it, -1: all; causal and full are windows too
#   mask          bool [batch or 1, head or 1, queries, keys], True where a query sees a key, or None
#   softcap       float: scores become softcap * tanh(score / softcap); 0: none
#   alibi_slopes  f32 [head]: slope * distance is subtracted; or None
#   bias          [batch or 1, head or 1, queries or 1, keys]: added to the scores; or None
#   sinks         f32 [head]: one more term in the sum of each row, exp(sink); or None
#   cu_q, cu_k, max_q, max_k  packed sequences: first token of each (int32), and the longest; batch is 1
# A problem that needs what the function lacks is a row that says so. A backward is torch.autograd's of the function.
import importlib.util
import inspect
import os
import sys

import torch

from problem import Refused
from ways import MASKS, Way

BY_PARAMETER = {"mask": MASKS - {"alibi", "bias"}, "window": {"window", "shifted"}, "causal": {"shifted"},
                "softcap": {"softcap"}, "alibi_slopes": {"alibi"}, "bias": {"bias"}, "sinks": {"sink"},
                "cu_k": {"ragged"}, "cu_q": set(), "max_q": set(), "max_k": set(), "scale": set()}


class Own(Way):
    gpu_only = False

    def __init__(self, function):
        parameters = list(inspect.signature(function).parameters.values())
        self.function, self.bshd = function, getattr(function, "layout", "bhsd") == "bshd"
        if inspect.iscoroutinefunction(function) or inspect.isgeneratorfunction(function) or \
                inspect.isasyncgenfunction(function):
            raise Refused("is an async function or a generator; a peer is called and returns a tensor")
        if len(parameters) < 3:
            raise Refused("takes %d parameters; the first three must be q, k and v" % len(parameters))
        self.names = []
        for p in parameters[3:]:
            if p.name in BY_PARAMETER:
                self.names.append(p.name)
            elif p.kind in (p.VAR_POSITIONAL, p.VAR_KEYWORD) or p.default is p.empty:
                raise Refused("parameter %s is not one of %s" % (p, ", ".join(sorted(BY_PARAMETER))))
        self.serves = frozenset().union(*(BY_PARAMETER[name] for name in self.names))

    def check(self, p):
        if p.causal and not {"causal", "window", "mask"} & set(self.names):
            raise Refused("has none of the parameters causal, window and mask, and the problem is causal")
        if abs(p.scale * p.q.shape[3] ** 0.5 - 1) > 1e-6 and "scale" not in self.names:
            raise Refused("has no parameter scale, and the problem's is not 1 / sqrt(dim)")
        tensors, given = p.tensors, {}
        for name in self.names:
            given[name] = {
                "scale": lambda: p.scale, "causal": lambda: p.causal, "window": p.window, "mask": p.visible,
                "softcap": lambda: p.softcap, "bias": lambda: tensors.get("bias"),
                "alibi_slopes": lambda: p.slopes() if "alibi" in p.features else None,
                "sinks": lambda: tensors["sinks"].reshape(-1) if "sinks" in tensors else None,
                "cu_q": lambda: tensors["cu_q"].reshape(-1) if "cu_q" in tensors else None,
                "cu_k": lambda: tensors["cu_k"].reshape(-1) if "cu_k" in tensors else None,
                "max_q": lambda: p.len_q, "max_k": lambda: p.len_k}[name]()
        p.given = given

    def attend(self, p, q, k, v):
        if self.bshd:
            q, k, v = (x.transpose(1, 2) for x in (q, k, v))
        out = self.function(q, k, v, **p.given)
        out = out[0] if isinstance(out, (tuple, list)) else out
        if not isinstance(out, torch.Tensor):
            raise Refused("returned %s, not a tensor" % type(out).__name__)
        out = out.transpose(1, 2) if self.bshd else out
        wanted = (p.q.shape[0], p.q.shape[1], p.q.shape[2], p.v.shape[3])
        if tuple(out.shape) != wanted:
            raise Refused("returned a tensor %s, and [batch, head, seq, dim] is %s" % (list(out.shape), list(wanted)))
        return out


def find(name):
    path, _, word = name.rpartition(":")
    path = os.path.abspath(path)
    if not os.path.isfile(path):
        raise Refused("there is no file '%s'" % name.rpartition(":")[0])
    spec = importlib.util.spec_from_file_location("attune_own_" + os.path.basename(path)[:-3], path)
    module = importlib.util.module_from_spec(spec)
    sys.path.insert(0, os.path.dirname(path))  # as for a script: the file may import its neighbours
    spec.loader.exec_module(module)
    function = getattr(module, word, None)
    if not callable(function):
        raise Refused("'%s' has no function '%s'" % (name.rpartition(":")[0], word))
    return Own(function)
