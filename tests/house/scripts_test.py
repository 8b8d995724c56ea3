#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The scripts that judge GPU code on machines without a GPU, and the build information: each check must be able to
fail."""
import contextlib
import io
import json
import os
import pathlib
import re
import subprocess
import sys
import tempfile
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "scripts"))
import check_ptxas
import gpu_sources
import machine_code
import mutate
import protocol_mutants
import tune_check


class Workflows(unittest.TestCase):
    def test_actions_are_pinned_by_commit_and_may_only_read(self):
        root = pathlib.Path(__file__).resolve().parents[2]
        files = [*root.glob(".github/workflows/*.yml"), *root.glob("examples/*workflow.yml")]
        self.assertGreaterEqual(len(files), 4)
        for file in files:
            text = file.read_text()
            self.assertRegex(text, r"(?m)^permissions:\n  contents: read$", file)
            used = re.findall(r"uses: *(\S+)", text)
            self.assertTrue(used, file)
            for action in used:
                self.assertRegex(action, r"^[\w./-]+@[0-9a-f]{40}$", f"{file}: a tag can be moved; name the commit")


class GpuSources(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.TemporaryDirectory()
        self.root = pathlib.Path(self.folder.name)
        self.write("src/attention/sm80/forward/host.cu", '#include "core/mask.h"\n#include <vector>\n')
        self.write("src/core/mask.h", '#include "core/number.h"\n')
        self.write("src/core/number.h", "int number;\n")
        self.write("src/core/problem.cpp", "int problem;\n")
        self.record = self.root / "record.json"

    def tearDown(self):
        self.folder.cleanup()

    def write(self, name, text):
        path = self.root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)

    def checked(self, **changes):
        last = {"sources": gpu_sources.source_hash(self.root), "date": "2026-01-01", "device": "a GPU", "passed": 9,
                "failed": 0}
        self.record.write_text(json.dumps(last | changes))

    def answer(self):
        return gpu_sources.check(self.record, self.root)

    def test_a_record_of_these_sources_is_good(self):
        self.checked()
        self.assertIsNone(self.answer())

    def test_a_changed_kernel_is_seen(self):
        self.checked()
        self.write("src/attention/sm80/forward/host.cu", "int other;\n")
        self.assertIn("are not those that were checked on 2026-01-01 on a GPU", self.answer())

    def test_sources_of_the_same_machine_code_are_good_and_others_are_not(self):
        self.checked()
        self.write("src/core/number.h", "int renamed;\n")
        self.checked(sources="others", same_code=[{"sources": gpu_sources.source_hash(self.root)}])
        self.assertIsNone(self.answer())
        self.write("src/core/number.h", "int other;\n")
        self.assertIn("are not those that were checked", self.answer())

    def test_a_header_of_a_header_is_seen(self):
        self.checked()
        self.write("src/core/number.h", "int other;\n")
        self.assertIn("are not those that were checked", self.answer())

    def test_comments_do_not_matter_and_strings_do(self):
        self.write("src/core/number.h", 'int number; /* of */ char* at = "//x";\n')
        self.checked()
        self.write("src/core/number.h", '// A number.\nint number;\n\nchar* at = "//x";  // where\n')
        self.assertIsNone(self.answer())
        self.write("src/core/number.h", 'int number; char* at = "//y";\n')
        self.assertIn("are not those that were checked", self.answer())

    def test_a_new_kernel_is_seen(self):
        self.checked()
        self.write("src/attention/sm80/decode/host.cu", "")
        self.assertIn("are not those that were checked", self.answer())

    def test_code_of_the_host_does_not_matter(self):
        self.checked()
        self.write("src/core/problem.cpp", "int other;\n")
        self.assertIsNone(self.answer())

    def test_what_failed_in_the_sanitizer_and_the_tests_runs_again_and_counts(self):
        memcheck = "compute-sanitizer memcheck sm90_backward: %d passed, %d failed"
        pool = "CUDA tests cuda_machine_pool_test: 7 passed, 0 failed"
        graph = "CUDA tests cuda_attention_graph_test: %d passed, %d failed"
        self.checked(commit="abc", failed=2, parts=[pool, graph % (1, 1), memcheck % (0, 1)])
        self.assertEqual(gpu_sources.failed_runs(self.record, self.root),
                         ["CUDA tests cuda_attention_graph_test", "memcheck sm90_backward"])
        gpu_sources.write_again(self.record, [memcheck % (1, 0), graph % (2, 0)])
        last = json.loads(self.record.read_text())
        self.assertEqual((last["passed"], last["failed"]), (10, 0))
        self.assertEqual(last["parts"], [pool, graph % (2, 0), memcheck % (1, 0)])
        self.assertEqual(last["again"],
                         ["CUDA tests cuda_attention_graph_test", "compute-sanitizer memcheck sm90_backward"])
        self.assertIsNone(self.answer())
        with self.assertRaisesRegex(SystemExit, "nothing failed"):
            gpu_sources.failed_runs(self.record, self.root)

    def test_other_sources_and_other_failures_are_not_run_again(self):
        self.checked(commit="abc", failed=1, parts=["no spills: 0 passed, 1 failed"])
        with self.assertRaisesRegex(SystemExit, "no spills failed, which only the whole check runs"):
            gpu_sources.failed_runs(self.record, self.root)
        self.write("src/core/number.h", "int other;\n")
        with self.assertRaisesRegex(SystemExit, "of other sources .commit abc"):
            gpu_sources.failed_runs(self.record, self.root)

    def test_a_failed_or_empty_check_is_no_record(self):
        self.checked(failed=1)
        self.assertIn("passed 9 and failed 1", self.answer())
        self.checked(passed=0)
        self.assertIn("passed 0 and failed 0", self.answer())

    def test_no_record_is_said(self):
        for text in (None, "{"):
            if text:
                self.record.write_text(text)
            for ask in (gpu_sources.check, gpu_sources.failed_runs):
                with self.assertRaisesRegex(SystemExit, "there is no record of a GPU check"):
                    ask(self.record, self.root)


class BuildInfo(unittest.TestCase):
    """tool/record/build_info.cmake: the commit that a record names."""
    def written(self, environment="", configured=""):
        root = pathlib.Path(__file__).resolve().parents[2]
        with tempfile.TemporaryDirectory() as folder:
            header = pathlib.Path(folder) / "build_info.h"
            done = subprocess.run(
                ["cmake", f"-Dsource={folder}", f"-Doutput={header}", "-Dversion=0.1.0", "-Dcompiler=GNU",
                 "-Dflags=-O3", f"-Dgiven={configured}", "-P", root / "tool/record/build_info.cmake"],
                env=os.environ | {"ATTUNE_COMMIT": environment}, capture_output=True, text=True)
            if done.returncode:
                return " ".join(done.stderr.split())
            return re.findall(r'kCommit = "(.*)"|kDirty = (.*);', header.read_text())

    def test_sources_outside_of_git_have_no_commit(self):
        self.assertEqual(self.written(), [("unknown", ""), ("", "false")])

    def test_a_given_commit_is_believed_the_environment_first(self):
        self.assertEqual(self.written(configured="fedcba9"), [("fedcba9", ""), ("", "false")])
        self.assertEqual(self.written("0123456789abcdef0123", "fedcba9"), [("0123456789ab", ""), ("", "false")])
        self.assertEqual(self.written("0123456-dirty"), [("0123456", ""), ("", "true")])

    def test_what_is_no_commit_is_refused(self):
        for word in ("012345", "main", '0123456"', "0123456-changed"):
            self.assertIn(f'ATTUNE_COMMIT: "{word}" is not 7 or more hexadecimal digits', self.written(word))


class ProtocolMutants(unittest.TestCase):
    def test_every_call_that_is_excused_is_there(self):
        keys = {(s.header, s.key) for header in protocol_mutants.HEADERS for s in protocol_mutants.sites_of(header)[1]}
        self.assertEqual([k for k in protocol_mutants.EQUIVALENT | protocol_mutants.UNSEEN if k not in keys], [])
        self.assertGreater(len(keys), 300)

    def test_every_kind_of_call_is_used_and_every_program_is_there(self):
        root = protocol_mutants.ROOT
        text = "".join((root / "src" / "attention" / h).read_text() for h in protocol_mutants.HEADERS)
        self.assertEqual([c for c in protocol_mutants.CALLS if not re.search(rf"\b{c}\b", text)], [])
        for program in (p.split()[0] for programs in protocol_mutants.HEADERS.values() for p in programs):
            self.assertTrue((root / "tests" / "emulated" / f"{program}.cpp").is_file(), program)


class MachineCode(unittest.TestCase):
    def different(self, old, new):
        with contextlib.redirect_stdout(io.StringIO()) as out:
            count = machine_code.different(old, new, "kernel")
        return count, out.getvalue()

    def test_names_do_not_matter_and_code_and_counts_do(self):
        self.assertEqual(self.different([("a", "old"), ("b", "x")], [("b", "y"), ("a", "new")])[0], 0)
        count, text = self.different([("a", "old"), ("a", "again")], [("a", "old"), ("c", "new")])
        self.assertEqual(count, 2)
        self.assertIn("- kernel a", text)
        self.assertIn("+ kernel c new", text)
        self.assertIn("kernel: 2 before, 2 after, 2 differ", text)

    def test_attributes_are_read_in_both_forms(self):
        short, long = bytes([3, 0x1B, 0xFF, 0]), bytes([4, 0x2F, 8, 0]) + bytes(range(8))
        self.assertEqual(machine_code.attributes(short + long), [(0x1B, b"\xff\0"), (0x2F, bytes(range(8)))])

    def test_sections_of_a_program_are_found(self):
        names = [s.name for s in machine_code.sections(pathlib.Path(sys.executable).resolve().read_bytes())]
        self.assertIn(".text", names)
        with self.assertRaises(ValueError):
            machine_code.sections(b"#!/bin/sh")


class Mutants(unittest.TestCase):
    def test_every_one_can_be_planted(self):
        self.assertEqual(mutate.outgrown(mutate.MUTANTS), [])

    def test_code_that_changed_is_seen(self):
        self.assertEqual(mutate.outgrown([("scripts/mutate.py", "no such line" + " of it", "", "", [])]),
                         ["scripts/mutate.py does not hold exactly once: no such line of it"])

    def test_since_what_is_no_commit_is_refused(self):
        with self.assertRaisesRegex(SystemExit, "^--since: 'no-such-commit' is not a commit$"):
            mutate.changed_since("no-such-commit", mutate.MUTANTS)

    def test_rows_that_ran_replace_those_on_the_page_and_what_never_ran_is_no_kill(self):
        one, two, three = [("a.h", "x", "y", what, []) for what in ("it | adds", "it lacks", "it is new")]
        old = mutate.page([mutate.row_of(one, "survived", "t"), mutate.row_of(two, "killed", "t: by | two")], "a day")
        rows = mutate.merged(old, [three, one, two], [(one, "killed", "u: now")])
        self.assertEqual(rows, ["| `a.h` | it is new | survived | it never ran |",
                                r"| `a.h` | it \| adds | killed | u: now |",
                                r"| `a.h` | it lacks | killed | t: by \| two |"])
        self.assertIn("plants 3 bugs", mutate.page(rows, "soon"))
        self.assertIn("2 killed, 1 not (soon)", mutate.page(rows, "soon"))


class Ptxas(unittest.TestCase):
    def found(self, text):
        return list(check_ptxas.findings(text))

    def test_spills_are_seen(self):
        log = ("ptxas info    : Compiling entry function '_Z1kv' for 'sm_90'\n"
               "ptxas info    : Function properties for _Z1kv\n"
               "    0 bytes stack frame, 8 bytes spill stores, 4 bytes spill loads\n")
        self.assertEqual(self.found(log), [("_Z1kv", "sm_90", "spills: 8 bytes stored, 4 loaded")])
        self.assertEqual(self.found(log.replace("8 bytes", "0 bytes").replace("4 bytes", "0 bytes")), [])

    def test_serialised_products_are_seen(self):
        self.assertEqual(len(self.found("ptxas info : (C7510) Potential Performance Loss: wgmma\n")), 1)


class Bars(unittest.TestCase):
    def run_bars(self, *words, bench=0, judge=0):
        root = pathlib.Path(__file__).resolve().parents[2]
        with tempfile.TemporaryDirectory() as folder:
            tool = pathlib.Path(folder) / "attune"
            tool.write_text(f"#!/bin/sh\n[ $1 = bars ] && echo judged && exit {judge}\n"
                            f"while [ $1 != --out ]; do shift; done\necho x > $2\necho rest: $*\nexit {bench}\n")
            tool.chmod(0o755)
            return subprocess.run([root / "scripts/bars", *words], capture_output=True, text=True,
                                  env=os.environ | {"ATTUNE": str(tool), "RECORDS": folder})

    def test_a_bar_is_met_only_if_its_rows_were_measured_and_judged_so(self):
        for bench, judge, code in ((0, 0, 0), (1, 0, 1), (0, 1, 1)):
            ran = self.run_bars("nsa", "--", "--hot", "0", bench=bench, judge=judge)
            self.assertEqual(ran.returncode, code, ran.stderr)
            self.assertIn("nsa.jsonl --hot 0\njudged\n", ran.stdout)

    def test_names_are_listed_and_an_unknown_one_is_refused(self):
        self.assertRegex(self.run_bars().stdout, r"(?m)^nsa +Ahead of flash-linear-attention$")
        wrong = self.run_bars("nsa", "nothing")
        self.assertEqual((wrong.returncode, wrong.stdout), (2, ""))
        self.assertIn("'nothing' is not a file of bench/bars", wrong.stderr)


class TuneCheck(unittest.TestCase):
    def test_a_hundred_shapes_are_asked_about_that_were_not_tuned_on(self):
        tuned, asked = (tune_check.lines(shapes, 1) for shapes in (tune_check.TUNE, tune_check.ASK))
        self.assertGreaterEqual(len(asked), 100)
        self.assertEqual(len(asked), len(set(asked)))
        heads = [{b * h for b, h in shapes} for shapes in (tune_check.TUNE, tune_check.ASK)]
        self.assertFalse(heads[0] & heads[1])
        lengths = [{n for all in shapes.values() for n in all} for shapes in (tune_check.TUNE, tune_check.ASK)]
        self.assertFalse(lengths[0] & lengths[1])
        self.assertTrue(min(lengths[0]) < min(lengths[1]) and max(lengths[1]) < max(lengths[0]))
        kinds = [{(w[0], w[6], w[7]) for w in map(str.split, lines)} for lines in (tuned, asked)]
        self.assertEqual(kinds[0], kinds[1])

    def test_the_commands_are_those_of_the_tool_and_their_answer_is_its_own(self):
        with tempfile.TemporaryDirectory() as folder:
            tool = pathlib.Path(folder) / "attune"
            tool.write_text("#!/bin/sh\necho \"$@\" >> %s/said\n[ $1 = bench ] || exit 7\n" % folder)
            tool.chmod(0o755)
            words = [folder, "--device", "cpu", "--divide", "8", "--keep", folder + "/kept"]
            self.assertEqual(tune_check.main(words + ["--", "--max-seconds", "9"]), 7)
            first, second, last = pathlib.Path(folder, "said").read_text().splitlines()
            for said, name in ((first, "tune"), (second, "ask")):
                self.assertTrue(said.startswith("bench --device cpu --backend all --lines "))
                self.assertIn("%s/kept/%s.txt" % (folder, name), said)
                self.assertIn("--max-seconds 9", said)
                self.assertNotIn("0.06", said)
            self.assertTrue(last.startswith("tune %s/kept/tune.jsonl --fresh" % folder))
            self.assertTrue(last.endswith("--check %s/kept/ask.jsonl" % folder))
            self.assertIn(" q64 k64 d64 full", pathlib.Path(folder, "kept", "tune.txt").read_text())


if __name__ == "__main__":
    unittest.main()
