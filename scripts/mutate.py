#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Plants the bugs of mutants.py one at a time in a copy of the tree and runs the tests. A bug that no test detects
survives, which is a gap in the tests.

  scripts/mutate.py                     all mutants; writes build/mutation.md; fails if one survives
  scripts/mutate.py --since COMMIT      mutants that are new, or whose file has changed, since COMMIT; replaces their
                                        rows in build/mutation.md, if it exists, and keeps the others
  scripts/mutate.py --out FILE          writes there instead
  scripts/mutate.py --only core/mask    mutants whose file or description contains the text; writes nothing
  scripts/mutate.py --list
"""

import argparse
import concurrent.futures
import os
import pathlib
import re
import shutil
import subprocess
import sys
import time

sys.path.insert(0, str(pathlib.Path(__file__).parent))
from mutants import MUTANTS  # noqa: E402

ROOT = pathlib.Path(__file__).resolve().parent.parent
WORK = ROOT / "build-mutants"
TREE, BUILD = WORK / "tree", WORK / "build"
LIMIT_S = 300  # a mutant that never ends counts as detected


def outgrown(mutants):
    """A message for each mutant that cannot be planted because the code has changed."""
    return [f"{m[0]} does not hold exactly once: {m[1]}" for m in mutants if (ROOT / m[0]).read_text().count(m[1]) != 1]


def run(*command, limit=None, **more):
    """Returns the exit status and the output; 124 after the time limit."""
    try:
        done = subprocess.run([str(c) for c in command], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                              errors="replace", timeout=limit, **more)
        return done.returncode, done.stdout
    except subprocess.TimeoutExpired as e:
        return 124, str(e.output or "")


def copy_tree():
    """Copies the files that git would track, with their times, so that a second run rebuilds little."""
    _, names = run("git", "ls-files", "-co", "--exclude-standard", cwd=ROOT)
    kept = set()
    for name in names.splitlines():
        source, target = ROOT / name, TREE / name
        if not source.is_file():
            continue
        kept.add(target)
        if not target.exists() or target.read_bytes() != source.read_bytes():
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(source, target)
            os.utime(target)
    for old in TREE.rglob("*"):
        if old.is_file() and old not in kept:
            old.unlink()


def configure():
    arguments = ["-DATTUNE_TOOL=OFF", "-DATTUNE_CUDA=OFF", "-DCMAKE_BUILD_TYPE=Release",
                 "-DCMAKE_CXX_FLAGS_RELEASE=-O1"]
    if shutil.which("ccache"):
        arguments += ["-DCMAKE_CXX_COMPILER_LAUNCHER=ccache", "-DCMAKE_C_COMPILER_LAUNCHER=ccache"]
    status, text = run("cmake", "-S", TREE, "-B", BUILD, "-G", "Ninja", *arguments)
    if status:
        sys.exit(text)


def build_core(program, jobs):
    """Builds a test of src/core with src/core alone: a change to its headers then costs seconds, not the whole library.
    """
    test = TREE / "tests" / "core" / f"{program.removeprefix('core_')}.cpp"
    sources = [test, *sorted(TREE.glob("src/core/**/*.cpp"))]
    compiler = (["ccache"] if shutil.which("ccache") else []) + [os.environ.get("CXX", "g++")]
    flags = ["-std=c++20", "-O1", f"-I{TREE}/src", f"-I{TREE}"]
    objects = [BUILD / "core" / f"{source.stem}.o" for source in sources]
    objects[0].parent.mkdir(parents=True, exist_ok=True)

    def compile_one(pair):
        return run(*compiler, *flags, "-c", pair[0], "-o", pair[1])
    with concurrent.futures.ThreadPoolExecutor(int(jobs)) as pool:
        for status, log in pool.map(compile_one, zip(sources, objects)):
            if status:
                return status, log
    (BUILD / "tests").mkdir(exist_ok=True)
    return run(compiler[-1], *objects, "-lgtest_main", "-lgtest", "-lpthread", "-o", BUILD / "tests" / program)


def build(program, jobs):
    if program.startswith("core_"):
        return build_core(program, jobs)
    return run("ninja", "-C", BUILD, "-j", jobs, program, limit=1200)


def failure(program):
    """The first failing test of the program, as "program: test", or None."""
    status, text = run(BUILD / "tests" / program, "--gtest_brief=1", "--gtest_fail_fast", limit=LIMIT_S, cwd=BUILD)
    if not status:
        return None
    failed = re.search(r"\[  FAILED  \] ([\w./]+)", text)
    return f"{program}: {failed.group(1) if failed else 'no end' if status == 124 else f'exit {status}'}"


def judge(mutant, jobs):
    """Returns 'killed', 'survived' or 'does not compile', and by which test."""
    file, old, new, _, programs = mutant
    path = TREE / file
    text = path.read_text()
    path.write_text(text.replace(old, new))
    try:
        for program in programs:
            status, log = build(program, jobs)
            if status:
                return "does not compile", "\n".join(line for line in log.splitlines() if "error" in line)[:400]
            if by := failure(program):
                return "killed", by
        return "survived", ", ".join(dict.fromkeys(programs))
    finally:
        path.write_text(text)


def text_of(commit, path):
    status, text = run("git", "show", f"{commit}:{path}", cwd=ROOT)
    return "" if status else text


def changed_since(commit, mutants):
    """Mutants whose file has changed, and mutants that are new."""
    if run("git", "rev-parse", "--verify", "--quiet", f"{commit}^{{commit}}", cwd=ROOT)[0]:
        sys.exit(f"--since: '{commit}' is not a commit")
    before = {}
    exec(text_of(commit, "scripts/mutants.py"), before)
    known = {m[:3] for m in before.get("MUTANTS", [])}
    return [m for m in mutants if m[:3] not in known or text_of(commit, m[0]) != (ROOT / m[0]).read_text()]


def cell(text):
    return text.replace("|", "\\|")


def row_of(mutant, result, by):
    return f"| `{mutant[0]}` | {cell(mutant[3])} | {result} | {cell(by)} |"


def page(rows, ran):
    """The page with these rows; `ran` states when they ran."""
    killed = sum("| killed |" in row for row in rows)
    return "\n".join(["# Mutation", "",
                      f"`scripts/mutate.py` plants {len(rows)} bugs, one at a time, builds and runs the tests that "
                      f"should see them: {killed} killed, {len(rows) - killed} not ({ran}). "
                      "Written by the script; the bugs are in `scripts/mutants.py`.", "",
                      "| file | the bug | result | seen by |", "|---|---|---|---|", *rows]) + "\n"


def merged(old, mutants, results):
    """Rows of all mutants: from `results`, or for the others from the page `old`."""
    rows = {row_of(m, "", "").split("|  |")[0]: row_of(m, result, by) for m, result, by in results}
    for line in old.splitlines():
        if line.startswith("| `"):
            rows.setdefault(re.split(r"\| (?:killed|survived|does not compile) \|", line)[0], line)
    begin = [row_of(m, "", "").split("|  |")[0] for m in mutants]
    return [rows.get(b, f"{b}| survived | it never ran |") for b in begin]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="", help="mutants whose file or description contains this")
    parser.add_argument("--since", default="", help="mutants whose file is not as it was at this commit")
    parser.add_argument("--out", default=str(ROOT / "build" / "mutation.md"), help="the page; build/mutation.md")
    parser.add_argument("--jobs", default=str(os.cpu_count()), help="of the build")
    parser.add_argument("--list", action="store_true")
    options = parser.parse_args()
    chosen = [m for m in MUTANTS if options.only in m[0] or options.only in m[3]]
    if options.since:
        chosen = changed_since(options.since, chosen)
    is_arm = os.uname().machine in ("aarch64", "arm64")
    chosen = [m for m in chosen if is_arm or "neon" not in m[0]]
    if options.list:
        for file, _, _, what, _ in chosen:
            print(f"{file}: {what}")
        return 0
    if lost := outgrown(chosen):
        print("\n".join(lost))
        return 2

    started = time.time()
    copy_tree()
    configure()
    programs = sorted({p for m in chosen for p in m[4]})
    for program in programs:
        status, log = build(program, options.jobs)
        if status:
            sys.exit(f"{program} does not build:\n" + log[-4000:])
        if by := failure(program):
            sys.exit(f"without any mutant a test fails: {by}")
    results = []
    for n, mutant in enumerate(chosen):
        at = time.time()
        result, by = judge(mutant, options.jobs)
        results.append((mutant, result, by))
        print(f"{n + 1:3}/{len(chosen)} {result:9} {mutant[0]}: {mutant[3]} ({by}; {time.time() - at:.0f} s)",
              flush=True)
    killed = sum(result == "killed" for _, result, _ in results)
    if not options.only:
        document = pathlib.Path(options.out)
        document.parent.mkdir(parents=True, exist_ok=True)
        old = document.read_text() if options.since and document.exists() else ""
        minutes = f"{(time.time() - started) / 60:.0f} minutes"
        ran = minutes
        if options.since:
            ran = f"{len(results)} of them, of files that changed since {options.since}, in {minutes}"
        document.write_text(page(merged(old, MUTANTS if old else chosen, results), ran))
    print(f"{killed} of {len(results)} killed in {time.time() - started:.0f} s")
    return 0 if killed == len(results) else 1


if __name__ == "__main__":
    sys.exit(main())
