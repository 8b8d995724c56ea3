#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""`attune remote` on hosts behind a real sshd on loopback.

    hosts_test.py [Rows | Fleet | Refusals | Ends | Reaped | Killed]"""
import json
import os
import pathlib
import random
import shutil
import signal
import subprocess
import sys
import time

import lab
from lab import LONG, SMALL, comes


class Rows(lab.Lab):
    def test_a_suite_returns_the_rows_of_a_local_run(self):
        bench = ["bench", *SMALL, "--backend", "all", "--max-seconds", "0.1"]
        done = self.remote("run", "--on", "one", "--out", str(self.state / "out"), "--", *bench)
        there, = self.rows()
        self.assert_same_rows(there, self.local(*bench))
        self.assertIn("1 run", subprocess.run([lab.ATTUNE, "store"], capture_output=True, text=True,
                                              env=self.environment()).stdout, "the rows are in the store")
        # The copy is the file as it was written: its seals hold.
        out = self.state / "out/0-one/rows.jsonl"
        verify = subprocess.run([lab.ATTUNE, "verify", out], capture_output=True, text=True, env=self.environment())
        self.assertNotIn("seal", verify.stdout + verify.stderr)
        self.assertIn("results", done.stdout)
        self.nothing_is_left()

    def test_any_command_comes_back_with_its_output_its_files_and_its_exit_code(self):
        records = self.state / "some.jsonl"
        self.local("bench", SMALL[0], "--max-seconds", "0.1")
        (self.state / "local.jsonl").rename(records)
        done = self.remote("run", "--on", "one", "--send", str(records), "--", "report", "some.jsonl", "--csv",
                           "rows.csv")
        folder = self.run_folders()[-1].parent / "0-one"
        self.assertIn(SMALL[0], (folder / "files/rows.csv").read_text())
        self.assertFalse(list(folder.glob("files.tar.gz")))
        done = self.remote("run", "--on", "one", "--", "plan", SMALL[0], "--backend", "cpu_backward", code=1)
        self.assertIn("cpu_backward", (self.run_folders()[-1].parent / "0-one/err").read_text() + done.stdout)
        self.nothing_is_left()

    def test_a_command_that_fails_says_why(self):
        done = self.remote("run", "--on", "local", "--max-minutes", "2", "--", "plan",
                           "forward f32 b1 h1 q8 k8 d16 ful", code=2)
        self.assertIn("\nlocal: attune plan: problem line: 'ful' is not a word of a problem line", done.stderr)
        self.nothing_is_left()

    def test_a_run_that_was_left_is_listed_followed_and_its_journal_printed(self):
        first = self.remote("run", "--on", "one", "--detach", "--", "bench", SMALL[0], "--max-seconds", "0.1").stdout
        run = self.run_folders()[-1].parent.name
        self.assertEqual(first, f"run {run}\n")
        self.assertIn("released; nothing is left", self.remote("attach").stderr)
        self.assertRegex(self.remote("list").stdout, rf"{run} +one +ended with 0 +1 +bench forward")
        logs = self.remote("logs", run).stdout
        for part in ("intent", "acquired", "pushed", "started", "ended", "verified_gone", "one, stdout:"):
            self.assertIn(part, logs)
        # A failure is the exit code of whoever follows it.
        self.remote("run", "--on", "one", "--detach", "--", "plan", SMALL[0], "--backend", "cpu_backward")
        self.remote("attach", code=1)
        self.assertIn("'none' is not a run", self.remote("logs", "none", code=3).stderr)
        self.nothing_is_left()

    def test_a_lost_connection_costs_no_row(self):
        client = self.begin("run", "--on", "one", "--", "bench", *LONG[:6], "--max-seconds", "0.3")
        self.assertTrue(comes(lambda: "started" in self.events()), self.logs())
        cut = 0
        while client.poll() is None:
            time.sleep(random.uniform(0.3, 0.8))
            master = f"{self.state}/st/attune/remote/"
            for path in pathlib.Path("/proc").glob("[0-9]*"):
                try:
                    words = (path / "cmdline").read_bytes().decode()
                except OSError:
                    continue
                if words.startswith("ssh") and master in words and cut < 8:
                    cut += 1
                    try:
                        os.kill(int(path.name), signal.SIGKILL)
                    except ProcessLookupError:
                        pass
        self.assertEqual(client.returncode, 0, client.stdout.read() + self.logs())
        self.assertGreater(cut, 0)
        there, = self.rows()
        self.assertEqual(len({r["problem"] for r in there}), 6)
        self.nothing_is_left()


class Fleet(lab.Lab):
    def test_one_command_makes_a_page_with_two_devices_and_a_tuned_file_for_each(self):
        out = self.state / "out"
        done = self.remote("run", "--on", "one,two", "--out", str(out), "--", "bench", *SMALL, "--backend", "all",
                           "--max-seconds", "0.1")
        page = (out / "report.html").read_text()
        names = {r["provenance"]["cpu"] for rows in self.rows() for r in rows}
        self.assertEqual(len(self.rows()), 2)
        if os.getuid() == 0:  # else both hosts have one CPU's name
            self.assertIn("Second CPU of the lab", names)
            self.assertEqual(len(names), 2)
        for name in names:
            self.assertIn(name, page)
        for target in ("0-one", "1-two"):
            self.assertIn("cpu", (out / target / "tuned.tsv").read_text())
        self.assertEqual(done.stdout.count("tuned    "), 2, done.stdout)
        self.nothing_is_left()


class Refusals(lab.Lab):
    def test_every_reason_is_one_sentence_before_anything_is_taken(self):
        self.refuses("stranger: the login is refused.*Permission denied", "--on", "stranger")
        self.refuses("nowhere: the host cannot be reached.*refused", "--on", "nowhere")
        self.refuses("one: has no GPU 'H100'; it has none", "--on", "one", "--gpu", "H100")
        self.refuses("nobody@no-such-host.invalid: the host cannot be reached", "--on",
                     "ssh:nobody@no-such-host.invalid")

    def test_wrong_words_are_wrong_usage(self):
        for words, sentence in (
                (["--on", "ssh:-oProxyCommand=x", "--", "bench"], "is not a host"),
                (["--on", "box", "--", "bench"], "'box': is not a target"),
                (["--on", "one"], "no command given"),
                (["--", "bench"], "--on: not given"),
                (["--on", "one", "--", "bench", "forward f32"], "run: bench: problem line"),
                (["--on", "one", "--", "bench", "--out", "x"], "--out: not accepted behind --"),
                (["--on", "one", "--", "serve", "x"], "works on this machine only")):
            done = self.remote("run", *words, code=2)
            self.assertIn(sentence, done.stderr)
        self.assertEqual(self.run_folders(), [])


class Ends(lab.Lab):
    def test_an_interrupt_keeps_rows_and_releases(self):
        client = self.begin("run", "--on", "one", "--", "bench", *LONG, "--max-seconds", "1")
        self.assertTrue(comes(lambda: "row" in self.events()), self.logs())
        client.send_signal(signal.SIGINT)
        out, _ = client.communicate(timeout=120)
        self.assertIn(client.returncode, (130, -signal.SIGINT), out)
        self.assertIn("stopping", self.events())
        self.assertGreater(len(self.rows()[0]), 0)
        self.nothing_is_left()
        # Its rows are kept by a run that continues it.
        kept = [r for r in self.rows()[0] if r["status"] == "ok"]
        first = self.run_folders()[-1].parent.name
        client = self.begin("run", "--resume", first)
        self.assertTrue(comes(lambda: len(self.run_folders()) == 2 and self.count_rows() > len(kept)), self.logs())
        client.send_signal(signal.SIGINT)
        client.communicate(timeout=120)
        self.assertEqual(self.rows()[0][:len(kept)], kept)
        self.nothing_is_left()

    def test_the_limit_of_time_ends_the_sweep_cleanly(self):
        done = self.remote("run", "--on", "one", "--max-minutes", "0.25", "--", "bench", *LONG, "--max-seconds", "2",
                           code=4)
        self.assertIn("the limit of time or money is reached", done.stderr)
        self.nothing_is_left()

    def of_lease(self, words, where):
        """The process of the lease whose command line has these words and whose folder ends so."""
        for process, said in self.processes():
            try:
                if words in said and os.readlink(f"/proc/{process}/cwd").endswith(where):
                    return process
            except OSError:
                pass
        return 0

    def is_killed(self, victims, sentence):
        client = self.begin("run", "--on", "one", "--", "bench", *LONG, "--max-seconds", "1")
        self.assertTrue(comes(lambda: "row" in self.events()), self.logs())
        found = [self.of_lease(words, where) for words, where in victims]
        self.assertTrue(all(found), self.processes())  # 0 would be this process's own group
        for process in found:
            os.kill(process, signal.SIGKILL)
        out, _ = client.communicate(timeout=120)
        self.assertEqual(client.returncode, 3, out)
        self.assertEqual(out.count(sentence), 1, out)
        self.assertGreater(len(self.rows()[0]), 0)
        self.nothing_is_left()

    def test_a_command_that_is_killed_is_a_sentence(self):
        # The process `timeout` takes the signal of its child as its own.
        self.is_killed([("bin/attune bench", "/work")], "one: the command was ended by signal 9\n")

    def test_a_command_that_is_killed_with_its_lease_is_another_sentence(self):
        self.is_killed([("keeper.sh", ""), ("bin/attune bench", "/work")], "one: the lease has ended: ")

    def test_a_machine_that_hears_nothing_ends_itself(self):
        client = self.begin("run", "--on", "one", "--silence", "0.2", "--", "bench", *LONG, "--max-seconds", "5")
        self.assertTrue(comes(lambda: "started" in self.events()), self.logs())
        self.kill_all(client)
        self.assertTrue(self.lease_folders())
        self.assertTrue(comes(lambda: not self.lease_folders() and not self.processes()), self.processes())
        done = self.remote("list")  # the next start of remote brings the journal to its end
        self.assertIn("was killed", done.stderr)
        self.nothing_is_left()


class Reaped(lab.Lab):
    def test_a_machine_that_does_not_answer_keeps_no_other_waiting(self):
        away, config = self.state / "away", self.daemons / "ssh_config"
        away.write_text(config.read_text())
        self.config.write_text(self.config.read_text().replace(str(config), str(away), 1))  # of the target one
        client = self.begin("run", "--on", "one,two", "--", "bench", *LONG, "--max-seconds", "5")
        self.assertTrue(comes(lambda: self.events().count("started") == 2), self.logs())
        self.kill_all(client, "worker-1")
        folders = lambda name: list((self.daemons / name).glob("cache/attune/remote/attune-*"))
        self.assertTrue(folders("one") and folders("two"))
        away.write_text("Host *\n  HostName 127.0.0.1\n  Port 1\n")
        self.remote("list")  # starts the reaper
        self.assertTrue(comes(lambda: not folders("two"), 60), self.logs())
        self.assertTrue(folders("one"))
        away.write_text(config.read_text())
        self.nothing_is_left()

    def test_a_worker_that_hangs_is_ended_while_there_is_money_to_release(self):
        self.config.write_text(self.config.read_text().replace("[targets.one]", "[targets.one]\nusd_an_hour = 3.0"))
        client = self.begin("run", "--on", "one", "--max-usd", "5", "--", "bench", *LONG, "--max-seconds", "5")
        self.assertTrue(comes(lambda: "started" in self.events()), self.logs())
        for process in (client.pid, self.owner("worker-0")):
            os.kill(process, signal.SIGSTOP)
        for process in (client.pid, self.owner("reaper")):
            os.kill(process, signal.SIGKILL)
        client.wait()
        plan, = self.run_folders()
        said = json.loads(plan.read_text())
        said["legs"][0]["limits"].update(stop_s=1, kill_s=2, lease_s=6)
        plan.write_text(json.dumps(said))
        self.remote("list")  # starts the reaper, which reads this plan
        self.nothing_is_left()

    def test_what_a_lost_journal_left_is_released_and_what_is_in_use_stays(self):
        client = self.begin("run", "--on", "one", "--", "bench", *LONG, "--max-seconds", "5")
        self.assertTrue(comes(lambda: "started" in self.events()), self.logs())
        self.kill_all(client)
        folder, = self.lease_folders()
        shutil.rmtree(self.state / "st")
        for _ in range(2):  # to ask is not to use
            done = self.remote("reap", "--on", "one")
            self.assertIn(f"one: {folder.name} is in use by another machine", done.stderr)
        os.utime(folder / "beat", (time.time() - 200,) * 2)  # the keeper would end it after 600 s
        self.assertEqual(self.remote("reap", "--on", "one").stdout, f"released {folder.name}\n")
        self.assertFalse(self.lease_folders())
        self.assertTrue(comes(lambda: not self.processes()), self.processes())


class Killed(lab.Lab):
    def test_whoever_is_killed_at_any_moment_nothing_is_left(self):
        for attempt in range(int(os.environ.get("ATTUNE_KILLS", 3))):
            victims = random.choice([["client"], ["worker-0"], ["reaper"], ["client", "worker-0"], ["client", "reaper"],
                                     ["worker-0", "reaper"], ["worker-1", "reaper"]])
            with self.subTest(attempt=attempt, victims=victims):
                self.setUp()
                client = self.begin("run", "--on", "one,two", "--", "bench", *LONG[:2], "--max-seconds", "0.2")
                comes(lambda: self.owner("worker-1") and self.owner("reaper"))
                time.sleep(random.uniform(0, 3))
                for victim in victims:
                    if victim == "client":
                        client.kill()
                    else:
                        self.kill(victim)
                client.communicate(timeout=240)
                if victims == ["client", "worker-0"] or "client" in victims:
                    self.assertTrue(comes(lambda: self.events().count("done") >= 2), self.logs())
                self.nothing_is_left()
                for rows in self.rows():  # every line is whole, in the order of the run
                    self.assertEqual([r["problem"] for r in rows], LONG[:len(rows)])


if __name__ == "__main__":
    sys.exit(lab.main(sys.argv[1:]))
