# SPDX-License-Identifier: Apache-2.0
"""The command of a wheel: attune._command starts attune/bin/attune, or says why it cannot."""

from __future__ import annotations

import contextlib
import io
import os
import pathlib
import subprocess
import sys
import tempfile
import unittest

from attune import _command


class Command(unittest.TestCase):
    def test_without_the_program_there_is_a_sentence(self):
        with contextlib.redirect_stderr(io.StringIO()) as said:
            self.assertEqual(_command.main(), 3)
        self.assertRegex(said.getvalue(), r"^attune: /.*/bin/attune cannot be started: No such file or directory; the "
                                          r"command is in wheels of scripts/wheels.py, .*\n$")

    def test_the_program_gets_the_words_and_its_code_is_the_answer(self):
        with tempfile.TemporaryDirectory() as folder:
            package = pathlib.Path(folder) / "attune"
            (package / "bin").mkdir(parents=True)
            (package / "_command.py").write_text(pathlib.Path(_command.__file__).read_text())
            program = package / "bin" / "attune"
            program.write_text('#!/bin/sh\necho "$0" "$@"\nexit 4\n')
            program.chmod(0o755)
            done = subprocess.run([sys.executable, package / "_command.py", "bench", "a b", "--json"], text=True,
                                  capture_output=True, env={**os.environ, "PYTHONPATH": ""})
            self.assertEqual((done.returncode, done.stdout), (4, f"{program.resolve()} bench a b --json\n"))


if __name__ == "__main__":
    unittest.main()
