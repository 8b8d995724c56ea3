#!/usr/bin/env python3
"""Writes docs/python_api.md from the signatures and docstrings of the Python package.

    scripts/python_api.py docs/python_api.md
    scripts/python_api.py --check docs/python_api.md

The source is read, not imported, so the page does not depend on what is installed."""

from __future__ import annotations

import argparse
import ast
import pathlib
import sys
import textwrap

MODULES = {
    "attune": ("__init__.py", "_attend.py", "_blocks.py", "_cache.py", "_module.py", "_view.py"),
    "attune.torch": ("torch/__init__.py", "torch/_attend.py", "torch/_sdpa.py", "torch/_route.py",
                     "torch/_module.py"),
    "attune.torch.distributed": ("torch/distributed.py",),
    "attune.flash_attn": ("flash_attn/__init__.py", "flash_attn/_alias.py"),
    "attune.flash_attn.bert_padding": ("flash_attn/bert_padding.py",),
    "attune.flash_attn.layers.rotary": ("flash_attn/layers/rotary.py",),
    "attune.flash_attn_interface": ("flash_attn_interface.py",),
    "attune.transformers": ("transformers.py",),
    "attune.jax": ("jax.py",),
}
# Shared between modules, and nobody else's.
HIDDEN = {"lse_shape", "call", "is_plain", "reproducible", "added", "new_seed", "dtype_number", "extra_repr"}
HIDDEN |= {"sized", "check_pages", "gradients"}
HIDDEN |= {"quick", "is_usual", "refusal", "by_attune", "form_of", "is_served", "by_form", "align_of", "by_torch"}
HIDDEN |= {"theirs", "put", "what_is_put"}
HERE = pathlib.Path(__file__).resolve().parent.parent / "python" / "attune"


def signature(node: ast.FunctionDef) -> str:
    text = f"{node.name}({ast.unparse(node.args)})"
    text += f" -> {ast.unparse(node.returns)}" if node.returns else ""
    return textwrap.fill(text, 116, subsequent_indent="    ", break_long_words=False, break_on_hyphens=False)


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
    lines = ["```python", f"class {made}", "```", "", doc, ""]
    for f in methods:
        if line := entry(f):
            head = " ".join(line[1].replace("(self, ", "(").replace("(self)", "()").split())
            if f.decorator_list and ast.unparse(f.decorator_list[0]) == "property":
                head = head.replace("() ->", ":")
            text = f"- `{node.name}.{head}`: {' '.join(line[4].split())}"
            lines += [textwrap.fill(text, 116, subsequent_indent="  ", break_long_words=False, break_on_hyphens=False)]
    return lines + [""] if lines[-1] else lines


def page() -> str:
    lines = ["# The Python package, by its docstrings", "",
             "Written by `scripts/python_api.py`; [python.md](python.md) is the page to read first.", ""]
    for module, files in MODULES.items():
        lines += [f"## {module}", ""]
        for number, name in enumerate(files):
            tree = ast.parse((HERE / name).read_text())
            if number == 0 and (about := ast.get_docstring(tree)):
                lines += [about.split("\n\n")[0], ""]
            for node in tree.body:
                lines += entry(node)
    return "\n".join(lines)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("path", type=pathlib.Path)
    parser.add_argument("--check", action="store_true", help="say whether it is what the docstrings say; write nothing")
    given = parser.parse_args()
    path = given.path
    if given.check:
        same = path.read_text() == page()
        print(f"{path} is {'as' if same else 'not what'} the docstrings say")
        return 0 if same else 1
    path.write_text(page())
    return 0


if __name__ == "__main__":
    sys.exit(main())
