#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Installs a wheel as users do, in systems without a compiler, PyTorch, a GPU or a network, and uses it:

    scripts/wheel_check.py dist/attune-*.whl                        in all systems of scripts/chroots.py
    scripts/wheel_check.py dist/attune-*.whl ubuntu-22.04 ...       in these

In each: pip install, `import attune`, a call over NumPy arrays and one over DLPack compared with a definition, `attune
doctor`, `attune bench --len 1024`, pip uninstall, and the files that are then there and were not before. Times are
printed next to their bars. NumPy for each Python comes from PyPI."""

from __future__ import annotations

import pathlib
import re
import shutil
import subprocess
import sys
import tempfile

import chroots

INSTALL_S, BENCH_S = 20, 10

CALL = """
import sys, attune, numpy as np
rng = np.random.default_rng(1)
q, k, v = (rng.standard_normal((2, 33, 4, 64), dtype=np.float32) for _ in range(3))
out = np.asarray(attune.attend(q, k, v, layout="bshd", causal=True))
s = np.einsum("bqhd,bkhd->bhqk", q, k) / 8
s[:, :, np.triu(np.ones((33, 33), bool), 1)] = -np.inf
p = np.exp(s - s.max(-1, keepdims=True))
wanted = np.einsum("bhqk,bkhd->bqhd", p / p.sum(-1, keepdims=True), v)
assert np.abs(out - wanted).max() < 1e-5, np.abs(out - wanted).max()
class Lent:  # the protocol and a shape
    def __init__(self, array): self.array, self.shape = array, array.shape
    def __dlpack__(self, **given): return self.array.__dlpack__()
    def __dlpack_device__(self): return self.array.__dlpack_device__()
out = np.empty_like(q)
attune.attend(*map(Lent, (q, k, v)), layout="bshd", causal=True, out=out)
assert np.abs(out - wanted).max() < 1e-5
assert "torch" not in sys.modules
print("called", attune.version(), sys.version.split()[0])
"""
SMOKE = r"""
set -e
exec 2>&1
files() { find / -xdev \( -path /proc -o -path /sys -o -path /dev -o -path /tmp -o -path '/wheels*' -o -path '*/pip/*' \) -prune \
  -o -print | sort; }
now() { python3 -c 'import time; print(time.monotonic())'; }
rm -rf /venv && python3 -m venv /venv
/venv/bin/pip -q install --no-index --find-links /wheels numpy
/venv/bin/python -c 'import numpy'
cd /root
files > /tmp/before
t0=$(now)
/venv/bin/pip -q install --no-index --no-cache-dir /wheels/attune-*.whl
t1=$(now)
/venv/bin/python /wheels/call.py
for name in cc gcc g++ clang nvidia-smi; do if command -v $name; then echo "$name is here"; exit 1; fi; done
/venv/bin/attune --version
/venv/bin/attune doctor --no-measure > /tmp/doctor || { cat /tmp/doctor; false; }
t2=$(now)
/venv/bin/attune bench --len 1024 > /tmp/bench || { cat /tmp/bench; false; }
t3=$(now)
tail -4 /tmp/bench
/venv/bin/pip -q uninstall -y attune
files > /tmp/after
python3 -c "print('install_s %.1f bench_s %.1f' % ($t1 - $t0, $t3 - $t2))"
diff /tmp/before /tmp/after && echo nothing left
"""


def numpy_for(python: str, into: pathlib.Path) -> None:
    subprocess.run([sys.executable, "-m", "pip", "-q", "download", "--only-binary=:all:", "--python-version", python,
                    "--platform", "manylinux_2_27_x86_64", "--platform", "manylinux_2_17_x86_64",
                    "--platform", "manylinux2014_x86_64", "--no-deps", "-d", into, "numpy"], check=True)


def check(wheel: pathlib.Path, name: str) -> bool:
    """Prints a line about one system; whether all is well."""
    root = chroots.make(name)
    python = re.search(r"\d+\.\d+", chroots.run(root, "python3 --version").stdout).group()  # type: ignore[union-attr]
    with tempfile.TemporaryDirectory() as folder:
        wheels = pathlib.Path(folder)
        wheels.chmod(0o755)
        shutil.copy(wheel, wheels)
        numpy_for(python, wheels)
        (wheels / "call.py").write_text(CALL)
        done = chroots.run(root, SMOKE, folders={"/wheels": wheels})
    times = re.search(r"install_s ([\d.]+) bench_s ([\d.]+)", done.stdout)
    good = done.returncode == 0 and times is not None and done.stdout.rstrip().endswith("nothing left")
    print(f"{name}, Python {python}: {'works' if good else 'FAILED'}", end="")
    if times:
        print(f"; pip install {times[1]} s (bar: {INSTALL_S}), bench --len 1024 {times[2]} s (bar: {BENCH_S})", end="")
    print("" if good else "\n" + done.stdout[-3000:], flush=True)
    return good


def main(words: list[str]) -> int:
    if not words or not words[0].endswith(".whl"):
        print(__doc__)
        return 2
    return 0 if all([check(pathlib.Path(words[0]), name) for name in words[1:] or chroots.SYSTEMS]) else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
