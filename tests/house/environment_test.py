#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""docs/guides/environment.md names every variable that the code reads, and no others; other pages leave it to that one
to say what a variable does."""

import pathlib
import re
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "guides" / "environment.md"
NAME = r"[A-Z][A-Z0-9]*(?:_[A-Z0-9]+)+|CXX|CUDACXX|HOME"
# What scripts hand to themselves.
INSIDE = {"ATTUNE_COMMAND", "FAKE_CLOUD_KEY", "FAKE_CLOUD_URL", "ATTUNE_MUTANT", "HOST", "SUMMARY", "LOST"}
FOREIGN = {"XLA_FLAGS"}  # handed on to another program


def sources(folders, *endings):
    for folder in folders:
        for path in sorted((ROOT / folder).rglob("*")):
            if path.suffix in endings and path.is_file() and path != pathlib.Path(__file__).resolve():
                yield path


def of_cpp(text):
    """Of a file that calls getenv: every string that has the form of a variable."""
    found = set(re.findall(rf'"({NAME})"', text)) if "getenv(" in text else set()
    return {name for name in found if not re.search(r"_\d+GB$", name)}  # the name of a GPU at a provider


def of_python(text):
    return set(re.findall(rf'(?:environ(?:\.get\(|\[)|getenv\()\s*"({NAME})"', text))


def of_shell(text):
    set_here = set(re.findall(r"(?m)^\s*(?:local |export |for )?([A-Z_]+)(?:=| in )", text))
    named = set(re.findall(r"\$\{?(ATTUNE_[A-Z_]+|CXX|CUDACXX|CUDA_HOME|CI_[A-Z_]+|GITHUB_[A-Z_]+|GITLAB_CI)\b", text))
    return named - {n for n in set_here if not n.startswith("ATTUNE_") and n != "CXX"}


def of_cmake(text):
    return {a or b for a, b in re.findall(rf"\$ENV\{{({NAME})\}}|\bENV ({NAME})\b", text)}


def read_by_the_code():
    found = {}
    kinds = [(sources(["src", "tool", "plugins", "verify", "bench", "include"], ".cpp", ".h", ".cu", ".hpp"), of_cpp),
             (sources(["python", "scripts", "tool", "tests"], ".py"), of_python),
             ((p for p in [*(ROOT / n for n in ("run", "test", "scripts/setup.sh", "scripts/gpu_check", ".ci/run"))]
               + sorted((ROOT / "ci").glob("*.sh"))), of_shell),
             (sources(["cmake", "src", "tool", "python"], ".cmake", ".txt"), of_cmake)]
    for paths, names in kinds:
        for path in paths:
            for name in names(path.read_text()):
                found.setdefault(name, path.relative_to(ROOT))
    return {n: p for n, p in found.items() if n not in INSIDE | FOREIGN}


def on_the_page():
    rows = [line.split("|")[1] for line in PAGE.read_text().split("\n") if line.startswith("| `")]
    return {name for row in rows for name in re.findall(r"`([A-Z_]+)`", row)}


class Environment(unittest.TestCase):
    def test_the_page_has_every_variable_that_the_code_reads(self):
        found = read_by_the_code()
        self.assertGreater(len(found), 15)
        missing = {name: str(path) for name, path in found.items() if name not in on_the_page()}
        self.assertFalse(missing, f"{PAGE.relative_to(ROOT)} lacks these, which the files read")

    def test_the_page_has_no_variable_that_nothing_reads(self):
        self.assertFalse(on_the_page() - set(read_by_the_code()), "no source reads these")

    def test_readers_of_every_kind_are_found(self):
        self.assertEqual(of_cpp('auto v = std::getenv(name); f("ATTUNE_NEW"); for (n : {"PMI_SIZE"})'),
                         {"ATTUNE_NEW", "PMI_SIZE"})
        self.assertEqual(of_cpp('f("ATTUNE_NEW")'), set())
        self.assertEqual(of_python('os.environ.get("ATTUNE_NEW", "1")\nos.environ["CXX"]'), {"ATTUNE_NEW", "CXX"})
        self.assertEqual(of_shell('x=${ATTUNE_NEW:-}\nCUDA_HOME=1\necho $CUDA_HOME'), {"ATTUNE_NEW"})
        self.assertEqual(of_cmake("$ENV{ATTUNE_NEW} HINTS ENV CUDA_PATH"), {"ATTUNE_NEW", "CUDA_PATH"})


if __name__ == "__main__":
    unittest.main()
