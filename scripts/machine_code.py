#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Shows that a source change leaves the machine code unchanged: every kernel and every host function.

  scripts/machine_code.py list BUILD            one line per kernel: hash, bytes, registers, shared memory, name
  scripts/machine_code.py compare OLD NEW       two build folders; fails if the multisets differ
  scripts/machine_code.py compare OLD NEW --host   host functions too; -ffunction-sections gives each its own section
  scripts/machine_code.py compare OLD NEW --host --record tests/gpu/record.json
                                                if every kernel is the same, also adds the current sources to the
                                                record of the last GPU check, so that gpu_sources.py accepts them

Build both folders with the same compiler, for one architecture and without PTX, so that cubins are not compressed:

  cmake -S . -B BUILD -DATTUNE_CUDA=ON -DATTUNE_CUDA_ARCHS=90 -DATTUNE_CUDA_PTX=OFF -DATTUNE_TOOL=OFF \\
    -DATTUNE_TESTS=OFF -DATTUNE_PYTHON=OFF -DCMAKE_CXX_FLAGS=-ffunction-sections \\
    -DCMAKE_CUDA_FLAGS=-Xcompiler=-ffunction-sections && cmake --build BUILD --target attune_shared

A kernel consists of its `.text.*` section, its attributes in `.nv.info.*` (registers, stack, barriers, parameters) and
its bytes of static shared memory. Names are not compared, because renames are the purpose. Host code is compared
without relocations, so a call to a different function goes unnoticed; the tests cover that.
"""

import argparse
import collections
import datetime
import hashlib
import json
import pathlib
import re
import struct
import subprocess
import sys

sys.path.insert(0, str(pathlib.Path(__file__).parent))
import gpu_sources  # noqa: E402

ELF = b"\x7fELF"


class Section:
    def __init__(self, name, kind, data, size, info):
        self.name, self.kind, self.data, self.size, self.info = name, kind, data, size, info


def sections(image):
    """The sections of a 64-bit little-endian ELF file."""
    if image[:4] != ELF or image[4] != 2 or image[5] != 1:
        raise ValueError("not a 64-bit little-endian ELF file")
    (at,) = struct.unpack_from("<Q", image, 0x28)
    size, count, names = struct.unpack_from("<HHH", image, 0x3A)
    heads = [struct.unpack_from("<IIQQQQIIQQ", image, at + n * size) for n in range(count)]
    text = image[heads[names][4] : heads[names][4] + heads[names][5]]
    found = []
    for name, kind, _, _, offset, length, _, info, _, _ in heads:
        data = b"" if kind == 8 else image[offset : offset + length]  # 8: NOBITS
        found.append(Section(text[name : text.index(b"\0", name)].decode(), kind, data, length, info))
    return found


def end_of(image):
    """The length of an ELF file, which ends with its section headers or its program headers."""
    (programs, heads) = struct.unpack_from("<QQ", image, 0x20)
    program_size, program_count, size, count, _ = struct.unpack_from("<HHHHH", image, 0x36)
    return max(heads + size * count, programs + program_size * program_count)


def cubins(image):
    """The cubins of an object file: ELF files inside its fat-binary section."""
    for s in sections(image):
        if s.name != ".nv_fatbin":
            continue
        at = s.data.find(ELF)
        while at >= 0:
            cubin = s.data[at:]
            yield cubin[: end_of(cubin)]
            at = s.data.find(ELF, at + end_of(cubin))


PARAM_CBANK, EXTERNS = 0x0A, 0x0F  # start with a symbol index, or consist of symbol indices
OF_KERNELS = {0x2F: "registers", 0x11: "frame", 0x12: "stack", 0x23: "most stack"}  # in .nv.info: symbol and number


def attributes(data):
    """The attribute and value of each entry of an attribute section."""
    at, found = 0, []
    while at + 4 <= len(data):
        form, kind, size = struct.unpack_from("<BBH", data, at)
        at += 4
        value = struct.pack("<H", size)
        if form == 4:  # the size, then the bytes
            value, at = data[at : at + size], at + size
        found.append((kind, value))
    return found


def numbers_of(found):
    """Registers and stack by kernel, from the attributes of the whole cubin."""
    text = found[".strtab"].data
    names = []
    for at in range(0, len(found[".symtab"].data), 24):
        (name,) = struct.unpack_from("<I", found[".symtab"].data, at)
        names.append(text[name : text.index(b"\0", name)].decode())
    numbers = collections.defaultdict(dict)
    for kind, value in attributes(found[".nv.info"].data) if ".nv.info" in found else []:
        if kind in OF_KERNELS and len(value) == 8:
            symbol, number = struct.unpack("<II", value)
            numbers[names[symbol]][OF_KERNELS[kind]] = number
    return numbers


def kernels(image):
    """(hash, bytes, registers, shared bytes, name) of each kernel in a cubin."""
    found = {s.name: s for s in sections(image)}
    numbers = numbers_of(found)
    for name, s in found.items():
        if not name.startswith(".text."):
            continue
        kernel = name.removeprefix(".text.")
        shared = found.get(f".nv.shared.{kernel}")
        shared = shared.size if shared else 0
        whole = hashlib.sha256(s.data)
        whole.update(repr((shared, sorted(numbers[kernel].items()))).encode())
        for kind, value in attributes(found[f".nv.info.{kernel}"].data) if f".nv.info.{kernel}" in found else []:
            if kind != EXTERNS:
                whole.update(bytes([kind]) + (value[4:] if kind == PARAM_CBANK else value))
        yield whole.hexdigest()[:16], len(s.data), numbers[kernel].get("registers", 0), shared, kernel


def device_code(folder):
    return [k for path in objects(folder) for cubin in cubins(path.read_bytes()) for k in kernels(cubin)]


def host_code(folder):
    """(hash, name) of each host code section."""
    found = []
    for path in objects(folder):
        for s in sections(path.read_bytes()):
            if s.name.startswith(".text") and s.data:
                found.append((hashlib.sha256(s.data).hexdigest()[:16], s.name.removeprefix(".text.")))
    return found


def objects(folder):
    found = sorted(pathlib.Path(folder).rglob("*.o"))
    if not found:
        sys.exit(f"{folder}: no object files; build it first")
    return found


def different(old, new, what):
    """Prints entries that only one side has; returns their number."""
    a, b = (collections.Counter(x[0] for x in side) for side in (old, new))
    count = 0
    for sign, side, more in (("-", old, a - b), ("+", new, b - a)):
        for item in side:
            if more[item[0]] > 0:
                more[item[0]] -= 1
                count += 1
                print(sign, what, *item)
    print(f"{what}: {len(old)} before, {len(new)} after, {count} differ")
    return count


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("action", choices=("list", "compare"))
    parser.add_argument("folders", nargs="+")
    parser.add_argument("--host", action="store_true", help="host functions too")
    parser.add_argument("--record", help="the record of the last GPU check, to name these sources in")
    options = parser.parse_args()
    if len(options.folders) != (1 if options.action == "list" else 2):
        parser.error("list takes one build folder, compare two")
    if options.action == "list":
        for kernel in sorted(device_code(options.folders[0])):
            print(*kernel)
        return 0
    old, new = (device_code(folder) for folder in options.folders)
    if not old or not new:
        sys.exit("no kernels: an object folder has no cubins, or they are compressed")
    count = different(old, new, "kernel")
    host = different(host_code(options.folders[0]), host_code(options.folders[1]), "host") if options.host else None
    if options.record and not count:
        write_record(options.record, kernels=len(new), architecture=architecture(options.folders[1]), host=host)
    return 1 if count or host else 0


def architecture(folder):
    found = re.search(r"^ATTUNE_CUDA_ARCHS:\w+=(.*)$", (pathlib.Path(folder) / "CMakeCache.txt").read_text(), re.M)
    return f"sm_{found.group(1)}" if found else "unknown"


def write_record(path, kernels, architecture, host):
    """Writes the sources once, with the results for each architecture."""
    record = json.loads(pathlib.Path(path).read_text())
    sources = gpu_sources.source_hash()
    entries = record.setdefault("same_code", [])
    entry = next((e for e in entries if e["sources"] == sources), None)
    if entry is None:
        commit = subprocess.run(["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True).stdout.strip()
        entry = {"sources": sources, "commit": commit, "date": datetime.date.today().isoformat(), "compared": {}}
        entries.append(entry)
    entry["compared"][architecture] = {"kernels": kernels, "host_functions_that_differ": host}
    pathlib.Path(path).write_text(json.dumps(record, indent=2) + "\n")


if __name__ == "__main__":
    sys.exit(main())
