#!/usr/bin/env python3
"""The scripts that judge GPU code on machines without a GPU: they must be able to say no."""
import json
import pathlib
import sys
import tempfile
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "scripts"))
import check_ptxas
import gpu_sources


class GpuSources(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.TemporaryDirectory()
        self.root = pathlib.Path(self.folder.name)
        self.write("src/attention/forward.sm80.cu", '#include "core/mask.h"\n#include <vector>\n')
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
        self.write("src/attention/forward.sm80.cu", "int other;\n")
        self.assertIn("are not those that were checked on 2026-01-01 on a GPU", self.answer())

    def test_a_header_of_a_header_is_seen(self):
        self.checked()
        self.write("src/core/number.h", "int other;\n")
        self.assertIn("are not those that were checked", self.answer())

    def test_a_new_kernel_is_seen(self):
        self.checked()
        self.write("src/attention/decode.sm80.cu", "")
        self.assertIn("are not those that were checked", self.answer())

    def test_code_of_the_host_does_not_matter(self):
        self.checked()
        self.write("src/core/problem.cpp", "int other;\n")
        self.assertIsNone(self.answer())

    def test_a_failed_or_empty_check_is_no_record(self):
        self.checked(failed=1)
        self.assertIn("passed 9 and failed 1", self.answer())
        self.checked(passed=0)
        self.assertIn("passed 0 and failed 0", self.answer())

    def test_no_record_is_said(self):
        self.assertIn("there is no record of a GPU check", self.answer())
        self.record.write_text("{")
        self.assertIn("there is no record of a GPU check", self.answer())


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


if __name__ == "__main__":
    unittest.main()
