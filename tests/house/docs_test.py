#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The blocks of the documentation, executed:  docs_test.py ATTUNE LIBRARY [-v]

Every block of README.md, CONTRIBUTING.md, docs/, docs/guides/ and docs/kernels/ has a language. A command of a `sh`
block runs as it stands, with the program ATTUNE, in a fresh folder that has a home of its own, the examples and records
under the names that the page uses. What would take long runs small: `bench` gets its own options with --dry-run, then
measures three short lengths into its --out; `parity` runs one small case. A `c` or `cpp` block is compiled, with what
the page leaves out from CONTEXT; where it is a whole example, it runs. `python` blocks: python/tests/test_docs.py.

What cannot run says why: the fence, as in ```sh skip: waits for Ctrl-C, or NEEDS, for a command. The last line counts
both."""

from __future__ import annotations

import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[2]
LANGUAGES = {"sh", "python", "c", "cpp", "cmake", "toml", "yaml", "text", ""}
FENCE = re.compile(r"^(`{3,}) *([\w+-]*) *(.*)$")
ONLY = ""  # of a page's name; for the inner loop: docs_test.py ATTUNE LIBRARY --only cli.md
SKIP = re.compile(r"skip: \S.{5,}$")
BUILDS = "builds or tests the project, which the scripts' own tests do"
NEEDS = (  # a command that matches needs what is named
    (r"cuda:\d|nsys |attune profile|gpu_check", "a GPU"),
    (r"--device (h200|a100)|h200\.tsv", "a build with GPU code"),
    (r"mpirun ", "MPI"),
    (r"--peer \S*(torch|flash_attn|fa3|\.py:)", "PyTorch"),
    (r"^(\./run|\./test|cmake|ninja|pip|ctest|docker|scripts/\w|export|MAX_JOBS|build/tests)", BUILDS),
    (r"^ci/speed.sh", "two checkouts; house_speed_kit runs every step"),
    (r"--sign ", "a key of the reader"),
    (r"--between ", "records of these peers"),
    (r"attune history \"", "records of that line"),
    (r"--watch ", "Ctrl-C, or the end of the log's program"),
    (r"verify --strict", "a machine that nothing else uses"),
)
CONTEXT = {  # what a snippet of a page uses and does not declare
    "docs/block_sparse.md": "attune::Args args; void* stream = nullptr;",
    "docs/kv_cache.md": "attune::Problem problem(\"\"); attune::Args args; void* stream = nullptr;",
    "docs/modules.md": "float* at = nullptr; attune::Tensor x(at, \"bsd\", {1, 1, 1}), y = x, dy = x, dx = x;\n"
                       "void *tape = nullptr, *stream = nullptr;",
    "docs/nsa.md": "attune_nsa_cache* cache; attune_problem problem; attune_args args;\n"
                   "int32_t sequences[8]; void* stream = 0;",
}


class Block:
    def __init__(self, page: pathlib.Path, line: int, language: str, words: str, text: str):
        self.page, self.line, self.language, self.words, self.text = page, line, language, words, text

    def __str__(self):
        return f"{self.page.relative_to(ROOT)}:{self.line}"


def pages() -> list[pathlib.Path]:
    folders = ("docs", "docs/guides", "docs/kernels", "examples")
    found = [ROOT / "README.md", ROOT / "CONTRIBUTING.md"]
    found += [p for folder in folders for p in sorted((ROOT / folder).glob("*.md"))]
    return [p for p in found if p.name != "python_api.md" and str(p).endswith(ONLY)]


def blocks(page: pathlib.Path) -> list[Block]:
    out: list[Block] = []
    begun: tuple | None = None
    for number, line in enumerate(page.read_text().split("\n"), 1):
        fence = FENCE.match(line)
        if begun is None and fence:
            begun = (number, fence[1], fence[2], fence[3].strip(), [])
        elif begun and fence and fence[1] == begun[1] and not fence[2]:
            out.append(Block(page, begun[0], begun[2], begun[3], "\n".join(begun[4])))
            begun = None
        elif begun:
            begun[4].append(line)
    return out


def commands(text: str) -> list[str]:
    """The commands of a block, without comments, continued lines joined. A `for` stands on its lines until `done`."""
    out: list[str] = []
    begun = ""
    for line in text.split("\n"):
        line = re.sub(r"(^|\s+)#.*$", "", line)
        begun += ("\n" if begun.startswith("for ") else "") + line.rstrip("\\")
        if line.endswith("\\") or (begun.startswith("for ") and line.strip() != "done"):
            continue
        out.append(begun.strip())
        begun = ""
    return [c for c in out if c]


