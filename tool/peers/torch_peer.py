# Hosts `attune bench --peer torch`: loads the tool as a library, registers PyTorch's attention as a peer and runs the
# tool's own main in this process. There is no timing here: the tool's engine calls `run`, as it calls its own backends.
# Tensors are views of the tool's memory, so both sides read the same bytes. numpy is not needed.
#   torch_peer.py <libattune_tool.so> <attune> bench ...
import ctypes
import json
import sys
import warnings


class Peer(ctypes.Structure):
    Setup = ctypes.CFUNCTYPE(ctypes.c_int64, ctypes.c_char_p)
    Run = ctypes.CFUNCTYPE(ctypes.c_int32, ctypes.c_int64)
    Teardown = ctypes.CFUNCTYPE(None, ctypes.c_int64)
    Message = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_int64)
    _fields_ = [("name", ctypes.c_char_p), ("version", ctypes.c_char_p), ("setup", Setup), ("run", Run),
                ("fetch", Run), ("teardown", Teardown), ("message", Message)]


# torch:sdpa is what a user gets; torch:math forces the unfused way, the faster one where torch has no good kernel.
def register(torch, tool, name, math):
    dtypes = {"f64": torch.float64, "f32": torch.float32, "f16": torch.float16, "bf16": torch.bfloat16}
    from torch.nn.attention import SDPBackend, sdpa_kernel
    sdpa = torch.nn.functional.scaled_dot_product_attention

    def attention(q, k, v, **options):
        if not math:
            return sdpa(q, k, v, **options)
        with sdpa_kernel(SDPBackend.MATH):  # microseconds, against the milliseconds of a matrix of scores
            return sdpa(q, k, v, **options)

    runs, last = {}, {"message": "", "handle": 0}

    def view(t):  # [batch, head, seq, dim], without a copy
        if t["dtype"] not in dtypes:
            raise ValueError("dtype %s is not one of %s" % (t["dtype"], ", ".join(dtypes)))
        dtype, (batch, seq, head, dim), (by_batch, by_seq, by_head) = dtypes[t["dtype"]], t["extent"], t["stride"]
        count = (batch - 1) * by_batch + (seq - 1) * by_seq + (head - 1) * by_head + dim
        memory = (ctypes.c_char * (count * dtype.itemsize)).from_address(t["data"])
        return torch.frombuffer(memory, dtype=dtype).as_strided((batch, head, seq, dim), (by_batch, by_head, by_seq, 1))

    def make(problem):
        if not problem["plain"]:
            raise ValueError("only full and causal attention without options is compared, not: " + problem["problem"])
        torch.set_num_threads(problem["threads"])
        q, k, v = (view(problem["tensors"][name]) for name in "qkv")
        scores = q.shape[0] * q.shape[1] * q.shape[2] * k.shape[2] * 4
        if math and scores * (2 if problem["pass"] == "forward" else 6) > available() // 2:
            raise ValueError("the scores of %s would fill the memory" % problem["problem"])
        options = {"is_causal": problem["causal"], "scale": problem["scale"]}
        if q.shape[1] != k.shape[1]:
            options["enable_gqa"] = True
        results = {name: view(t) for name, t in problem["results"].items()}
        state = {"results": results}
        if problem["pass"] == "forward":
            def run():
                with torch.no_grad():
                    state["out"] = (attention(q, k, v, **options),)
            state["names"] = ("out",)
        else:
            leaves = tuple(x.detach().requires_grad_() for x in (q, k, v))
            out, d_out = attention(*leaves, **options), view(problem["tensors"]["d_out"])

            def run():
                state["out"] = torch.autograd.grad(out, leaves, d_out, retain_graph=True)
            state["names"] = ("dq", "dk", "dv")
        state["run"] = run
        return state

    def guarded(function):  # an exception must not cross into C
        def call(argument):
            try:
                return function(argument)
            except Exception as error:
                last["message"] = "%s: %s" % (type(error).__name__, str(error).split("\n")[0])
                return None
        return call

    def setup(text):
        state = make(json.loads(text))
        last["handle"] += 1
        runs[last["handle"]] = state
        return last["handle"]

    def run(handle):
        if handle:
            runs[handle]["run"]()
        return 0

    def fetch(handle):
        state = runs[handle]
        for name, value in zip(state["names"], state["out"]):
            state["results"][name].copy_(value)
        return 0

    def teardown(handle):
        runs.pop(handle, None)

    def message(text, room):
        data = last["message"].encode()[: room - 1] + b"\0"
        ctypes.memmove(text, data, len(data))

    def answer(function, no):
        call = guarded(function)
        return lambda argument: no if (result := call(argument)) is None else result

    peer = Peer(name.encode(), ("torch " + torch.__version__).encode(), Peer.Setup(answer(setup, 0)),
                Peer.Run(answer(run, 1)), Peer.Run(answer(fetch, 1)), Peer.Teardown(teardown), Peer.Message(message))
    tool.attune_peer_register(ctypes.byref(peer))
    return peer


def available():
    with open("/proc/meminfo") as file:
        return next(int(line.split()[1]) * 1024 for line in file if line.startswith("MemAvailable"))


def host(torch, library, argv):
    tool = ctypes.CDLL(library)
    # Kept until the end: C holds their addresses.
    peers = [register(torch, tool, "torch:sdpa", False), register(torch, tool, "torch:math", True)]
    words = (ctypes.c_char_p * (len(argv) + 1))(*[word.encode() for word in argv], None)
    code = tool.attune_tool_main(len(argv), words)
    del peers
    return code


if __name__ == "__main__":
    warnings.filterwarnings("ignore", message=".*NumPy.*")
    try:
        import torch
    except ImportError as error:
        sentence = "attune bench: --peer torch: %s cannot import torch (%s); pip install torch\n"
        sys.stderr.write(sentence % (sys.executable, error))
        sys.exit(3)
    sys.exit(host(torch, sys.argv[1], sys.argv[2:]))
