# SPDX-License-Identifier: Apache-2.0
"""What tests of `attune remote` share: a bundle whose command is a short script, and a fake provider as a process."""
import ctypes
import hashlib
import io
import json
import os
import platform
import shutil
import signal
import subprocess
import sys
import tarfile
import time
import urllib.request

HERE = os.path.dirname(os.path.abspath(__file__))
LINE = "forward bf16 b1 h8 q64 k64 d64 full"
# Writes rows one by one, here and into a file that outlives the machine; SIGINT ends it after the row in flight.
COMMAND = """#!/bin/sh
out=; truth=
while [ $# -gt 0 ]; do
  case $1 in --out) out=$2; shift ;; --seed) count=$2; shift ;; --python) truth=$2; shift ;; esac
  shift
done
trap 'stop=1' INT
n=0
while [ $n -lt "${count:-20}" ] && [ -z "$stop" ]; do
  n=$((n + 1))
  row="{\\"row\\":$n,\\"pad\\":\\"0123456789012345678901234567890123456789\\"}"
  echo "$row" >>"$out"; echo "$row" >>"$truth"
  sleep 0.1
done
echo "made $n rows"
[ -z "$stop" ]
"""


def write_bundle(path, command=COMMAND, **other):
    facts = {"attune_bundle": 1, "hash": hashlib.sha256(command.encode()).hexdigest()[:16],
             "architecture": platform.machine(), "glibc_minor": 1, "gpus": "sm_75, sm_80, sm_90 and PTX of sm_90"}
    facts |= other
    with tarfile.open(path, "w:gz") as tar:
        for name, text, mode in (("bundle.json", json.dumps(facts), 0o644), ("bin/attune", command, 0o755)):
            entry = tarfile.TarInfo(name)
            entry.size, entry.mode = len(text), mode
            tar.addfile(entry, io.BytesIO(text.encode()))


def kill_marked(machine):
    """Ends every process of a machine: its mark is in their environment."""
    mark = ("FAKE_PRIME_MACHINE=" + machine).encode()
    for _ in range(3):  # a process may start another while it is killed
        for pid in filter(str.isdigit, os.listdir("/proc")):
            try:
                with open(f"/proc/{pid}/environ", "rb") as f:
                    if mark in f.read().split(b"\0"):
                        os.kill(int(pid), signal.SIGKILL)
            except OSError:
                pass


def write_programs(folder, gpu="NVIDIA H200"):
    os.makedirs(folder, exist_ok=True)
    path = os.path.join(folder, "nvidia-smi")
    with open(path, "w") as f:
        f.write(f"#!/bin/sh\necho '{gpu}'\n")
    os.chmod(path, 0o755)


def write_clients(folder):
    """`ssh` and `sky` on PATH, and `modal` for Python."""
    os.makedirs(os.path.join(folder, "modal"))
    source = os.path.join(HERE, "standin_cloud.py")
    os.symlink(source, os.path.join(folder, "modal", "__init__.py"))
    for program in ("ssh", "sky"):
        with open(source) as f, open(os.path.join(folder, program), "w") as to:
            to.write(f"#!{sys.executable}\n" + f.read())
        os.chmod(os.path.join(folder, program), 0o755)


class FakePrime:
    def __init__(self, folder, key="planted", faults=(), **options):
        os.makedirs(folder, exist_ok=True)
        write_programs(os.path.join(folder, "bin"))
        self.key = key
        write_clients(os.path.join(folder, "client"))
        self.port_file, self.log = os.path.join(folder, "port"), os.path.join(folder, "log")
        words = [sys.executable, os.path.join(HERE, "fake_prime.py"), "--port-file", self.port_file, "--folder", folder,
                 "--key", key, "--log", self.log]
        for fault in faults:
            words += ["--fault", fault]
        for name, value in options.items():
            words += ["--" + name, str(value)]
        path = os.path.join(folder, "bin") + ":" + os.environ["PATH"]
        self.process = subprocess.Popen(words, env={**os.environ, "PATH": path})
        for _ in range(600):
            if os.path.exists(self.port_file) or self.process.poll() is not None:
                break
            time.sleep(0.05)
        with open(self.port_file) as f:
            self.url = "http://127.0.0.1:" + f.read()

    def environment(self):
        """What a client of this provider finds: the key, the address, and programs on PATH."""
        return {"PATH": os.path.join(os.path.dirname(self.log), "client") + ":" + os.environ["PATH"],
                "PRIME_API_KEY": self.key, "PRIME_API_BASE_URL": self.url, "FAKE_CLOUD_URL": self.url,
                "FAKE_CLOUD_KEY": self.key}

    def machines(self):
        with urllib.request.urlopen(self.url + "/_state", timeout=30) as answer:
            return json.load(answer)

    def rent(self, kind, name):
        """A machine that somebody else asks for."""
        body = {"sandbox": {"name": name, "vm": True, "gpu_type": "H200_141GB", "labels": ["attune", name]},
                "pods": {"pod": {"name": name}}}[kind]
        request = urllib.request.Request(f"{self.url}/api/v1/{kind}", method="POST", data=json.dumps(body).encode(),
                                         headers={"Authorization": "Bearer " + self.key})
        with urllib.request.urlopen(request, timeout=30) as answer:
            return json.load(answer)["id"]

    def events(self):
        if not os.path.exists(self.log):
            return []
        with open(self.log) as f:
            return [json.loads(line) for line in f]

    def close(self):
        self.process.terminate()
        self.process.wait()


