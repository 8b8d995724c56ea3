# SPDX-License-Identifier: Apache-2.0
# Attention of libraries beside torch: JAX on a CPU; xformers, FlashInfer and FlashAttention 1 on a GPU.
import os

import torch

from problem import Refused
from ways import Masked, Package, Way


# jax.nn.dot_product_attention, compiled. Tensors are shared with JAX through DLPack, as it lies in memory.
class Jax(Masked):
    gpu_only = False

    def __init__(self):
        import jax
        self.jax = jax

    # In the order in which a tensor is dense: [batch, head, seq, dim] or [batch, seq, head, dim].
    def shared(self, x, by_head):
        given = x if by_head else x.transpose(1, 2)
        if not given.is_contiguous():
            raise Refused("takes dense tensors, and these are not")
        array = self.jax.dlpack.from_dlpack(given)
        if array.unsafe_buffer_pointer() != given.data_ptr():
            raise Refused("copies these tensors, which are not aligned to 64 bytes, so it would not see new values")
        return array

    def check(self, p):
        if p.gpu >= 0:
            raise Refused("runs on a CPU here: its GPU work is not on the stream that is timed")
        if p.text["threads"] != len(os.sched_getaffinity(0)):
            raise Refused("uses all %d CPUs, not %d threads" % (len(os.sched_getaffinity(0)), p.text["threads"]))
        if p.q.shape[3] != p.v.shape[3]:
            raise Refused("serves equal head dims of q and v")
        super().check(p)
        by_head = p.q.is_contiguous()
        jnp = self.jax.numpy
        mask = None if p.bias is None else jnp.asarray(p.bias.float().numpy())

        def attend(q, k, v):
            if by_head:
                q, k, v = (x.transpose(0, 2, 1, 3) for x in (q, k, v))
            out = self.jax.nn.dot_product_attention(q, k, v, bias=mask, scale=p.scale, is_causal=p.is_causal)
            return out.transpose(0, 2, 1, 3)
        p.function, p.by_head = attend, by_head
        p.arrays = tuple(self.shared(x, by_head) for x in (p.q, p.k, p.v))

    def back(self, array):
        return torch.from_dlpack(array.block_until_ready())

    def attend(self, p, q, k, v):
        if not hasattr(p, "compiled"):
            p.compiled = self.jax.jit(p.function)
        return self.back(p.compiled(*p.arrays))

    # The gradients as the inputs lie, with the shapes that the tool has.
    def gradients(self, p, grads):
        grads = (self.back(g) for g in grads)
        return tuple(g if p.by_head else g.transpose(1, 2) for g in grads)

    def d_out(self, p):
        by_head = p.d_out.is_contiguous()
        return self.shared(p.d_out, by_head), by_head

    def backward(self, p):
        d_out, by_head = self.d_out(p)
        _, pull = self.jax.vjp(p.function, *p.arrays)
        run = self.jax.jit(lambda pull, d: pull(d if by_head else d.transpose(0, 2, 1, 3)))
        return lambda: self.gradients(p, run(pull, d_out))

    def train(self, p):
        d_out, by_head = self.d_out(p)
        run = self.jax.jit(lambda d, *inputs: self.jax.vjp(p.function, *inputs)[1](
            d if by_head else d.transpose(0, 2, 1, 3)))
        return lambda: self.gradients(p, run(d_out, *p.arrays))


# [batch, seq, head, dim]; masks are objects, aligned to the last key where they say so.
class Xformers(Way):
    serves, expands = frozenset(("window", "shifted")), True

    def __init__(self, ops):
        self.ops = ops

    def check(self, p):
        masks = self.ops.fmha.attn_bias
        left, right = p.window()
        p.bias = None
        if p.causal:
            p.bias = masks.LowerTriangularFromBottomRightMask()
        elif (left, right) != (-1, -1):
            far = p.len_q + p.len_k
            p.bias = masks.LocalAttentionFromBottomRightMask(left if left >= 0 else far, right if right >= 0 else far)

    def attend(self, p, q, k, v):
        out = self.ops.memory_efficient_attention(*(x.transpose(1, 2) for x in (q, k, v)), attn_bias=p.bias,
                                                  scale=p.scale)
        return out.transpose(1, 2)


# Prefill over packed sequences: [tokens, head, dim]. The schedule is made before the timed window.
class FlashInfer(Way):
    serves = frozenset(("window", "shifted", "softcap"))

    def __init__(self, module):
        self.module = module

    def check(self, p):
        if not p.forward:
            raise Refused("has no backward")
        left, right = p.window()
        if p.mask_text["kind"] == "window" and right != 0:
            raise Refused("serves windows that end at the query")
        if not all(x.transpose(1, 2).is_contiguous() for x in (p.q, p.k, p.v)):
            raise Refused("takes packed tokens; give --layout bshd")
        batch, heads, _, dim = p.q.shape
        p.wrapper = self.module.BatchPrefillWithRaggedKVCacheWrapper(
            torch.empty(128 << 20, dtype=torch.uint8, device=p.q.device), "NHD")
        starts = (torch.arange(batch + 1, dtype=torch.int32, device=p.q.device) * n for n in (p.len_q, p.len_k))
        p.wrapper.plan(*starts, heads, p.k.shape[1], dim, head_dim_vo=p.v.shape[3], causal=right == 0,
                       sm_scale=p.scale, window_left=left, q_data_type=p.q.dtype,
                       logits_soft_cap=p.softcap if "softcap" in p.features else 0.0)

    def attend(self, p, q, k, v):
        out = p.wrapper.run(*(x.transpose(1, 2).flatten(0, 1) for x in (q, k, v)))
        return out.unflatten(0, (q.shape[0], q.shape[2])).transpose(1, 2)


# The last interface of FlashAttention 1: packed sequences, and causal masks of as many queries as keys.
class Flash1(Package):
    serves, expands = frozenset(), True

    def attend(self, p, q, k, v):
        starts = [torch.arange(q.shape[0] + 1, dtype=torch.int32, device=q.device) * n for n in (p.len_q, p.len_k)] \
            if not hasattr(p, "starts") else p.starts
        p.starts = starts
        out = self.function(*(x.transpose(1, 2).flatten(0, 1) for x in (q, k, v)), *starts, p.len_q, p.len_k, 0.0,
                            softmax_scale=p.scale, causal=p.causal)
        return out.unflatten(0, (q.shape[0], q.shape[2])).transpose(1, 2)


# Finds a class by peer name, and the version; None: not one of these.
def find(name):
    if name == "jax":
        way = Jax()
        return way, "jax " + way.jax.__version__
    if name == "xformers":
        import xformers
        import xformers.ops
        return Xformers(xformers.ops), "xformers " + xformers.__version__
    if name == "flashinfer":
        import flashinfer
        return FlashInfer(flashinfer), "flashinfer " + flashinfer.__version__
    if name == "flash_attn1":
        import flash_attn
        from flash_attn import flash_attn_interface
        function = getattr(flash_attn_interface, "flash_attn_unpadded_func", None)
        if function is None:
            raise ImportError("flash_attn %s is not version 1" % flash_attn.__version__)
        return Flash1(function), "flash_attn " + flash_attn.__version__
    return None
