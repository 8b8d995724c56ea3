#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Stand-in for Prime Intellect's interface, as a process of its own on a loopback address.

Sandboxes are folders and processes of this machine. Faults are given as NAME=VALUE, where a value below 1 is a
probability: lost=0.3 (the reply to a creation or deletion is lost), busy=0.1 (429), poor=1 (402 at creation),
broken=0.1 (500 before anything is done), delete_fails=2 (the first deletions of each machine answer 500),
pack_fails=2 (as many commands of each machine that pack files answer 503), dearer=2 (a pod costs so many times its
offer), never_ready=1, garbled=0.1 (an answer that is not JSON), slow=0.1 (an answer that dribbles), skew=7200 (the
server's clock, in seconds), lag=1 (seconds until a new machine is listed), unready=2 (seconds until a machine runs).
"""
import argparse
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import threading
import time
import uuid
from datetime import datetime, timedelta, timezone
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qs, urlparse

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import standin  # noqa: E402

GONE = ("TERMINATED", "TIMEOUT")


class Machine:
    def __init__(self, kind, name, body, price, minutes, unready):
        self.kind, self.name, self.body, self.price = kind, name, body, price
        self.id = ("sb" if kind == "sandbox" else "pod") + uuid.uuid4().hex[:12]
        self.token = uuid.uuid4().hex
        self.made = time.monotonic()
        self.deadline = self.made + minutes * world.minute if minutes else None
        self.runs_from = self.made + unready
        self.ended, self.status, self.failed_deletions = None, "", 0
        self.failed_packs = 0
        self.home = os.path.join(world.folder, self.id)
        os.makedirs(self.home)

    def state(self):
        if self.ended is not None:
            return self.status
        if world.fault("never_ready") or time.monotonic() < self.runs_from:
            return "PROVISIONING"
        return "RUNNING" if self.kind == "sandbox" else "ACTIVE"

    def usd(self):
        end = self.ended if self.ended is not None else time.monotonic()
        return (end - self.made) * 60 / world.minute * self.price / 3600

    def end(self, status):
        if self.ended is not None:
            return
        self.ended, self.status = time.monotonic(), status
        standin.kill_marked(self.id)
        shutil.rmtree("/tmp/" + self.name, ignore_errors=True)
        world.log("ended", id=self.id, name=self.name, status=status, usd=self.usd())


class World:
    def __init__(self, options):
        self.key, self.price, self.minute = options.key, options.price, options.minute
        self.folder = options.folder
        self.faults = dict(f.split("=") for f in options.fault)
        self.faults = {k: float(v) for k, v in self.faults.items()}
        self.random = random.Random(options.seed)
        self.lock = threading.RLock()
        self.machines, self.keys, self.requests = {}, {}, 0
        self.log_file = open(options.log, "a", buffering=1) if options.log else None

    def fault(self, name):
        value = self.faults.get(name, 0)
        return value >= 1 or (value > 0 and self.random.random() < value)

    def log(self, event, **more):
        if self.log_file:
            self.log_file.write(json.dumps({"time": time.time(), "event": event, **more}) + "\n")

    def now(self):
        skewed = datetime.now(timezone.utc) + timedelta(seconds=self.faults.get("skew", 0))
        return skewed.isoformat()

    def alive(self, kind=None, lagging=False):
        lag = self.faults.get("lag", 0) if lagging else 0
        return [m for m in self.machines.values() if m.ended is None and (kind is None or m.kind == kind)
                and time.monotonic() - m.made >= lag]

    def watch(self):
        while True:
            time.sleep(0.05)
            with self.lock:
                for m in self.alive():
                    if m.deadline is not None and time.monotonic() >= m.deadline:
                        m.end("TIMEOUT")


def varint(data, at):
    x = shift = 0
    while True:
        c = data[at]
        at, x, shift = at + 1, x | (c & 0x7F) << shift, shift + 7
        if c < 0x80:
            return x, at


def fields(data):
    at = 0
    while at < len(data):
        key, at = varint(data, at)
        if key & 7 == 0:
            value, at = varint(data, at)
        else:
            assert key & 7 == 2, "only varints and bytes"
            size, at = varint(data, at)
            value, at = data[at:at + size], at + size
        yield key >> 3, value


def encoded(number):
    out = b""
    while number >= 0x80:
        out, number = out + bytes([number & 0x7F | 0x80]), number >> 7
    return out + bytes([number])


def part(field, data):
    return encoded(field << 3 | 2) + encoded(len(data)) + data


def envelope(data, flags=0):
    return bytes([flags]) + len(data).to_bytes(4, "big") + data


class Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 256

    def handle_error(self, *_):
        pass  # a client that was killed resets its connection


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, *_):
        pass

    # Answers. An answer may be lost, garbled or slow.
    def answer(self, code, document, changed=False):
        data = json.dumps(document).encode()
        if changed and world.fault("lost"):
            world.log("lost", path=self.path)
            return self.drop()
        if 200 <= code < 300 and world.fault("garbled"):
            world.log("garbled", path=self.path)
            data = b"<html>502 Bad Gateway</html>" if world.random.random() < 0.5 else data[:len(data) // 2]
        self.send_bytes(code, data, "application/json")

    def send_bytes(self, code, data, kind):
        self.send_response(code)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        if world.fault("slow"):
            step = max(1, len(data) // 8)
            for at in range(0, len(data), step):
                self.wfile.write(data[at:at + step])
                self.wfile.flush()
                time.sleep(0.1)
        else:
            self.wfile.write(data)

    def drop(self):
        self.close_connection = True
        self.connection.shutdown(2)

    def refuse(self, code, detail):
        self.send_bytes(code, json.dumps({"detail": detail}).encode(), "application/json")

    def handle_any(self):
        size = int(self.headers.get("Content-Length") or 0)
        self.body = self.rfile.read(size)
        self.url = urlparse(self.path)
        self.query = parse_qs(self.url.query)
        try:
            self.route()
        except (BrokenPipeError, ConnectionResetError):
            self.close_connection = True

    do_GET = do_POST = do_DELETE = handle_any

    def route(self):
        path = self.url.path
        if path == "/_state":
            with world.lock:
                return self.send_bytes(200, json.dumps(
                    [{"id": m.id, "name": m.name, "kind": m.kind, "alive": m.ended is None, "usd": m.usd(),
                      "body": m.body, "home": m.home, "state": m.state()} for m in world.machines.values()]).encode(), "application/json")
        if path.startswith("/gateway/"):
            return self.gateway(path.split("/"))
        with world.lock:
            world.requests += 1
        if self.headers.get("Authorization") != "Bearer " + world.key:
            return self.refuse(401, "Invalid API key")
        if world.fault("busy"):
            return self.refuse(429, "Too many requests")
        if world.fault("broken"):
            return self.refuse(500, "Internal server error")
        if not path.startswith("/api/v1/"):
            return self.refuse(404, "Not found")
        words = path.removeprefix("/api/v1/").split("/")
        found = getattr(self, f"{self.command.lower()}_{words[0].replace('-', '_')}", None)
        return found(words[1:]) if found else self.refuse(404, "Not found")

    # Offers
    def get_availability(self, _):
        gpu = self.query.get("gpu_type", ["H200_141GB"])[0]
        count = int(self.query.get("gpu_count", ["1"])[0])
        page = int(self.query.get("page", ["1"])[0])
        price = {"H200_141GB": world.price, "H100_80GB": world.price * 0.7, "L4_24GB": world.price * 0.25}.get(gpu)
        items = []
        for n, factor in enumerate((1.0, 1.25)):
            items.append({"cloudId": f"cloud-{n}", "gpuType": gpu, "socket": "SXM5", "provider": f"provider{n}",
                          "dataCenter": f"DC-{n}", "country": "NO", "gpuCount": count, "gpuMemory": 80,
                          "stockStatus": "Available", "isSpot": None, "provisioningTime": None,
                          "prices": {"onDemand": price and price * factor * count, "communityPrice": None,
                                     "isVariable": None, "currency": "USD"}, "images": ["ubuntu_22_cuda_12"]})
        if price is None or count > 8:
            items = []
        self.answer(200, {"items": items[page - 1:page], "totalCount": len(items)})

    # Sandboxes
    def shown(self, m):
        return {"id": m.id, "name": m.name, "dockerImage": m.body.get("docker_image", ""), "status": m.state(),
                "labels": m.body.get("labels", []), "gpuCount": 1, "vm": True, "createdAt": world.now(),
                "timeoutMinutes": m.body.get("timeout_minutes"), "errorMessage": None}

    def post_sandbox(self, words):
        if len(words) == 2 and words[1] == "auth":
            with world.lock:
                m = world.machines.get(words[0])
            if m is None or m.ended is not None:
                return self.refuse(404, "Sandbox not found")
            return self.answer(200, {"gateway_url": f"http://127.0.0.1:{port}/gateway", "user_ns": "ns", "job_id": m.id,
                                     "token": m.token, "expires_at": world.now(), "is_vm": True})
        body = json.loads(self.body)
        if world.fault("poor"):
            return self.refuse(402, "Insufficient balance")
        if not body.get("vm") or not body.get("gpu_type") or not 1 <= body.get("timeout_minutes", 60) <= 1440:
            return self.refuse(422, [{"msg": "gpu_type, vm and timeout_minutes of 1 to 1440 are required"}])
        with world.lock:
            key = body.get("idempotency_key") or uuid.uuid4().hex
            m = world.machines.get(world.keys.get(key, ""))
            if m is None:
                m = Machine("sandbox", body["name"], body, world.price, body.get("timeout_minutes", 60),
                            world.faults.get("unready", 0))
                world.machines[m.id], world.keys[key] = m, m.id
                world.log("created", id=m.id, name=m.name)
        self.answer(201, self.shown(m), changed=True)

    def get_sandbox(self, words):
        if words:
            with world.lock:
                m = world.machines.get(words[0])
            return self.answer(200, self.shown(m)) if m else self.refuse(404, "Sandbox not found")
        with world.lock:
            found = world.alive("sandbox", lagging=True)
        for label in self.query.get("labels", []):
            found = [m for m in found if label in m.body.get("labels", [])]
        page, per = int(self.query.get("page", ["1"])[0]), int(self.query.get("per_page", ["50"])[0])
        self.answer(200, {"sandboxes": [self.shown(m) for m in found[(page - 1) * per:page * per]],
                          "total": len(found), "page": page, "perPage": per, "hasNext": page * per < len(found)})

    def delete_sandbox(self, words):
        with world.lock:
            m = world.machines.get(words[0]) if words else None
            if m is None or m.ended is not None:
                return self.refuse(404, "Not found")
            if m.failed_deletions < world.faults.get("delete_fails", 0):
                m.failed_deletions += 1
                return self.refuse(500, "Could not delete")
            m.end("TERMINATED")
        self.answer(200, {"message": "deleted"}, changed=True)

    delete_pods = delete_sandbox

    # Pods
    def post_pods(self, _):
        body = json.loads(self.body)
        if world.fault("poor"):
            return self.refuse(402, "Insufficient balance")
        with world.lock:
            m = Machine("pod", body["pod"]["name"], body, world.price, 0, world.faults.get("unready", 0))
            world.machines[m.id] = m
            world.log("created", id=m.id, name=m.name)
        price = world.price * world.faults.get("dearer", 1)
        self.answer(200, {"id": m.id, "name": m.name, "status": "PROVISIONING", "priceHr": price}, changed=True)

    def get_pods(self, words):
        if words == ["status"]:
            with world.lock:
                found = [world.machines.get(i) for i in self.query.get("pod_ids", [])]
            return self.answer(200, {"data": [
                {"podId": m.id, "status": m.state(), "sshConnection": "root@" + m.id + " -p 22" if m.state() == "ACTIVE" else [None],
                 "priceHr": world.price, "installationProgress": 100} for m in found if m and m.ended is None]})
        if words == ["history"]:
            return self.answer(200, {"data": [{"id": m.id, "totalBilledPrice": m.usd()} for m in world.machines.values()
                                              if m.kind == "pod" and m.ended is not None]})
        with world.lock:
            found = world.alive("pod", lagging=True)
        offset, limit = int(self.query.get("offset", ["0"])[0]), int(self.query.get("limit", ["100"])[0])
        self.answer(200, {"data": [{"id": m.id, "name": m.name, "status": m.state(), "priceHr": world.price}
                                   for m in found[offset:offset + limit]], "total_count": len(found)})

    def get_billing(self, _):
        with world.lock:
            rows = [{"id": "b" + m.id, "amount_usd": m.usd(), "resource_type": "sandbox", "resource_id": m.id}
                    for m in world.machines.values() if m.kind == "sandbox" and m.ended is not None]
        self.answer(200, {"wallet_id": "w", "balance_usd": 100, "currency": "USD", "recent_billings": rows[-100:]})

    # What happens inside
    def gateway(self, words):
        with world.lock:
            m = world.machines.get(words[3]) if len(words) > 4 else None
        if m is None or m.ended is not None:
            return self.send_bytes(502, b'{"error": "sandbox_not_found"}', "application/json")
        if self.headers.get("Authorization") != "Bearer " + m.token:
            return self.refuse(401, "expired")
        packs = b"-czf files.tar.gz" in self.body and m.failed_packs < world.faults.get("pack_fails", 0)
        m.failed_packs += packs
        if packs or world.fault("broken"):
            return self.refuse(503, "try again")
        if words[4] == "upload":
            return self.upload()
        return self.execute(m)

    def upload(self):
        boundary = self.headers["Content-Type"].split("boundary=")[1].encode()
        _, _, rest = self.body.partition(b"\r\n\r\n")
        data = rest[:rest.rindex(b"\r\n--" + boundary + b"--")]
        with open(self.query["path"][0], "wb") as f:
            f.write(data)
        self.send_bytes(200, json.dumps({"success": True, "size": len(data)}).encode(), "application/json")

    def execute(self, m):
        command, args = "", []
        for number, value in fields(self.body[5:]):
            for inner, text in fields(value) if number == 1 else ():
                if inner == 1:
                    command = text.decode()
                elif inner == 2:
                    args.append(text.decode())
        limit = int(self.headers.get("Connect-Timeout-Ms", "60000")) / 1000
        keep = {k: v for k, v in os.environ.items() if k in ("PATH", "LD_LIBRARY_PATH", "LANG")}
        run = subprocess.Popen([command, *args], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                               stderr=subprocess.PIPE, cwd=m.home, start_new_session=True,
                               env={**keep, "HOME": m.home, "FAKE_PRIME_MACHINE": m.id})
        try:
            out, err = run.communicate(timeout=limit)
        except subprocess.TimeoutExpired:
            os.killpg(run.pid, signal.SIGKILL)
            run.communicate()
            error = json.dumps({"error": {"code": "deadline_exceeded", "message": "too slow"}}).encode()
            return self.send_bytes(200, envelope(error, 2), "application/connect+proto")
        stream = envelope(part(1, part(1, b"\x08" + encoded(run.pid))))
        for field, data in ((1, out), (2, err)):
            for at in range(0, len(data), 1 << 16):
                stream += envelope(part(1, part(2, part(field, data[at:at + (1 << 16)]))))
        stream += envelope(part(1, part(4, b"")))  # a message that keeps the connection alive
        code = run.returncode if run.returncode >= 0 else 128 - run.returncode
        stream += envelope(part(1, part(3, b"\x08" + encoded(code << 1) + b"\x10\x01")))
        self.send_bytes(200, stream + envelope(b"{}", 2), "application/connect+proto")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--port-file", required=True)
    parser.add_argument("--folder", required=True)
    parser.add_argument("--key", default="planted")
    parser.add_argument("--log")
    parser.add_argument("--fault", action="append", default=[])
    parser.add_argument("--price", type=float, default=3.6)
    parser.add_argument("--minute", type=float, default=60, help="seconds that a minute takes")
    parser.add_argument("--seed", type=int, default=1)
    world = World(parser.parse_args())
    server = Server(("127.0.0.1", 0), Handler)
    port = server.server_address[1]
    options = parser.parse_args()
    with open(options.port_file + ".new", "w") as f:
        f.write(str(port))
    os.rename(options.port_file + ".new", options.port_file)
    threading.Thread(target=world.watch, daemon=True).start()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    try:
        server.serve_forever(poll_interval=0.05)
    finally:
        for machine in list(world.machines.values()):
            machine.end("TERMINATED")
