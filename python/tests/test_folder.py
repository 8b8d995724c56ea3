# SPDX-License-Identifier: Apache-2.0
"""Importing in a folder with untrusted files: none of its libraries is loaded."""

import os
import pathlib
import subprocess
import sys
import tempfile
import unittest

IMPORT = """
import attune
attune.version()
print(*{line.split()[-1] for line in open("/proc/self/maps") if ".so" in line}, sep="\\n")
"""


def imported(folder: str) -> subprocess.CompletedProcess:
    environment = {name: value for name, value in os.environ.items() if name != "LD_LIBRARY_PATH"}
    environment["PYTHONSAFEPATH"] = "1"  # modules of Python itself, such as math, may be files too
    return subprocess.run([sys.executable, "-c", IMPORT], cwd=folder, env=environment, capture_output=True, text=True)


@unittest.skipUnless(os.path.exists("/proc/self/maps"), "/proc is not here")
class Folder(unittest.TestCase):
    def test_no_library_of_the_current_folder_is_loaded(self):
        with tempfile.TemporaryDirectory() as folder:
            clean = imported(folder)
            self.assertEqual(clean.returncode, 0, clean.stderr)
            names = {pathlib.Path(path).name for path in clean.stdout.split()}
            self.assertTrue(any(name.startswith("libattune.so") for name in names), names)
            # Every library of the process, under its file name and its soname. Loading one would fail the import: they
            # are not libraries.
            for name in names | {"libattune.so.0", "libgcc_s.so.1", "libstdc++.so.6", "libm.so.6"}:
                pathlib.Path(folder, name).write_text("not a library")
            full = imported(folder)
            self.assertEqual(full.returncode, 0, full.stderr)
            self.assertNotIn(os.path.realpath(folder), full.stdout)


if __name__ == "__main__":
    unittest.main()
