#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Builds the packages and tries each as users do, in a chroot of another system (scripts/chroots.py):

    scripts/package_check.py              both packages
    scripts/package_check.py deb          the .deb in Debian 13: apt-get install, a consumer, `attune doctor`, removal
    scripts/package_check.py archive      the .tar.gz in Ubuntu 22.04, unpacked in a folder of a user
    scripts/package_check.py dockerfile   the steps of the Dockerfile, in a chroot of Debian 12

A consumer is ten lines that call find_package(attune) and the library. Needs root and a network."""

from __future__ import annotations

import json
import pathlib
import re
import shlex
import shutil
import subprocess
import sys
import tempfile

import chroots

ROOT = pathlib.Path(__file__).resolve().parents[1]
BUILD = ROOT / "build-package"

CONSUMER = {"CMakeLists.txt": """cmake_minimum_required(VERSION 3.16)
project(consumer C)
find_package(attune REQUIRED)
add_executable(consumer consumer.c)
target_link_libraries(consumer PRIVATE attune::attune)
""", "consumer.c": """#include <attune/attune.h>
#include <stdio.h>
int main(void) {
  attune_problem problem = {.size = sizeof problem};
  attune_plan* plan = NULL;
  if (attune_problem_parse("forward f32 b1 h2/1 q33 k33 d64 causal", &problem)) return puts(attune_last_error()), 1;
  if (attune_plan_create(&problem, "cpu", NULL, &plan)) return puts(attune_last_error()), 1;
  printf("consumer: attune %s plans %s\\n", attune_version(), attune_plan_backend(plan));
  attune_plan_destroy(plan);
}
"""}
COMPILER = "apt-get -qq update; apt-get -qq install -y --no-install-recommends gcc libc6-dev cmake make > /dev/null"
BUILD_CONSUMER = "cmake -S /consumer -B /tmp/consumer {0} > /dev/null && cmake --build /tmp/consumer > /dev/null && " \
    "/tmp/consumer/consumer"
FILES = r"find / -xdev \( -path /proc -o -path /dev -o -path /tmp -o -path /var -o -path /etc -o -path /consumer \) " \
    "-prune -o -print | sort"
DEB = f"""
set -e; exec 2>&1
{COMPILER}
{FILES} > /tmp/before
apt-get -qq install -y --no-install-recommends /packages/*.deb > /dev/null
attune doctor --no-measure
{BUILD_CONSUMER.format("")}
test -f /usr/share/doc/attune/attune.spdx.json
apt-get -qq purge -y attune > /dev/null
{FILES} > /tmp/after
diff /tmp/before /tmp/after && echo nothing left
"""
ARCHIVE = f"""
set -e; exec 2>&1
{COMPILER}
mkdir -p "/root/some where" && cd "/root/some where" && tar xf /packages/*.tar.gz && mv attune-* moved
moved/bin/attune doctor --no-measure
moved/bin/attune bench "forward f32 b1 h2 q256 k256 d64 causal" --max-seconds 0.2
{BUILD_CONSUMER.format('-DCMAKE_PREFIX_PATH="/root/some where/moved"')}
echo nothing left
"""


def built() -> pathlib.Path:
    """A folder with the two packages, made if they are not there or older than the build's parts."""
    for words in (["cmake", "--preset", "package"], ["cmake", "--build", str(BUILD), "--target", "package"]):
        done = subprocess.run(words, cwd=ROOT, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        if done.returncode:
            sys.exit(f"package_check.py: {shlex.join(words)} ended with {done.returncode}:\n{done.stdout[-4000:]}")
    for package in [*BUILD.glob("*.deb"), *BUILD.glob("*.tar.gz")]:
        print(f"{package}: {package.stat().st_size / 1e6:.1f} MB")
    return BUILD


def tried(what: str, system: str, script: str) -> bool:
    root = chroots.make(system)
    with tempfile.TemporaryDirectory() as folder:
        packages, consumer = pathlib.Path(folder) / "packages", pathlib.Path(folder) / "consumer"
        packages.mkdir(), consumer.mkdir()
        for file in (*built().glob("*.deb"), *BUILD.glob("*.tar.gz")):
            shutil.copy(file, packages)
        for name, text in CONSUMER.items():
            (consumer / name).write_text(text)
        pathlib.Path(folder).chmod(0o755)
        done = chroots.run(root, script, network=True, folders={"/packages": packages, "/consumer": consumer})
    good = done.returncode == 0 and done.stdout.endswith("nothing left\n") and "consumer: attune" in done.stdout
    print(f"{what}, {system}: {'works' if good else 'FAILED'}\n{done.stdout if not good else ''}", end="", flush=True)
    if good:
        print("  " + next(line for line in done.stdout.splitlines() if line.startswith("consumer:")))
    return good


def steps(text: str, given: dict[str, str]) -> list[tuple[str, list[tuple[str, str]]]]:
    """The stages of a Dockerfile, each an image and its (instruction, arguments); arguments of the build replaced."""
    stages: list[tuple[str, list[tuple[str, str]]]] = []
    text = re.sub(r"(?m)^#.*\n", "", text).replace("\\\n", " ")
    for line in filter(None, map(str.strip, text.splitlines())):
        word, _, rest = line.partition(" ")
        if word == "FROM":
            stages.append((rest.split()[0], []))
        elif word in ("ARG", "ENV", "RUN", "COPY", "WORKDIR", "SHELL", "ENTRYPOINT", "CMD"):
            if word == "ARG":
                name, _, value = rest.partition("=")
                rest = f"{name}={given.get(name, value)}"
            stages[-1][1].append((word, rest.strip()))
        else:
            sys.exit(f"package_check.py: the Dockerfile has {word}, which is not understood here")
    return stages


def script_of(stage: list[tuple[str, str]]) -> str:
    """A shell script that does what docker does with a stage, where the context is at /context and a copy from another
    stage at /from."""
    lines, shell, folder = ["set -e", "exec 2>&1"], ["/bin/sh", "-c"], "/"
    for word, rest in stage:
        if word in ("ARG", "ENV"):
            lines += [f"export {part.partition('=')[0]}=\"{part.partition('=')[2]}\"" for part in rest.split()]
        elif word == "WORKDIR":
            folder = rest
            lines.append(f"mkdir -p {folder}; cd {folder}")
        elif word == "SHELL":
            shell = json.loads(rest)
        elif word == "RUN":
            lines.append(f"cd {folder}; {shlex.join([*shell, rest])}")
        elif word == "COPY":
            *froms, to = [w for w in rest.split() if not w.startswith("--")]
            base = "/from" if "--from=" in rest else "/context"
            lines += [f"mkdir -p {to}; cp -a {base}/{name.strip('/')}/. {to}/" for name in froms]
        elif word == "ENTRYPOINT":
            entry = json.loads(rest)
        elif word == "CMD":
            lines.append(shlex.join([*entry, *json.loads(rest)]))
    return "\n".join(lines)


def dockerfile(given: dict[str, str]) -> bool:
    (_, build), (_, final) = steps((ROOT / "Dockerfile").read_text(), given)
    root = chroots.make("debian-12")
    with tempfile.TemporaryDirectory(dir=root.parent) as folder:
        context, out = pathlib.Path(folder) / "context", pathlib.Path(folder) / "out"
        context.mkdir(), out.mkdir()
        listed = subprocess.run(["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"], cwd=ROOT,
                                capture_output=True, check=True).stdout
        subprocess.run(["tar", "-C", ROOT, "--null", "-T", "-", "-cf", f"{folder}/context.tar"], input=listed,
                       check=True)
        subprocess.run(["tar", "-C", context, "-xf", f"{folder}/context.tar"], check=True)
        copied = re.findall(r"COPY --from=build (\S+)", (ROOT / "Dockerfile").read_text())
        keep = "\n".join(f"mkdir -p /out{path} && cp -a {path}/. /out{path}/" for path in copied)
        for what, script in (("build", script_of(build) + "\n" + keep), ("final", script_of(final))):
            done = chroots.run(root, script, network=True, folders={"/context": context, "/out": out, "/from": out},
                               timeout=3 * 3600)
            good = done.returncode == 0
            print(f"Dockerfile, stage {what}: {'works' if good else 'FAILED'}\n{done.stdout[-3000:]}", flush=True)
            if not good:
                return False
    return True


def main(words: list[str]) -> int:
    good = True
    for word in words or ["deb", "archive"]:
        if word == "deb":
            good &= tried("deb", "debian-13", DEB)
        elif word == "archive":
            good &= tried("archive", "ubuntu-22.04", ARCHIVE)
        elif word == "dockerfile" or word.startswith("dockerfile:"):  # dockerfile:CUDA=ON
            good &= dockerfile(dict(w.split("=", 1) for w in word.split(":")[1:]))
        else:
            print(__doc__)
            return 2
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
