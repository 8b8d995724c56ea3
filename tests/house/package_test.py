#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What packages say about themselves, and the scripts that build and try them: package_test.py <build folder>."""
import json
import pathlib
import re
import subprocess
import sys
import tempfile
import unittest
import zipfile

ROOT = pathlib.Path(__file__).resolve().parents[2]
BUILD = pathlib.Path(sys.argv.pop(1)) if len(sys.argv) > 1 and pathlib.Path(sys.argv[1]).is_dir() else None
sys.path.insert(0, str(ROOT / "scripts"))
import package_check
import spdx
import wheels


class Parts(unittest.TestCase):
    def test_the_notices_name_what_the_build_names(self):
        made_of = re.compile(r'made_of\("?([^"\n]+?)"? "\$|made_of\((\w+) ""')
        built = {a or b for file in ROOT.rglob("CMakeLists.txt") for a, b in made_of.findall(file.read_text())}
        text = (ROOT / "THIRD_PARTY_NOTICES.md").read_text()
        table = re.findall(r"(?m)^\| (?!part|-)([^|]+) \|", text)
        short = {"CUDA runtime (`cudart_static`) and its headers": "cudart_static", "NVTX headers": "NVTX",
                 "JSON for Modern C++ (nlohmann-json)": "JSON for Modern C++"}
        self.assertEqual({short.get(name, name) for name in table}, built - {"name version license url"})
        for name in built - {"cudart_static", "NVTX"}:
            self.assertIn(f"\n## {name}\n", text)

    def test_what_the_build_searches_for_is_named(self):
        text = (ROOT / "tool" / "CMakeLists.txt").read_text()
        found = set(re.findall(r"find_package\((\w+) REQUIRED\)|find_path\((\w+)_headers", text))
        self.assertEqual({a or b for a, b in found}, {"CLI11", "nlohmann_json", "fmt", "yaml", "toml"},
                         "a new part needs a made_of() and a notice")

    @unittest.skipUnless(BUILD, "no build folder was given")
    def test_the_bill_of_materials_is_spdx(self):
        bill = json.loads((BUILD / "attune.spdx.json").read_text())
        self.assertEqual((bill["spdxVersion"], bill["SPDXID"]), ("SPDX-2.3", "SPDXRef-DOCUMENT"))
        ids = [package["SPDXID"] for package in bill["packages"]]
        self.assertEqual(len(set(ids)), len(ids))
        for package in bill["packages"]:
            self.assertRegex(package["SPDXID"], r"^SPDXRef-[A-Za-z0-9.-]+$")
            self.assertTrue(package["licenseConcluded"] and package["downloadLocation"], package)
        for relation in bill["relationships"]:
            self.assertIn(relation["spdxElementId"], [*ids, "SPDXRef-DOCUMENT"])
            self.assertIn(relation["relatedSpdxElement"], ids)
        self.assertEqual({r["relatedSpdxElement"] for r in bill["relationships"]}, set(ids))
        self.assertRegex(bill["creationInfo"]["created"], r"^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ$")


class Licences(unittest.TestCase):
    def test_every_source_has_its_line(self):
        try:
            lacks = spdx.missing(ROOT)
        except (subprocess.CalledProcessError, FileNotFoundError):
            self.skipTest("git does not know this tree")
        self.assertEqual([str(path) for path, _ in lacks], [])


class Wheel(unittest.TestCase):
    GOOD = ["attune/_core.abi3.so", "attune/libattune.so.0", "attune/bin/attune", "attune/py.typed",
            "attune/_core.pyi", "attune/share/attune/torch_peer.py", "attune-1.dist-info/sboms/attune.spdx.json",
            "attune-1.dist-info/entry_points.txt", "attune-1.dist-info/licenses/LICENSE",
            "attune-1.dist-info/licenses/THIRD_PARTY_NOTICES.md", "attune-1.dist-info/METADATA"]

    def wrong(self, names, cuda=False, name="attune-1-cp310-abi3-manylinux_2_35_x86_64.whl", **content):
        with tempfile.TemporaryDirectory() as folder:
            path = pathlib.Path(folder) / name
            with zipfile.ZipFile(path, "w") as archive:
                for one in names:
                    archive.writestr(one, content.get(one.rpartition("/")[2].partition(".")[0], b"Name: attune\n"))
            return wheels.problems(path, cuda)

    def test_a_good_one_is_good_and_what_it_lacks_is_named(self):
        self.assertEqual(self.wrong(self.GOOD), [])
        for name in self.GOOD[:-1]:
            self.assertEqual(self.wrong([n for n in self.GOOD if n != name]),
                             ["it lacks " + (name if "licenses" not in name else name.rpartition("/")[2])])

    def test_its_tag_dependencies_and_gpu_code_are_checked(self):
        self.assertIn("its tag", self.wrong(self.GOOD, name="attune-1-cp311-cp311-linux_x86_64.whl")[0])
        self.assertEqual(self.wrong(self.GOOD, METADATA=b"Requires-Dist: numpy\n"), ["it depends on other packages"])
        self.assertEqual(self.wrong(self.GOOD, METADATA=b"Requires-Dist: torch; extra == 'torch'\n"), [])
        self.assertEqual(self.wrong(self.GOOD, cuda=True), ["it has no GPU code"])
        self.assertEqual(self.wrong(self.GOOD, libattune=b".nv_fatbin"), ["it has GPU code"])
        program = pathlib.Path(sys.executable).resolve().read_bytes()
        if program[:5] == b"\x7fELF\x02":
            self.assertIn("libc.so.6", wheels.needed(program))
        big = pathlib.Path(tempfile.mkstemp(suffix="-cp310-abi3-manylinux_2_35_x86_64.whl")[1])
        self.addCleanup(big.unlink)
        with zipfile.ZipFile(big, "w") as archive:
            for name in self.GOOD:
                archive.writestr(name, b"")
            archive.writestr("attune/big", bytes(31_000_000))
        self.assertEqual(wheels.problems(big, False), ["it has 31.0 MB, and 30 are allowed"])


class Conan(unittest.TestCase):
    def test_its_version_is_this_one(self):
        version = re.search(r"project\(attune VERSION ([0-9.]+)", (ROOT / "CMakeLists.txt").read_text())[1]
        self.assertIn(f'\n    version = "{version}"\n', (ROOT / "conanfile.py").read_text())


class Docker(unittest.TestCase):
    def test_its_steps_are_understood(self):
        stages = package_check.steps((ROOT / "Dockerfile").read_text(), {"CUDA": "ON"})
        self.assertEqual([image for image, _ in stages], ["debian:12", "debian:12-slim"])
        self.assertIn(("ARG", "CUDA=ON"), stages[0][1])
        script = package_check.script_of(stages[0][1])
        self.assertIn('export CUDA="ON"', script)
        self.assertIn("cp -a /context/./. ./", script)
        done = subprocess.run(["sh", "-n"], input=script, text=True, capture_output=True)
        self.assertEqual(done.stderr, "")
        self.assertTrue(package_check.script_of(stages[1][1]).endswith("\nattune doctor"))


if __name__ == "__main__":
    unittest.main()
