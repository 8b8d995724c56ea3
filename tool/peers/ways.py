# SPDX-License-Identifier: Apache-2.0
# Attention of other libraries, one small class each. A forward calls the operator itself if there is one, so that no
# dispatcher is timed. A backward is timed alone: through its own operator, or as torch.autograd.grad captured once in a
# CUDA graph. A class names the features it serves (problem.py); the rest is refused in a sentence.
import sys

import torch

from problem import Problem, Refused

aten = torch.ops.aten
MASKS = frozenset(("window", "window_aside", "shifted", "top_left", "absolute", "compressed", "blocks", "alibi",
                   "bias"))


# One problem, ready to run. `outputs` is (out,) or (dq, dk, dv), each [batch, head, seq, dim].
class Prepared:
    def __init__(self, problem, call, note=""):
        self.problem, self.call, self.note, self.outputs = problem, call, note, None

    def run(self):
        self.outputs = None  # first, so that torch's allocator reuses the same memory
        self.outputs = self.call()

    # What a call takes besides inputs and results, as counted by torch's allocator. -1 if it does not count: on a CPU,
    # and for a captured graph, whose memory was reserved at capture.
    def taken_bytes(self):
        if self.problem.gpu < 0 or getattr(self.call, "captured", False):
            return -1
        self.outputs = None
        torch.cuda.synchronize(self.problem.gpu)
        torch.cuda.reset_peak_memory_stats(self.problem.gpu)
        before = torch.cuda.memory_allocated(self.problem.gpu)
        self.run()
        torch.cuda.synchronize(self.problem.gpu)
        results = sum(x.numel() * x.element_size() for x in self.outputs)
        return max(0, torch.cuda.max_memory_allocated(self.problem.gpu) - before - results)

    def fetch(self):
        names = ("out",) if self.problem.forward else ("dq", "dk", "dv")
        for name, value in zip(names, self.outputs):
            result = self.problem.results[name]
            if value.shape[1] != result.shape[1]:  # gradients of expanded KV heads
                value = value.unflatten(1, (result.shape[1], -1)).sum(2)
            result.copy_(value)


# The gradients of `out` by autograd; on a GPU captured in a graph, so that only its kernels are timed.
def captured_backward(problem, forward):
    leaves = tuple(x.detach().requires_grad_() for x in (problem.q, problem.k, problem.v))
    out = forward(*leaves)

    def gradients():
        return torch.autograd.grad(out, leaves, problem.d_out, retain_graph=True)
    if problem.gpu < 0:
        return gradients
    for _ in range(3):
        gradients()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=problem.stream):
        grads = gradients()

    def replay():
        graph.replay()
        return grads
    replay.captured = True
    replay.reads = leaves, out  # keeps them and what autograd saved alive: the graph holds only their addresses
    return replay


class Way:
    gpu_only, expands, serves = True, False, frozenset()

    def prepare(self, text):
        p = Problem(text)
        if self.gpu_only and p.gpu < 0:
            raise Refused("runs on a GPU only")
        lacking = [feature for feature in p.features if feature not in self.serves]
        if lacking:
            raise Refused("does not serve %s; served are full and causal masks%s" % (
                ", ".join(lacking), "".join(", " + word for word in sorted(self.serves))))
        p.open()
        note = ""
        if self.expands and p.grouped():
            group = p.q.shape[1] // p.k.shape[1]
            p.k, p.v = p.k.repeat_interleave(group, 1), p.v.repeat_interleave(group, 1)
            note = "no GQA: KV heads are expanded beforehand, outside the timed window"
        self.check(p)
        if p.forward:
            def call():
                with torch.no_grad():
                    return (self.attend(p, p.q, p.k, p.v),)
        else:
            call = self.train(p) if p.train else self.backward(p)
        return Prepared(p, call, note)

    # A forward and its backward as a user runs them: autograd included, and nothing kept from one call to the next.
    def train(self, p):
        leaves = tuple(x.detach().requires_grad_() for x in (p.q, p.k, p.v))
        return lambda: torch.autograd.grad(self.attend(p, *leaves), leaves, p.d_out)

    def check(self, p):
        pass

    def backward(self, p):
        return captured_backward(p, lambda q, k, v: self.attend(p, q, k, v))


