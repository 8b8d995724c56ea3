# Attention of other libraries, one small class each. A forward calls the operator itself if there is one, so that no
# dispatcher is timed. A backward is timed alone: through its own operator, or as torch.autograd.grad captured once in a
# CUDA graph. numpy is not needed.
import ctypes
import sys

import torch

aten = torch.ops.aten
DTYPES = {"f64": (torch.float64, 2, 64), "f32": (torch.float32, 2, 32), "f16": (torch.float16, 2, 16),
          "bf16": (torch.bfloat16, 4, 16)}  # torch dtype, DLPack's code and bits


class DLTensor(ctypes.Structure):
    _fields_ = [("data", ctypes.c_void_p), ("device_type", ctypes.c_int32), ("device_id", ctypes.c_int32),
                ("ndim", ctypes.c_int32), ("code", ctypes.c_uint8), ("bits", ctypes.c_uint8),
                ("lanes", ctypes.c_uint16), ("shape", ctypes.POINTER(ctypes.c_int64)),
                ("strides", ctypes.POINTER(ctypes.c_int64)), ("byte_offset", ctypes.c_uint64),
                ("context", ctypes.c_void_p), ("deleter", ctypes.c_void_p)]


capsule_of = ctypes.pythonapi.PyCapsule_New
capsule_of.restype, capsule_of.argtypes = ctypes.py_object, [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p]


# A tensor [batch, head, seq, dim] in the tool's memory, without a copy. DLPack, because it accepts a raw address.
def view(t, gpu, keep):
    if t["dtype"] not in DTYPES:
        raise ValueError("dtype %s is not one of %s" % (t["dtype"], ", ".join(DTYPES)))
    _, code, bits = DTYPES[t["dtype"]]
    (batch, seq, head, dim), (by_batch, by_seq, by_head) = t["extent"], t["stride"]
    shape = (ctypes.c_int64 * 4)(batch, head, seq, dim)
    # An axis of one element has stride 0 in the tool; torch's kernels require the stride of a dense tensor.
    by_seq = by_seq or dim
    by_head = by_head or seq * by_seq
    by_batch = by_batch or max(head * by_head, seq * by_seq)
    strides = (ctypes.c_int64 * 4)(by_batch, by_head, by_seq, 1)
    kind, index = (1, 0) if gpu < 0 else (2, gpu)
    tensor = DLTensor(t["data"], kind, index, 4, code, bits, 1, shape, strides, 0, None, None)
    keep.append((shape, strides, tensor))
    return torch.utils.dlpack.from_dlpack(capsule_of(ctypes.addressof(tensor), b"dltensor", None))


class Problem:
    def __init__(self, text):
        if not text["plain"]:
            raise ValueError("supports only full and causal attention without options, not: " + text["problem"])
        self.gpu, self.keep = text["gpu"], []
        if self.gpu < 0:
            torch.set_num_threads(text["threads"])
        else:
            torch.cuda.set_device(self.gpu)
            self.stream = torch.cuda.ExternalStream(text["stream"], device=self.gpu)
            torch.cuda.set_stream(self.stream)  # for this thread from now on; the tool has no other
        tensors = {name: view(t, self.gpu, self.keep) for name, t in text["tensors"].items()}
        self.results = {name: view(t, self.gpu, self.keep) for name, t in text["results"].items()}
        self.q, self.k, self.v, self.d_out = (tensors.get(name) for name in ("q", "k", "v", "d_out"))
        self.causal, self.scale, self.forward = text["causal"], text["scale"], text["pass"] == "forward"
        self.line = text["problem"]

    def grouped(self):
        return self.q.shape[1] != self.k.shape[1]

    def scores_bytes(self):
        return self.q.shape[0] * self.q.shape[1] * self.q.shape[2] * self.k.shape[2] * 4

    def free_bytes(self):
        if self.gpu >= 0:
            return torch.cuda.mem_get_info(self.gpu)[0]
        with open("/proc/meminfo") as file:
            return next(int(line.split()[1]) * 1024 for line in file if line.startswith("MemAvailable"))


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
    gpu_only, expands = True, False

    def prepare(self, text):
        p = Problem(text)
        if self.gpu_only and p.gpu < 0:
            raise ValueError("runs on a GPU only")
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
            call = self.backward(p)
        return Prepared(p, call, note)

    def check(self, p):
        pass

    def backward(self, p):
        return captured_backward(p, lambda q, k, v: self.attend(p, q, k, v))


# torch's default.
class Sdpa(Way):
    gpu_only = False

    def attend(self, p, q, k, v):
        return torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=p.causal, scale=p.scale,
                                                                enable_gqa=p.grouped())


# Unfused attention, faster where torch has no good kernel.
class Math(Way):
    gpu_only = False

    def check(self, p):
        if p.scores_bytes() * (2 if p.forward else 6) > p.free_bytes() // 2:
            raise ValueError("the scores of %s would take more than half of the free memory" % p.line)

    def attend(self, p, q, k, v):
        return aten._scaled_dot_product_attention_math(q, k, v, None, 0.0, p.causal, None, scale=p.scale,
                                                       enable_gqa=p.grouped())[0]


