#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Modal's own mock server, the one of its client's tests, as a process of its own on a loopback address.

--tests is the folder py/test of Modal's repository at the version of the installed package. The mock keeps one sandbox
that never ends; here are many, each with its name, task, time limit and processes, and faults as NAME=VALUE, where a
value below 1 is a probability: broken=0.1 (UNAVAILABLE before anything is done), lost=0.3 (the reply to a creation or
termination is lost), delete_fails=2 (first terminations of each sandbox), never_ready=1, unready=2 (seconds).
"""
import argparse
import asyncio
import importlib.util
import json
import os
import random
import secrets
import shutil
import signal
import string
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import standin  # noqa: E402


def load(tests):
    sys.path.insert(0, tests)
    spec = importlib.util.spec_from_file_location("conftest", os.path.join(tests, "conftest.py"))
    module = importlib.util.module_from_spec(spec)
    sys.modules["conftest"] = module
    spec.loader.exec_module(module)
    return module


class Sandbox:
    def __init__(self, request, options, unready):
        letters = string.ascii_letters + string.digits
        self.id = "sb-" + "".join(secrets.choice(letters) for _ in range(22))  # the form of its first kind of sandbox
        self.task = "ta-" + self.id[3:]
        self.app, self.definition = request.app_id, request.definition
        self.name = request.definition.name
        self.tags = {t.tag_name: t.tag_value for t in request.tags}
        self.price, self.made = options.price, time.monotonic()
        self.deadline = self.made + request.definition.timeout_secs
        self.runs_from = self.made + unready
        self.ended, self.failed_terminations = None, 0
        self.home = os.path.join(options.folder, self.id)
        os.makedirs(self.home)

    def usd(self):
        return ((self.ended or time.monotonic()) - self.made) * self.price / 3600

    def end(self):
        if self.ended is None:
            self.ended = time.monotonic()
            standin.kill_marked(self.id)
            shutil.rmtree("/tmp/" + self.name, ignore_errors=True)

    def shown(self):
        return {"id": self.id, "name": self.name, "alive": self.ended is None, "usd": self.usd(), "home": self.home,
                "body": {"timeout": self.definition.timeout_secs, "idle": self.definition.idle_timeout_secs,
                         "gpu": self.definition.resources.gpu_config.gpu_type,
                         "gpus": self.definition.resources.gpu_config.count}}


class Marked:
    """A stream whose first message starts a process: it gets the sandbox's mark and folder."""
    def __init__(self, stream, sandbox, bin_folder):
        self.stream, self.sandbox, self.bin = stream, sandbox, bin_folder

    async def recv_message(self):
        request = await self.stream.recv_message()
        request.env["FAKE_PRIME_MACHINE"] = self.sandbox.id
        request.env["HOME"] = request.workdir = self.sandbox.home
        request.env["PATH"] = self.bin + ":" + os.environ["PATH"]
        return request

    def __getattr__(self, name):
        return getattr(self.stream, name)