# For functions with a mask argument: None where is_causal says it all. Made before the timed window.
class Masked(Way):
    serves, takes_booleans = MASKS, False

    def check(self, p):
        pairs = p.q.shape[0] * p.q.shape[1] * p.len_q * p.len_k
        if p.features and pairs * 8 > p.free_bytes() // 2:
            raise Refused("the mask of %s would take more than half of the free memory" % p.line)
        p.given = p.mask() if p.features else None
        p.is_causal = p.causal and p.given is None
        p.bias = None
        if p.given is not None and not self.takes_booleans:
            p.bias = self.additive(p)

    # [batch, head, queries, keys] with values to add, for operators that neither broadcast nor take booleans.
    def additive(self, p):
        given = p.given
        if given.dtype == torch.bool:
            given = torch.zeros(given.shape, dtype=p.q.dtype, device=given.device).masked_fill_(~given, -torch.inf)
        return given.expand(p.q.shape[0], p.q.shape[1], p.len_q, p.len_k)


# torch's default.
class Sdpa(Masked):
    gpu_only, takes_booleans = False, True

    def attend(self, p, q, k, v):
        return torch.nn.functional.scaled_dot_product_attention(q, k, v, attn_mask=p.given, is_causal=p.is_causal,
                                                                scale=p.scale, enable_gqa=p.grouped())


# Unfused attention, faster where torch has no good kernel.
class Math(Masked):
    gpu_only = False

    def check(self, p):
        if p.scores_bytes() * (2 if p.forward else 6) > p.free_bytes() // 2:
            raise Refused("the scores of %s would take more than half of the free memory" % p.line)
        super().check(p)

    def attend(self, p, q, k, v):
        return aten._scaled_dot_product_attention_math(q, k, v, p.bias, 0.0, p.is_causal, None, scale=p.scale,
                                                       enable_gqa=p.grouped())[0]


# FlashAttention-2 as torch ships it, which is built without ALiBi. Windows go to the operator below SDPA's, whose
# tensors are [batch, seq, head, dim]; its masks are aligned to the last key.
class Flash(Way):
    serves = frozenset(("window", "shifted"))

    def check(self, p):
        p.below = bool(p.features)
        if not p.below:
            return
        if p.q.shape[3] % 8 or p.v.shape[3] != p.q.shape[3]:
            raise Refused("serves %s with equal head dims that are multiples of 8" % ", ".join(p.features))
        left, right = p.window()
        p.options = {"scale": p.scale, "window_size_left": left, "window_size_right": right}

    def call(self, p, q, k, v):
        return aten._flash_attention_forward(*(x.transpose(1, 2) for x in (q, k, v)), None, None, p.len_q, p.len_k, 0.0,
                                             p.causal, False, **p.options)

    def attend(self, p, q, k, v):
        if p.below:
            return self.call(p, q, k, v)[0].transpose(1, 2)
        return aten._scaled_dot_product_flash_attention(q, k, v, 0.0, p.causal, scale=p.scale)[0]

    def backward(self, p):
        if p.below:
            out, lse, seed, offset = self.call(p, p.q, p.k, p.v)[:4]
            d_out, q, k, v = (x.transpose(1, 2) for x in (p.d_out, p.q, p.k, p.v))
            return lambda: tuple(x.transpose(1, 2) for x in aten._flash_attention_backward(
                d_out, q, k, v, out, lse, None, None, p.len_q, p.len_k, 0.0, p.causal, seed, offset, **p.options))
        out, lse, cu_q, cu_k, max_q, max_k, seed, offset, _ = aten._scaled_dot_product_flash_attention(
            p.q, p.k, p.v, 0.0, p.causal, scale=p.scale)
        return lambda: aten._scaled_dot_product_flash_attention_backward(
            p.d_out, p.q, p.k, p.v, out, lse, cu_q, cu_k, max_q, max_k, 0.0, p.causal, seed, offset, scale=p.scale)


