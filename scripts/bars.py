#!/usr/bin/env python3
# The performance targets (bars) of the library on an H200, by name. Runs the measurement of each bar in one process
# with its peers, and prints the result next to the target. docs/notes/bars.md has what was reached; published results
# come from scripts/results.py.
#   bars.py BUILD NAME...            measures; exit code 1 if a bar is missed
#   bars.py BUILD NAME... -- WORDS   the same with other words for `attune bench`: --no-check --max-seconds 0.3 --hot 0
#                                    (--out FILE keeps the records there)
#   bars.py --list                   the names, and the target of each
#   bars.py --show NAME...           only the commands
# FlashAttention-3 is timed too if `flash_attn_interface` can be imported (PYTHONPATH; docs/measuring.md explains how to
# install it). Otherwise its time is estimated as cuDNN's time divided by the ratio measured once (FA3, below), and the
# row is marked so.
# SPDX-License-Identifier: Apache-2.0
import json
import math
import pathlib
import shlex
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parents[1]
LENGTHS = (512, 1024, 2048, 4096, 8192, 16384)
# cuDNN 9.19's time divided by FlashAttention-3's on an H200, b x s = 16384, h x d = 2048, bf16, at those lengths. Both
# ran in one process with ours, after 150 ms of rest, with a cold L2 (2026-11-16, kernels of 34c1474). FlashAttention-3:
# hopper/ at c75d019, built with CUDA 13.0 next to torch 2.11, its backward as a captured graph. Forward at d256 is
# older: measured once by November 2026, without a recorded commit or day.
FA3 = {"forward": {
    (64, "full"): (0.871, 0.904, 1.109, 1.125, 1.212, 1.219),
    (64, "causal"): (0.871, 0.900, 1.077, 1.124, 1.219, 1.225),
    (128, "full"): (1.006, 1.056, 1.078, 1.084, 1.100, 1.100),
    (128, "causal"): (0.952, 1.101, 1.166, 1.186, 1.191, 1.185),
    (256, "full"): (0.996, 1.049, 1.008, 1.049, 1.125, 1.152),
    (256, "causal"): (0.935, 1.023, 1.102, 1.189, 1.129, 1.222),
}, "backward": {
    (64, "full"): (1.182, 1.193, 1.202, 1.225, 1.234, 1.230),
    (64, "causal"): (1.172, 1.224, 1.307, 1.344, 1.371, 1.352),
    (128, "full"): (1.059, 1.103, 1.100, 1.105, 1.121, 1.120),
    (128, "causal"): (1.071, 1.148, 1.183, 1.194, 1.194, 1.155),
    (256, "full"): (1.239, 1.280, 1.215, 1.163, 1.316, 1.323),
    (256, "causal"): (1.123, 1.168, 1.194, 1.188, 1.136, 1.207),
}}


class Figure:
    def __init__(self, what, value, met, unit=""):
        self.what, self.value, self.met, self.unit = what, value, met, unit

    def __str__(self):
        return "  %-6s %9.4g %-3s %s" % ("met" if self.met else "MISSED", self.value, self.unit, self.what)


# Groups records by row, i.e. subjects that were timed side by side. Records without a time are dropped.
def rows(records):
    all = {}
    for r in records:
        if r["status"] == "ok":
            key = (r["problem"], r["pattern"], r["rest_s"], r["heat_s"], r["device"])
            all.setdefault(key, {})[r["subject"]] = r
    return all


def title(record):
    state = ", rested" if record["rest_s"] else ", hot" if record["heat_s"] else ""
    return record["problem"] + (" | " + record["pattern"] if record["pattern"] else "") + state


MOST_SPREAD = 0.02  # largest A/A spread that a run may use as tolerance


# "At least" tolerates the run's own A/A spread. A figure met only through it, or that a larger one would meet, is
# marked.
def at_least(record, value, least):
    spread, why = record["aa_spread"] or 0, ""  # null: it was not measured
    allowed = spread if spread <= MOST_SPREAD else 0
    if least - spread <= value < least:
        why = ", below it and within the A/A spread of %.1f %%" % (100 * spread)
        why += "" if allowed else ", which is over the %.0f %% that are allowed" % (100 * MOST_SPREAD)
    return Figure(title(record) + why, value, value >= least - allowed, "x")


