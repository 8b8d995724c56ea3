#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""ci/speed.sh, the steps of the speed gate, on a repository with two commits and a real measurement on the CPU:

    speed_kit_test.py ATTUNE

Base and change have a kernel of their own, a library in C. A change of its comment is not red, work that is done
thirty times is. Where comments and pull requests go, stand-ins for gh and curl note what they are given. It needs git
and a C compiler."""

import os
import pathlib
import shutil
import subprocess
import sys
import tempfile
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[2]
SPEED = ROOT / "ci" / "speed.sh"
OPTIONS = ["--len", "24,32", "--dtype", "f32", "--heads", "2", "--dim", "16", "--threads", "1", "--samples", "20",
           "--warm-up", "2", "--peer", "./libmine.so:attention"]  # so short that other processes seldom interrupt it
STAND_IN = """#!/bin/sh
echo "$(basename "$0") $*" >> "$CALLS"
case "$*" in *--jq*number*) : ;; *--jq*) [ ! -e "$CALLS.old" ] || echo 77 ;; *notes?per_page*) echo '[]' ;; esac
"""


class Kit(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.folder = tempfile.TemporaryDirectory(prefix="attune_speed_")
        cls.top = pathlib.Path(cls.folder.name)
        (cls.top / "bin").mkdir()
        for name in ("gh", "curl"):
            (cls.top / "bin" / name).write_text(STAND_IN)
            (cls.top / "bin" / name).chmod(0o755)
        cls.environment = {k: v for k, v in os.environ.items()
                           if not k.startswith(("ATTUNE_", "XDG_", "GIT_", "GITHUB_", "GITLAB_", "CI"))}
        cls.environment |= {"HOME": str(cls.top), "PATH": f"{cls.top}/bin:{os.environ['PATH']}",
                            "CALLS": str(cls.top / "calls"), "GIT_CONFIG_NOSYSTEM": "1"}
        cls.git(cls.top, "init", "-q", "--bare", "origin.git")
        cls.base = cls.checkout("base", lambda text: text)
        cls.same = cls.checkout("same", lambda text: text.replace("one pass:", "a single pass:"))
        cls.slow = cls.checkout("slow", lambda text: text.replace(
            "      for (int j = 0; j <= last && j < p->len_k; ++j) {",
            "      for (int again = 0; again < 30; ++again) { most = -INFINITY, sum = 0;\n"
            "      for (int d = 0; d < p->dim_v; ++d) to[d] = 0;\n"
            "      for (int j = 0; j <= last && j < p->len_k; ++j) {").replace(
            "      if (sum > 0)", "      }\n      if (sum > 0)"))

    @classmethod
    def tearDownClass(cls):
        cls.folder.cleanup()

    @classmethod
    def git(cls, folder, *words):
        words = ["git", "-C", str(folder), "-c", "user.name=a", "-c", "user.email=a@localhost", *words]
        return subprocess.run(words, check=True, capture_output=True, text=True, env=cls.environment).stdout.strip()

    @classmethod
    def checkout(cls, name, change):
        """A clone whose commit has the example kernel, changed and compiled."""
        folder = cls.top / name
        cls.git(cls.top, "clone", "-q", "origin.git", name)
        text = (ROOT / "examples" / "my_attention.c").read_text()
        changed = change(text)
        assert name == "base" or changed != text, "the example has changed; this test changes it by its words"
        (folder / "mine.c").write_text(changed)
        (folder / "config.yaml").write_text("runtime:\n  own_min_len: 9  # by hand\n")
        (folder / ".gitignore").write_text("*.so\nspeed/\n")
        cls.git(folder, "add", "-A")
        cls.git(folder, "commit", "-q", "-m", name)
        if name == "base":
            cls.git(folder, "push", "-q", "origin", "HEAD:refs/heads/main")
        subprocess.run([COMPILER, "-O1", "-shared", "-fPIC", f"-I{ROOT}/include", "mine.c", "-lm", "-o", "libmine.so"],
                       cwd=folder, check=True)
        return folder

    def speed(self, step, *words, expect=0, **environment):
        done = subprocess.run([str(SPEED), step, *map(str, words)], cwd=self.top, text=True, timeout=300,
                              env={**self.environment, **environment}, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        self.assertEqual(done.returncode, expect, f"speed.sh {step}\n{done.stdout[-3000:]}")
        return done.stdout

    def common(self, after, out):
        return ["--attune", ATTUNE, "--after", after, "--out", self.top / out]

    def calls(self):
        path = self.top / "calls"
        text = path.read_text() if path.exists() else ""
        path.unlink(missing_ok=True)
        return text

    def test_1_a_slow_down_is_red_and_noise_is_not(self):
        decides = ["--subject", "./libmine.so:attention", "--margin", "100"]
        for change, code in ((self.same, 0), (self.slow, 1)):
            with self.subTest(change.name):
                common = self.common(change, change.name + "_out")
                self.speed("measure", *common, "--before", self.base, "--runs", "3", "--", *OPTIONS)
                self.speed("compare", *common, *decides, expect=code)
                text = (self.top / (change.name + "_out") / "comment.md").read_text()
                self.assertTrue(text.startswith("<!-- attune speed -->\n### Speed: "), text)
                self.assertEqual("SLOWER" in text, code == 1, text)
                self.assertIn("in turn on one machine", text)

    def test_2_the_comment_is_written_once_and_then_anew(self):
        out = ["--out", self.top / "slow_out"]
        github = {"GITHUB_ACTIONS": "true", "GITHUB_REPOSITORY": "a/b", "ATTUNE_PULL_REQUEST": "5"}
        self.speed("post", *out, **github)
        self.assertIn("gh api repos/a/b/issues/5/comments -F body=@", self.calls())
        (self.top / "calls.old").write_text("")
        self.speed("post", *out, **github)
        self.assertIn("gh api -X PATCH repos/a/b/issues/comments/77 -F body=@", self.calls())
        (self.top / "calls.old").unlink()
        self.speed("post", *out, GITLAB_CI="true", CI_API_V4_URL="http://x", CI_PROJECT_ID="1",
                   CI_MERGE_REQUEST_IID="2", ATTUNE_GITLAB_TOKEN="secret")
        self.assertIn("--data-urlencode body@", self.calls())
        self.assertIn("### Speed: slower or broken", self.speed("post", *out))

    def test_3_records_a_baseline_and_trends_are_kept_on_one_commit(self):
        common = self.common(self.base, "base_out")
        self.assertIn("No baseline is stored yet", self.nothing_stored(common))
        self.speed("measure", *common, "--runs", "1", "--", *OPTIONS)
        for _ in range(3):
            self.speed("remember", *common, "--keep", "2")
            os.utime(self.top / "base_out" / "after.jsonl")
        self.assertEqual(self.git(self.top / "origin.git", "rev-list", "--count", "attune-records"), "1")
        stored = self.git(self.top / "origin.git", "ls-tree", "-r", "--name-only", "attune-records").split()
        self.assertIn("baseline.jsonl", stored)
        self.assertLessEqual(sum(name.startswith("records/") for name in stored), 2)
        self.speed("trends", *common)
        self.assertIn("Attention over time", (self.top / "base_out" / "site" / "index.html").read_text())
        again = self.common(self.base, "again_out")
        (self.top / "again_out").mkdir()
        shutil.copy(self.top / "base_out" / "after.jsonl", self.top / "again_out" / "after.jsonl")
        self.speed("compare", *again)
        self.assertIn("the stored baseline", (self.top / "again_out" / "comment.md").read_text())
        self.assertEqual(self.git(self.base, "status", "--porcelain"), "")

    def test_6_a_remote_that_cannot_be_read_is_not_a_missing_baseline(self):
        folder = self.top / "alone"
        folder.mkdir()
        self.git(folder, "init", "-q")
        self.git(folder, "remote", "add", "origin", str(self.top / "nowhere.git"))
        common = self.common(folder, "alone_out")
        (self.top / "alone_out").mkdir()
        (self.top / "alone_out" / "after.jsonl").write_text("{}\n")
        self.assertIn("the remote 'origin'", self.speed("compare", *common, expect=3))

    def nothing_stored(self, common):
        (self.top / "base_out").mkdir(exist_ok=True)
        (self.top / "base_out" / "after.jsonl").write_text("{}\n")
        self.speed("compare", *common, "--unclear", "fail", expect=4)
        self.speed("compare", *common)
        return (self.top / "base_out" / "comment.md").read_text()

    def test_4_a_threshold_is_a_branch_and_a_pull_request(self):
        common = self.common(self.slow, "slow_out")
        words = ["--between", "cpu_forward,libmine.so:attention", "--yaml", "config.yaml", "--key",
                 "runtime.own_min_len=all"]
        said = self.speed("threshold", *common, *words, GITHUB_ACTIONS="true")
        self.assertIn("the branch attune-thresholds changes config.yaml", said)
        self.assertIn("gh pr create --head attune-thresholds", self.calls())
        changed = self.git(self.top / "origin.git", "show", "attune-thresholds:config.yaml")
        self.assertIn("# by hand", changed)
        self.assertNotIn("own_min_len: 9", changed)
        self.assertEqual(self.git(self.slow, "status", "--porcelain"), "")

    def test_5_what_is_missing_is_a_sentence(self):
        for words, code, sentence in (
                (["measur"], 2, "is not a step; the steps are measure, compare"),
                (["measure", "--turns", "3"], 2, "options of attune bench come after --"),
                (["measure", "--runs"], 2, "--runs has no value"),
                (["measure", "--runs", "none"], 2, "--runs is 'none', not a number"),
                (["measure", "--attune", "/bin/true"], 2, "no options of attune bench after --"),
                (["measure", "--attune", "build/no", "--", "--len", "64"], 3, "is not a program; build it first"),
                (["compare", "--unclear", "maybe"], 2, "not one of warn, fail"),
                (["compare", "--attune", "/bin/true"], 3, "run the step measure first"),
                (["post"], 3, "run the step compare first"),
                (["threshold"], 2, "needs --between A,B and --yaml FILE")):
            with self.subTest(words=words):
                self.assertIn(sentence, self.speed(*words, expect=code))


if __name__ == "__main__":
    ATTUNE = os.path.abspath(sys.argv[1])
    COMPILER = os.environ.get("CC") or shutil.which("cc")
    if not COMPILER or not shutil.which("git"):
        print("git or a C compiler is not here")
        sys.exit(77)
    unittest.main(argv=[sys.argv[0], *sys.argv[2:]])
