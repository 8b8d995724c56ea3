#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The step of examples/remote_workflow.yml that proposes a tuned file: in a repository of its own, with a stand-in of
`gh`."""
import os
import pathlib
import shutil
import subprocess
import tempfile
import textwrap
import unittest

WORKFLOW = pathlib.Path(__file__).resolve().parents[3] / "examples/remote_workflow.yml"


def script_of(step):
    """The lines of `run: |` of this step."""
    lines = iter(WORKFLOW.read_text().splitlines())
    while next(lines).strip() != f"- name: {step}":
        pass
    while not (line := next(lines)).strip().startswith("run: |"):
        pass
    indent, body = len(line) - len(line.lstrip()), []
    for line in lines:
        if line.strip() and len(line) - len(line.lstrip()) <= indent:
            break
        body.append(line)
    return textwrap.dedent("\n".join(body))


class Propose(unittest.TestCase):
    def setUp(self):
        self.folder = pathlib.Path(tempfile.mkdtemp(prefix="attune_workflow_"))
        self.addCleanup(shutil.rmtree, self.folder, ignore_errors=True)
        self.work, programs = self.folder / "work", self.folder / "bin"
        programs.mkdir()
        (programs / "gh").write_text(f'#!/bin/sh\necho "$*" >>{self.folder}/proposed\n')
        (programs / "gh").chmod(0o755)
        self.environment = {"PATH": f"{programs}:{os.environ['PATH']}", "HOME": str(self.folder), "GITHUB_RUN_ID": "7",
                            "GIT_CONFIG_NOSYSTEM": "1"}
        self.git("init", "-q", "--bare", str(self.folder / "origin"), where=self.folder)
        self.git("clone", "-q", str(self.folder / "origin"), str(self.work), where=self.folder)
        (self.work / "file").write_text("x\n")
        self.commit("first")

    def git(self, *words, where=None):
        done = subprocess.run(["git", *words], cwd=where or self.work, env=self.environment, capture_output=True,
                              text=True)
        self.assertEqual(done.returncode, 0, done.stderr)
        return done.stdout

    def commit(self, what):
        self.git("add", ".")
        self.git("-c", "user.name=a", "-c", "user.email=a@localhost", "commit", "-q", "-m", what)
        self.git("push", "-q", "origin", "HEAD")

    def propose(self, tuned):
        results = self.work / "results/0-box"
        results.mkdir(parents=True, exist_ok=True)
        (results / "tuned.tsv").write_text(tuned)
        done = subprocess.run(["bash", "-eo", "pipefail", "-c", script_of("Propose")], cwd=self.work,
                              env=self.environment, capture_output=True, text=True)
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        return (self.folder / "proposed").exists()

    def test_the_first_tuned_file_is_proposed(self):
        self.assertTrue(self.propose("a\n"))
        self.assertEqual(self.git("show", "origin/tune-7:.attune/tuned.tsv"), "a\n")
        self.assertNotIn("results", self.git("ls-tree", "-r", "--name-only", "origin/tune-7"))

    def test_a_changed_file_is_proposed_and_the_same_one_is_not(self):
        (self.work / ".attune").mkdir()
        (self.work / ".attune/tuned.tsv").write_text("a\n")
        self.commit("tuned")
        self.assertFalse(self.propose("a\n"))
        self.assertTrue(self.propose("b\n"))
        self.assertEqual(self.git("show", "origin/tune-7:.attune/tuned.tsv"), "b\n")


if __name__ == "__main__":
    unittest.main(verbosity=2)
