#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Builds the documentation site from docs/, README.md and the other pages of the repository.

    scripts/docs_site.py                  builds build/site/html; its index.html needs no server and no network
    scripts/docs_site.py --install        the same; first installs docs_site_requirements.txt into build/site/tools
    scripts/docs_site.py links            only checks every link and anchor of the pages; needs nothing but Python
    scripts/docs_site.py --out FOLDER     builds into FOLDER/html

A link to a file or heading that does not exist fails, on a page and in the HTML, and so does anything that a built page
would load from a network. `mkdocs.yml` names every page once."""

from __future__ import annotations

import argparse
import html.parser
import importlib.util
import json
import logging
import os
import pathlib
import re
import shutil
import subprocess
import sys
import urllib.parse

ROOT = pathlib.Path(__file__).resolve().parents[1]
PAGES = ("README.md", "CONTRIBUTING.md", "CHANGELOG.md", "SECURITY.md", "THIRD_PARTY_NOTICES.md", "LICENSE")
FOLDERS = ("docs", "examples")
NEEDED = ("mkdocs", "material", "pymdownx")
FENCE = re.compile(r"^( *)(`{3,}|~{3,}) *([\w+-]*)(.*)$")
LINK = re.compile(r"!?\[(?:[^\[\]]|\[[^\]]*\])*\]\(\s*<?([^\s)>]+)>?(?:\s+\"[^\"]*\")?\s*\)")
CODE = re.compile(r"(`+)(?!`).*?(?<!`)\1(?!`)", re.S)
LOADS = {"script": "src", "img": "src", "iframe": "src", "source": "src", "link": "href"}
NOT_LOADED = {"canonical", "prev", "next", "alternate", "edit"}  # kinds of <link> that a browser does not fetch


class Broken(Exception):
    """What is wrong with the pages, one finding per line."""


# ---- the pages as they are written


def without_code(text: str) -> str:
    """The page with code blocks and code spans blanked; lines keep their numbers."""
    lines, fence = [], ""
    for line in text.split("\n"):
        found = FENCE.match(line)
        if fence:
            if found and found[2].startswith(fence) and not found[3] + found[4].strip():
                fence = ""
            line = ""
        elif found:
            fence, line = found[2], ""
        lines.append(line)
    return CODE.sub(lambda m: re.sub(r"[^\n]", " ", m[0]), "\n".join(lines))


def headings(text: str) -> set[str]:
    """The anchors of a page: those of GitHub, which are also those of the site."""
    out: set[str] = set()
    fence = ""
    for line in text.split("\n"):
        found = FENCE.match(line)
        if found and (not fence or (found[2].startswith(fence) and not found[3])):
            fence = "" if fence else found[2]
        if not fence and (heading := re.match(r"#{1,6} +(.*?) *#*$", line)):
            words = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading[1]).lower()
            slug = re.sub(r"[^\w\- ]", "", words).replace(" ", "-")
            count, anchor = 0, slug
            while anchor in out:
                count += 1
                anchor = f"{slug}-{count}"
            out.add(anchor)
    return out


def pages(root: pathlib.Path) -> list[pathlib.Path]:
    found = [root / name for name in PAGES if name.endswith(".md")]
    return [p for p in found if p.exists()] + sorted(p for f in FOLDERS for p in (root / f).rglob("*.md"))


def check_pages(root: pathlib.Path) -> int:
    """The number of links; raises Broken with every one that leads nowhere."""
    wrong, count, known = [], 0, {}
    for page in pages(root):
        text = page.read_text()
        for found in LINK.finditer(without_code(text)):
            target, _, anchor = urllib.parse.unquote(found[1]).partition("#")
            if re.match(r"[a-z]+:", target):
                continue
            count += 1
            line = text.count("\n", 0, found.start()) + 1
            place = f"{page.relative_to(root)}:{line}: '{found[1]}'"
            path = (page.parent / target).resolve() if target else page
            if not path.is_file():
                wrong.append(f"{place} is not a file; a link names a file of the repository, from the page's folder")
            elif path.parent != root and not any(path.is_relative_to(root / folder) for folder in FOLDERS):
                wrong.append(f"{place} is not on the site, which has {', '.join(FOLDERS)} and the pages beside them")
            elif anchor and path.suffix == ".md":
                if path not in known:
                    known[path] = headings(path.read_text())
                if anchor not in known[path]:
                    near = [a for a in sorted(known[path]) if anchor.split("-")[0] in a]
                    wrong.append(f"{place} names no heading of {path.relative_to(root)}; it has "
                                 + (", ".join(near or sorted(known[path])) or "none"))
    if wrong:
        raise Broken("\n".join(wrong))
    return count


def stage(root: pathlib.Path, into: pathlib.Path) -> None:
    """A copy of what the site shows, in the folders of the repository, so that links stay as they are. What a fence
    says after its language is for the tests of the blocks."""
    shutil.rmtree(into, ignore_errors=True)
    into.mkdir(parents=True)
    for name in PAGES:
        if (root / name).exists():
            shutil.copy(root / name, into / name)
    for name in FOLDERS:
        shutil.copytree(root / name, into / name, ignore=shutil.ignore_patterns("__pycache__", "build"))
    for page in pages(into):
        open_fence, lines = "", []
        for line in page.read_text().split("\n"):
            found = FENCE.match(line)
            if found and not open_fence:
                open_fence, line = found[2], found[1] + found[2] + found[3]
            elif found and found[2].startswith(open_fence) and not found[3]:
                open_fence = ""
            elif line.startswith("|"):  # where GitHub needs a backslash before a bar in code, mkdocs shows it
                line = CODE.sub(lambda code: code[0].replace("\\|", "|"), line)
            lines.append(line)
        page.write_text("\n".join(lines))


# ---- the site


class Seen(html.parser.HTMLParser):
    """The ids of a page, what it links to and what it loads."""

    def __init__(self, text: str):
        super().__init__()
        self.ids: set[str] = set()
        self.links: list[str] = []
        self.loads: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        given = dict(attrs)
        self.ids.update(given[name] for name in ("id", "name") if given.get(name))
        if tag == "a" and given.get("href"):
            self.links.append(given["href"])
        if tag in LOADS and given.get(LOADS[tag]) and not NOT_LOADED & set((given.get("rel") or "").split()):
            self.loads.append(given[LOADS[tag]])


def check_site(out: pathlib.Path) -> tuple[int, int]:
    """The numbers of pages and links; raises Broken."""
    seen = {p: Seen(p.read_text()) for p in sorted(out.rglob("*.html"))}
    wrong, count = [], 0
    for page, has in seen.items():
        name = page.relative_to(out)
        for target in has.loads + has.links:
            if re.match(r"([a-z]+:)?//", target):
                if target in has.loads:
                    wrong.append(f"{name}: loads '{target}' from a network")
                continue
            path, _, anchor = urllib.parse.unquote(target.partition("?")[0]).partition("#")
            if re.match(r"[a-z]+:", path) or name.name == "404.html":
                continue
            count += 1
            file = (page.parent / path).resolve() if path else page
            if not file.is_file():
                wrong.append(f"{name}: '{target}' is not there")
            elif anchor and file in seen and anchor not in seen[file].ids:
                wrong.append(f"{name}: '{target}' has no such place")
    for style in out.rglob("*.css"):
        wrong += [f"{style.relative_to(out)}: loads '{u}' from a network"
                  for u in re.findall(r"url\(\s*['\"]?((?:https?:)?//[^)'\"]+)", style.read_text())]
    index = out / "search" / "search_index.json"
    entries = json.loads(index.read_text())["docs"] if index.exists() else []
    found = {entry["location"].partition("#")[0] for entry in entries}
    wrong += [f"{name}: is not in the search index" for name in (str(p.relative_to(out)) for p in seen)
              if name != "404.html" and name not in found and not (name == "index.html" and "" in found)]
    if wrong:
        raise Broken("\n".join(wrong))
    return len(seen), count


class Warned(logging.Handler):
    def __init__(self):
        super().__init__(logging.WARNING)
        self.lines: list[str] = []

    def emit(self, record):
        self.lines.append(record.getMessage())


def build(root: pathlib.Path, out: pathlib.Path) -> str:
    """Builds out/html; raises Broken."""
    os.environ.setdefault("NO_MKDOCS_2_WARNING", "1")
    import mkdocs.commands.build
    import mkdocs.config
    import mkdocs.exceptions

    links = check_pages(root)
    stage(root, out / "pages")
    for name in ("offline.js", "wide.css"):
        shutil.move(out / "pages" / "docs" / "site" / name, out / "pages" / name)
    warned = Warned()
    logging.getLogger("mkdocs").addHandler(warned)
    try:
        config = mkdocs.config.load_config(str(root / "mkdocs.yml"), docs_dir=str((out / "pages").resolve()),
                                           site_dir=str((out / "html").resolve()))
        mkdocs.commands.build.build(config)
    except (mkdocs.exceptions.MkDocsException, SystemExit) as error:
        raise Broken("\n".join([*warned.lines, str(error)])) from None
    finally:
        logging.getLogger("mkdocs").removeHandler(warned)
    if warned.lines:
        raise Broken("\n".join(warned.lines))
    count, inside = check_site(out / "html")
    return f"{count} pages, {links} links on the pages and {inside} in the HTML: {out / 'html' / 'index.html'}"


# ---- the packages


def tools(out: pathlib.Path) -> pathlib.Path:
    return out / "tools" / "bin" / "python"


def have(python: pathlib.Path | str) -> bool:
    test = f"import {', '.join(NEEDED)}"
    return subprocess.run([str(python), "-c", test], capture_output=True).returncode == 0


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", nargs="?", choices=("build", "links"), default="build")
    parser.add_argument("--out", type=pathlib.Path, default=ROOT / "build" / "site", help="default build/site")
    parser.add_argument("--install", action="store_true", help="install the packages into FOLDER/tools if they miss")
    parser.add_argument("--root", type=pathlib.Path, default=ROOT, help="another checkout")
    given = parser.parse_args()
    try:
        if given.what == "links":
            print(f"{check_pages(given.root.resolve())} links lead somewhere")
            return 0
        if all(importlib.util.find_spec(name) for name in NEEDED):
            print(build(given.root.resolve(), given.out.resolve()))
            return 0
    except Broken as broken:
        print(f"{broken}\nsite: {len(str(broken).splitlines())} findings", file=sys.stderr)
        return 1
    python, needs = tools(given.out), given.root / "scripts" / "docs_site_requirements.txt"
    if given.install and not (python.exists() and have(python)):
        print(f"installs {needs.name} from PyPI into {given.out / 'tools'}", flush=True)
        subprocess.run([sys.executable, "-m", "venv", str(given.out / "tools")], check=True)
        subprocess.run([str(python), "-m", "pip", "-q", "install", "-r", str(needs)], check=True)
    if python.exists() and have(python):
        return subprocess.run([str(python), __file__, *sys.argv[1:]]).returncode
    print("site: mkdocs-material is not here; `scripts/docs_site.py --install` installs it into "
          f"{given.out / 'tools'}, `scripts/docs_site.py links` checks the links without it", file=sys.stderr)
    return 77


if __name__ == "__main__":
    sys.exit(main())
