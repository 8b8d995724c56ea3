#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The report in a real browser: no errors, no requests, plots with tooltips, tables that sort and filter; when served,
it follows a growing file. browser_test.py ATTUNE; exit code 77 without Chromium."""
import http.client
import importlib.util
import json
import pathlib
import re
import signal
import subprocess
import sys
import tempfile
import unittest

import browser

ATTUNE = None


def record(subject, length, ns, ratio=0.0):
    """A line as attune bench writes it."""
    one = {"attune_record": 1, "status": "ok", "problem": f"forward f32 b1 h8 q{length} k{length} d64 causal",
           "subject": subject, "device": "cpu", "mode": "warm", "threads": 2, "median_ns": ns, "calls": 1,
           "ended_by": "precision", "flops": 1e3 * length, "bytes": 1e3 * length, "gflops": 1e3 * length / ns,
           "gbs": 1, "ceiling": "fmla", "ceiling_gflops": 80, "copy_gbs": 40, "mhz": 1500 + length / 10, "watts": 200,
           "interval_ns": {"low": ns * 0.99, "high": ns * 1.01, "confidence": 0.95}, "workspace_bytes": 4096,
           "parity": {"verdict": "PASS", "error": 0.1, "rows": 8}, "samples_ns": [ns] * 30,
           "provenance": {"time": "2026-01-31T12:00:00Z", "cpu": "Test CPU", "commit": "0123abc"}}
    if ratio:
        one |= {"baseline": "torch:sdpa", "verdict": "FASTER" if ratio > 1 else "SLOWER",
                "ratio": {"value": ratio, "low": ratio * 0.98, "high": ratio * 1.02, "confidence": 0.95}}
    return json.dumps(one) + "\n"


def typical(lengths=(512, 1024, 2048, 4096, 8192)):
    return "".join(record("torch:sdpa", n, 40.0 * n) + record("cpu_forward", n, 20.0 * n, 2.0 if n < 4096 else 0.9)
                   for n in lengths)


class Page(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.folder = tempfile.TemporaryDirectory()
        cls.root = pathlib.Path(cls.folder.name)
        cls.browser = browser.Browser()
        (cls.root / "r.jsonl").write_text(typical())
        subprocess.run([ATTUNE, "report", cls.root / "r.jsonl", "--out", cls.root / "r.html"], check=True,
                       stdout=subprocess.DEVNULL)

    @classmethod
    def tearDownClass(cls):
        cls.browser.close()
        cls.folder.cleanup()

    def show(self):
        address = f"file://{self.root}/r.html"
        self.browser.open(address)
        return address

    def test_opens_without_an_error_and_asks_for_nothing(self):
        address = self.show()
        self.assertEqual(self.browser.errors, [])
        self.assertEqual(self.browser.requests, [address])
        self.assertGreaterEqual(self.browser.value("document.querySelectorAll('main svg').length"), 5)
        for part in ["verdict", "use", "against", "lengths", "roofline", "scaling", "memory", "parity", "trace", "rows",
                     "provenance", "caveats"]:
            self.assertTrue(self.browser.value(f"document.getElementById('{part}').offsetHeight > 20"), part)

    def test_policy_refuses_what_is_not_of_the_page(self):
        self.show()
        self.browser.value("""(() => { const s = document.createElement('script'); s.textContent = 'globalThis.bad = 1';
                              document.body.append(s); })()""")
        self.assertIsNone(self.browser.value("globalThis.bad"))
        self.assertFalse(self.browser.value("fetch('http://127.0.0.1:9/').then(() => true, () => false)"))

    def test_a_table_sorts_by_number_and_back(self):
        self.show()
        column = """[...document.querySelectorAll('#rows tbody tr')].map(r => r.cells[5].textContent)"""
        self.browser.value("document.querySelectorAll('#rows th button')[5].click()")
        up = self.browser.value(column)
        self.assertEqual((up[0], up[-1]), ("10.2 us", "328 us"))
        self.browser.value("document.querySelectorAll('#rows th button')[5].click()")
        self.assertEqual(self.browser.value(column), up[::-1])

    def test_a_table_filters_by_words_and_by_choice(self):
        self.show()
        shown = """[...document.querySelectorAll('#rows tbody tr')].filter(r => r.offsetHeight).length"""
        self.assertEqual(self.browser.value(shown), 10)
        self.browser.value("""(() => { const i = document.querySelector('#rows input'); i.value = 'Q2048 cpu';
                              i.dispatchEvent(new Event('input')); })()""")
        self.assertEqual(self.browser.value(shown), 1)
        self.assertEqual(self.browser.value("document.querySelector('#rows .count').textContent"), "1 of 10 rows")
        self.browser.value("""(() => { const i = document.querySelector('#rows input'); i.value = '';
                              i.dispatchEvent(new Event('input'));
                              const s = [...document.querySelectorAll('#rows select')].at(-1); s.value = '=SLOWER';
                              s.dispatchEvent(new Event('input')); })()""")
        self.assertEqual(self.browser.value(shown), 2)

    def test_a_point_says_what_it_is_under_the_pointer(self):
        self.show()
        x, y = self.browser.value("""(() => { const dot = document.querySelector('#lengths .series .dot');
            dot.scrollIntoView({block: 'center'}); const box = dot.getBoundingClientRect();
            return [box.x + box.width / 2, box.y + box.height / 2]; })()""")
        self.browser.move(x + 2, y + 1)
        text = self.browser.value("document.querySelector('#tip.on').textContent")
        self.assertIn("torch:sdpa, 512 keys", text)
        self.assertIn("20.5 us", text)
        self.browser.move(2, 2)
        self.assertIsNone(self.browser.value("document.querySelector('#tip.on')"))

    def test_a_series_hides_and_comes_back(self):
        self.show()
        hidden = "getComputedStyle(document.querySelector('#lengths .series')).display === 'none'"
        press = "document.querySelector('#lengths .key').dispatchEvent(new MouseEvent('click'))"
        self.browser.value(press)
        self.assertTrue(self.browser.value(hidden))
        self.browser.value(press)
        self.assertFalse(self.browser.value(hidden))

    def test_dark_follows_the_system_and_the_reader(self):
        paper = "getComputedStyle(document.body).backgroundColor"
        self.browser.scheme("light")
        self.show()
        self.assertEqual(self.browser.value(paper), "rgb(255, 255, 255)")
        self.browser.scheme("dark")
        dark = self.browser.value(paper)
        self.assertNotEqual(dark, "rgb(255, 255, 255)")
        self.browser.value("document.querySelector('header button').click()")  # auto, then light
        self.assertEqual(self.browser.value(paper), "rgb(255, 255, 255)")
        self.browser.scheme("light")
        self.browser.value("document.querySelector('header button').click()")  # dark
        self.assertEqual(self.browser.value(paper), dark)
        self.browser.value("document.querySelector('header button').click()")

    def test_print_opens_the_tables_and_leaves_out_the_controls(self):
        self.show()
        self.browser.value("dispatchEvent(new Event('beforeprint'))")
        self.assertTrue(self.browser.value("[...document.querySelectorAll('details')].every(d => d.open)"))
        self.browser.call("Emulation.setEmulatedMedia", media="print")
        self.assertEqual(self.browser.value("getComputedStyle(document.querySelector('nav')).display"), "none")
        self.browser.call("Emulation.setEmulatedMedia", media="")

    def test_five_hundred_rows_are_usable(self):
        lengths = range(256, 256 * 251, 256)
        (self.root / "many.jsonl").write_text(typical(lengths))
        subprocess.run([ATTUNE, "report", self.root / "many.jsonl", "--out", self.root / "many.html"], check=True,
                       stdout=subprocess.DEVNULL)
        self.assertLess((self.root / "many.html").stat().st_size, 1_500_000)
        self.browser.open(f"file://{self.root}/many.html")
        self.assertEqual(self.browser.errors, [])
        self.assertEqual(self.browser.value("document.querySelector('#rows .count').textContent"), "500 rows")


def axe():
    """The text of axe-core from its package, or None."""
    found = importlib.util.find_spec("axe_core_python")
    return found and (pathlib.Path(found.origin).parent / "axe.min.js").read_text()


class Looks(unittest.TestCase):
    """The pages of a run, of a comparison and of a history, on a phone, a tablet and a desk, light and dark."""
    WIDTHS = (360, 800, 1600)

    @classmethod
    def setUpClass(cls):
        cls.folder = tempfile.TemporaryDirectory()
        root = pathlib.Path(cls.folder.name)
        slower = [record("cpu_forward", 512 * n, 20.0 * 512 * n * (1.3 if n % 3 else 1)) for n in range(1, 7)]
        (root / "now.jsonl").write_text(typical() + "".join(slower))
        (root / "before.jsonl").write_text(typical())
        subprocess.run([ATTUNE, "report", root / "now.jsonl", "--baseline", root / "before.jsonl", "--out",
                        root / "report.html"], check=True, stdout=subprocess.DEVNULL)
        cls.pages = [root / "report.html"]
        days = [json.loads(record("cpu_forward", 512, (1000.0 if day < 15 else 1300.0) + day % 3)) for day in range(28)]
        for day, one in enumerate(days):
            one["run"], one["provenance"]["time"] = f"run{day}", f"2026-01-{day + 1:02}T12:00:00Z"
        (root / "days.jsonl").write_text("".join(json.dumps(one) + "\n" for one in days))
        stored = subprocess.run([ATTUNE, "store", root / "days.jsonl", "--db", root / "days.db"], capture_output=True)
        if stored.returncode == 0:  # SQLite is here
            subprocess.run([ATTUNE, "history", "--db", root / "days.db", "--html", root / "days.html"], check=True,
                           stdout=subprocess.DEVNULL)
            cls.pages.append(root / "days.html")
        cls.browser = browser.Browser()

    @classmethod
    def tearDownClass(cls):
        cls.browser.close()
        cls.folder.cleanup()

    def each(self, widths=WIDTHS):
        for page in self.pages:
            for width in widths:
                self.browser.call("Emulation.setDeviceMetricsOverride", width=width, height=900, deviceScaleFactor=1,
                                  mobile=False)
                self.browser.open(f"file://{page}")
                self.browser.value("document.querySelectorAll('details').forEach(d => d.open = true)")
                yield page.name, width

    def test_nothing_leaves_the_page_and_letters_stay_readable(self):
        for name, width in self.each():
            with self.subTest(name, width=width):
                self.assertEqual(self.browser.errors, [])
                self.assertLessEqual(self.browser.value("document.documentElement.scrollWidth"), width)
                smallest = self.browser.value("""Math.min(...[...document.querySelectorAll('main text')].map(t =>
                    parseFloat(getComputedStyle(t).fontSize) * t.getScreenCTM().a).filter(s => s > 0))""")
                self.assertGreaterEqual(smallest, 9)
                beyond = self.browser.value("""[...document.querySelectorAll('main svg')].flatMap(svg => {
                    const box = svg.getBoundingClientRect();
                    return [...svg.querySelectorAll('text')].filter(t => { const b = t.getBoundingClientRect();
                      return b.width && (b.left < box.left - 2 || b.right > box.right + 2); })
                      .map(t => t.textContent); })""")
                self.assertEqual(beyond, [], "words cut by the edge of a plot")

    def test_axe_finds_no_serious_error(self):
        source = axe()
        if not source:
            self.skipTest("axe-core-python is not installed")
        for scheme, widths in (("light", (360, 1600)), ("dark", (800,))):
            self.browser.scheme(scheme)
            for name, width in self.each(widths):
                with self.subTest(name, width=width, scheme=scheme):
                    self.browser.value(source + "; 0")
                    found = self.browser.value("""axe.run(document, {resultTypes: ['violations']}).then(r =>
                        ({rules: r.passes.length, bad: r.violations
                            .filter(v => v.impact === 'serious' || v.impact === 'critical')
                            .map(v => v.id + ': ' + v.nodes[0].html.slice(0, 120) + ' ' + v.nodes[0].failureSummary)}))""")
                    self.assertGreater(found["rules"], 10)
                    self.assertEqual(found["bad"], [])
        self.browser.scheme("light")


class Served(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.TemporaryDirectory()
        self.file = pathlib.Path(self.folder.name) / "run.jsonl"
        self.serve = None

    def tearDown(self):
        if self.serve:
            self.serve.kill()
            self.serve.wait()
            self.serve.stdout.close()
        self.folder.cleanup()

    def start(self):
        self.serve = subprocess.Popen([ATTUNE, "serve", self.file, "--port", "0"], stdout=subprocess.PIPE, text=True)
        return re.match(r"(http://127\.0\.0\.1:\d+/)  until Ctrl-C", self.serve.stdout.readline())[1]

    def test_the_page_follows_a_growing_file_and_asks_only_its_origin(self):
        address = self.start()
        page = browser.Browser()
        try:
            page.open(address)  # before the run has written anything
            self.assertTrue(page.until("document.body.textContent.includes('Nothing was measured')"))
            self.file.write_text(typical((512, 1024, 2048, 4096, 8192)))
            self.assertTrue(page.until("document.querySelectorAll('#rows tbody tr').length === 10"))
            page.value("""(() => { const i = document.querySelector('#rows input'); i.value = 'cpu_forward';
                          i.dispatchEvent(new Event('input')); })()""")
            with open(self.file, "a") as file:
                file.write(typical((16384,)) + '{"attune_rec')  # plus a line that is still being written
            self.assertTrue(page.until("document.querySelectorAll('#rows tbody tr').length === 12"))
            self.assertEqual(page.value("document.querySelector('#rows input').value"), "cpu_forward")
            self.assertEqual(page.value("""[...document.querySelectorAll('#rows tbody tr')]
                                           .filter(r => r.offsetHeight).length"""), 6)
            self.assertIn("live", page.value("document.getElementById('live').textContent"))
            with open(self.file, "a") as file:
                file.write("\n")  # the line is now malformed; earlier records stay
            self.assertTrue(page.until("document.getElementById('live').textContent.includes('run.jsonl:13')"))
            self.assertEqual(page.value("document.querySelectorAll('#rows tbody tr').length"), 12)
            self.assertEqual([r for r in page.requests if not r.startswith(address)], [])
            self.assertEqual([e for e in page.errors if "500" not in e], [])
        finally:
            page.close()

    def test_what_the_reader_has_set_survives_200_rows(self):
        lengths = [256 * n for n in range(1, 109)]
        self.file.write_text(typical(lengths[:8]))
        address = self.start()
        page = browser.Browser()
        state = """(() => [document.querySelector('#rows th[aria-sort]')?.textContent,
                    document.querySelector('#rows th[aria-sort]')?.getAttribute('aria-sort'),
                    document.querySelector('#rows input').value,
                    [...document.querySelectorAll('#lengths .key.off')].map(k => k.textContent.trim()).join(),
                    document.querySelector('#lengths details').open,
                    document.activeElement.matches('#rows .tools input'), document.activeElement.selectionStart])()"""
        try:
            page.open(address)
            self.assertTrue(page.until("document.querySelectorAll('#rows tbody tr').length === 16"))
            page.value("""(() => {
                const head = [...document.querySelectorAll('#rows th button')].find(b => b.textContent === 'median');
                head.click(); head.click();
                const input = document.querySelector('#rows input');
                input.value = 'cpu_forward'; input.dispatchEvent(new Event('input'));
                document.querySelector('#lengths .key').dispatchEvent(new Event('click'));
                document.querySelector('#lengths details').open = true;
                input.focus(); input.setSelectionRange(3, 3); })()""")
            before = page.value(state)
            self.assertEqual(before[:3] + before[4:], ["median", "descending", "cpu_forward", True, True, 3])
            self.assertTrue(before[3])
            for end in (30, 60, 108):
                self.file.write_text(typical(lengths[:end]))
                self.assertTrue(page.until(f"document.querySelectorAll('#rows tbody tr').length === {2 * end}"))
                self.assertEqual(page.value(state), before)
        finally:
            page.close()

    def test_it_answers_what_there_is_and_only_under_its_own_name(self):
        self.file.write_text(typical())
        port = int(re.search(r":(\d+)/", self.start())[1])

        def answer(path, host=None):
            connection = http.client.HTTPConnection("127.0.0.1", port, timeout=20)
            connection.request("GET", path, headers={"Host": host or f"localhost:{port}"})
            got = connection.getresponse()
            text = got.read().decode()
            connection.close()
            return got.status, text

        self.assertIn("# Attention, measured", answer("/report.md")[1])
        self.assertEqual(answer("/rows.csv")[1].count("\r\n"), 11)
        self.assertEqual(answer("/../etc/passwd")[0], 404)
        self.assertEqual(answer("/", "evil.example")[0], 403)

    def test_ctrl_c_ends_it_well(self):
        self.start()
        self.serve.send_signal(signal.SIGINT)
        self.assertEqual(self.serve.wait(10), 0)


if __name__ == "__main__":
    ATTUNE = sys.argv.pop(1)
    if not browser.program():
        print("no Chromium is here: the report is not opened in a browser")
        sys.exit(77)
    unittest.main()