# A rule converts records to figures. Without usable records it yields none, and the bar is missed.
def against(subject, least, *peers):  # fastest peer's time divided by ours
    def judge(records):
        for row in rows(records).values():
            theirs = [row[p]["median_ns"] for p in peers if p in row]
            if subject in row and theirs:
                value = min(theirs) / row[subject]["median_ns"]
                yield at_least(row[subject], value, least)
    return judge


def fa3_ratio(problem):
    words = problem.split()
    length, dim, mask = int(words[5][1:]), int(words[6][1:]), words[7]
    return FA3[words[0]][dim, mask][LENGTHS.index(length)]


def against_best(subject, least, mean):  # of cuDNN and FlashAttention-3
    def judge(records):
        values = {}
        for (*_, rest, heat, _), row in rows(records).items():
            if subject not in row or "torch:cudnn" not in row:
                continue
            cudnn = row["torch:cudnn"]["median_ns"]
            fa3 = row["fa3"]["median_ns"] if "fa3" in row else cudnn / fa3_ratio(row[subject]["problem"])
            value = min(cudnn, fa3) / row[subject]["median_ns"]
            values.setdefault((rest, heat), []).append(value)
            figure = at_least(row[subject], value, least)
            figure.what += " (of %s)" % ("cuDNN" if cudnn <= fa3 else "FA3" if "fa3" in row else "FA3 by its ratio")
            yield figure
        for (rest, heat), some in values.items():
            value = math.exp(sum(map(math.log, some)) / len(some))
            state = "rested" if rest else "hot" if heat else "one after the other"
            yield Figure("geometric mean of %d, %s" % (len(some), state), value, value >= mean, "x")
    return judge


# The rate divided by that of other(problem), over the visible pairs.
def rate_of(subject, least, other):
    def judge(records):
        timed = {(key[0], key[2], key[3]): row[subject] for key, row in rows(records).items() if subject in row}
        for (problem, *state), r in timed.items():
            base = timed.get((other(problem), *state))
            if base and base is not r:
                value = r["gflops"] / base["gflops"]
                yield Figure(title(r), value, value >= least, "x")
    return judge


def at_most(limits):  # microseconds, by problem, for whichever backend was chosen
    def judge(records):
        for row in rows(records).values():
            for r in row.values():
                limit, value = limits[r["problem"]], r["median_ns"] / 1e3
                yield Figure("%s, at most %g" % (title(r), limit), value, value <= limit, "us")
    return judge


def by_density(subject, most):  # time divided by density x time of the dense problem
    def judge(records):
        timed = [row[subject] for row in rows(records).values() if subject in row]
        dense = {r["problem"]: r["median_ns"] for r in timed if not r["pattern"]}
        for r in timed:
            base = dense.get(r["problem"].split(" blocks")[0])
            if r["pattern"] and base:
                value = r["median_ns"] / (r["density"] * base)
                yield Figure(title(r), value, value <= most, "x")
    return judge


def beyond_floor(subject, most, peer):  # our time divided by the peer's, minus an empty kernel's time on both sides
    def judge(records):
        for row in rows(records).values():
            if subject in row and peer in row:
                ours, theirs = (row[s]["median_ns"] - row[s]["floor_ns"] for s in (subject, peer))
                yield Figure(title(row[subject]), ours / theirs, ours <= most * theirs, "x")
    return judge


def of_bound(subject, least):  # two products at cuBLAS's rate plus three passes over f32 scores at copy rate
    def judge(records):
        for row in rows(records).values():
            if subject in row:
                r, words = row[subject], row[subject]["problem"].split()
                batch, heads, queries, keys = (int(w[1:]) for w in words[2:6])
                flops = r["flops"] * (2 if words[7] == "causal" else 1)  # the products ignore the mask
                bound = flops / r["ceiling_gflops"] + 12.0 * batch * heads * queries * keys / r["copy_gbs"]  # ns
                yield Figure(title(r), bound / r["median_ns"], bound / r["median_ns"] >= least)
    return judge


class Bar:
    def __init__(self, asks, rule, *commands):
        self.asks, self.rule, self.commands = asks, rule, commands


def bench(*words, lines=(), file=None, seconds=1):
    said = ["attune", "bench", "--device", "cuda:0", "--layout", "bshd", "--max-seconds", str(seconds), *words]
    return said + (["--lines", "bench/lines/" + file] if file else []) + list(lines)