WRAPPER = """#!{python}
import os, subprocess, sys
real, given = {real!r}, sys.argv[1:]
def ends(*words):
    sys.exit(subprocess.run([real, *words]).returncode)
if given[:1] == ["bench"]:
    code = subprocess.run([real, *given, "--dry-run"], stdout=subprocess.DEVNULL).returncode
    if code or "--out" not in given:
        sys.exit(code)
    small = ["--len", "32,64,96", "--heads", "2", "--dim", "32", "--backend", "cpu_forward,cpu_standard", "--samples",
             "6", "--warm-up", "1", "--threads", "1", "--out", given[given.index("--out") + 1]]
    code = subprocess.run([real, "bench", *small]).returncode
    sys.exit(code if code > 1 else 0)  # 1: rows that a busy machine made impossible
if given[:1] == ["parity"] and "--case" not in given and "--peer" not in given:
    ends("parity", "--backend", "cpu_forward", "--case", "forward f32 b1 h2/1 q9 k17 d16 causal")
if given[:1] == ["doctor"]:
    ends(*given, "--no-measure")
ends(*given)
"""


class Fence(unittest.TestCase):
    def test_every_block_has_a_known_language_and_a_skipped_one_a_reason(self):
        count = 0
        for page in pages():
            for block in blocks(page):
                count += 1
                self.assertIn(block.language, LANGUAGES, block)
                if block.words:
                    self.assertRegex(block.words, SKIP, f"{block}: after the language stands 'skip: <why>' or nothing")
                if not block.language:
                    self.assertNotRegex(block.text, r"(?m)^(attune|\./run|\./test|pip|cmake|import|from) ",
                                        f"{block}: these are commands or code; name the language")
        self.assertGreater(count, 60)

    def test_a_block_is_found_as_it_stands(self):
        with tempfile.NamedTemporaryFile("w+", suffix=".md") as file:
            file.write("a\n```sh skip: a reason\nx y \\\n  z  # words\n\n# more\nw\n```\n```\nn\n```\n")
            file.flush()
            first, second = blocks(pathlib.Path(file.name))
        self.assertEqual((first.language, first.words), ("sh", "skip: a reason"))
        self.assertEqual(commands(first.text), ["x y   z", "w"])
        self.assertEqual((second.language, second.text, second.line), ("", "n", 9))


class Shell(unittest.TestCase):
    ran, skipped = 0, {}

    @classmethod
    def setUpClass(cls):
        cls.folder = tempfile.TemporaryDirectory(prefix="attune_docs_")
        cls.here = pathlib.Path(cls.folder.name)
        cls.common = cls.here / "common"
        (cls.common / "bin").mkdir(parents=True)
        wrapper = cls.common / "bin" / "attune"
        wrapper.write_text(WRAPPER.format(python=sys.executable, real=ATTUNE))
        wrapper.chmod(0o755)
        cls.environment = {k: v for k, v in os.environ.items() if not k.startswith(("ATTUNE_", "XDG_"))}
        cls.environment |= {"HOME": str(cls.common), "PATH": f"{cls.common}/bin:{os.environ['PATH']}"}
        done = cls.shell("attune bench --out records.jsonl", cls.common)
        assert done.returncode == 0, done.stdout
        cls.has_gpu = "cuda:0" in cls.shell("attune doctor --json", cls.common).stdout
        cls.has_gpu_code = cls.shell('attune plan "forward f16 b1 h1 q64 k64 d64 full" --device h200',
                                     cls.common).returncode == 0

    @classmethod
    def tearDownClass(cls):
        cls.folder.cleanup()
        for reason, count in sorted(cls.skipped.items()):
            print(f"left out, {reason}: {count}")
        print(f"{cls.ran} commands ran, {sum(cls.skipped.values())} were left out")

    @classmethod
    def shell(cls, command, folder):
        return subprocess.run(["bash", "-euo", "pipefail", "-c", command], cwd=folder, env=cls.environment, text=True,
                              stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=120)

    def lacks(self, command):
        for pattern, needed in NEEDS:
            if re.search(pattern, command) and not (
                    (needed == "a GPU" and self.has_gpu) or (needed == "a build with GPU code" and self.has_gpu_code) or
                    (needed == "MPI" and shutil.which("mpirun") and os.geteuid()) or
                    (needed == "PyTorch" and HAS_TORCH)):
                return needed
        return ""

    def folder_of(self, page):
        """Where the blocks of a page run, one after another: with what its reader has."""
        folder = self.here / page.relative_to(ROOT).as_posix().replace("/", "_")
        folder.mkdir()
        (folder / "build").mkdir()
        (folder / "build" / "attune").symlink_to(self.common / "bin" / "attune")
        for name in ("examples", "include", "bench", "scripts"):
            (folder / name).symlink_to(ROOT / name)
        for block in blocks(page):  # files that the page shows
            named = re.match(r"# (\w+\.toml)", block.text)
            if block.language == "toml" and named:
                (folder / named[1]).write_text(block.text)
            if block.text.startswith("attune-prices 1"):
                (folder / "prices.tsv").write_text(block.text + "\n")
        if not (folder / "prices.tsv").exists():
            (folder / "prices.tsv").write_text("attune-prices 1\noffer\ta\t*\t1 an hour\tby the second\tminimum 0\n")
        (folder / "rows.txt").write_text("forward f32 b1 h2 q64 k64 d32 full\n")
        (folder / "calls.log").write_text("")
        (folder / "bars.toml").exists() or (folder / "bars.toml").write_text(
            '[[bar]]\nname = "there"\ntflops = 0\nrows = {pass = "forward"}\n')
        return folder

    def test_every_command_runs_or_is_left_out_for_a_reason(self):
        for page in pages():
            folder = None
            for block in blocks(page):
                if block.language != "sh":
                    continue
                if block.words.startswith("skip: "):
                    self.skipped[block.words[6:]] = self.skipped.get(block.words[6:], 0) + len(commands(block.text))
                    continue
                folder = folder or self.folder_of(page)
                for command in commands(block.text):
                    needed = self.lacks(command)
                    if needed:
                        self.skipped["needs " + needed if needed != BUILDS else needed] = \
                            self.skipped.get("needs " + needed if needed != BUILDS else needed, 0) + 1
                        self.assert_files_are_there(block, command)
                        continue
                    for name in re.findall(r"[\w./]+\.jsonl", re.sub(r"--out \S+", "", command)):
                        (folder / name).parent.mkdir(parents=True, exist_ok=True)
                        if not (folder / name).exists():
                            shutil.copy(self.common / "records.jsonl", folder / name)
                    with self.subTest(page=str(block), command=command):
                        done = self.shell(command, folder)
                        good = (0, 4) if command.startswith("attune compare") else (0,)  # 4: too loud to tell
                        self.assertIn(done.returncode, good, f"{block}: {command}\n{done.stdout[-2000:]}")
                        type(self).ran += 1

    def assert_files_are_there(self, block, command):
        """Of a command that does not run, at least the files of the repository that it names exist."""
        for name in re.findall(r"(?<![\w/.-])(?:scripts|examples|bench|tests|python)/[\w/.]+", command):
            self.assertTrue((ROOT / name).exists(), f"{block}: {command}: there is no {name}")


