#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes docs/python_api.md from the signatures and docstrings of the Python package.

    scripts/python_api.py docs/python_api.md
    scripts/python_api.py --check docs/python_api.md

The source is parsed, not imported, so the page does not depend on the installation."""

from __future__ import annotations

import argparse
import ast
import pathlib
import sys
import textwrap

MODULES = {  # files that define the names; the first one has __all__
    "attune": ("__init__.py", "_attend.py", "_blocks.py", "_cache.py", "_module.py", "_view.py", "_spec.py",
               "_core.pyi"),
    "attune.torch": ("torch/__init__.py", "torch/_attend.py", "torch/_sdpa.py", "torch/_route.py",
                     "torch/_module.py"),
    "attune.torch.distributed": ("torch/distributed.py",),
    "attune.flash_attn": ("flash_attn/__init__.py", "flash_attn/_alias.py"),
    "attune.flash_attn.bert_padding": ("flash_attn/bert_padding.py",),
    "attune.flash_attn.layers.rotary": ("flash_attn/layers/rotary.py",),
    "attune.flash_attn.flash_attn_interface": ("flash_attn/flash_attn_interface.py",),
    "attune.flash_attn_interface": ("flash_attn_interface.py",),
    "attune.flashinfer": ("flashinfer/__init__.py", "flashinfer/_alias.py", "flashinfer/decode.py",
                          "flashinfer/prefill.py", "flashinfer/cascade.py", "flashinfer/page.py",
                          "flashinfer/quantization.py"),
    "attune.flashinfer.cascade": ("flashinfer/cascade.py",),
    "attune.flashinfer.decode": ("flashinfer/decode.py",),
    "attune.flashinfer.page": ("flashinfer/page.py",),
    "attune.flashinfer.prefill": ("flashinfer/prefill.py",),
    "attune.flashinfer.quantization": ("flashinfer/quantization.py",),
    "attune.flex": ("flex.py",),
    "attune.transformers": ("transformers.py",),
    "attune.vllm": ("vllm/__init__.py",),
    "attune.vllm.backend": ("vllm/backend.py",),
    "attune.jax": ("jax.py",),
}
ALSO = {"attune.torch": ["Counters"]}  # types of public objects
SAME = {"attune.flash_attn.flash_attn_interface": "attune.flash_attn",  # modules whose names another one has too
        **{f"attune.flashinfer.{name}": "attune.flashinfer"
           for name in ("cascade", "decode", "page", "prefill", "quantization")}}
HIDDEN = {"extra_repr", "sized", "gradients"}  # methods shared by modules, not for users
HERE = pathlib.Path(__file__).resolve().parent.parent / "python" / "attune"


def names_of(file: str) -> list[str]:
    """__all__ of a file."""
    for node in ast.parse((HERE / file).read_text()).body:
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__":
            return list(ast.literal_eval(node.value))
    return []


def signature(node: ast.FunctionDef) -> str:
    text = f"{node.name}({ast.unparse(node.args)})"
    text += f" -> {ast.unparse(node.returns)}" if node.returns else ""
    return textwrap.fill(text, 116, subsequent_indent="    ", break_long_words=False, break_on_hyphens=False)


def fields(node: ast.ClassDef) -> list[str]:
    """The annotated public fields of a class, from which its __init__ is generated."""
    return [f"    {f.target.id}: {ast.unparse(f.annotation)}" for f in node.body
            if isinstance(f, ast.AnnAssign) and isinstance(f.target, ast.Name) and not f.target.id.startswith("_")]


def entry(node: ast.AST) -> list[str]:
    """A public function or class with a docstring, as lines."""
    if not isinstance(node, (ast.FunctionDef, ast.ClassDef)) or node.name.startswith("_") or node.name in HIDDEN:
        return []
    doc = ast.get_docstring(node)
    if not doc:
        return []
    if isinstance(node, ast.FunctionDef):
        return ["```python", signature(node), "```", "", doc, ""]
    methods = [f for f in node.body if isinstance(f, ast.FunctionDef)]
    made = next((signature(f).replace("__init__(self, ", f"{node.name}(").replace(" -> None", "")
                 for f in methods if f.name == "__init__" and len(f.args.args) + len(f.args.kwonlyargs) > 1), node.name)
    own = fields(node) if made == node.name else []
    lines = ["```python", f"class {made}{':' if own else ''}", *own, "```", "", doc, ""]
    for f in methods:
        if line := entry(f):
            head = " ".join(line[1].replace("(self, ", "(").replace("(self)", "()").split())
            if f.decorator_list and ast.unparse(f.decorator_list[0]) == "property":
                head = head.replace("() ->", ":")
            text = f"- `{node.name}.{head}`: {' '.join(line[4].split())}"
            lines += [textwrap.fill(text, 116, subsequent_indent="  ", break_long_words=False, break_on_hyphens=False)]
    return lines + [""] if lines[-1] else lines


def entries(module: str, public: list[str]) -> dict[str, list[str]]:
    """The lines of each name of the module that has a docstring; for a variable, the string after it."""
    found = {}
    for file in MODULES[module]:
        body = ast.parse((HERE / file).read_text()).body
        for node, after in zip(body, [*body[1:], None]):
            name = getattr(node, "name", "")
            if isinstance(node, ast.AnnAssign):
                node = ast.copy_location(ast.Assign([node.target], node.value), node)
            if isinstance(node, ast.Assign):
                name = ast.unparse(node.targets[0])
                if name in public and isinstance(after, ast.Expr) and isinstance(
                        after.value, ast.Constant) and isinstance(after.value.value, str):
                    found[name] = ["```python", ast.unparse(node), "```", "", after.value.value, ""]
            elif name in public and (lines := entry(node)):
                found[name] = lines
    return found


def page() -> tuple[str, list[str]]:
    """The page, and the public names that are missing from it."""
    lines = ["# The Python package, by its docstrings", "",
             "Written by `scripts/python_api.py`; [python.md](python.md) is the page to read first.", ""]
    missing = []
    for module, files in MODULES.items():
        lines += [f"## {module}", ""]
        if about := ast.get_docstring(ast.parse((HERE / files[0]).read_text())):
            lines += [about.split("\n\n")[0], ""]
        public = names_of(files[0])
        if module in SAME:
            missing += [f"{module}.{name}" for name in public if name not in names_of(MODULES[SAME[module]][0])]
            continue
        found = entries(module, public + ALSO.get(module, []))
        missing += [f"{module}.{name}" for name in public if name not in found] if public else [f"{module}.__all__"]
        lines += [line for one in found.values() for line in one]
    known = {file for files in MODULES.values() for file in files}
    missing += [f"the module {path.relative_to(HERE)}" for path in sorted(HERE.rglob("*.py"))
                if str(path.relative_to(HERE)) not in known and names_of(str(path.relative_to(HERE)))]
    return "\n".join(lines), missing


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("path", type=pathlib.Path)
    parser.add_argument("--check", action="store_true", help="say whether it is what the docstrings say; write nothing")
    given = parser.parse_args()
    path = given.path
    text, missing = page()
    if missing:
        print(f"public, and without a docstring or a place on the page: {', '.join(missing)}")
        return 1
    if given.check:
        same = path.read_text() == text
        print(f"{path} is {'as' if same else 'not what'} the docstrings say")
        return 0 if same else 1
    path.write_text(text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
