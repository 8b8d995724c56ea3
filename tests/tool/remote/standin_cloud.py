# SPDX-License-Identifier: Apache-2.0
"""Stand-ins for clients of providers: Modal's package, the program `sky`, and `ssh` to their machines.

All talk to fake_prime.py, whose machines are folders of this computer. FAKE_CLOUD_URL is its address. Loaded as the
package `modal`, it has the part of Modal's interface that app.py uses; started as `sky` or `ssh`, it is that program.
"""
import json
import os
import subprocess
import sys
import time
import urllib.error
import urllib.request

URL = os.environ.get("FAKE_CLOUD_URL", "")


class AuthError(Exception):
    pass


class NotFoundError(Exception):
    pass


class AlreadyExistsError(Exception):
    pass


class ConnectionError(Exception):
    pass


class exception:
    NotFoundError, AlreadyExistsError, AuthError = NotFoundError, AlreadyExistsError, AuthError


def call(method, path, body=None, attempts=4):
    """A client repeats what failed, as Modal's and SkyPilot's do; a creation has its name as a key."""
    for attempt in range(attempts):
        request = urllib.request.Request(URL + path, method=method,
                                         data=None if body is None else json.dumps(body).encode(),
                                         headers={"Authorization": "Bearer " + os.environ.get("FAKE_CLOUD_KEY", "")})
        try:
            with urllib.request.urlopen(request, timeout=15) as answer:
                return json.load(answer)
        except urllib.error.HTTPError as error:
            if error.code == 401:
                raise AuthError("Token ID or secret is invalid") from None
            if error.code == 404:
                raise NotFoundError("not found") from None
            if error.code == 402:
                raise ConnectionError("billing: the account has no balance") from None
            last = ConnectionError(f"the server answered {error.code}")
        except (OSError, ValueError) as error:
            last = ConnectionError(f"no connection: {type(error).__name__}")
        time.sleep(0.1 * 2 ** attempt)
    raise last from None


def machines(name=None):
    listed = [m for m in call("GET", "/_state") if m["alive"]]
    return [m for m in listed if name in (None, m["name"], m["id"])]


def start(machine, words, **pipes):
    keep = {k: v for k, v in os.environ.items() if k in ("LD_LIBRARY_PATH", "LANG")}
    path = os.path.join(os.path.dirname(machine["home"]), "bin") + ":" + os.environ["PATH"]
    return subprocess.Popen(words, cwd=machine["home"], start_new_session=True,
                            env={**keep, "PATH": path, "HOME": machine["home"], "FAKE_PRIME_MACHINE": machine["id"]}, **pipes)


# ---- modal
class Image:
    @staticmethod
    def debian_slim():
        return "debian_slim"

    @staticmethod
    def from_registry(name, add_python=None):
        return name


class App:
    app_id = "ap-1"

    @staticmethod
    def lookup(name, create_if_missing=False):
        call("GET", "/api/v1/sandbox?page=1")
        return App()


class Writer:
    def __init__(self, pipe):
        self.pipe = pipe

    def write(self, data):
        self.pipe.write(data)

    def drain(self):
        if not self.pipe.closed:
            self.pipe.flush()

    def write_eof(self):
        self.pipe.close()


class Process:
    def __init__(self, machine, words, timeout):
        self.popen = start(machine, words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        self.stdin, self.stdout, self.stderr = Writer(self.popen.stdin), self.popen.stdout, self.popen.stderr
        self.timeout = timeout

    def wait(self):
        return self.popen.wait(self.timeout)


class Sandbox:
    def __init__(self, machine):
        self.machine, self.object_id = machine, machine["id"]

    @staticmethod
    def create(*words, app, name, image, gpu, timeout, tags, cpu, memory, idle_timeout=None):
        assert words[0] == "sleep" and image and gpu and tags == {"attune": name}, "unexpected arguments"
        minutes = max(1, timeout // 60)
        made = call("POST", "/api/v1/sandbox", {"name": name, "vm": True, "gpu_type": gpu, "timeout_minutes": minutes,
                                                "labels": ["attune", name], "idempotency_key": name})
        return Sandbox(machines(made["id"])[0])

    @staticmethod
    def from_name(app, name):
        found = machines(name)
        if not found:
            raise NotFoundError(name)
        return Sandbox(found[0])

    @staticmethod
    def list(app_id=None, tags=None):
        return [Sandbox(m) for m in machines()]

    def get_tags(self):
        return {"attune": self.machine["name"]}

    def poll(self):
        return None if machines(self.object_id) else 0

    def exec(self, *words, timeout=None, text=True):
        end = time.monotonic() + (timeout or 60)
        while machines(self.object_id) and machines(self.object_id)[0]["state"] == "PROVISIONING":
            if time.monotonic() > end:
                raise ConnectionError("the sandbox has not started")
            time.sleep(0.2)
        return Process(self.machine, list(words), timeout)

    def terminate(self):
        try:
            call("DELETE", "/api/v1/sandbox/" + self.object_id)
        except NotFoundError:
            pass


# ---- sky
GPUS = {"H100": 3.0, "L4": 0.8}


def sky(words):
    verb = words[0]
    if verb == "check":
        call("GET", "/api/v1/sandbox?page=1")
        return {"default": ["Fake", "AWS"]}
    if verb == "gpus":
        gpu, count = words[2].split(":")
        if gpu not in GPUS:
            return {}
        return {gpu: [{"cloud": cloud, "accelerator_name": gpu, "accelerator_count": int(count), "region": region,
                       "price": GPUS[gpu] * factor, "spot_price": GPUS[gpu] * factor / 2}
                      for cloud, region, factor in (("Fake", "near", 0.4), ("AWS", "far", 1.0))]}
    if verb == "launch":
        name = words[words.index("-c") + 1]
        with open(words[-1]) as f:
            task = f.read()
        assert "accelerators:" in task and "infra:" in task and "--down" in words, "unexpected task"
        if not machines(name):
            call("POST", "/api/v1/sandbox", {"name": name, "vm": True, "gpu_type": "x", "timeout_minutes": 1440,
                                             "labels": ["attune", name], "idempotency_key": name})
        return None
    if verb == "status":
        named = [w for w in words[1:] if not w.startswith("-") and w != "json"]
        return [{"name": m["name"], "status": "INIT" if m["state"] == "PROVISIONING" else "UP"}
                for m in machines(named[0] if named else None)]
    if verb == "down":
        for m in machines(words[-1]):
            call("DELETE", "/api/v1/sandbox/" + m["id"])
        return None
    raise SystemExit(f"sky: unknown verb {verb}")


def ssh(words):
    if "-O" in words:  # the end of a shared connection
        return 0
    host, script = words[words.index("--") + 1:][:2]
    found = machines(host.split("@")[-1])
    if not found:
        print(f"ssh: Could not resolve hostname {host}: Name or service not known", file=sys.stderr)
        return 255
    return start(found[0], ["sh", "-c", script]).wait()


if __name__ == "__main__":
    program = os.path.basename(sys.argv[0])
    try:
        if program == "ssh":
            sys.exit(ssh(sys.argv[1:]))
        result = sky(sys.argv[1:])
        if result is not None:
            print(json.dumps(result, indent=2))
    except (AuthError, NotFoundError, ConnectionError) as failed:
        sys.exit(f"{program}: {failed}")