class Cudnn(Masked):
    def attend(self, p, q, k, v):  # with lse, because all others write it
        return aten._scaled_dot_product_cudnn_attention(q, k, v, p.bias, True, 0.0, p.is_causal,
                                                        scale=p.scale)[0]

    def backward(self, p):
        out, lse, cu_q, cu_k, max_q, max_k, seed, offset, _ = aten._scaled_dot_product_cudnn_attention(
            p.q, p.k, p.v, p.bias, True, 0.0, p.is_causal, scale=p.scale)
        return lambda: aten._scaled_dot_product_cudnn_attention_backward(
            p.d_out, p.q, p.k, p.v, out, lse, seed, offset, p.bias, cu_q, cu_k, max_q, max_k, 0.0, p.is_causal,
            scale=p.scale)


class Efficient(Masked):
    expands = True

    def attend(self, p, q, k, v):
        return aten._scaled_dot_product_efficient_attention(q, k, v, p.bias, True, 0.0, p.is_causal,
                                                            scale=p.scale)[0]

    def backward(self, p):
        out, lse, seed, offset = aten._scaled_dot_product_efficient_attention(p.q, p.k, p.v, p.bias, True, 0.0,
                                                                              p.is_causal, scale=p.scale)
        return lambda: aten._scaled_dot_product_efficient_attention_backward(
            p.d_out, p.q, p.k, p.v, p.bias, out, lse, seed, offset, 0.0, [True, True, True, False], p.is_causal,
            scale=p.scale)[:3]


class Flex(Way):
    serves = MASKS | {"softcap"}

    def __init__(self):
        from torch.nn.attention import flex_attention
        self.module, self.compiled = flex_attention, torch.compile(flex_attention.flex_attention, dynamic=False)

    # The block mask and the score function, which compile into one kernel. Positions are formulas where they can be.
    def check(self, p):
        p.blocks = p.score = None
        m = p.mask_text
        shift = (p.len_k - 1) * m["k_step"] + m["k_phase"] - (p.len_q - 1) if m["align"] == "bottom_right" else 0
        at = None
        if m["align"] == "absolute" and "positions" in p.tensors:
            at = p.tensors["positions"].reshape(-1, 2)
            at = (at[:, 1] - at[:, 0]).contiguous()

        def ahead(b, i, j):
            distance = j * m["k_step"] + m["k_phase"] - (i + shift)
            return distance if at is None else distance + at[b]
        pairs = p.listed() if m["blocks"] else None

        def visible(b, h, i, j):
            seen = ahead(b, i, j) <= (m["right"] if m["kind"] == "window" and m["right"] is not None else
                                      0 if m["kind"] == "causal" else 1 << 60)
            if m["kind"] == "window" and m["left"] is not None:
                seen = seen & (ahead(b, i, j) >= -m["left"])
            if pairs is not None:
                seen = seen & pairs[b if pairs.shape[0] > 1 else 0, h if pairs.shape[1] > 1 else 0, i, j]
            return seen
        if m["kind"] != "full" or m["blocks"]:
            by_batch = p.q.shape[0] if at is not None or (pairs is not None and pairs.shape[0] > 1) else None
            by_head = p.q.shape[1] if pairs is not None and pairs.shape[1] > 1 else None
            p.blocks = self.module.create_block_mask(visible, by_batch, by_head, p.len_q, p.len_k,
                                                     device=p.q.device.type)
        slopes = p.slopes().contiguous() if "alibi" in p.features else None
        bias = p.tensors["bias"].expand(p.q.shape[0], p.q.shape[1], p.len_q, p.len_k) if "bias" in p.features else None

        def score(s, b, h, i, j):
            if "softcap" in p.features:
                s = p.softcap * torch.tanh(s / p.softcap)
            if bias is not None:
                s = s + bias[b, h, i, j]
            return s if slopes is None else s - slopes[h] * ahead(b, i, j).abs()
        if {"softcap", "bias", "alibi"} & set(p.features):
            p.score = score

    def attend(self, p, q, k, v):
        return self.compiled(q, k, v, score_mod=p.score, block_mask=p.blocks, scale=p.scale, enable_gqa=p.grouped())