class Flash(Way):
    def attend(self, p, q, k, v):
        return aten._scaled_dot_product_flash_attention(q, k, v, 0.0, p.causal, scale=p.scale)[0]

    def backward(self, p):
        out, lse, cu_q, cu_k, max_q, max_k, seed, offset, _ = aten._scaled_dot_product_flash_attention(
            p.q, p.k, p.v, 0.0, p.causal, scale=p.scale)
        return lambda: aten._scaled_dot_product_flash_attention_backward(
            p.d_out, p.q, p.k, p.v, out, lse, cu_q, cu_k, max_q, max_k, 0.0, p.causal, seed, offset, scale=p.scale)


class Cudnn(Way):
    def attend(self, p, q, k, v):  # with lse, because all others write it
        return aten._scaled_dot_product_cudnn_attention(q, k, v, None, True, 0.0, p.causal, scale=p.scale)[0]

    def backward(self, p):
        out, lse, cu_q, cu_k, max_q, max_k, seed, offset, _ = aten._scaled_dot_product_cudnn_attention(
            p.q, p.k, p.v, None, True, 0.0, p.causal, scale=p.scale)
        return lambda: aten._scaled_dot_product_cudnn_attention_backward(
            p.d_out, p.q, p.k, p.v, out, lse, seed, offset, None, cu_q, cu_k, max_q, max_k, 0.0, p.causal,
            scale=p.scale)


class Efficient(Way):
    expands = True

    def attend(self, p, q, k, v):
        return aten._scaled_dot_product_efficient_attention(q, k, v, None, True, 0.0, p.causal, scale=p.scale)[0]

    def backward(self, p):
        out, lse, seed, offset = aten._scaled_dot_product_efficient_attention(p.q, p.k, p.v, None, True, 0.0, p.causal,
                                                                              scale=p.scale)
        return lambda: aten._scaled_dot_product_efficient_attention_backward(
            p.d_out, p.q, p.k, p.v, None, out, lse, seed, offset, 0.0, [True, True, True, False], p.causal,
            scale=p.scale)[:3]


class Flex(Way):
    def __init__(self):
        from torch.nn.attention import flex_attention
        self.module, self.compiled = flex_attention, torch.compile(flex_attention.flex_attention, dynamic=False)

    def attend(self, p, q, k, v):
        if p.causal and not hasattr(p, "mask"):
            p.mask = self.module.create_block_mask(lambda b, h, i, j: i >= j, None, None, q.shape[2], k.shape[2],
                                                   device="cuda")
        return self.compiled(q, k, v, block_mask=p.mask if p.causal else None, scale=p.scale, enable_gqa=p.grouped())


# Separate packages take [batch, seq, head, dim].
class Package(Way):
    def __init__(self, function):
        self.function = function

    def attend(self, p, q, k, v):
        out = self.function(*(x.transpose(1, 2) for x in (q, k, v)), softmax_scale=p.scale, causal=p.causal)
        return (out[0] if isinstance(out, tuple) else out).transpose(1, 2)


# FlashAttention-3 through its operators if its build registers them, else through its Python functions.
class Fa3(Package):
    def __init__(self, function):
        super().__init__(function)
        ops = torch.ops.flash_attn_3
        self.ops = ops if hasattr(ops, "fwd") and hasattr(ops, "bwd") else None

    # Returns out and lse. Over a cache FA3's own functions let it choose the number of KV splits (0), elsewhere not.
    def call(self, p, q, k, v):
        splits = 1 if q.shape[2] == k.shape[2] else 0
        return self.ops.fwd(*(x.transpose(1, 2) for x in (q, k, v)), softmax_scale=p.scale, is_causal=p.causal,
                            num_splits=splits)[:2]

    def attend(self, p, q, k, v):
        return self.call(p, q, k, v)[0].transpose(1, 2) if self.ops else super().attend(p, q, k, v)

    def backward(self, p):
        if not self.ops:
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
    if name.startswith("torch:"):
        way = {"sdpa": Sdpa, "math": Math, "flash": Flash, "cudnn": Cudnn, "efficient": Efficient, "flex": Flex}
        if name == "torch:cudnn" and torch.backends.cudnn.is_available():
            version += ", cuDNN %d" % torch.backends.cudnn.version()
        return way[name[6:]](), version
    if name == "flash_attn":
        import flash_attn
        return Package(flash_attn.flash_attn_func), "flash_attn " + flash_attn.__version__
    if name == "fa3":
        import flash_attn_interface
        version = getattr(sys.modules.get("flash_attn_3"), "__version__", "")  # imported by flash_attn_interface
        return Fa3(flash_attn_interface.flash_attn_func), "fa3 " + version
    raise ImportError("unknown peer")
