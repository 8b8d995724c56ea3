#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Removes one arrival, wait or fence of the Hopper kernels at a time, and runs tests/emulated. A removal that no test
detects is a gap in the tests, has no effect (EQUIVALENT explains why), or has one that only a GPU shows (UNSEEN).

  scripts/protocol_mutants.py                      all mutants; fails if one survives that is in neither
  scripts/protocol_mutants.py --only forward/consumer_band
  scripts/protocol_mutants.py --list

A header is compiled once with each of its test programs: every call is guarded by a number that the program reads from
ATTUNE_MUTANT, so a mutant costs a run and not a build. Needs g++ (or CXX) and GoogleTest; writes to a temporary folder.
"""

import argparse
import concurrent.futures
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent
FLAGS = ["-std=c++20", "-O1", "-w"]
LIMIT_S = 600  # per program; a mutant that never ends counts as detected

# Test programs, optionally with a filter.
FORWARD, BAND, LISTS = "sm90_forward_matrix_test", "sm90_band_matrix_test", "sm90_lists_matrix_test"
BACKWARD, MATRIX = "sm90_backward_test", "sm90_backward_matrix_test"
TWO_KERNEL, GENERAL = "sm90_two_kernel_test", "sm90_general_test"
HEADERS = {  # the programs to run, in order
    "sm90/forward/consumer_band.h": [BAND],
    "sm90/forward/consumer_lists.h": [LISTS + " *each_warpgroup*"],
    "sm90/forward/split_kv.h": ["sm90_split_kv_test"],
    "sm90/forward/producer.h": [FORWARD, LISTS + " *one_list*", BAND],
    "sm90/forward/consumer.h": [FORWARD, LISTS + " *one_list*", BAND],
    "sm90/forward/kernel.h": [FORWARD],
    "sm90/backward/producer.h": [BACKWARD, MATRIX],
    "sm90/backward/consumer.h": [BACKWARD, MATRIX],
    "sm90/backward/prepare_ahead.h": [BACKWARD, MATRIX],
    "sm90/backward/store_dkdv.h": [BACKWARD, MATRIX],
    "sm90/backward/list_walk.h": [BACKWARD, MATRIX],
    "sm90/backward/kernel.h": [BACKWARD, MATRIX],
    "sm90/backward/two_kernel/kernel_dq.h": [TWO_KERNEL],
    "sm90/backward/two_kernel/kernel_dkdv.h": [TWO_KERNEL, GENERAL],
    "sm90/backward/general/kernel_dq.h": [GENERAL],
    "sm90/backward/general/kernel_dkdv.h": [GENERAL],
}
# Calls that arrive, wait, fence or release, and functions that consist of them.
CALLS = ("arrive arrive_expect wait named_sync named_arrive release release_q give_back give_back_passed wait_full "
         "wait_q wait_k wait_keys wait_last wait_tile wait_products wait_stores_read wait_stores have_left "
         "ping_pong_begin ping_pong_end publish_shared publish_global await_places meet "
         "__syncwarp __syncthreads").split()
SITE = re.compile(r"(?<![\w.:>])((?:this->)?(?:template )?(" + "|".join(CALLS) + r")(?:<[^<>();]*>)?)\(")
DEFINED = re.compile(r"(void|bool|auto)\s+$")

FUNCTION = re.compile(r"__device__[^;{}()]*?(\w+)\(")

# By header and "function: call", with #2 for the second one of the same name: why removing it has no effect.
EQUIVALENT = {
    ("sm90/forward/consumer_band.h", "have_left: __syncwarp()"):
        "each lane gives q back for itself, and one that has sent out has waited for its own stores",
    ("sm90/forward/consumer.h", "finish: __syncwarp()"):
        "store_matrix4 behind it is .sync.aligned: no lane writes before the one that waits for its stores has come",
    ("sm90/forward/producer.h", "run: wait(shared + C::kPrefetchNext + 8 * (tiles % 4), tiles / 4 & 1)"):
        "orders time only, which block takes a tile: its slot is free when q of two tiles before has been given back",
    ("sm90/backward/consumer.h", "ask_large_logits: __syncwarp()"):
        "the products before the mark is read are .sync.aligned: the lane that stores it has come",
    ("sm90/backward/consumer.h", "step: wait_products<0>()"):
        "the producer loads d_out behind q of the same step, whose slot is released a step later, after these products",
    ("sm90/backward/consumer.h", "step: wait_products<0>() #2"):
        "the producer loads d_out behind q of the same step, whose slot is released a step later, after these products",
    ("sm90/backward/consumer.h", "await_places: __syncwarp()"):
        "store_matrix4 behind it is .sync.aligned: no lane writes before the one that waits for its stores has come",
    ("sm90/backward/consumer.h", "leave_keys: __syncwarp()"):
        "store_matrix4 behind it is .sync.aligned: no lane writes before lane 0, which waits for its stores, has come",
    ("sm90/backward/consumer.h", "pass_over: __syncwarp()"):
        "the lanes meet when the keys are left, before one of them can release this slot again",
    ("sm90/backward/two_kernel/kernel_dkdv.h", "weigh: wait(shared + C::kPEmpty + 8 * stage, parity ^ 1)"):
        "q of a step is loaded when q of two steps before has been released, and the reader of P releases it later",
    ("sm90/backward/two_kernel/kernel_dkdv.h", "weigh: wait_tile(out_place(n), n)"):
        "the warpgroup that hands over P has waited for the same tile and its statistics",
    ("sm90/backward/general/kernel_dkdv.h", "differentiate: this->wait_tile(Base::out_place(n), n)"):
        "the warpgroup that hands over P has waited for the same tile and its statistics",
    ("sm90/backward/two_kernel/kernel_dq.h", "dq_produce: wait(shared + C::kOEmpty, (round & 1) ^ 1)"):
        "every warp gives d_out back right before q, and for q the producer has waited",
}
# Likewise: why the emulator cannot see it. These are needed on a GPU.
UNSEEN = {
    ("sm90/backward/prepare_ahead.h", "prepare_others: publish_global()"):
        "the emulator does not follow what threads write to global memory, so it misses no fence of the async proxy",
    ("sm90/backward/store_dkdv.h", "combine_query_splits: __syncwarp() #2"):
        "the shuffle before it converges the lanes; __syncwarp adds memory order between them, which is not modelled",
}


class Site:
    def __init__(self, header, line, text, begin, end, key):
        self.header, self.number, self.line, self.text = header, 0, line, text
        self.begin, self.end, self.key = begin, end, key


def sites_of(header):
    """The calls in a header, in order."""
    source = (ROOT / "src" / "attention" / header).read_text()
    code = re.sub(r"//[^\n]*", lambda m: " " * len(m.group()), source)
    found = []
    for m in SITE.finditer(code):
        if DEFINED.search(code[: m.start()]):
            continue
        depth, end = 0, m.end() - 1
        while True:
            depth += {"(": 1, ")": -1}.get(code[end], 0)
            end += 1
            if depth == 0:
                break
        line = code.count("\n", 0, m.start()) + 1
        text = " ".join(source[m.start() : end].split())
        key = f"{([''] + FUNCTION.findall(code[: m.start()]))[-1]}: {text}"
        count = sum(re.fullmatch(re.escape(key) + r"( #\d+)?", s.key) is not None for s in found)
        found.append(Site(header, line, text, m.start(), end, key + (f" #{count + 1}" if count else "")))
    return source, found


def switched(source, sites):
    """The header with each call guarded by its number."""
    for s in reversed(sites):
        call = f"(::attune_mutant == {s.number} ? void() : void({source[s.begin : s.end]}))"
        source = source[: s.begin] + call + source[s.end :]
    return source


def nested(sites):
    """Whether a site lies within another; none is expected."""
    return any(a.end > b.begin for a, b in zip(sites, sites[1:]))


def compiled(work, name, *arguments):
    tree = work / "tree"
    done = subprocess.run([os.environ.get("CXX", "g++"), *FLAGS, f"-I{tree}/tests/emulated/include", f"-I{tree}",
                           f"-I{tree}/src", f"-I{tree}/include", *arguments], stdout=subprocess.PIPE,
                          stderr=subprocess.STDOUT, text=True)
    if done.returncode:
        sys.exit(f"{name} does not compile\n{done.stdout[:3000]}")


def build_core(work, source):
    """The tests link these sources to print the problem they run."""
    compiled(work, source.name, "-c", str(source), "-o", str(work / f"core_{source.stem}.o"))


def build(work, program):
    compiled(work, program, "-include", str(work / "mutant.h"), f"{work}/tree/tests/emulated/{program}.cpp",
             *map(str, work.glob("core_*.o")), "-lgtest", "-lgtest_main", "-o", str(work / program))


def ask(work, site, programs):
    """Returns the test that detects the mutant and the seconds it took; None if it survives."""
    begun = time.time()
    for program, _, tests in (p.partition(" ") for p in programs):
        try:
            done = subprocess.run([str(work / program), "--gtest_fail_fast", "--gtest_brief=1",
                                   f"--gtest_filter={tests or '*'}"],
                                  env={**os.environ, "ATTUNE_MUTANT": str(site.number)}, stdout=subprocess.PIPE,
                                  stderr=subprocess.STDOUT, text=True, errors="replace", timeout=LIMIT_S)
        except subprocess.TimeoutExpired:
            return f"{program}: never ends", time.time() - begun
        if done.returncode:
            found = re.search(r'Which is: "([^"]*(?:\\"[^"]*)*)', done.stdout)
            said = found.group(1) if found else "wrong numbers" if "Expected: (" in done.stdout else "ends by a signal"
            return f"{program.removesuffix('_test')}: {said[:90]}", time.time() - begun
    return None, time.time() - begun


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="", help="headers whose name contains this")
    parser.add_argument("--list", action="store_true")
    parser.add_argument("--green", action="store_true", help="the programs are known to pass without a mutant")
    parser.add_argument("--jobs", type=int, default=2)
    arguments = parser.parse_args()
    headers = [h for h in HEADERS if arguments.only in h]
    sources, sites = {}, []
    for header in headers:
        sources[header], found = sites_of(header)
        for site in found:
            site.number = len(sites) + 1
            sites.append(site)
        if nested(found):
            sys.exit(f"{header}: a call within a call")
    if arguments.list:
        for s in sites:
            print(f"{s.header}:{s.line}: {s.text}")
        return 0
    excused = EQUIVALENT | UNSEEN
    if old := [k for k in excused if k[0] in headers and k not in {(s.header, s.key) for s in sites}]:
        sys.exit(f"EQUIVALENT or UNSEEN has what is not there: {old}")
    with tempfile.TemporaryDirectory() as folder:
        work = pathlib.Path(folder)
        for part in ("src", "include", "tests/emulated"):
            shutil.copytree(ROOT / part, work / "tree" / part)
        for header in headers:
            path = work / "tree" / "src" / "attention" / header
            path.write_text(switched(sources[header], [s for s in sites if s.header == header]))
        (work / "mutant.h").write_text(
            "#pragma once\n#include <cstdlib>\n"
            'inline const char* const attune_given = std::getenv("ATTUNE_MUTANT");\n'
            "inline const int attune_mutant = attune_given ? std::atoi(attune_given) : 0;\n")
        programs = sorted({p.split()[0] for h in headers for p in HEADERS[h]})
        with concurrent.futures.ThreadPoolExecutor(arguments.jobs) as pool:
            list(pool.map(lambda s: build_core(work, s), (work / "tree" / "src" / "core").rglob("*.cpp")))
            list(pool.map(lambda p: build(work, p), programs))
            plain = Site("", 0, "", 0, 0, "")
            if said := None if arguments.green else ask(work, plain, programs)[0]:
                sys.exit(f"red without a mutant: {said}")
            print(f"{len(sites)} mutants, {len(programs)} programs", flush=True)
            killed, equivalent, survivors = 0, [], []
            asked = [s for s in sites if (s.header, s.key) not in excused]
            equivalent = [s for s in sites if (s.header, s.key) in EQUIVALENT]
            unseen = [s for s in sites if (s.header, s.key) in UNSEEN]
            for site, (said, seconds) in zip(asked, pool.map(lambda s: ask(work, s, HEADERS[s.header]), asked)):
                print(f"{site.header}:{site.line}: {site.text[:60]}  {seconds:.0f} s  {said or 'SURVIVES'}", flush=True)
                killed += said is not None
                survivors += [site] if said is None else []
    print(f"\n{len(sites)} mutants: {killed} killed, {len(equivalent)} equivalent, {len(unseen)} unseen, "
          f"{len(survivors)} survive")
    for s in equivalent:
        print(f"  equivalent  {s.header}:{s.line}: {s.text}: {EQUIVALENT[(s.header, s.key)]}")
    for s in unseen:
        print(f"  unseen      {s.header}:{s.line}: {s.text}: {UNSEEN[(s.header, s.key)]}")
    for s in survivors:
        print(f"  survives    {s.header}:{s.line}: {s.key}")
    return 1 if survivors else 0


if __name__ == "__main__":
    sys.exit(main())
