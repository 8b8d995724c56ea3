# SPDX-License-Identifier: Apache-2.0
"""Public names, type hints and docstrings: all are present, listed in docs/python_api.md, and valid for type checkers.
The sources are parsed, not imported, so the installation does not matter."""

from __future__ import annotations

import ast
import contextlib
import importlib
import importlib.util
import io
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile
import textwrap
import unittest
import unittest.mock

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "scripts"))
import python_api

NEEDS = {"attune.torch": "torch", "attune.flash_attn": "torch", "attune.flashinfer": "torch", "attune.flex": "torch",
         "attune.transformers": "transformers", "attune.vllm": "vllm",
         "attune.jax": "jax"}  # by the prefix of a module's name


class Names(unittest.TestCase):
    def test_every_public_name_is_on_the_page(self):
        text, missing = python_api.page()
        self.assertEqual(missing, [])
        self.assertEqual((ROOT / "docs" / "python_api.md").read_text(), text)

    def changed(self, file, old, new):
        """The missing names after a change to a file."""
        with tempfile.TemporaryDirectory() as folder:
            here = pathlib.Path(folder) / "attune"
            shutil.copytree(python_api.HERE, here)
            text = (here / file).read_text() if (here / file).exists() else ""
            self.assertIn(old, text)
            (here / file).write_text(text.replace(old, new, 1))
            with unittest.mock.patch.object(python_api, "HERE", here):
                return python_api.page()[1]

    def test_a_name_without_a_docstring_or_a_place_is_seen(self):
        self.assertEqual(self.changed("__init__.py", '"version"]', '"version", "other"]'), ["attune.other"])
        self.assertEqual(self.changed("transformers.py", '"""Makes attn_implementation', 'f"""Makes'),
                         ["attune.transformers.register"])
        made = "counters: Counters = Counters()\n"
        self.assertEqual(self.changed("torch/_sdpa.py", made, made + "1\n"), ["attune.torch.counters"])
        self.assertEqual(self.changed("more.py", "", "__all__ = ['this']\n"), ["the module more.py"])

    def test_the_script_says_no(self):
        with tempfile.NamedTemporaryFile("w", suffix=".md") as page:
            said = io.StringIO()
            with unittest.mock.patch.object(sys, "argv", ["", "--check", page.name]), contextlib.redirect_stdout(said):
                self.assertEqual(python_api.main(), 1)
            self.assertIn("is not what the docstrings say", said.getvalue())

    def test_every_option_is_in_the_table_of_options(self):
        tree = ast.parse((python_api.HERE / "_spec.py").read_text())
        options, = (node for node in tree.body if isinstance(node, ast.ClassDef) and node.name == "Options")
        names = [line.strip().partition(":")[0] for line in python_api.fields(options)]
        page = (ROOT / "docs" / "python.md").read_text()
        self.assertGreater(len(names), 30)
        self.assertEqual([name for name in names if f"`{name}`" not in page and f"`{name}=" not in page], [])

    def test_what_a_module_says_is_public_is_there(self):
        for module, files in python_api.MODULES.items():
            if any(module.startswith(name) and importlib.util.find_spec(needed) is None
                   for name, needed in NEEDS.items()):
                continue
            with self.subTest(module):
                try:
                    found = importlib.import_module(module)
                except ImportError as error:  # a PyTorch that is too old
                    self.assertIn("or later is needed", str(error))
                    continue
                self.assertEqual(list(found.__all__), python_api.names_of(files[0]))
                for name in found.__all__:
                    self.assertTrue(getattr(found, name).__doc__, name)


class Hints(unittest.TestCase):
    def functions(self):
        for path in sorted(python_api.HERE.rglob("*.py")):
            for node in ast.walk(ast.parse(path.read_text())):
                if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
                    yield f"{path.relative_to(python_api.HERE)}:{node.lineno} {node.name}", node

    def test_every_function_is_annotated(self):
        bare = []
        for where, node in self.functions():
            a = node.args
            given = [*a.posonlyargs, *a.args, *a.kwonlyargs, *(x for x in (a.vararg, a.kwarg) if x)]
            hints = [x.annotation for x in given if x.arg not in ("self", "cls")]
            if node.returns is None or None in hints:
                bare.append(where)
        self.assertGreater(sum(1 for _ in self.functions()), 150)
        self.assertEqual(bare, [])

    def test_the_package_says_that_it_has_hints(self):
        import attune
        self.assertTrue((python_api.HERE / "py.typed").exists())
        self.assertTrue((pathlib.Path(attune.__file__).parent / "py.typed").exists())

    @unittest.skipIf(None in (importlib.util.find_spec("mypy"), importlib.util.find_spec("torch")),
                     "mypy or PyTorch is not here")
    def test_a_type_checker_has_nothing_to_say_and_sees_a_mistake(self):
        program = """
            import attune, attune.torch, torch
            q = torch.zeros(1, 4, 2, 8)
            attune.torch.attend(q, q, q, layout="bshd", causal=True, softcap=2.0)
            attune.torch.attend(q, q, q, layout="sbhd")
            attune.torch.attend(q, q, q, casual=True)
        """
        with tempfile.TemporaryDirectory() as folder:
            user = pathlib.Path(folder) / "user.py"
            user.write_text(textwrap.dedent(program))
            config = ["--config-file", str(ROOT / "pyproject.toml"), "--cache-dir", str(ROOT / ".cache" / "mypy")]
            for chosen, wanted in ((["-p", "attune"], []), ([str(user)], [("5", "arg-type"), ("6", "call-arg")])):
                done = subprocess.run([sys.executable, "-m", "mypy", *config, *chosen], cwd=ROOT / "python", text=True,
                                      capture_output=True, env={**os.environ, "MYPYPATH": str(ROOT / "python")})
                errors = [line for line in done.stdout.splitlines() if ": error: " in line]
                found = [(line.split(":")[1], line.rpartition("[")[2].rstrip("]")) for line in errors]
                self.assertEqual(found, wanted, done.stdout + done.stderr)


if __name__ == "__main__":
    unittest.main()
