#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""scripts/results.py on a few made-up records (results/measured.jsonl): tables, means, refusals, and a check that can
fail."""
import contextlib
import io
import json
import pathlib
import sys
import tempfile
import unittest

HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parents[1] / "scripts"))
import results

MEASURED = HERE / "results" / "measured.jsonl"
README = f"# attune\n\n{results.BEGIN}\nolder text\n{results.END}\n\n## Documentation\n"


class Results(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.root = pathlib.Path(folder.name)
        (self.root / "README.md").write_text(README)
        self.records = [json.loads(line) for line in MEASURED.read_text().splitlines()]

    def text(self, name):
        return (self.root / name).read_text()

    def add(self, records):
        file = self.root / "measured.jsonl"
        file.write_text("".join(json.dumps(r) + "\n" for r in records))
        with contextlib.redirect_stdout(io.StringIO()):
            results.add([file], self.root)
        results.write(self.root)

    def refused(self, why, **changes):
        with self.assertRaisesRegex(SystemExit, why):
            self.add([self.records[2] | changes])
        self.assertFalse(list((self.root / "docs").rglob("*.jsonl")))

    # -- pages

    def test_without_records_the_index_says_so_and_readme_stays(self):
        self.assertIn("docs/results/README.md", results.check(self.root))
        results.write(self.root)
        self.assertIn("Nothing is measured yet.", self.text("docs/results/README.md"))
        self.assertEqual(self.text("README.md"), README)
        self.assertIsNone(results.check(self.root))

    def test_a_line_has_times_rate_speed_up_and_verdict(self):
        self.add(self.records)
        page = self.text("docs/results/h200.md")
        self.assertIn("| `forward bf16 b8 h16 q2048 k2048 d128 causal` | `sm90_forward` | 687 TFLOP/s | 200.0 | "
                      "240.0 | 220.0 | – | 1.100 [1.096, 1.104] | FASTER |", page)
        self.assertIn("| `sm80_forward` | 3990 GB/s | 134.6 | 140.0 | 133.8 | 0.994 [0.992, 0.996] | SAME |", page)
        self.assertLess(page.index("## forward"), page.index("## decode"))

    def test_a_mean_is_over_decided_rows_and_extremes_are_over_all(self):
        self.add(self.records)
        page = self.text("docs/results/h200.md")
        self.assertIn("- Geometric mean over the 2 decided of 3 rows: 1.090 (2 faster, 1 unclear)", page)
        self.assertIn("| forward bf16 d64 | 1 | 512 | `torch:cudnn` | – | 1.004 | 1.004 | 1 unclear |", page)
        self.assertIn("| 1.090 | 1.080 | 1.100 | 2 faster |", page)

    def test_the_fastest_peer_counts_though_it_was_not_the_baseline(self):
        self.add(self.records)
        line = next(x for x in self.text("docs/results/h200.md").splitlines() if "q8192 k8192 d128 full" in x)
        self.assertIn("| 1750 | – | 1728 | 1.080 [1.068, 1.092] | FASTER |", line)

    def test_the_verdict_is_that_of_the_tool(self):
        for low, high, spread, verdict in ((1.02, 1.03, 0.004, "FASTER"), (1.02, 1.03, 0.025, "UNCLEAR"),
                                           (0.97, 0.98, 0, "SLOWER"), (0.995, 1.005, 0, "SAME"),
                                           (0.98, 1.03, 0.04, "SAME"), (0.9, 1.06, 0.2, "UNCLEAR")):
            self.assertEqual(results.verdict_of(low, high, 0.95, spread), verdict, (low, high, spread))
        self.assertEqual(results.verdict_of(2, 3, 0, 0), "UNCLEAR")

    def test_machine_date_commit_command_and_peers_are_named(self):
        self.add(self.records)
        page = self.text("docs/results/h200.md")
        for text in ("Machine: NVIDIA H200, 700 W, clocks free, up to 1980 MHz, driver 580.1, CUDA 13.0",
                     "Date: 2026-01-31; commit: 0123456789ab", "`torch:cudnn` of torch 2.11.0, cuDNN 91900",
                     "Command: `attune bench --device cuda:0 --lines bench/lines/decode.txt --peer "
                     "torch:flash,torch:cudnn`", "A/A spread 0.4 %", "Timing: cold, rested 60 ms, bshd",
                     "- `fa3` at 1 problem, from `forward bf16 b32 h32 q512 k512 d64 full` on: unsupported: fa3: "):
            self.assertIn(text, page)

    def test_readme_has_the_summary_between_its_markers(self):
        self.add(self.records)
        text = self.text("README.md")
        self.assertTrue(text.startswith("# attune\n") and text.endswith("\n## Documentation\n"))
        self.assertNotIn("older text", text)
        self.assertIn("| NVIDIA H200 | decode bf16 d128 | 1 | 8192 | `torch:flash`, `torch:cudnn` | 0.994 |", text)
        self.assertIn("- [NVIDIA H200](docs/results/h200.md): 2026-01-31, commit 0123456789ab, 4 rows", text)

    def test_readme_without_markers_is_refused(self):
        (self.root / "README.md").write_text("# attune\n")
        with self.assertRaisesRegex(SystemExit, "README.md does not have one <!-- results:begin -->"):
            results.check(self.root)

    def test_a_result_that_was_not_checked_is_marked(self):
        self.add([r | {"parity": {"verdict": "UNCHECKED"}} for r in self.records])
        self.assertIn("| FASTER, unchecked |", self.text("docs/results/h200.md"))

    # -- check

    def test_every_typed_number_is_seen(self):
        self.add(self.records)
        self.assertIsNone(results.check(self.root))
        for name in ("README.md", "docs/results/README.md", "docs/results/h200.md"):
            before = self.text(name)
            (self.root / name).write_text(before.replace("1.090", "1.190"))
            self.assertIn(name, results.check(self.root))
            (self.root / name).write_text(before)
        stored = next((self.root / "docs" / "results" / "records").glob("*decode.jsonl"))
        stored.write_text(stored.read_text().replace("134600", "131600"))
        self.assertIn("docs/results/h200.md", results.check(self.root))

    def test_a_page_without_records_is_seen_and_removed(self):
        self.add(self.records)
        (self.root / "docs" / "results" / "b200.md").write_text("# typed\n")
        self.assertIn("docs/results/b200.md", results.check(self.root))
        results.write(self.root)
        self.assertIsNone(results.check(self.root))

    # -- add

    def test_bulk_is_dropped_and_the_page_is_the_same_from_stored_records(self):
        self.add(self.records)
        page, stored = self.text("docs/results/h200.md"), self.root / "docs" / "results" / "records"
        first = json.loads((stored / "h200_forward.jsonl").read_text().splitlines()[0])
        self.assertFalse({"samples_ns", "samples_mhz", "kernels", "why"} & set(first))
        self.assertEqual(first["samples"], 3)
        self.assertEqual(list(first)[0], "attune_record")
        self.add([json.loads(line) for path in stored.glob("*.jsonl") for line in path.read_text().splitlines()])
        self.assertEqual(self.text("docs/results/h200.md"), page)

    def test_a_peer_that_failed_is_shown_with_its_reason(self):
        failed = {"status": "failed", "message": "fa3: it broke"}
        self.add([r | failed if r["subject"] == "fa3" else r for r in self.records])
        page = self.text("docs/results/h200.md")
        self.assertIn("- `fa3` at 2 problems, from `forward bf16 b8 h16 q2048 k2048 d128 causal` on: failed: fa3: it",
                      page)
        self.assertIn("| 200.0 | 240.0 | – | 1.200 [1.193, 1.207] | FASTER |", page)
        with self.assertRaisesRegex(SystemExit, "fa3, .*: interrupted: "):
            self.add([r | {"status": "interrupted"} for r in self.records if r["subject"] == "fa3"])

    def test_new_records_replace_their_suite_alone(self):
        self.add(self.records)
        self.add([r | {"aa_spread": 0.009} for r in self.records if r["suite"] == "decode"])
        page = self.text("docs/results/h200.md")
        self.assertIn("A/A spread 0.4 %", page)
        self.assertIn("A/A spread 0.9 %", page)

    def test_nothing_is_claimed_below_95_percent_or_from_a_spread_that_was_not_measured(self):
        decode = [r for r in self.records if r["suite"] == "decode"]
        self.add([r | {"aa_spread": None} for r in decode])
        self.assertIn("A/A spread not measured", self.text("docs/results/h200.md"))
        weak = [r | {"ratio": r["ratio"] | {"confidence": 0.875}} if r.get("ratio") else r for r in self.records]
        self.add([r for r in weak if r["suite"] == "forward"])
        page = self.text("docs/results/h200.md")
        self.assertIn("at 88 % | UNCLEAR |", page)
        self.assertNotIn("at 88 % | FASTER |", page)

    def test_what_cannot_stand_behind_a_number_is_refused(self):
        source = self.records[2]["provenance"]
        self.refused(r"measured.jsonl:1: commit 0123456789ab-dirty given", provenance=source | {"dirty": True})
        self.refused("commit unknown given", provenance=source | {"commit": "unknown"})
        self.refused("sm90_forward, .*: failed: it broke", status="failed", message="it broke")
        self.refused("no backend of attune beside torch:cudnn", subject="torch:cudnn")
        with self.assertRaisesRegex(SystemExit, "is measured twice"):
            self.add(self.records + self.records[:1])
        plain = {k: v for k, v in self.records[0].items() if k not in ("suite", "command")}
        with self.assertRaisesRegex(SystemExit, "its suite and command are unknown"):
            self.add([plain])
        with self.assertRaisesRegex(SystemExit, "not a record"):
            self.add([{}])
        with self.assertRaisesRegex(SystemExit, "at most 300000 are stored"):
            self.add([r | {"message": "x" * 30000} for r in self.records])

    # -- measure

    def test_measured_records_have_their_suite_and_command(self):
        build, out = self.root / "build", self.root / "out"
        build.mkdir()
        plain = {k: v for k, v in self.records[2].items() if k not in ("suite", "command")}
        tool = build / "attune"
        for code in (0, 1):
            tool.write_text("#!/bin/sh\nfor out; do :; done\ncat > $out << 'END'\n%s\nEND\nexit %d\n"
                            % (json.dumps(plain), code))
            tool.chmod(0o755)
            with contextlib.redirect_stdout(io.StringIO()):
                self.assertEqual(results.measure(build, out / str(code), ["nsa"]), code)
            path = out / str(code) / "nsa.jsonl"
            self.assertEqual(path.read_text(), json.dumps(plain) + "\n", "sealed records stay as they were written")
            about = json.loads(path.with_suffix(".command").read_text())
            self.assertEqual(about["suite"], "nsa")
            self.assertTrue(about["command"].startswith("attune bench --device cuda:0 --layout bshd"))
            with contextlib.redirect_stdout(io.StringIO()):
                results.add([path], self.root)
            stored = next((self.root / "docs/results/records").glob("*_nsa.jsonl"))
            self.assertEqual(json.loads(stored.read_text())["command"], about["command"])
        with self.assertRaisesRegex(SystemExit, "exists; measure into an empty folder"):
            results.measure(build, out / "0", ["nsa"])

    def test_peers_are_those_that_are_installed(self):
        was = results.has
        self.addCleanup(setattr, results, "has", was)
        for there, words in (((), ["--baseline", "vendor_cudnn"]), (("torch",), ["--peer", "torch:cudnn,torch:flash"]),
                             (("torch", "flash_attn_interface"), ["--peer", "torch:cudnn,fa3"])):
            results.has = lambda module, there=there: module in there
            self.assertEqual(results.command_of("forward")[-2:], words)

    def test_every_suite_has_its_file(self):
        for suite, (words, _) in results.SUITES.items():
            if "--lines" in words:
                self.assertTrue((results.ROOT / words[words.index("--lines") + 1]).is_file(), suite)

    def test_unknown_words_are_refused(self):
        for words, message in ((["show", "speed"], "suite speed is not one of forward"), ([], "results.py show"),
                               (["measure", "build"], "results.py show"), (["check", "it"], "results.py show")):
            with self.assertRaisesRegex(SystemExit, message):
                results.main(words)


if __name__ == "__main__":
    unittest.main()
