#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""scripts/docs_site.py: the links of the pages on every machine; the site, and its search in a browser that has no
network, where mkdocs-material is (of this Python, or installed by scripts/docs_site.py --install)."""

import pathlib
import shutil
import subprocess
import sys
import tempfile
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "scripts"), str(ROOT / "tests" / "tool" / "report")]
import browser
import docs_site as pages


def python():
    """A Python that can build the site, or None."""
    return next((str(p) for p in (sys.executable, ROOT / "build" / "site" / "tools" / "bin" / "python")
                 if pathlib.Path(p).exists() and pages.have(p)), None)


class Links(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.TemporaryDirectory(prefix="attune_site_")
        self.root = pathlib.Path(self.folder.name).resolve()
        (self.root / "docs").mkdir()

    def tearDown(self):
        self.folder.cleanup()

    def broken(self, text):
        (self.root / "README.md").write_text("# Top\n\n## On a GPU, `x`\n\n## Same\n\n## Same\n")
        (self.root / "docs" / "a.md").write_text(text)
        try:
            return pages.check_pages(self.root)
        except pages.Broken as broken:
            return str(broken)

    def test_every_link_of_the_pages_leads_somewhere(self):
        self.assertGreater(pages.check_pages(ROOT), 150)

    def test_a_link_that_leads_nowhere_is_named_with_its_line(self):
        self.assertEqual(self.broken("[a](../README.md#on-a-gpu-x) [b](../README.md#same-1) [c](https://x.org/y)\n"), 2)
        self.assertIn("docs/a.md:2: 'b.md' is not a file", self.broken("\n[a](b.md)\n"))
        self.assertIn("docs/a.md:1: '../README.md#on-gpu' names no heading of README.md; it has on-a-gpu-x",
                      self.broken("[a](../README.md#on-gpu)\n"))
        self.assertIn("'#sam' names no heading", self.broken("[a](#sam)\n"))
        self.assertIn("is not on the site", self.broken(f"[a](../{self.elsewhere()})\n"))
        self.assertEqual(self.broken("`[a](b.md)`\n\n```text\n[a](c.md)\n```\n"), 0)  # code

    def elsewhere(self):
        (self.root / "src").mkdir(exist_ok=True)
        (self.root / "src" / "a.cpp").write_text("")
        return "src/a.cpp"


@unittest.skipUnless(python(), "mkdocs-material is not here; scripts/docs_site.py --install brings it")
class Site(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.folder = tempfile.TemporaryDirectory(prefix="attune_site_")
        cls.root = pathlib.Path(cls.folder.name).resolve() / "tree"
        cls.root.mkdir()
        for name in (*pages.PAGES, "mkdocs.yml"):
            shutil.copy(ROOT / name, cls.root / name)
        for name in pages.FOLDERS:
            shutil.copytree(ROOT / name, cls.root / name, ignore=shutil.ignore_patterns("build"))

    @classmethod
    def tearDownClass(cls):
        cls.folder.cleanup()

    def built(self):
        return subprocess.run([python(), str(ROOT / "scripts" / "docs_site.py"), "--root", str(self.root), "--out",
                               str(self.root / "out")], text=True, capture_output=True)

    def test_it_builds_and_a_page_without_a_place_in_the_menu_fails(self):
        done = self.built()
        self.assertEqual(done.returncode, 0, done.stderr)
        if browser.program():
            self.search()
        (self.root / "docs" / "lost.md").write_text("# Lost\n")
        done = self.built()
        (self.root / "docs" / "lost.md").unlink()
        self.assertEqual(done.returncode, 1, done.stdout)
        self.assertIn("docs/lost.md", done.stderr)

    def test_what_a_page_loads_from_a_network_is_found(self):
        out = self.root / "html"
        out.mkdir()
        (out / "index.html").write_text("<script src='https://x.org/a.js'></script><a href='b.html#c'></a>")
        (out / "b.html").write_text("<p id='d'><link rel='canonical' href='https://x.org'>")
        with self.assertRaises(pages.Broken) as broken:
            pages.check_site(out)
        text = str(broken.exception)
        for part in ("loads 'https://x.org/a.js' from a network", "'b.html#c' has no such place",
                     "index.html: is not in the search index"):
            self.assertIn(part, text)
        self.assertNotIn("canonical", text)

    def search(self):
        """The search of a page that was opened as a file finds a word of another page, and nothing asks a network."""
        page = browser.Browser()
        try:
            page.open((self.root / "out" / "html" / "docs" / "cli.html").as_uri())
            page.value("document.querySelector('[data-md-toggle=search]').click()")
            page.value("(() => { const box = document.querySelector('[data-md-component=search-query]'); box.focus();"
                       " box.value = 'hysteresis'; box.dispatchEvent(new Event('input', {bubbles: true}));"
                       " box.dispatchEvent(new KeyboardEvent('keyup', {bubbles: true})); })()")
            found = ("[...document.querySelectorAll('.md-search-result__item a')]"
                     ".some(a => a.href.includes('measuring.html'))")
            self.assertTrue(page.until(found, 30), page.errors)
            self.assertFalse([r for r in page.requests if not r.startswith("file:")])
            self.assertFalse(page.errors)
        finally:
            page.close()


if __name__ == "__main__":
    unittest.main()
