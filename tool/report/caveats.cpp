// SPDX-License-Identifier: Apache-2.0
#include "tool/report/caveats.h"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <set>

#include "tool/record/busy.h"
#include "tool/text.h"

namespace attune {
namespace {

// The number of matching records, and the first of them as an example.
struct Found {
  int count = 0;
  std::string example{};
};
template <class Test>
Found find(const std::vector<Record>& records, Test test) {
  Found f;
  for (const Record& r : records)
    if (test(r) && f.count++ == 0) f.example = r.subject + ", " + line_text(r);
  return f;
}

// "NVIDIA H200, GPU-..., VBIOS 96.00, driver 580.65, CUDA 13.0, 700 W, ECC on"; empty if no GPU was used.
std::string gpu_text(const Provenance& p) {
  if (p.gpu.empty()) return "";
  std::string text = p.gpu;
  const auto add = [&](std::string_view what, const std::string& value) {
    if (!value.empty()) text += join(", ", what, value);
  };
  add("", p.gpu_uuid), add("VBIOS ", p.gpu_vbios), add("driver ", p.gpu_driver), add("CUDA ", p.cuda);
  if (p.gpu_power_limit_w > 0) text += fmt::format(", {:.0f} W", p.gpu_power_limit_w);
  if (p.gpu_ecc >= 0) text += p.gpu_ecc ? ", ECC on" : ", ECC off";
  if (p.gpu_mig > 0) text += ", a part of it (MIG)";
  add("PCIe ", p.gpu_pcie);
  return text;
}

std::string rows(int n) { return counted(n, "row"); }

}  // namespace

Table provenance_of(const std::vector<Record>& records) {
  Table t{.caption = "Provenance",
          .head = {"first row", "commit", "version", "compiler", "flags", "CPU", "features", "cores", "governor",
                   "OS", "kernel", "GPU", "GPU memory", "SMs", "memory bandwidth", "cuDNN", "clocks", "binary",
                   "peers", "command", "rows"}};
  std::vector<std::vector<std::string>> seen;
  std::vector<int> count;
  for (const Record& r : records) {
    const Provenance& p = r.provenance;
    std::vector<std::string> origin = {p.commit + (p.dirty ? " (changed)" : ""),
                                       p.version,
                                       p.compiler,
                                       p.flags,
                                       p.cpu,
                                       p.features,
                                       fmt::format("{}", p.cores),
                                       p.governor,
                                       p.os.value_or(""),
                                       p.kernel,
                                       gpu_text(p),
                                       p.gpu_memory_bytes ? bytes_text(*p.gpu_memory_bytes) : "",
                                       p.gpu_sms ? digits_text(*p.gpu_sms) : "",
                                       p.gpu_bandwidth_gbs ? digits_text(*p.gpu_bandwidth_gbs) + " GB/s" : "",
                                       p.cudnn.value_or(""),
                                       p.clocks,
                                       p.binary,
                                       p.peers,
                                       p.command.value_or("")};
    const auto at = size_t(std::find(seen.begin(), seen.end(), origin) - seen.begin());
    if (at < seen.size()) {
      ++count[at];
      continue;
    }
    t.rows.push_back({{p.time}});
    for (const std::string& s : origin) t.rows.back().push_back({s});
    seen.push_back(std::move(origin));
    count.push_back(1);
  }
  for (size_t n = 0; n < count.size(); ++n) t.rows[n].push_back({fmt::format("{}", count[n]), double(count[n])});
  return t;
}

std::vector<std::string> caveats_of(const std::vector<Record>& records) {
  std::vector<std::string> all;
  for (std::string told : {busy_summary(records), spread_summary(records)}) {
    if (told.empty()) continue;
    told[0] = char(std::toupper(told[0]));
    all.push_back(told + ".");
  }
  const auto say = [&](const Found& f, std::string_view what) {
    if (f.count) all.push_back(fmt::format("{} {} (first: {}).", rows(f.count), what, f.example));
  };
  std::set<std::string> statuses;
  const auto ok = [](const Record& r) { return r.status == RecordStatus::ok; };
  for (const Record& r : records)
    if (!ok(r)) statuses.insert(r.status.text());
  for (const std::string& status : statuses)
    say(find(records, [&](const Record& r) { return r.status.text() == status; }), join("ended as '", status, "'"));
  say(find(records, [](const Record& r) { return r.parity.verdict == CheckVerdict::fail; }),
      "computed a wrong result: their times mean nothing");
  say(find(records, [&](const Record& r) { return ok(r) && compared_nothing(r.parity.verdict); }),
      "have a result that was not checked");
  say(find(records, [&](const Record& r) { return ok(r) && r.ended_by == "time"; }),
      "ran out of time before the interval reached the requested precision");
  say(find(records, [&](const Record& r) { return ok(r) && r.near_floor && r.threads; }),
      "are within five times the cost of an empty call, which is a large part of their time");
  say(find(records, [&](const Record& r) { return ok(r) && r.near_floor && !r.threads; }),
      "are within five times the cost of an empty kernel: launch-bound");
  say(find(records, [&](const Record& r) { return ok(r) && !r.slowed_by.empty(); }),
      "ran while the GPU throttled its clock");
  say(find(records, [&](const Record& r) { return ok(r) && r.provenance.gpu_most_mhz > 0 && r.mhz > 0 &&
                                                  r.mhz < 0.75 * r.provenance.gpu_most_mhz; }),
      "ran at less than three quarters of the GPU's highest clock: THROTTLED");
  say(find(records, [&](const Record& r) { return ok(r) && r.late_batches > 0; }),
      "include launch time of the host in some samples");
  say(find(records, [&](const Record& r) { return ok(r) && r.modes > 1; }),
      "have samples with more than one mode, which one median cannot describe");
  say(find(records, [&](const Record& r) { return ok(r) && r.outliers.high_severe * 20 > int(r.samples_ns.size()); }),
      "have severe outliers in more than 5 % of their samples");
  say(find(records, [](const Record& r) { return r.provenance.dirty; }), "come from a build with uncommitted changes");
  say(find(records,
           [](const Record& r) {
             return r.threads && !r.provenance.governor.empty() && r.provenance.governor != "performance";
           }),
      "were measured while the frequency governor was free to change the clock");
  say(find(records, [&](const Record& r) { return ok(r) && !r.interval.is_sure(); }),
      join("with fewer than ", kFewestSamples, " samples: no verdict, and intervals of less than 95 % confidence"));
  say(find(records, [&](const Record& r) { return ok(r) && !r.aa_spread; }),
      "without an A/A spread, which was not measured: differences from 1 % on are claimed");
  std::optional<double> spread;
  std::set<std::string> cpus, gpus;
  for (const Record& r : records) {
    spread = std::max(spread, r.aa_spread);
    if (r.threads) cpus.insert(r.provenance.cpu);
    else gpus.insert(r.provenance.gpu + r.provenance.gpu_uuid);
  }
  if (spread)
    all.push_back(fmt::format("The A/A spread was up to {} %: no smaller difference is claimed.",
                              digits_text(100 * *spread, 2)));
  if (cpus.size() > 1)
    all.push_back(
        fmt::format("The rows come from {} different CPUs: only rows of one machine are comparable.", cpus.size()));
  if (gpus.size() > 1)
    all.push_back(
        fmt::format("The rows come from {} different GPUs: only rows of one card are comparable.", gpus.size()));
  all.push_back("Medians are over all samples, none dropped; intervals are those of the median, by ranks.");
  all.push_back("FLOPs count visible pairs; bytes count every input read once and every output written once.");
  return all;
}

}  // namespace attune