# Separate packages take [batch, seq, head, dim], and masks aligned at the bottom right.
class Package(Way):
    serves = frozenset(("window", "shifted", "softcap", "alibi", "ragged"))

    def __init__(self, function, ragged=None):
        self.function, self.ragged = function, ragged

    def check(self, p):
        p.options = {}
        if "window" in p.features:
            p.options["window_size"] = p.window()
        if "softcap" in p.features:
            p.options["softcap"] = p.softcap
        if "alibi" in p.features:
            p.options["alibi_slopes"] = p.slopes().contiguous()

    # The tokens of all sequences follow each other; keys of every sequence are in cu_k, queries in cu_q.
    def packed(self, p, q, k, v):
        if self.ragged is None or "cu_q" not in p.tensors:
            raise Refused("does not serve ragged keys here: it needs a function for packed sequences, and cu_q")
        starts = [p.tensors[name].reshape(-1) for name in ("cu_q", "cu_k")]
        q, k, v = (x.squeeze(0).transpose(0, 1) for x in (q, k, v))
        out = self.ragged(q, k, v, *starts, p.len_q, p.len_k, softmax_scale=p.scale, causal=p.causal, **p.options)
        return (out[0] if isinstance(out, tuple) else out).transpose(0, 1).unsqueeze(0)

    def attend(self, p, q, k, v):
        if "ragged" in p.features:
            return self.packed(p, q, k, v)
        out = self.function(*(x.transpose(1, 2) for x in (q, k, v)), softmax_scale=p.scale, causal=p.causal,
                            **p.options)
        return (out[0] if isinstance(out, tuple) else out).transpose(1, 2)


# FlashAttention-3 through its operators if its build registers them, else through its Python functions.
class Fa3(Package):
    serves = frozenset(("window", "shifted", "softcap", "ragged"))

    def __init__(self, function, ragged=None):
        super().__init__(function, ragged)
        ops = torch.ops.flash_attn_3
        self.ops = ops if hasattr(ops, "fwd") and hasattr(ops, "bwd") else None

    # Returns out and lse. Over a cache FA3's own functions let it choose the number of KV splits (0), elsewhere not.
    def call(self, p, q, k, v):
        splits = 1 if q.shape[2] == k.shape[2] else 0
        return self.ops.fwd(*(x.transpose(1, 2) for x in (q, k, v)), softmax_scale=p.scale, is_causal=p.causal,
                            num_splits=splits)[:2]

    def attend(self, p, q, k, v):
        return self.call(p, q, k, v)[0].transpose(1, 2) if self.by_operator(p) else super().attend(p, q, k, v)

    # The operators are called for plain attention, the Python functions for the rest.
    def by_operator(self, p):
        return self.ops and not set(p.features) - {"shifted"}

    def backward(self, p):
        if not self.by_operator(p):
            return super().backward(p)
        q, k, v, d_out = (x.transpose(1, 2) for x in (p.q, p.k, p.v, p.d_out))
        out, lse = self.call(p, p.q, p.k, p.v)

        def gradients():
            grads = tuple(torch.empty_like(x) for x in (q, k, v))
            self.ops.bwd(d_out, q, k, v, out, lse, *grads, softmax_scale=p.scale, is_causal=p.causal)
            return tuple(x.transpose(1, 2) for x in grads)
        return gradients


# Finds a class by peer name, and the version for the record. Raises ImportError if the library is missing.
def find(name):
    version = "torch " + torch.__version__
    if ".py:" in name:
        import own
        return own.find(name), version
    if name.startswith("torch:"):
        way = {"sdpa": Sdpa, "math": Math, "flash": Flash, "cudnn": Cudnn, "efficient": Efficient, "flex": Flex}
        if name == "torch:cudnn" and torch.backends.cudnn.is_available():
            version += ", cuDNN %d" % torch.backends.cudnn.version()
        return way[name[6:]](), version
    if name == "flash_attn":
        import flash_attn
        return (Package(flash_attn.flash_attn_func, getattr(flash_attn, "flash_attn_varlen_func", None)),
                "flash_attn " + flash_attn.__version__)
    if name == "fa3":
        import flash_attn_interface
        version = getattr(sys.modules.get("flash_attn_3"), "__version__", "")  # imported by flash_attn_interface
        return (Fa3(flash_attn_interface.flash_attn_func,
                    getattr(flash_attn_interface, "flash_attn_varlen_func", None)), "fa3 " + version)
    import libraries
    if found := libraries.find(name):
        return found
    raise ImportError("unknown peer")
