#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Kills the processes of `attune remote run` at random moments, against a provider with faults.

Usage: kill_test.py ATTUNE [--runs N] [--seed N] [--provider prime|modal|modal-mock|sky]. After every run: no machine is
left, none was created twice, none cost more than the cap, every finished row is here, and the planted key is nowhere.
"""
import argparse
import glob
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import standin  # noqa: E402

CAP_USD = 0.9
PATIENCE_S = {"modal-mock": 900}  # not a bar: a broken release must not hang the test
FAULTS = {
    "prime": (["lost=0.15", "busy=0.05", "broken=0.05", "garbled=0.05", "slow=0.05", "delete_fails=2", "skew=7200"],
              ["lost=1", "lag=0.5"], ["never_ready=1"], ["poor=1"], ["unready=1", "delete_fails=2"], []),
    "modal": (["lost=0.2", "broken=0.1", "delete_fails=2"], ["never_ready=1"], ["unready=1"], []),
    # Modal's own client with its own mock server. Each of its calls is a Python that imports it.
    "modal-mock": (["lost=0.2", "broken=0.02", "delete_fails=2"], ["unready=1"], []),
    "sky": (["lost=0.2", "broken=0.1", "delete_fails=2"], ["never_ready=1"], ["unready=1"], []),
}


def held_pid(path):
    """The process that holds a lock, by the file in which it writes its number."""
    try:
        with open(path) as f:
            pid = int(f.read() or 0)
        with open(f"/proc/{pid}/cmdline", "rb") as f:
            return pid if b"attune" in f.read() else 0
    except (OSError, ValueError):
        return 0


class Run:
    def __init__(self, number, options, world):
        self.number, self.options, self.world = number, options, world
        self.random = random.Random(options.seed * 100003 + number)
        self.folder = os.path.join(world.folder, f"run{number}")
        self.state = os.path.join(self.folder, "state", "attune", "remote")
        os.makedirs(self.folder)
        self.truth = os.path.join(self.folder, "truth")
        self.problems = []

    def environment(self):
        base = {k: v for k, v in os.environ.items() if k in ("LD_LIBRARY_PATH", "LANG")}
        base |= {"HOME": self.folder, "XDG_STATE_HOME": self.folder + "/state", "ATTUNE_BACKEND": "",
                 "XDG_CACHE_HOME": self.folder + "/cache", "XDG_CONFIG_HOME": self.folder + "/config"}
        return base | self.world.environment(self.number)

    def words(self, count):
        return [self.options.attune, "remote", "run", "--on", self.world.target, "--max-usd", str(CAP_USD), "--no-store",
                *self.world.more, "--bundle", self.world.bundle, "--silence", "1", "--", "bench", standin.LINE,
                "--seed", str(count), "--python", self.truth]

    def lock_files(self, kind):
        return glob.glob(f"{self.state}/*/{kind}*.lock")

    def go(self):
        open(self.truth, "w").close()
        client = subprocess.Popen(self.words(self.random.randint(5, 40)), env=self.environment(),
                                  stdout=subprocess.DEVNULL, stderr=open(self.folder + "/err", "w"))
        time.sleep(self.random.uniform(0, self.options.most_wait))
        self.world.look_for_key()
        victims = self.random.sample(["client", "worker", "reaper"], self.random.choice([1, 1, 2, 2, 3]))
        for victim in victims:
            pids = [client.pid] if victim == "client" else [held_pid(p) for p in self.lock_files(victim)]
            for pid in filter(None, pids):
                try:
                    os.kill(pid, signal.SIGKILL)
                except ProcessLookupError:
                    pass
            time.sleep(self.random.choice([0, 0, 0.02, 0.3]))
        self.victims = victims
        if "client" in victims:
            client.wait()
        if len(victims) == 3:  # the next start of attune remote finishes the run
            subprocess.run([self.options.attune, "remote", "list"], env=self.environment(), stdout=subprocess.DEVNULL,
                           stderr=subprocess.DEVNULL)
        ready = "never_ready=1" not in FAULTS[self.options.provider][self.number % len(self.world.servers)]
        patience = PATIENCE_S.get(self.options.provider, 180)
        end = time.monotonic() + patience
        while (client.poll() is None or not self.is_over()) and time.monotonic() < end:
            if not ready:  # as Ctrl-C does: it would wait for its time limit
                for plan in glob.glob(self.state + "/*/plan.json"):
                    open(os.path.dirname(plan) + "/stop", "w").close()
            time.sleep(0.2)
        if not self.is_over():
            self.problems.append(f"not over after {patience} s")
        if client.poll() is None:
            self.problems.append(f"the client did not end within {patience} s")
            client.kill()
        self.judge()

    def is_over(self):
        plans = glob.glob(self.state + "/*/plan.json")
        return all(self.is_run_over(os.path.dirname(p)) for p in plans)

    @staticmethod
    def is_run_over(folder):
        events = []
        try:
            with open(folder + "/journal.jsonl") as f:
                for line in f:
                    if line.endswith("\n"):
                        events.append(json.loads(line)["event"])
        except OSError:
            return True  # the plan alone: nothing was taken
        return "done" in events or "intent" not in events and held_pid(folder + "/worker-0.lock") == 0

    def judge(self):
        with open(self.truth) as f:
            finished = f.read().splitlines()
        rows = []
        for path in glob.glob(self.state + "/*/*/rows.jsonl"):
            with open(path) as f:
                rows = f.read().splitlines()
        if rows != finished[:len(rows)] or len(finished) - len(rows) > 1:
            self.problems.append(f"{len(rows)} rows here, {len(finished)} were finished")


class World:
    def __init__(self, options):
        self.options, self.folder = options, tempfile.mkdtemp(prefix="attune_kill_")
        self.key = "planted" + os.urandom(8).hex()
        self.bundle = os.path.join(self.folder, "bundle.tar.gz")
        standin.write_bundle(self.bundle)
        self.target = {"prime": "prime:H200", "modal": "modal:L4", "modal-mock": "modal:L4",
                       "sky": "sky:fake"}[options.provider]
        self.more = ["--gpu", "H100"] if options.provider == "sky" else []
        self.seen_key = set()
        self.servers = self.start()

    def start(self):
        if self.options.provider == "modal-mock":
            return [standin.MockModal(os.path.join(self.folder, f"cloud{n}"), self.key, faults,
                                      seed=self.options.seed + n)
                    for n, faults in enumerate(FAULTS["modal-mock"])]
        if self.options.provider != "prime":
            return [standin.FakeClient(os.path.join(self.folder, f"cloud{n}"), self.options.provider, self.key, faults)
                    for n, faults in enumerate(FAULTS[self.options.provider])]
        return [standin.FakePrime(os.path.join(self.folder, f"cloud{n}"), self.key, faults, seed=self.options.seed + n,
                                  price=1.2)
                for n, faults in enumerate(FAULTS["prime"])]

    def server(self, number):
        return self.servers[number % len(self.servers)]

    def environment(self, number):
        return self.server(number).environment()

    def look_for_key(self):
        for path in glob.glob("/proc/[0-9]*/cmdline"):
            try:
                with open(path, "rb") as f:
                    text = f.read()
            except OSError:
                continue
            if self.key.encode() in text and b"fake_prime.py" not in text:
                self.seen_key.add("a process list: " + text.replace(b"\0", b" ").decode(errors="replace")[:200])

    def judge(self):
        problems = list(self.seen_key)
        for server in self.servers:
            machines = server.machines()
            for m in machines:
                if m["alive"]:
                    problems.append(f"machine {m['name']} is left")
                if m["usd"] > CAP_USD:
                    problems.append(f"machine {m['name']} cost {m['usd']:.3f} USD, over {CAP_USD}")
            names = [m["name"] for m in machines]
            problems += [f"machine {n} was created {names.count(n)} times" for n in set(names) if names.count(n) > 1]
        for folder, _, files in os.walk(self.folder):
            for name in files:
                with open(os.path.join(folder, name), "rb") as f:
                    if self.key.encode() in f.read():
                        problems.append(f"the planted key is in {folder}/{name}")
        return problems


def main():
    if why := standin.without_libcurl():
        print(f"left out: {why}")
        return 77
    parser = argparse.ArgumentParser()
    parser.add_argument("attune")
    parser.add_argument("--runs", type=int, default=6)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--provider", default="prime", choices=sorted(FAULTS))
    parser.add_argument("--at-once", type=int, default=12)
    parser.add_argument("--most-wait", type=float, default=6)
    parser.add_argument("--keep", action="store_true")
    options = parser.parse_args()
    options.attune = os.path.abspath(options.attune)
    if options.provider == "modal-mock" and (why := standin.without_mock_modal()):
        print(f"left out: {why}")
        return 77
    world = World(options)
    runs = [Run(n, options, world) for n in range(options.runs)]
    places = threading.Semaphore(options.at_once)

    def one(run):
        with places:
            try:
                run.go()
            except Exception as error:  # a thread's own failure would pass unseen
                run.problems.append(repr(error))

    threads = [threading.Thread(target=one, args=(r,)) for r in runs]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    problems = [f"run {r.number} ({'+'.join(getattr(r, 'victims', []))} killed): {p}" for r in runs for p in r.problems]
    problems += world.judge()
    made = sum(len(s.machines()) for s in world.servers)
    rows = sum(len(open(r.truth).readlines()) for r in runs if os.path.exists(r.truth))
    for server in world.servers:
        server.close()
    for problem in problems:
        print("FAIL", problem)
    print(f"{options.runs} runs with {options.provider}, {made} machines, {rows} rows, {len(problems)} problems")
    if options.keep or problems:
        print("kept", world.folder)
    else:
        shutil.rmtree(world.folder, ignore_errors=True)
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
