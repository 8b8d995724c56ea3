#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes docs/results/*.md and the results table of README.md from committed records of `attune bench`.

    results.py show [SUITE...]                the commands that `measure` runs
    results.py measure BUILD OUT [SUITE...]   runs them; OUT/SUITE.jsonl has every record, OUT/SUITE.command how it ran
    results.py add FILE...                    stores what the pages need in docs/results/records/MACHINE_SUITE.jsonl
    results.py write                          writes the pages and the table
    results.py check                          fails if they differ from what the records give

No number is typed: a new one is measured with `measure` on the machine, added, written and committed with its record.
Without names, `measure` runs forward, backward and decode. Peers run in the Python that runs this script: PyTorch's,
and FlashAttention-3 if `flash_attn_interface` can be imported. Without PyTorch the peer is cuDNN as `vendor_cudnn`.

A stored record is a record of tool/record/record.h without samples, seal, kernels and details of the machine, plus
`suite`, `command` and the number of `samples`; verify the measured ones before `add`. `add` replaces earlier records of
the same machine and suite. It refuses records of an unknown commit or of uncommitted changes, interrupted runs, and
backends of attune that failed; a peer that failed is shown with its reason. `attune report` reads these files, too."""
import importlib.util
import json
import math
import pathlib
import re
import shlex
import subprocess
import sys
import textwrap

ROOT = pathlib.Path(__file__).resolve().parents[1]
BEGIN, END = "<!-- results:begin -->", "<!-- results:end -->"
MOST_BYTES = 300_000  # of all stored records
GPU = ("--device", "cuda:0", "--layout", "bshd", "--rest", "60")
SUITES = {  # words for `attune bench`, and the peers by preference
    "forward": ((*GPU, "--lines", "bench/lines/forward.txt", "--max-seconds", "0.4"), ("torch:cudnn", "fa3")),
    "backward": ((*GPU, "--lines", "bench/lines/backward.txt", "--max-seconds", "0.4"), ("torch:cudnn", "fa3")),
    "decode": ((*GPU, "--lines", "bench/lines/decode.txt", "--max-seconds", "0.4"), ("torch:flash", "torch:cudnn")),
    "nsa": ((*GPU, "--lines", "bench/lines/nsa.txt", "--max-seconds", "1"), ()),
    "dilated": ((*GPU, "--lines", "bench/lines/dilated.txt", "--len", "32768,131072", "--max-seconds", "1"), ()),
    "cpu": (("--dtype", "f32,bf16", "--batch", "1", "--heads", "8", "--len", "512,2048,8192", "--dim", "128", "--mask",
             "causal", "--max-seconds", "2"), ("torch:sdpa",)),
}
USUAL = ("forward", "backward", "decode")
KEPT = ("attune_record", "status", "message", "problem", "pattern", "subject", "run", "device", "mode", "rest_s",
        "heat_s", "layout", "distribution", "threads", "median_ns", "interval_ns", "mhz", "flops", "bytes", "gflops",
        "gbs", "ceiling_gflops", "copy_gbs", "baseline", "ratio", "aa_spread", "verdict", "suite", "command", "samples")
KEPT_PARITY = ("verdict", "error")
KEPT_PROVENANCE = ("time", "commit", "dirty", "cpu", "peers", "gpu", "gpu_driver", "cuda", "gpu_power_limit_w",
                   "clocks", "binary")
DECIDED = ("FASTER", "SAME", "SLOWER")
MARGIN, MOST_SPREAD, CONFIDENCE = 0.01, 0.05, 0.95  # kPracticalMargin, kMostSpread and kConfidence of tool/


# ---- measure and add


def has(module):
    return importlib.util.find_spec(module) is not None


def command_of(suite):
    """The words after `attune`, with the peers that are installed here."""
    words, wanted = SUITES[suite]
    peers = [p for p in wanted if p != "fa3" or has("flash_attn_interface")]
    if "fa3" in wanted and "fa3" not in peers:
        peers.append("torch:flash")
    if not wanted or not has("torch"):
        return ["bench", *words, *(("--baseline", "vendor_cudnn") if wanted and "--device" in words else ())]
    return ["bench", *words, "--peer", ",".join(peers)]


def measure(build, out, suites):
    """Runs the suites one after the other; returns an exit code."""
    tool, out = pathlib.Path(build).resolve() / "attune", pathlib.Path(out).resolve()
    out.mkdir(parents=True, exist_ok=True)
    code = 0
    for suite in suites:
        path = out / f"{suite}.jsonl"
        if path.exists():
            sys.exit(f"results.py: {path} exists; measure into an empty folder")
        words = command_of(suite)
        python = ["--python", sys.executable] if "--peer" in words else []
        print(f"{suite}: attune {shlex.join(words)}", flush=True)
        code |= subprocess.run([tool, *words, *python, "--out", path], cwd=ROOT).returncode
        if path.exists():
            about = {"suite": suite, "command": "attune " + shlex.join(words)}
            command_file(path).write_text(json.dumps(about, ensure_ascii=False) + "\n")
    return 1 if code else 0


def command_file(path):
    """Beside the records, which are sealed: a field more would break their seals."""
    return path.with_suffix(".command")


def lines_of(path):
    return [line for line in path.read_text().splitlines() if line.strip()]


def rounded(value):
    """Six significant digits, which are finer than any timer."""
    if isinstance(value, float):
        return float(f"{value:.6g}")
    return {k: rounded(v) for k, v in value.items()} if isinstance(value, dict) else value


def trimmed(record):
    kept = {name: rounded(record[name]) for name in KEPT if name in record}
    kept.setdefault("samples", len(record.get("samples_ns", ())))
    for part, names in (("parity", KEPT_PARITY), ("provenance", KEPT_PROVENANCE)):
        kept[part] = {name: rounded(record[part][name]) for name in names if name in record.get(part, {})}
    return kept


def refusal(record):
    """Why a record cannot stand behind a published number, or None."""
    if not isinstance(record, dict) or "attune_record" not in record:
        return "not a record of attune bench"
    if "suite" not in record or "command" not in record:
        return "its suite and command are unknown; records come from results.py measure"
    source = record["provenance"]
    if source["commit"] in ("", "unknown") or source["dirty"]:
        return f"commit {source['commit'] or 'unknown'}{'-dirty' * source['dirty']} given; build from a clean commit"
    bad = ("interrupted",) if is_peer(record["subject"]) else ("interrupted", "failed", "refused")
    if record["status"] in bad:
        return f"{record['subject']}, {record['problem']}: {record['status']}: {record['message']}"
    return None


def add(files, root=ROOT):
    """Stores the records of these files, replacing those of the same machine and suite."""
    stored = {}
    for file in map(pathlib.Path, files):
        about = json.loads(command_file(file).read_text()) if command_file(file).exists() else {}
        for number, line in enumerate(lines_of(file), 1):
            try:
                record = json.loads(line)
                record = record | about if isinstance(record, dict) else None
            except ValueError:
                record = None
            if why := refusal(record):
                sys.exit(f"results.py: {file}:{number}: {why}")
            stored.setdefault(f"{slug(machine_of(record))}_{record['suite']}.jsonl", []).append(trimmed(record))
    folder = root / "docs" / "results" / "records"
    folder.mkdir(parents=True, exist_ok=True)
    texts = {name: "".join(json.dumps(r, ensure_ascii=False, separators=(",", ":")) + "\n" for r in records)
             for name, records in stored.items()}
    others = sum(p.stat().st_size for p in folder.glob("*.jsonl") if p.name not in texts)
    size = others + sum(len(text.encode()) for text in texts.values())
    if size > MOST_BYTES:
        sys.exit(f"results.py: {size} bytes of records given; at most {MOST_BYTES} are stored")
    for records in stored.values():
        rows_of(records)  # may refuse
    for name, text in texts.items():
        (folder / name).write_text(text)
        print(f"docs/results/records/{name}: {len(stored[name])} records")


# ---- rows: the subjects of one problem that were timed in turn


def machine_of(record):
    source = record["provenance"]
    return (source["cpu"] if record["threads"] else source["gpu"]) or record["device"]


def slug(machine):
    name = re.sub(r"\((R|TM)\)|^NVIDIA ", "", machine)
    return re.sub(r"[^a-z0-9]+", "_", name.lower()).strip("_")


def is_peer(subject):
    return ":" in subject or subject in ("fa3", "flash_attn") or subject.startswith("vendor_")


def verdict_of(low, high, confidence, spread):
    """verdict() of tool/timing/statistics.cpp."""
    if confidence < CONFIDENCE:
        return "UNCLEAR"
    spread = spread or 0
    claimed, same = 1 + max(MARGIN, spread), 1 + max(MARGIN, min(spread, MOST_SPREAD))
    if low >= claimed or high <= 1 / claimed:
        return "FASTER" if low >= claimed else "SLOWER"
    return "SAME" if low > 1 / same and high < same else "UNCLEAR"


class Row:
    """A backend of attune in one problem, and the peers beside it."""

    def __init__(self, ours, subjects):
        self.ours, self.subjects = ours, subjects
        self.peers = {s: r for s, r in subjects.items() if is_peer(s)}
        timed = [r for r in self.peers.values() if r["status"] == "ok"]
        self.best = min(timed, key=lambda r: r["median_ns"]) if timed and ours["status"] == "ok" else None
        self.speed_up = self.low = self.high = self.confidence = None
        self.verdict = ""
        if self.best:
            self.compare()

    def compare(self):
        """The recorded ratio if its baseline is the fastest peer. Otherwise the intervals of both medians bound it."""
        ours, best = self.ours, self.best
        if ours["baseline"] == best["subject"]:
            ratio = ours["ratio"]
            self.speed_up, self.low, self.high = ratio["value"], ratio["low"], ratio["high"]
            self.confidence = ratio["confidence"]
            self.verdict = ours["verdict"] if self.confidence >= CONFIDENCE else "UNCLEAR"
            return
        a, b = best["interval_ns"], ours["interval_ns"]
        self.speed_up = best["median_ns"] / ours["median_ns"]
        self.low, self.high = a["low"] / b["high"], a["high"] / b["low"]
        self.confidence = min(a["confidence"], b["confidence"])
        self.verdict = verdict_of(self.low, self.high, self.confidence, ours["aa_spread"])

    def name(self):
        return self.ours["problem"] + (" | " + self.ours["pattern"] if self.ours["pattern"] else "")

    def group(self):
        """Kind of work, dtype, head dim and variant: `forward bf16 d128`, `decode bf16 d128`."""
        line, _, variant = self.ours["problem"].partition(" : ")
        found = re.match(r"(\w+) (\S+) b\d+ h\S+ q(\d+) k(\d+) (d\S+)", line)
        if not found:  # a module
            return " ".join(line.split()[:2])
        kind, dtype, len_q, len_k, dim = found.groups()
        few = kind == "forward" and int(len_q) <= 16 < int(len_k)
        return " ".join(["decode" if few else kind, dtype, dim, *variant.split()[:1]])


def timing_of(record):
    text = record["mode"]
    text += f", rested {1e3 * record['rest_s']:g} ms" if record["rest_s"] else ""
    return text + (f", hot {1e3 * record['heat_s']:g} ms" if record["heat_s"] else "")


def rows_of(records):
    found = {}
    for r in records:
        key = (r["problem"], r["pattern"], timing_of(r), r["threads"], r["layout"], r["distribution"])
        row = found.setdefault(key, {})
        if r["subject"] in row:
            sys.exit(f"results.py: {r['subject']} is measured twice: {r['problem']}")
        row[r["subject"]] = r
    rows = []
    for key, subjects in found.items():
        ours = [r for s, r in subjects.items() if not is_peer(s)]
        if not ours:
            sys.exit(f"results.py: no backend of attune beside {', '.join(subjects)}: {key[0]}")
        rows += [Row(r, subjects) for r in ours]
    return rows


def read(root=ROOT):
    """Rows by machine and suite; suites in the order of SUITES."""
    order = list(SUITES)
    machines = {}
    for path in sorted((root / "docs" / "results" / "records").glob("*.jsonl")):
        records = [json.loads(line) for line in lines_of(path)]
        if records:
            machine, suite = machine_of(records[0]), records[0]["suite"]
            machines.setdefault(machine, {})[suite] = rows_of(records)
    place = {name: n for n, name in enumerate(order)}
    return {m: dict(sorted(s.items(), key=lambda x: place.get(x[0], len(order)))) for m, s in machines.items()}


# ---- text


def table(head, lines):
    return ["| " + " | ".join(cells) + " |" for cells in (head, ["---"] * len(head), *lines)]


def digits(x, count=3):
    """So many significant digits, without an exponent: 1234, 96.5, 0.0123."""
    return f"{x:.{max(0, count - 1 - math.floor(math.log10(x)))}f}" if x > 0 else "0"


def rate(r):
    """The rate nearer to its ceiling."""
    of_memory = r["copy_gbs"] and r["ceiling_gflops"] and r["gbs"] / r["copy_gbs"] > r["gflops"] / r["ceiling_gflops"]
    if of_memory:
        return f"{digits(r['gbs'])} GB/s"
    return f"{digits(r['gflops'] / 1e3)} TFLOP/s" if r["gflops"] >= 1e4 else f"{digits(r['gflops'])} GFLOP/s"


def time_of(r):
    return digits(r["median_ns"] / 1e3, 4) if r and r["status"] == "ok" else "–"


def speed_up_of(row):
    if row.speed_up is None:
        return "–"
    text = f"{row.speed_up:.3f} [{row.low:.3f}, {row.high:.3f}]"
    return text + (f" at {100 * row.confidence:.0f} %" if row.confidence < CONFIDENCE else "")


def verdict_text(row):
    """The verdict, or why there is none; a result that was not checked is marked."""
    ours = row.ours
    if ours["status"] != "ok":
        return ours["status"]
    unchecked = "" if ours["parity"]["verdict"] == "PASS" else ", unchecked"
    return (row.verdict or "no peer") + unchecked


def mean(values):
    return math.exp(sum(map(math.log, values)) / len(values))


def counts(rows):
    found = [(sum(r.verdict == v for r in rows), v.lower()) for v in (*DECIDED, "UNCLEAR")]
    return ", ".join(f"{n} {word}" for n, word in found if n) or "–"


def decided_mean(rows):
    decided = [r.speed_up for r in rows if r.verdict in DECIDED]
    return f"{mean(decided):.3f}" if decided else "–"


def lengths(rows):
    """Keys of the rows: `512 to 16384`."""
    found = sorted({int(n) for r in rows for n in re.findall(r" k(\d+)\b", r.ours["problem"])})
    return extent([str(n) for n in found]) if found else "–"


def peers_of(rows):
    """The peers that were timed, each with its version."""
    found = {}
    for row in rows:
        for subject, r in row.peers.items():
            if r["status"] == "ok":
                found[subject] = r["provenance"]["peers"] if not subject.startswith("vendor_") else ""
    return found


SUMMARY = ["problem", "shapes", "keys", "fastest of", "mean", "least", "most", "verdicts"]


def summary(suites):
    """A line per kind of problem: mean over decided rows, extremes over all."""
    groups = {}
    for rows in suites.values():
        for row in rows:
            if row.speed_up is not None:
                groups.setdefault(row.group(), []).append(row)
    return [[name, str(len(rows)), lengths(rows), ", ".join(f"`{p}`" for p in peers_of(rows)), decided_mean(rows),
             f"{min(r.speed_up for r in rows):.3f}", f"{max(r.speed_up for r in rows):.3f}", counts(rows)]
            for name, rows in groups.items()]


def values(rows, name):
    return list(dict.fromkeys(r.ours["provenance"][name] for r in rows))


def days(rows):
    return extent(sorted(time[:10] for time in values(rows, "time")))


def extent(texts):
    """The first and the last text, or one if they are equal."""
    return " to ".join(dict.fromkeys((texts[0], texts[-1])))


def machine_text(ours):
    source = ours["provenance"]
    if ours["threads"]:
        parts = [source["cpu"], f"{ours['threads']} threads", source["clocks"]]
    else:
        limit = source["gpu_power_limit_w"]
        parts = [source["gpu"], f"{limit:g} W" if limit else "", f"clocks {source['clocks']}",
                 f"driver {source['gpu_driver']}", f"CUDA {source['cuda'].split(',')[0]}"]
    return ", ".join(p for p in parts if p)


def missing(rows):
    """Peers and backends without a time, each reason once."""
    reasons = {}
    for subjects in {id(r.subjects): r.subjects for r in rows}.values():
        for subject, r in subjects.items():
            if r["status"] != "ok":
                reasons.setdefault((subject, r["status"], r["message"]), []).append(r["problem"])
    return [f"- `{subject}` at {len(p)} problem{'s' * (len(p) > 1)}, from `{p[0]}` on: {status}: {message}"
            for (subject, status, message), p in reasons.items()]


def section(suite, rows):
    """A suite: its table, what it gives, and where it comes from."""
    peers = peers_of(rows)
    settings = dict.fromkeys((timing_of(r.ours), r.ours["layout"]) for r in rows)
    several = len(settings) > 1
    head = ["problem", "backend", "rate", "attune", *(f"`{p}`" for p in peers), "speed-up", "verdict"]
    lines = [[f"`{r.name()}`" + (f" {timing_of(r.ours)}, {r.ours['layout']}" if several else ""),
              f"`{r.ours['subject']}`", rate(r.ours) if r.ours["status"] == "ok" else "–", time_of(r.ours),
              *(time_of(r.peers.get(p)) for p in peers), speed_up_of(r), verdict_text(r)] for r in rows]
    compared = [r for r in rows if r.speed_up is not None]
    timed = [r for r in rows if r.ours["status"] == "ok"]
    text = [f"## {suite}", "", *table(head, lines), ""]
    if compared:
        decided = sum(r.verdict in DECIDED for r in compared)
        text.append(f"- Geometric mean over the {decided} decided of {len(compared)} rows: {decided_mean(compared)} "
                    f"({counts(compared)})")
    if timed:
        spreads, samples = (sorted(r.ours[name] for r in timed if r.ours[name] is not None)
                            for name in ("aa_spread", "samples"))
        spread = f"{extent([f'{100 * x:.1f}' for x in spreads])} %" if spreads else "not measured"
        text.append(f"- A/A spread {spread}; {extent(list(map(str, samples)))} samples per median")
    text += missing(rows)
    text.append(f"- Timing: {'; '.join(', '.join(s) for s in settings)}")
    text.append(f"- Machine: {machine_text(rows[0].ours)}")
    if peers:
        text.append("- Peers: " + "; ".join(f"`{p}`" + (f" of {v}" if v else "") for p, v in peers.items()))
    text.append(f"- Date: {days(rows)}; commit: {', '.join(values(rows, 'commit'))}")
    commands = dict.fromkeys(r.ours["command"] for r in rows)
    return text + [f"- Command: `{c}`" for c in commands] + [""]


WRITTEN = "Written by `scripts/results.py write` from `records/`; not edited by hand."
LEGEND = ("A speed-up is the time of the fastest peer in the same process divided by attune's, so above 1 is faster; "
          "its 95 % interval is in brackets. A mean is geometric, over decided rows: those with a verdict other than "
          "unclear. Least and most are over all rows. [measuring.md](../measuring.md) explains timing and verdicts.")


def wrapped(text):
    return textwrap.wrap(text, 120, break_long_words=False, break_on_hyphens=False)


def page(machine, suites):
    written = WRITTEN.replace("records/", f"records/{slug(machine)}_*.jsonl")
    text = [f"# Results: {machine}", "", *wrapped(f"{written} {LEGEND} Times are medians in microseconds."), ""]
    if lines := summary(suites):
        text += [*table(SUMMARY, lines), ""]
    for suite, rows in suites.items():
        text += section(suite, rows)
    return "\n".join(text)


def machine_line(machine, suites, folder):
    rows = [r for rows in suites.values() for r in rows]
    return (f"- [{machine}]({folder}{slug(machine)}.md): {days(rows)}, commit {', '.join(values(rows, 'commit'))}, "
            f"{len(rows)} rows: {', '.join(suites)}")


def index(machines):
    text = ["# Results", "", WRITTEN, ""]
    if not machines:
        return "\n".join([*text, "Nothing is measured yet.", ""])
    text += [*wrapped(LEGEND), "", *table(["machine", *SUMMARY], summaries(machines)), ""]
    return "\n".join([*text, *(machine_line(m, s, "") for m, s in machines.items()), ""])


def summaries(machines):
    return [[machine, *line] for machine, suites in machines.items() for line in summary(suites)]


def short(machines):
    """What README.md shows."""
    about = ("Speed-up over the fastest peer in the same process (its time / attune's time): geometric mean over the "
             "rows with a decided verdict, least and most over all.")
    more = ("Each page has every row, its peers, the machine and the command. `scripts/results.py write` makes them "
            "from records.")
    pages = [machine_line(m, s, "docs/results/") for m, s in machines.items()]
    return "\n".join([*wrapped(about), "", *table(["machine", *SUMMARY], summaries(machines)), "", *pages, "",
                      *wrapped(more), ""])


def with_table(readme, machines):
    """README.md with its table; unchanged without records."""
    if readme.count(BEGIN) != 1 or readme.count(END) != 1 or readme.index(END) < readme.index(BEGIN):
        sys.exit(f"results.py: README.md does not have one {BEGIN} and, after it, one {END}")
    before, rest = readme.split(BEGIN)
    inside, after = rest.split(END)
    return f"{before}{BEGIN}\n{short(machines)}{END}{after}" if machines else readme


def files(root=ROOT):
    """The content of every generated file by path; None for one that must go."""
    machines, folder = read(root), root / "docs" / "results"
    pages = {path: None for path in folder.glob("*.md")}
    pages[folder / "README.md"] = index(machines)
    pages |= {folder / f"{slug(m)}.md": page(m, suites) for m, suites in machines.items()}
    pages[root / "README.md"] = with_table((root / "README.md").read_text(), machines)
    return pages


def write(root=ROOT):
    for path, text in files(root).items():
        if text is None:
            path.unlink()
        elif not path.exists() or path.read_text() != text:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)


def check(root=ROOT):
    """Returns a message, or None if every generated file is what the records give."""
    wrong = [str(path.relative_to(root)) for path, text in files(root).items()
             if text != (path.read_text() if path.exists() else None)]
    return f"not what docs/results/records give: {', '.join(wrong)}; run scripts/results.py write" if wrong else None


def main(words):
    verb, rest = (words[0], words[1:]) if words else ("", [])
    suites = rest if verb == "show" else rest[2:] if verb == "measure" else []
    if unknown := [s for s in suites if s not in SUITES]:
        sys.exit(f"results.py: suite {unknown[0]} is not one of {', '.join(SUITES)}")
    if verb == "show":
        for suite in suites or USUAL:
            print("attune " + shlex.join(command_of(suite)))
    elif verb == "measure" and len(rest) >= 2:
        return measure(rest[0], rest[1], suites or USUAL)
    elif verb == "add" and rest:
        add(rest)
    elif verb == "write" and not rest:
        write()
    elif verb == "check" and not rest:
        sys.exit(check())
    else:
        sys.exit(__doc__)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