class FakeClient(FakePrime):
    """The same machines and faults behind the client of another provider."""
    def __init__(self, folder, provider, key="planted", faults=(), **options):
        super().__init__(folder, key, faults, **options)
        self.provider = provider
        if provider == "modal":  # without `sky` and `ssh`
            for program in ("ssh", "sky"):
                os.remove(os.path.join(folder, "client", program))

    def environment(self):
        base = super().environment()
        for name in ("PRIME_API_KEY", "PRIME_API_BASE_URL"):
            del base[name]
        if self.provider == "modal":
            base |= {"PYTHONPATH": os.path.join(os.path.dirname(self.log), "client"), "MODAL_TOKEN_ID": "ak-1",
                     "MODAL_TOKEN_SECRET": self.key}
        return base


class MockModal:
    """Modal's own client against Modal's own mock server."""
    def __init__(self, folder, key="planted", faults=(), **options):
        os.makedirs(folder, exist_ok=True)
        programs, home = os.path.join(folder, "bin"), os.path.join(folder, "machines")
        write_programs(programs, "NVIDIA L4")
        os.makedirs(home)
        self.key, port_file = key, os.path.join(folder, "port")
        read, write = os.pipe()  # the key is in no file and no process list
        os.write(write, key.encode())
        os.close(write)
        words = [python_of_modal(), os.path.join(HERE, "mock_modal.py"), "--tests", os.environ["ATTUNE_MODAL_TESTS"],
                 "--port-file", port_file, "--secret-file", f"/dev/fd/{read}", "--folder", home, "--bin", programs]
        for fault in faults:
            words += ["--fault", fault]
        for name, value in options.items():
            words += ["--" + name, str(value)]
        keep = {k: v for k, v in os.environ.items() if k in ("PATH", "LD_LIBRARY_PATH", "LANG")}
        with open(os.path.join(folder, "log"), "w") as log:
            self.process = subprocess.Popen(words, pass_fds=[read], stderr=log, cwd=folder, env=keep | {"HOME": folder})
        os.close(read)
        while not os.path.exists(port_file) and self.process.poll() is None:
            time.sleep(0.05)
        with open(port_file) as f:
            self.port, self.state_port = f.read().split()

    def environment(self):
        return {"PATH": os.environ["PATH"], "MODAL_SERVER_URL": "http://127.0.0.1:" + self.port,
                "MODAL_TOKEN_ID": "ak-1", "MODAL_TOKEN_SECRET": self.key}

    def machines(self):
        with urllib.request.urlopen(f"http://127.0.0.1:{self.state_port}/", timeout=60) as answer:
            return json.load(answer)

    def close(self):
        self.process.terminate()
        self.process.wait()


def python_of_modal():
    """The Python of the program `modal`."""
    with open(shutil.which("modal")) as f:
        return f.readline()[2:].strip()


def without_mock_modal():
    """Why Modal's mock server cannot be started here; "" if it can."""
    tests = os.environ.get("ATTUNE_MODAL_TESTS", "")
    if not shutil.which("modal"):
        return "Modal's client is not here (pip install modal)"
    if not os.path.exists(os.path.join(tests, "conftest.py")):
        return "Modal's mock server is not here: ATTUNE_MODAL_TESTS names the folder py/test of its repository"
    tried = subprocess.run([python_of_modal(), os.path.join(HERE, "mock_modal.py"), "--tests", tests, "--try"],
                           capture_output=True, text=True)
    return tried.stderr.strip().splitlines()[-1] if tried.returncode else ""


def without_libcurl():
    """Why providers cannot be asked here; "" if they can."""
    try:
        ctypes.CDLL("libcurl.so.4")
    except OSError:
        return "libcurl.so.4 is not here (the package libcurl4)"
    return ""
