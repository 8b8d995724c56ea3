# SPDX-License-Identifier: Apache-2.0
# Hosts `attune bench --peer ...`: loads the tool as a library, registers attention of other libraries as peers and runs
# the tool's main in this process. Nothing is timed here: the tool's engine calls `run` as it calls its own backends, on
# a GPU on the tool's stream. Tensors are views of the tool's memory, so both sides read the same bytes.
#   torch_peer.py <name,name,...> <libattune_tool.so> <attune> bench ...
import ctypes
import json
import os
import signal
import sys
import warnings


class Peer(ctypes.Structure):
    Setup = ctypes.CFUNCTYPE(ctypes.c_int64, ctypes.c_char_p)
    Run = ctypes.CFUNCTYPE(ctypes.c_int32, ctypes.c_int64)
    Teardown = ctypes.CFUNCTYPE(None, ctypes.c_int64)
    Message = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_int64)
    Memory = ctypes.CFUNCTYPE(ctypes.c_int64, ctypes.c_int64)
    _fields_ = [("name", ctypes.c_char_p), ("version", ctypes.c_char_p), ("setup", Setup), ("run", Run),
                ("fetch", Run), ("teardown", Teardown), ("message", Message), ("memory", Memory)]


# peer_result in tool/subjects/peer.h; setup has handles above 0 instead of DONE.
DONE, FAILED, OUT_OF_MEMORY = 0, 1, 2
REFUSED, REFUSED_FOR_MEMORY = 0, -1


def whole_text(error):
    try:
        return str(error)
    except BaseException:  # the text is code of the peer too
        return ""


def first_line(error):
    return whole_text(error).split("\n")[0]


# torch raises a plain RuntimeError for some of these, so only its text tells.
def lacks_memory(error):
    if isinstance(error, MemoryError) or type(error).__name__ == "OutOfMemoryError":
        return True
    return any(words in whole_text(error) for words in ("out of memory", "can't allocate memory"))


# A missing peer is registered too: its setup fails with the reason, which becomes a row of the result.
def register(tool, name, way, version, missing):
    runs, last = {}, {"message": "", "handle": 0}

    # No exception must cross into C, where its reason would be lost.
    def guarded(function, no, no_memory):
        def call(argument):
            try:
                return function(argument)
            except BaseException as error:  # one that code of the peer raises, KeyboardInterrupt too
                kind, text = type(error).__name__, first_line(error)
                last["message"] = missing or (text if kind == "Refused" else kind + (": " + text if text else ""))
                return no_memory if lacks_memory(error) else no
        return call

    def setup(text):
        if missing:
            raise ImportError(missing)
        state = way.prepare(json.loads(text))
        last["handle"] += 1
        last["message"] = state.note
        runs[last["handle"]] = state
        return last["handle"]

    def run(handle):
        if handle:
            runs[handle].run()
        return DONE

    def fetch(handle):
        runs[handle].fetch()
        return DONE

    def memory(handle):
        return runs[handle].taken_bytes()

    def teardown(handle):
        runs.pop(handle, None)

    def message(text, room):
        data = last["message"].encode(errors="backslashreplace")[: room - 1] + b"\0"
        ctypes.memmove(text, data, len(data))

    name = os.path.basename(name)  # of a function of the user's own; others have no slash
    peer = Peer(os.fsencode(name), version.encode(errors="replace"),
                Peer.Setup(guarded(setup, REFUSED, REFUSED_FOR_MEMORY)),
                Peer.Run(guarded(run, FAILED, OUT_OF_MEMORY)), Peer.Run(guarded(fetch, FAILED, OUT_OF_MEMORY)),
                Peer.Teardown(teardown), Peer.Message(message), Peer.Memory(guarded(memory, -1, -1)))
    tool.attune_peer_register(ctypes.byref(peer))
    return peer


# The ways to call peers, or why there are none: a run goes on without PyTorch, and its peers are rows that say so.
def ways_or_reason():
    try:
        import torch  # noqa: F401
    except ImportError as error:
        return None, "%s cannot import torch (%s); pip install torch" % (sys.executable, str(error).split("\n")[0])
    import ways
    return ways, ""


# `answer` is the descriptor of stdout, which has only what the tool writes; see AnswerKept in subjects/peer_process.h.
def host(names, library, argv, answer):
    ways, reason = ways_or_reason()
    tool = ctypes.CDLL(library)
    peers = []  # kept until the end: C holds their addresses
    for name in names:
        way, version, missing = None, "", reason
        tool.attune_peer_loads(os.fsencode(name))
        try:
            if ways:
                way, version = ways.find(name)
        except BaseException as error:
            missing = first_line(error) or type(error).__name__
        finally:
            tool.attune_peer_loads(None)
        if missing:
            missing = "is not available: " + missing
        peers.append(register(tool, name, way, version, missing))
    words = (ctypes.c_char_p * (len(argv) + 1))(*[os.fsencode(word) for word in argv], None)
    sys.stderr.flush()
    ctypes.CDLL(None).fflush(None)
    os.dup2(answer, 1)
    code = tool.attune_tool_main(len(argv), words)
    os.dup2(2, 1)
    del peers
    return code


if __name__ == "__main__":
    warnings.filterwarnings("ignore", message=".*NumPy.*")
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # Ctrl-C ends the run, not a peer; bench sets its own handler
    sys.stdout = sys.stderr  # a peer's prints do not belong to the answer, which the tool writes itself
    stdout = os.dup(1)
    os.dup2(2, 1)
    code = host(sys.argv[1].split(","), sys.argv[2], sys.argv[3:], stdout)
    sys.stdout.flush()
    if code > 128:  # as main.cpp: a shell ends its loop only if the program was ended by the signal
        signal.signal(code - 128, signal.SIG_DFL)
        os.kill(os.getpid(), code - 128)
    sys.exit(code)