class Compiled(unittest.TestCase):
    def compiler(self, name):
        found = os.environ.get(name) or shutil.which({"CC": "cc", "CXX": "c++"}[name])
        if not found:
            self.skipTest("no compiler is here")
        return found

    def test_snippets_compile(self):
        parts = ["#include <attune/attune.hpp>\n#include <cstdio>\n"]
        for page in pages():
            for number, block in enumerate(b for b in blocks(page) if b.language == "cpp" and not b.words):
                name = page.relative_to(ROOT).as_posix()
                parts.append(f"void {re.sub(r'[^a-z]', '_', name)}{number}() {{\n{CONTEXT.get(name, '')}\n"
                             f"#line {block.line + 1} \"{name}\"\n{block.text}\n}}\n")
        self.assertGreater(len(parts), 3)
        words = [self.compiler("CXX"), "-std=c++20", "-fsyntax-only", "-x", "c++", f"-I{ROOT}/include", "-"]
        done = subprocess.run(words, input="".join(parts), text=True, capture_output=True)
        self.assertEqual(done.returncode, 0, done.stderr)

    def test_whole_examples_in_c_run(self):
        found = [b for p in pages() for b in blocks(p) if b.language == "c" and not b.words]
        self.assertGreater(len(found), 1)
        with tempfile.TemporaryDirectory() as folder:
            for number, block in enumerate(found):
                source, program = f"{folder}/{number}.c", f"{folder}/{number}"
                calls = "int attend(float*, float*, float*, float*)" if "int attend(" in block.text else ""
                text = f"#line {block.line + 1} \"{block.page.name}\"\n{block.text}\n"
                context = CONTEXT.get(block.page.relative_to(ROOT).as_posix())
                if context:
                    text = f"#include <attune/attune.h>\nvoid snippet(void) {{\n{context}\n{text}}}\n"
                if calls:  # 2 x 1024 tokens, values of 1: the average is 1
                    text += ("#include <stdlib.h>\nint main(void) {\n  const int n = 2 * 1024 * 8 * 64;\n"
                             "  float* all = malloc(4L * n * sizeof(float));\n"
                             "  for (int i = 0; i < 4 * n; ++i) all[i] = i < 3 * n;\n"
                             "  if (attend(all, all + n, all + 2 * n, all + 3 * n)) return 1;\n"
                             "  for (int i = 3 * n; i < 4 * n; ++i) if (all[i] < 0.999f || all[i] > 1.001f) return 2;\n"
                             "  return 0;\n}\n")
                pathlib.Path(source).write_text(text)
                library = pathlib.Path(LIBRARY)
                linked = ["-o", program, "-Wl,-rpath," + str(library.parent), str(library)]
                words = linked if calls else ["-fsyntax-only"]
                done = subprocess.run([self.compiler("CC"), "-std=c11", f"-I{ROOT}/include", source, *words], text=True,
                                      capture_output=True)
                self.assertEqual(done.returncode, 0, f"{block}:\n{done.stderr}")
                if calls:
                    self.assertEqual(subprocess.run([program]).returncode, 0, block)


if __name__ == "__main__":
    ATTUNE, LIBRARY = (os.path.abspath(a) for a in sys.argv[1:3])
    HAS_TORCH = subprocess.run(["python3", "-c", "import torch"], capture_output=True).returncode == 0
    rest = sys.argv[3:]
    if rest[:1] == ["--only"]:
        ONLY, rest = rest[1], rest[2:]
    unittest.main(argv=[sys.argv[0], *rest])
