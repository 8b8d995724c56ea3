# SPDX-License-Identifier: Apache-2.0
# A problem as the tool describes it (tool/subjects/peer.cpp), with its tensors as views of the tool's memory: what it
# asks for beyond plain attention, and which keys a query sees. numpy is not needed.
import ctypes

import torch

DTYPES = {"f64": (torch.float64, 2, 64), "f32": (torch.float32, 2, 32), "f16": (torch.float16, 2, 16),
          "bf16": (torch.bfloat16, 4, 16), "i32": (torch.int32, 0, 32),
          "i64": (torch.int64, 0, 64)}  # torch dtype, DLPack's code and bits


# What a function does not serve. The sentence becomes the row's reason as it is.
class Refused(Exception):
    pass


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
        raise Refused("dtype %s is not one of %s" % (t["dtype"], ", ".join(DTYPES)))
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


def all_at_least(numbers, least):
    return all(number >= least for number in numbers)


# Each feature is a word; a function serves some of them.
#   shifted     causal or a window whose first query is not at the first key, aligned at the bottom right
#   top_left, absolute, compressed  other positions of queries and keys
#   window, window_aside (the query's own position is not in it), blocks, softcap, alibi, bias, sink, ragged, paged
# Everything else has a word that no function serves, so that it is refused by name.
class Problem:
    def __init__(self, text):
        self.gpu, self.keep, self.line = text["gpu"], [], text["problem"]
        self.scale, self.softcap, self.forward = text["scale"], text["softcap"], text["pass"] == "forward"
        self.train = text["pass"] == "train"
        self.mask_text, self.len_q, self.len_k = text["mask"], text["len_q"], text["len_k"]
        self.text = text
        self.features = self.named_features()

    # After the features were accepted, because views of unusual dtypes may fail.
    def open(self):
        text = self.text
        if self.gpu < 0:
            torch.set_num_threads(text["threads"])
        else:
            torch.cuda.set_device(self.gpu)
            self.stream = torch.cuda.ExternalStream(text["stream"], device=self.gpu)
            torch.cuda.set_stream(self.stream)  # for this thread from now on; the tool has no other
        self.tensors = {name: view(t, self.gpu, self.keep) for name, t in text["tensors"].items()}
        self.results = {name: view(t, self.gpu, self.keep) for name, t in text["results"].items()}
        self.q, self.k, self.v, self.d_out = (self.tensors.get(name) for name in ("q", "k", "v", "d_out"))

    def named_features(self):
        text, m = self.text, self.mask_text
        words = []
        if m["kind"] == "window":
            sides = [side for side in (m["left"], m["right"]) if side is not None]
            words.append("window" if all_at_least(sides, 0) else "window_aside")
        if m["align"] == "absolute":
            words.append("absolute")
        elif m["kind"] != "full" and self.len_q != self.len_k:
            words.append("shifted" if m["align"] == "bottom_right" else "top_left")
        if m["k_step"] != 1 or m["k_phase"]:
            words.append("compressed")
        if m["blocks"]:
            words.append("blocks")
        words += text["options"]
        if text["keys"] != "linear":
            words.append(text["keys"])
        if text["variant"]:
            words.append("the variant " + text["variant"])
        known = {"q", "k", "v", "d_out", "slopes", "sinks", "bias", "positions", "block_begin", "block_column", "cu_q",
                 "cu_k", "page_table", "used_k"}
        words += [name for name in text["tensors"] if name not in known]
        words += ["the gradient " + name for name in text["results"] if name not in ("out", "dq", "dk", "dv")]
        if "used_k" in text["tensors"] and text["keys"] != "paged":
            words.append("used_k")
        if "cu_q" in text["tensors"] and text["keys"] != "ragged":
            words.append("cu_q")
        return words

    @property
    def causal(self):
        return self.mask_text["kind"] == "causal"

    # Window sides as most libraries take them: keys behind and ahead of a query, -1 for no limit.
    def window(self):
        m = self.mask_text
        if m["kind"] == "full":
            return -1, -1
        if m["kind"] == "causal":
            return -1, 0
        return tuple(-1 if side is None else side for side in (m["left"], m["right"]))

    def grouped(self):
        return self.q.shape[1] != self.k.shape[1]

    # Position of each key minus position of each query, [batch or 1, 1, queries, keys].
    def ahead(self):
        m, device = self.mask_text, self.q.device
        key = torch.arange(self.len_k, device=device) * m["k_step"] + m["k_phase"]
        query = torch.arange(self.len_q, device=device)
        if m["align"] == "bottom_right":
            query = query + int((self.len_k - 1) * m["k_step"] + m["k_phase"] - (self.len_q - 1))
        ahead = (key[None, :] - query[:, None])[None, None]
        if m["align"] == "absolute" and "positions" in self.tensors:
            at = self.tensors["positions"].reshape(-1, 2)  # of query 0 and key 0
            ahead = ahead + (at[:, 1] - at[:, 0])[:, None, None, None]
        return ahead

    # Whether a query sees a key, [batch or 1, head or 1, queries, keys]; None: all do.
    def visible(self):
        m = self.mask_text
        if m["kind"] == "full" and not m["blocks"]:
            return None
        ahead = self.ahead()
        seen = torch.ones_like(ahead, dtype=torch.bool)
        if m["kind"] == "causal":
            seen &= ahead <= 0
        if m["kind"] == "window" and m["left"] is not None:
            seen &= ahead >= -m["left"]
        if m["kind"] == "window" and m["right"] is not None:
            seen &= ahead <= m["right"]
        if m["blocks"]:
            seen = seen & self.listed()
        return seen

    # The block lists as a mask of pairs.
    def listed(self):
        rows, columns, bound = self.mask_text["blocks"]
        begin = self.tensors["block_begin"].transpose(1, 2).squeeze(1).cpu()  # [batch, head, rows + 1]
        column = self.tensors["block_column"].reshape(-1).cpu()
        batch, heads, count = begin.shape
        kept = torch.zeros(batch, heads, count - 1, -(-self.len_k // columns), dtype=torch.bool)
        for b in range(batch):
            for h in range(heads):
                for row in range(count - 1):
                    kept[b, h, row, column[begin[b, h, row]:begin[b, h, row + 1]].long()] = True
        pairs = kept.repeat_interleave(rows, 2).repeat_interleave(columns, 3)
        return pairs[:, :, :self.len_q, :self.len_k].to(self.q.device)

    # ALiBi and bias as one tensor to add to the scores, [batch or 1, head or 1, queries or 1, keys]; None: neither.
    def added(self):
        added = None
        if "alibi" in self.features:
            added = -self.slopes()[None, :, None, None] * self.ahead().abs()
        if "bias" in self.features:
            bias = self.tensors["bias"]
            added = bias if added is None else added + bias
        return added

    def slopes(self):
        return self.tensors["slopes"].reshape(-1)

    # One mask for functions that take a single one: boolean, or additive in the dtype of q if something is added.
    def mask(self):
        seen, added = self.visible(), self.added()
        if added is None:
            return seen
        if seen is not None:
            added = added.masked_fill(~seen, -torch.inf)
        return added.to(self.q.dtype)

    def scores_bytes(self):
        return self.q.shape[0] * self.q.shape[1] * self.q.shape[2] * self.k.shape[2] * 4

    def free_bytes(self):
        if self.gpu >= 0:
            return torch.cuda.mem_get_info(self.gpu)[0]
        with open("/proc/meminfo") as file:
            return next(int(line.split()[1]) * 1024 for line in file if line.startswith("MemAvailable"))
