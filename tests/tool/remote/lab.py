# SPDX-License-Identifier: Apache-2.0
"""What the tests of `attune remote` share: hosts behind a real sshd on loopback, a real Slurm, and a command whose
folders are all temporary. lab.sh starts the daemons and says where it cannot."""
import json
import os
import pathlib
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import unittest

HERE = pathlib.Path(__file__).resolve().parent
ATTUNE = os.environ.get("ATTUNE_COMMAND", str(HERE.parents[2] / "build/attune"))
SMALL = ["forward f32 b1 h1 q16 k16 d16 full", "forward f32 b1 h1 q32 k32 d16 full"]
# Rows that take long enough to be killed among, whatever the machine.
LONG = [f"forward f32 b1 h2 q{length} k{length} d32 full" for length in range(64, 1024, 64)]


def comes(what, seconds=120):
    """Whether it becomes true. The limit only ends a test that hangs."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if what():
            return True
        time.sleep(0.05)
    return False


class Lab(unittest.TestCase):
    part = "ssh"

    @classmethod
    def setUpClass(cls):
        # Not below /tmp: the daemon of Munge wants folders that only their owner can write.
        base = "/run" if cls.part != "ssh" and os.access("/run", os.W_OK) else None
        cls.folder = pathlib.Path(tempfile.mkdtemp(prefix="lab-", dir=base))
        cls.home = pathlib.Path(tempfile.mkdtemp(prefix="att-"))
        cls.folder.chmod(0o755)
        cls.daemons = cls.folder / "d"
        done = subprocess.run([HERE / "lab.sh", cls.part, cls.daemons], capture_output=True, text=True)
        if done.returncode:
            cls.tearDownClass()
            raise unittest.SkipTest(done.stdout.strip() or done.stderr.strip())

    @classmethod
    def tearDownClass(cls):
        subprocess.run([HERE / "lab.sh", "down", cls.daemons], check=False)
        shutil.rmtree(cls.folder, ignore_errors=True)
        shutil.rmtree(cls.home, ignore_errors=True)

    def setUp(self):
        self.state = pathlib.Path(tempfile.mkdtemp(prefix="s", dir=self.home))
        config = "".join(f'[targets.{name}]\non = "ssh:{name}"\nssh_config = "{self.daemons}/ssh_config"\n'
                         for name in ("one", "two", "stranger", "nowhere"))
        config += f'[targets.login]\non = "slurm:debug@ssh:one"\nssh_config = "{self.daemons}/ssh_config"\n'
        self.config = self.state / "remote.toml"
        self.config.write_text(config)

    def environment(self):
        own = {"XDG_STATE_HOME": self.state / "st", "XDG_CACHE_HOME": self.home / "cache",
               "XDG_CONFIG_HOME": self.state / "config", "ATTUNE_STORE": self.state / "records.db",
               "SLURM_CONF": self.daemons / "slurm.conf"}
        return {**os.environ, **{k: str(v) for k, v in own.items()}}

    def words(self, *words):
        return [ATTUNE, "remote", words[0], "--config", str(self.config), *words[1:]]

    def remote(self, *words, code=0):
        done = subprocess.run(self.words(*words), capture_output=True, text=True, env=self.environment(), timeout=300)
        if code is not None:
            self.assertEqual(done.returncode, code, done.stderr + done.stdout + self.logs())
        return done

    def begin(self, *words):
        return subprocess.Popen(self.words(*words), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                                env=self.environment(), start_new_session=True)

    def logs(self):
        return "".join(f"\n{path}:\n{path.read_text()}" for path in self.run_folders("journal.jsonl"))

    def run_folders(self, name="plan.json"):
        return sorted((self.state / "st/attune/remote").glob(f"*/{name}"))

    def journal(self):
        lines = []
        for path in self.run_folders("journal.jsonl"):
            for line in path.read_text().splitlines():
                try:
                    lines.append(json.loads(line))
                except json.JSONDecodeError:
                    pass  # half a line of a process that was killed
        return lines

    def events(self):
        return [line["event"] for line in self.journal()]

    def count_rows(self):
        """Whole lines of a run that is still being written."""
        return sum(path.read_bytes().count(b"\n") for path in self.run_folders()[-1].parent.glob("*/rows.jsonl"))

    def rows(self, folder=None):
        """Records of the last run, in a list per target."""
        folder = folder or self.run_folders()[-1].parent
        return [[json.loads(line) for line in path.read_text().splitlines()]
                for path in sorted(folder.glob("*/rows.jsonl"))]

    def lease_folders(self):
        caches = [self.home / "cache", self.daemons / "one/cache", self.daemons / "two/cache"]
        return [path for cache in caches for path in cache.glob("attune/remote/attune-*")]

    def processes(self):
        """Of attune: of this test's runs and of their leases."""
        found = []
        for path in pathlib.Path("/proc").glob("[0-9]*"):
            try:
                where = os.readlink(path / "cwd")
                words = (path / "cmdline").read_bytes().decode(errors="replace")
                mine = str(self.state).encode() in (path / "environ").read_bytes()
            except OSError:
                continue
            ours = words.startswith(ATTUNE) and mine and int(path.name) != os.getpid()
            if "attune/remote/attune-" in where and (str(self.home) in where or str(self.folder) in where) or ours:
                found.append((int(path.name), words.replace("\0", " ")))
        return found

    def nothing_is_left(self):
        left = lambda: self.lease_folders() or self.processes() or self.jobs()
        self.assertTrue(comes(lambda: not left()), f"left: {left()}{self.logs()}")
        events = self.events()
        self.assertEqual(events.count("intent"), events.count("verified_gone"), self.logs())

    def jobs(self):
        if self.part == "ssh":
            return []
        done = subprocess.run(["squeue", "-h", "-o", "%i %T"], capture_output=True, text=True, env=self.environment())
        return done.stdout.split("\n")[:-1]

    def owner(self, name):
        """The process that holds a lock of the last run: worker-0 or reaper."""
        try:
            return int((self.run_folders()[-1].parent / f"{name}.lock").read_text())
        except (OSError, ValueError, IndexError):
            return 0

    def kill(self, name):
        process = self.owner(name)
        if process:
            try:
                os.kill(process, signal.SIGKILL)
            except ProcessLookupError:
                pass
        return process

    def kill_all(self, client, *more):
        """Client, reaper and worker at once: none sees the end of another."""
        processes = [client.pid, *map(self.owner, ("reaper", "worker-0", *more))]
        self.assertTrue(all(processes), self.logs())  # 0 would be this process's own group
        for sign in (signal.SIGSTOP, signal.SIGKILL):
            for process in processes:
                os.kill(process, sign)
        client.wait()

    def local(self, *words):
        """The same bench here, without remote."""
        out = self.state / "local.jsonl"
        subprocess.run([ATTUNE, *words, "--out", out], check=True, capture_output=True, env=self.environment())
        return [json.loads(line) for line in out.read_text().splitlines()]

    def assert_same_rows(self, ours, theirs):
        key = lambda r: (r["problem"], r["subject"], r["mode"], r["status"], r["parity"]["verdict"])
        self.assertEqual([key(r) for r in ours], [key(r) for r in theirs])

    def refuses(self, sentence, *words):
        begin = time.monotonic()
        done = self.remote("run", *words, "--", "bench", SMALL[0], code=3)
        self.assertLess(time.monotonic() - begin, 60, "20 s, on a machine that is busy with other tests")
        self.assertRegex(done.stderr, rf"\Aattune remote .*{sentence}.*\n\Z")
        self.assertEqual(self.events(), [], "nothing was asked for")


def main(names):
    """Runs the tests, those of the classes that are named. 77: all of them skipped themselves."""
    suite = unittest.defaultTestLoader.loadTestsFromModule(sys.modules["__main__"])
    if names:
        suite = unittest.TestSuite(unittest.defaultTestLoader.loadTestsFromTestCase(getattr(sys.modules["__main__"], n))
                                   for n in names)
    seed = int(os.environ.get("ATTUNE_SEED", random.randrange(10**6)))
    random.seed(seed)
    done = unittest.TextTestRunner(verbosity=2).run(suite)
    if not done.wasSuccessful():
        print(f"ATTUNE_SEED={seed} repeats it", file=sys.stderr)
        return 1
    for _, why in done.skipped:
        print(f"left out: {why}")
    return 77 if done.skipped and not done.testsRun else 0