def forward(dim, lengths=LENGTHS, masks=("full", "causal"), dtype="bf16", heads=None, value=""):
    return ["forward %s b%d h%d q%d k%d d%d%s %s" % (dtype, 16384 // n, heads or 2048 // dim, n, n, dim, value, m)
            for m in masks for n in lengths]


def backward(*words, **named):
    return [line.replace("forward", "backward", 1) for line in forward(*words, **named)]


def dense_of(problem):  # the problem that a window, GQA or lengths are compared with
    words = problem.split()
    words[3] = words[3].split("/")[0]
    if words[7].startswith("window"):
        words[7] = "causal"
    if words[-1] == "ragged":
        words = words[:-1]
        words[2], words[4], words[5] = "b8", "q2048", "k2048"
    return " ".join(words)


def bf16_of(problem):
    return problem.replace(" f16 ", " bf16 ")


def unordered_of(problem):
    return problem.replace(" repro=run", "")


def linear_of(problem):
    return problem.replace(" paged16", "")


STATES = ("--rest", "150", "--hot", "40")
BIG = "b1 h16 q16384 k16384 d128"
RAGGED = ("--lengths", ",".join("%d,%d" % (n, n) for n in (64, 128, 256, 512, 1024, 2048, 4096, 8192)))
RATES = ["b1 h16 q16384 k16384 d128 causal", "b1 h16 q16384 k16384 d128 window1023,0",
         "b1 h16 q16384 k16384 d128 window4095,0", "b4 h32 q4096 k4096 d128 full", "b4 h32/8 q4096 k4096 d128 full",
         "b4 h32 q4096 k4096 d128 causal", "b4 h32/8 q4096 k4096 d128 causal"]
GROUPED = ["b1 h64/8 q%d k%d d128 %s" % (n, n, m) for m in ("full", "causal") for n in (2048, 4096, 8192, 16384, 32768)]
DILATED = "d64 causal : dilated rates=1,2,4,6,12 segments=2048,4096,8192,16384,32768"
NSA = "d128 causal : nsa d=16 gate=sigmoid l=32 n=16 phi=mean s=64 w=512"
DECODE = ["b1 h32/8 q1 k8192 d128 full", "b1 h32/8 q1 k131072 d128 full", "b16 h32/8 q1 k8192 d128 full",
          "b64 h32/8 q1 k8192 d128 full", "b64 h32 q1 k4096 d128 full"]
SMALL = ["b1 h1 q128 k128 d64 full", "b8 h4 q128 k128 d64 full", "b32 h8 q128 k128 d64 full",
         "b32 h8 q256 k256 d64 full"] + ["b1 h8 q%d k%d d64 causal" % (n, n) for n in (512, 1024, 2048, 4096)]


def each(name, shapes):
    return [name + " bf16 " + s for s in shapes]


def ragged(backend, pass_name, least):
    return Bar("16 sequences of 64 ... 8192: %.2f of the dense rate at 2048" % least, rate_of(backend, least, dense_of),
               *(bench("--backend", backend, *RAGGED, lines=each(pass_name, [
                   "b16 h16 q8192 k8192 d128 %s ragged" % m, "b8 h16 q2048 k2048 d128 %s" % m]))
                 for m in ("full", "causal")))


def lists(backend, pass_name, most, blocks, densities=("0.5", "0.25", "0.1")):
    return Bar("lists of density %s: at most %.2f x density x the dense time" % (", ".join(densities), most),
               by_density(backend, most),
               bench("--backend", backend, lines=["%s bf16 %s full" % (pass_name, BIG)] + [
                   "%s bf16 %s full blocks%dx%dx1 | random density=%s seed=1" % (pass_name, BIG, n, n, d)
                   for n in blocks for d in densities]))


def best(backend, least, mean, lines):
    return Bar("%.2f of the faster of cuDNN and FA3 at each, %.2f in the mean" % (least, mean),
               against_best(backend, least, mean),
               bench("--backend", backend, "--peer", "torch:cudnn,fa3", *STATES, seconds=1.5, lines=lines))


def beside_cudnn(backend, least, lines, *words, **named):
    return Bar("%.2f of cuDNN" % least, against(backend, least, "torch:cudnn"),
               bench("--backend", backend, "--peer", "torch:cudnn", *words, lines=lines, **named))


def times(asks, limits, *more):
    return Bar(asks, at_most(limits), bench(*more, lines=list(limits)))


BARS = {
    "sm80_forward": Bar("1.0 of torch:flash", against("sm80_forward", 1, "torch:flash"),
                        bench("--backend", "sm80_forward", "--peer", "torch:flash", file="forward.txt")),
    "sm80_backward": Bar("1.0 of torch:flash", against("sm80_backward", 1, "torch:flash"),
                         bench("--backend", "sm80_backward", "--peer", "torch:flash", file="backward.txt")),
    "sm80_rates": Bar("windows and grouped heads: 0.9 of the dense rate, forward",
                      rate_of("sm80_forward", 0.9, dense_of),
                      bench("--backend", "sm80_forward", lines=each("forward", RATES))),
    "sm80_rates_backward": Bar("the same, backward", rate_of("sm80_backward", 0.9, dense_of),
                               bench("--backend", "sm80_backward", lines=each("backward", RATES))),
    "sm80_ragged": ragged("sm80_forward", "forward", 0.9),
    "sm80_ragged_backward": ragged("sm80_backward", "backward", 0.9),
    "standard": Bar("0.7 of its bound", of_bound("cuda_standard", 0.7),
                    bench("--backend", "cuda_standard", lines=forward(64, LENGTHS[:5]) + forward(128, LENGTHS[:5]))),
    "cudnn": Bar("0.97 of torch:cudnn", against("vendor_cudnn", 0.97, "torch:cudnn"),
                 bench("--backend", "vendor_cudnn", "--peer", "torch:cudnn",
                       lines=[p + x[7:] for p in ("forward", "backward") for d in (64, 128)
                              for x in forward(d, (512, 2048, 8192))])),
    "decode": Bar("1.0 of the faster of torch:flash and torch:cudnn",
                  against("sm80_forward", 1, "torch:flash", "torch:cudnn"),
                  bench("--backend", "sm80_forward", "--peer", "torch:flash,torch:cudnn", file="decode.txt")),
    "decode_paged": Bar("pages of 16: 0.9 of linear keys", rate_of("sm80_forward", 0.9, linear_of),
                        bench("--backend", "sm80_forward", lines=each("forward", [
                            s + end for s in DECODE for end in ("", " paged16")]))),
    "lists_forward": lists("sm80_forward", "forward", 1.2, (64, 128)),
    "lists_backward": lists("sm80_backward", "backward", 1.2, (64, 128)),
    "dilated": times("ahead of strided FA2", {
        "forward bf16 b1 h12 q32768 k32768 " + DILATED: 4400, "backward bf16 b1 h12 q32768 k32768 " + DILATED: 11500,
        "forward bf16 b1 h12 q131072 k131072 " + DILATED: 6800,
        "backward bf16 b1 h12 q131072 k131072 " + DILATED: 34800}),
    "nsa": times("ahead of flash-linear-attention", {
        "forward bf16 b1 h64/4 q32768 k32768 " + NSA: 24000, "backward bf16 b1 h64/4 q32768 k32768 " + NSA: 90900,
        "forward bf16 b1 h64/4 q65536 k65536 " + NSA: 64400, "backward bf16 b1 h64/4 q65536 k65536 " + NSA: 189000}),
    "hopper": best("sm90_forward", 1.03, 1.10, forward(64) + forward(128)),
    "hopper_256": best("sm90_forward", 1, 1.05, forward(256)),
    "hopper_96_192": beside_cudnn("sm90_forward", 1.08, forward(96, (2048, 8192), heads=16) +
                                  forward(192, (2048, 8192), heads=16, value="/128"), *STATES, seconds=1.5),
    "hopper_grouped": beside_cudnn("sm90_forward", 1.10, each("forward", GROUPED)),
    "hopper_windows": times("windows of 512, 1024, 4096: 125, 200, 660 us", {
        "forward bf16 %s window%d,0" % (BIG, w - 1): us for w, us in ((512, 125), (1024, 200), (4096, 660))},
                            "--backend", "sm90_forward"),
    "hopper_ragged": ragged("sm90_forward", "forward", 0.93),
    "hopper_lists": lists("sm90_forward", "forward", 1.12, (128,)),
    "hopper_small": Bar("by graph, an empty kernel's time taken off: 0.9 of cuDNN's time",
                        beyond_floor("sm90_forward", 0.9, "torch:cudnn"),
                        bench("--backend", "sm90_forward", "--peer", "torch:cudnn", "--timing", "graph",
                              lines=each("forward", SMALL))),
    "hopper_f16": Bar("f16 within 2 % of bf16", rate_of("sm90_forward", 0.98, bf16_of),
                      bench("--backend", "sm90_forward", "--rest", "150", lines=[
                          x for d in (64, 128, 256) for m in ("full", "causal") for t in ("bf16", "f16")
                          for x in forward(d, (512, 2048, 8192), (m,), t)])),
    "hopper_backward": best("sm90_backward", 1, 1.05, backward(64) + backward(128)),
    "hopper_backward_256": best("sm90_backward", 1.10, 1.10, backward(256)),
    "hopper_backward_96_192": beside_cudnn("sm90_backward", 1.05, backward(96, (2048, 8192), heads=16) +
                                           backward(192, (2048, 8192), heads=16, value="/128"), *STATES, seconds=1.5),
    "hopper_backward_grouped": beside_cudnn("sm90_backward", 1.03, each("backward", GROUPED)),
    "hopper_backward_window": Bar("a window of 1024: 0.85 of the dense rate", rate_of("sm90_backward", 0.85, dense_of),
                                  bench("--backend", "sm90_backward", lines=each("backward", RATES[:2]))),
    "hopper_backward_lists": lists("sm90_backward", "backward", 1.15, (128,), ("0.25",)),
    "hopper_backward_same_bits": Bar("repro=run: 0.90 of the rate without it",
                                     rate_of("sm90_backward", 0.9, unordered_of),
                                     bench("--backend", "sm90_backward", "--rest", "150", lines=[
                                         x + repro for d, named in ((64, {}), (96, {"heads": 16}), (128, {}),
                                                                    (192, {}), (192, {"heads": 16, "value": "/128"}),
                                                                    (256, {}))
                                         for x in backward(d, (512, 2048, 8192), **named)
                                         for repro in ("", " repro=run")])),
}


def without(command, more):  # an option may occur only once: `more` overrides
    kept, skip = [], False
    for word in command:
        if not skip and word.startswith("--") and word in more:
            skip = True  # and its value
        elif skip:
            skip = False
        else:
            kept.append(word)
    return kept


def measure(bar, build, more):  # the records, and whether every run completed
    records, whole, tool = [], True, str(pathlib.Path(build).resolve() / "attune")
    for command in bar.commands:
        with tempfile.NamedTemporaryFile(suffix=".jsonl") as out:
            keep = more.index("--out") + 1 if "--out" in more else None  # a file of the user's, which is appended to
            path = pathlib.Path(more[keep] if keep else out.name).resolve()
            before = len(path.read_text().splitlines()) if path.exists() else 0
            words = more[:keep - 1] + more[keep + 1:] if keep else more
            ran = subprocess.run([tool, *without(command[1:], words), *words, "--out", str(path)], capture_output=True,
                                 text=True, cwd=ROOT)
            some = [json.loads(line) for line in path.read_text().splitlines()[before:]] if path.exists() else []
            if ran.returncode or not some:
                print("  " + ran.stderr.strip().split("\n")[-1])
            records, whole = records + some, whole and ran.returncode == 0
    refused = {}
    for r in records:
        if r["status"] != "ok":
            refused.setdefault((r["subject"], r["message"]), []).append(r["problem"])
    for (subject, message), problems in refused.items():  # reports a missing peer once, not at every row
        more_rows = " and %d more" % (len(problems) - 1) if len(problems) > 1 else ""
        print("  %s, %s%s: %s" % (subject, problems[0], more_rows, message))
    return records, whole


def main(words):
    more = words[words.index("--") + 1:] if "--" in words else []
    words = words[:words.index("--")] if "--" in words else words
    if words == ["--list"]:
        for name, bar in BARS.items():
            print("%-26s %s" % (name, bar.asks))
        return 0
    names = words[1:]
    unknown = [n for n in names if n not in BARS]
    if len(words) < 2 or unknown:
        print("bars.py: a build and names of bars, of: %s" % ", ".join(BARS), file=sys.stderr)
        return 2
    missed = 0
    for name in names:
        bar = BARS[name]
        print("%s: %s" % (name, bar.asks))
        if words[0] == "--show":
            for command in bar.commands:
                print("  " + shlex.join(command))
            continue
        records, whole = measure(bar, words[0], more)
        figures = list(bar.rule(records))
        for figure in figures:
            print(figure)
        met = sum(f.met for f in figures)
        print("  %d of %d met" % (met, len(figures)))
        missed += not whole or not figures or met < len(figures)
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
