#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""`attune remote` on a real Slurm of one node.

    slurm_test.py [Rows | Shares | Ring | Ends | Login]"""
import os
import subprocess
import sys
import unittest

import lab
from lab import LONG, SMALL, comes


class Rows(lab.Lab):
    part = "slurm"

    def test_a_suite_returns_the_rows_of_a_local_run(self):
        bench = ["bench", *SMALL, "--backend", "all", "--max-seconds", "0.1"]
        self.remote("run", "--on", "slurm:debug", "--max-minutes", "5", "--", *bench)
        there, = self.rows()
        self.assert_same_rows(there, self.local(*bench))
        self.nothing_is_left()

    def test_every_reason_is_one_sentence_before_anything_is_taken(self):
        self.refuses("slurm:none: 'none' is not a partition; accepted are debug", "--on", "slurm:none")
        self.refuses("slurm:debug: has no GPU 'h100'; it has gpu:fake:2", "--on", "slurm:debug", "--gpu", "h100")


class Shares(lab.Lab):
    part = "slurm"

    def test_a_suite_is_divided_over_jobs_and_becomes_one_page_and_one_tuned_file(self):
        bench = ["bench", *SMALL, *LONG[:3], "--backend", "all", "--max-seconds", "0.1"]
        out = self.state / "out"
        done = self.remote("run", "--on", "slurm:debug", "--shares", "2", "--max-minutes", "5", "--out", str(out), "--",
                           *bench)
        odd, even = self.rows()
        whole = self.local(*bench)
        problems = list(dict.fromkeys(r["problem"] for r in whole))
        self.assertEqual([r["problem"] for r in odd if r["problem"] not in problems[::2]], [])
        self.assert_same_rows(odd, [r for r in whole if r["problem"] in problems[::2]])
        self.assert_same_rows(even, [r for r in whole if r["problem"] in problems[1::2]])
        self.assertEqual(len({line["id"] for line in self.journal() if line["event"] == "acquired"}), 2, "two jobs")
        self.assertEqual(done.stdout.count("tuned    "), 1, done.stdout)
        page = (out / "report.html").read_text()
        for problem in problems:
            self.assertIn(problem, page)
        self.assertTrue((out / "0-slurm-debug-1-2/tuned.tsv").exists())
        self.nothing_is_left()

    def test_only_rows_can_be_divided(self):
        for words, sentence in ((["parity"], "--shares: accepted with bench only"),
                                (["bench", SMALL[0], "--share", "1/2"], "--share: not accepted behind --")):
            done = self.remote("run", "--on", "slurm:debug", "--shares", "2", "--", *words, code=2)
            self.assertIn(sentence, done.stderr)


class Ring(lab.Lab):
    part = "slurm"

    def test_srun_starts_a_ring_of_four_ranks(self):
        if not os.path.exists(os.path.join(os.path.dirname(lab.ATTUNE), "libattune_mpi.so")):
            raise unittest.SkipTest("this build has no plug-in for MPI")
        known = subprocess.run(["srun", "--mpi=list"], capture_output=True, text=True, env=self.environment())
        if "pmix" not in known.stdout + known.stderr:
            raise unittest.SkipTest("this Slurm has no PMIx, which Open MPI needs")
        done = self.remote("run", "--on", "slurm:debug", "--ranks", "4", "--max-minutes", "5", "--", "parity", "--ring",
                           "--case", "forward f32 b1 h4 q64 k64 d16 causal")
        self.assertRegex(done.stdout, r"\b4 +\d+")
        self.assertIn("4 passed, 0 failed", done.stdout)
        self.nothing_is_left()


class Ends(lab.Lab):
    part = "slurm"

    def test_a_job_that_is_cancelled_is_a_sentence_and_keeps_its_rows(self):
        client = self.begin("run", "--on", "slurm:debug", "--max-minutes", "5", "--", "bench", *LONG,
                            "--max-seconds", "1")
        self.assertTrue(comes(lambda: "row" in self.events()), self.logs())
        subprocess.run(["scancel", "--user", "root"], env=self.environment(), check=True)
        out, _ = client.communicate(timeout=240)
        self.assertEqual(client.returncode, 3, out)
        self.assertIn("the lease has ended", out)
        self.assertGreater(len(self.rows()[0]), 0)
        self.nothing_is_left()

    def test_a_killed_worker_leaves_no_job(self):
        client = self.begin("run", "--on", "slurm:debug", "--max-minutes", "5", "--", "bench", *LONG,
                            "--max-seconds", "1")
        self.assertTrue(comes(lambda: "acquired" in self.events()), self.logs())
        self.kill("worker-0")
        client.communicate(timeout=240)
        self.nothing_is_left()


class Login(lab.Lab):
    """The cluster of a login node behind ssh."""
    part = "both"

    def test_a_suite_returns_the_rows_of_a_local_run(self):
        bench = ["bench", *SMALL, "--backend", "all", "--max-seconds", "0.1"]
        self.remote("run", "--on", "login", "--max-minutes", "5", "--", *bench)
        there, = self.rows()
        self.assert_same_rows(there, self.local(*bench))
        self.assertTrue(list((self.daemons / "one/cache/attune/installed").iterdir()), "it went through the login node")
        self.nothing_is_left()

    def test_every_reason_is_one_sentence_before_anything_is_taken(self):
        self.config.write_text(self.config.read_text().replace("slurm:debug@ssh:one", "slurm:none@ssh:one"))
        self.refuses("login: 'none' is not a partition; accepted are debug", "--on", "login")
        self.config.write_text(self.config.read_text().replace("slurm:none@ssh:one", "slurm:debug@ssh:stranger"))
        self.refuses("login: the login is refused", "--on", "login")

    def test_a_killed_worker_leaves_no_job(self):
        client = self.begin("run", "--on", "login", "--max-minutes", "5", "--", "bench", *LONG, "--max-seconds", "1")
        self.assertTrue(comes(lambda: "acquired" in self.events()), self.logs())
        self.kill("worker-0")
        client.communicate(timeout=240)
        self.nothing_is_left()


if __name__ == "__main__":
    sys.exit(lab.main(sys.argv[1:]))
