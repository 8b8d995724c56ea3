#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The report in a real browser: no errors, no requests, plots with tooltips, tables that sort and filter; when served,
it follows a growing file. browser_test.py ATTUNE; exit code 77 without Chromium."""
import http.client
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