def servicers(mock, options, faults):
    """The mock's classes, with sandboxes that are told apart."""
    from google.protobuf.empty_pb2 import Empty
    from grpclib import GRPCError, Status
    from modal_proto import api_pb2
    generator = random.Random(options.seed)
    sandboxes = {}

    def fault(name):
        value = faults.get(name, 0)
        return value >= 1 or (value > 0 and generator.random() < value)

    def known(sandbox_id):
        if sandbox_id not in sandboxes:
            raise GRPCError(Status.NOT_FOUND, "Sandbox not found")
        return sandboxes[sandbox_id]

    def metadata(s):
        return api_pb2.SandboxHandleMetadata(app_id=s.app, result=result(s))

    def result(s):
        if s.ended is None:
            return None
        return api_pb2.GenericResult(status=api_pb2.GenericResult.GENERIC_STATUS_TERMINATED, exitcode=137)

    def lose(what):
        if fault("lost"):
            raise GRPCError(Status.UNAVAILABLE, "the reply to " + what + " was lost")

    class Client(mock.MockClientServicer):
        async def recv_request(self, event):
            await super().recv_request(event)
            if fault("broken"):
                raise GRPCError(Status.UNAVAILABLE, "try again")

        async def SandboxCreate(self, stream):
            request = await stream.recv_message()
            if any(s.ended is None and s.name == request.definition.name for s in sandboxes.values()):
                raise GRPCError(Status.ALREADY_EXISTS, "a sandbox of this name is running")
            s = Sandbox(request, options, faults.get("unready", 0))
            sandboxes[s.id] = s
            lose("a creation")
            await stream.send_message(api_pb2.SandboxCreateResponse(sandbox_id=s.id, metadata=metadata(s)))

        async def SandboxGetFromName(self, stream):
            request = await stream.recv_message()
            found = [s for s in sandboxes.values() if s.name == request.sandbox_name and s.ended is None]
            if not found:
                raise GRPCError(Status.NOT_FOUND, "no running sandbox has this name")
            await stream.send_message(api_pb2.SandboxGetFromNameResponse(sandbox_id=found[0].id,
                                                                         metadata=metadata(found[0])))

        async def SandboxWait(self, stream):
            s = known((await stream.recv_message()).sandbox_id)
            await stream.send_message(api_pb2.SandboxWaitResponse(result=result(s), metadata=metadata(s)))

        async def SandboxList(self, stream):
            request = await stream.recv_message()
            alive = [s for s in sandboxes.values() if s.ended is None and s.app == request.app_id]
            page = [] if request.before_timestamp else alive
            await stream.send_message(api_pb2.SandboxListResponse(sandboxes=[
                api_pb2.SandboxInfo(id=s.id, created_at=1, metadata=metadata(s)) for s in page]))

        async def SandboxTagsGet(self, stream):
            s = known((await stream.recv_message()).sandbox_id)
            await stream.send_message(api_pb2.SandboxTagsGetResponse(
                tags=[api_pb2.SandboxTag(tag_name=k, tag_value=v) for k, v in s.tags.items()]))

        async def SandboxTagsSet(self, stream):
            request = await stream.recv_message()
            known(request.sandbox_id).tags = {t.tag_name: t.tag_value for t in request.tags}
            await stream.send_message(Empty())

        async def SandboxTerminate(self, stream):
            s = known((await stream.recv_message()).sandbox_id)
            if s.ended is None and s.failed_terminations < faults.get("delete_fails", 0):
                s.failed_terminations += 1
                raise GRPCError(Status.FAILED_PRECONDITION, "could not terminate")
            s.end()
            lose("a termination")
            await stream.send_message(api_pb2.SandboxTerminateResponse())

        async def SandboxGetTaskId(self, stream):
            s = known((await stream.recv_message()).sandbox_id)
            runs = s.ended is None and not faults.get("never_ready") and time.monotonic() >= s.runs_from
            more = {} if s.ended is None else {"task_result": result(s)}
            await stream.send_message(api_pb2.SandboxGetTaskIdResponse(task_id=s.task if runs else "", **more))

    class Router(mock.MockTaskCommandRouterServicer):
        async def recv_request(self, event):
            if fault("broken"):
                raise GRPCError(Status.UNAVAILABLE, "try again")

        async def TaskExecStart(self, stream):
            request = await stream.recv_message()
            s = known("sb-" + request.task_id[3:])
            if s.ended is not None:
                raise GRPCError(Status.NOT_FOUND, "the task has ended")
            if request.exec_id in self._task_state(request.task_id).procs:  # a start that is repeated
                return await stream.send_message(mock.sr_pb2.TaskExecStartResponse())
            await super().TaskExecStart(Marked(Again(stream, request), s, options.bin))

    return Client, Router, sandboxes


class Again:
    """A stream whose first message was read already."""
    def __init__(self, stream, request):
        self.stream, self.request = stream, request

    async def recv_message(self):
        return self.request

    def __getattr__(self, name):
        return getattr(self.stream, name)


def serve_state(sandboxes):
    class Handler(BaseHTTPRequestHandler):
        def log_message(self, *_):
            pass

        def do_GET(self):
            data = json.dumps([s.shown() for s in list(sandboxes.values())]).encode()
            self.send_response(200)
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    return server.server_address[1]


async def serve(options, mock):
    faults = {k: float(v) for k, v in (f.split("=") for f in options.fault)}
    make_client, make_router, sandboxes = servicers(mock, options, faults)
    with open(options.secret_file) as f:
        secret = f.read()
    with mock.blob_server_factory() as (blob_host, blobs, blocks, files):
        client, router = make_client(blob_host, blobs, blocks, files, ("ak-1", secret)), make_router()
        here = "127.0.0.1"
        async with mock.run_server(client, host=here) as port, mock.run_server(router, host=here) as inner:
            client.task_command_router, client.task_command_router_url = router, f"http://127.0.0.1:{inner}"
            with open(options.port_file + ".new", "w") as f:
                f.write(f"{port} {serve_state(sandboxes)}")
            os.rename(options.port_file + ".new", options.port_file)
            stop = asyncio.Event()
            asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)
            while not stop.is_set():
                for s in sandboxes.values():
                    if s.ended is None and time.monotonic() >= s.deadline:
                        s.end()
                await asyncio.sleep(0.05)
            for s in sandboxes.values():
                s.end()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tests", required=True)
    parser.add_argument("--port-file")
    parser.add_argument("--secret-file")
    parser.add_argument("--folder")
    parser.add_argument("--bin", help="folder with programs of the machines")
    parser.add_argument("--fault", action="append", default=[])
    parser.add_argument("--price", type=float, default=1.2)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--try", dest="only_try", action="store_true", help="say whether the mock can be loaded")
    asked = parser.parse_args()
    loaded = load(asked.tests)
    if asked.only_try:
        sys.exit(0)
    asyncio.run(serve(asked, loaded))
    os._exit(0)  # threads of the mock's event loop would wait for connections
