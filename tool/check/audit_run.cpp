// SPDX-License-Identifier: Apache-2.0
// A run: one process on one machine measured all its records, so most of what they say of it is equal, and its clock
// runs forward.
#include <chrono>
#include <map>

#include "tool/check/parts.h"

namespace attune {
namespace {

constexpr int64_t kStep = 2;       // s; times are whole seconds, and clocks of machines are set
constexpr int64_t kDay = 86400;

// The number in these digits; -1 if one of them is none.
int number(std::string_view digits) {
  int value = 0;
  for (const char c : digits) {
    if (c < '0' || c > '9') return -1;
    value = 10 * value + (c - '0');
  }
  return value;
}

// Seconds since 1970 of a calendar time; a leap second counts as the one before it.
int64_t seconds_of(const int (&t)[6]) {
  namespace ch = std::chrono;
  if (*std::min_element(t, t + 6) < 0 || t[3] > 23 || t[4] > 59 || t[5] > 60) return -1;
  const ch::year_month_day day{ch::year(t[0]), ch::month(unsigned(t[1])), ch::day(unsigned(t[2]))};
  if (!day.ok() || t[0] < 1970) return -1;
  return int64_t(ch::sys_days(day).time_since_epoch().count()) * kDay + t[3] * 3600 + t[4] * 60 + std::min(t[5], 59);
}

// What the user set and NVML reported before the clocks of a card; one run may see both.
std::string_view without_cause(std::string_view clocks) {
  for (const std::string_view cause : {kClocksSet, kClocksFree})
    if (clocks.starts_with(cause)) return clocks.substr(cause.size());
  return clocks;
}

// Names the first field of the two that must be equal and is not; "" if there is none.
std::string difference(const Record& one, const Record& r) {
  const Provenance &a = one.provenance, &b = r.provenance;
  std::string what;
  const auto judge = [&](const char* field, const auto& x, const auto& y) {
    if (what.empty() && x != y) what = join(field, " is '", y, "'", ", but '", x, "'");
  };
  judge("the record version", one.version, r.version), judge("device", one.device, r.device);
  judge("layout", one.layout, r.layout), judge("distribution", one.distribution, r.distribution);
  judge("seed", one.seed, r.seed), judge("commit", a.commit, b.commit), judge("dirty", int(a.dirty), int(b.dirty));
  judge("version", a.version, b.version), judge("compiler", a.compiler, b.compiler), judge("flags", a.flags, b.flags);
  judge("cpu", a.cpu, b.cpu), judge("features", a.features, b.features), judge("governor", a.governor, b.governor);
  judge("kernel", a.kernel, b.kernel), judge("cores", a.cores, b.cores), judge("gpu", a.gpu, b.gpu);
  judge("gpu_uuid", a.gpu_uuid, b.gpu_uuid), judge("gpu_vbios", a.gpu_vbios, b.gpu_vbios);
  judge("gpu_driver", a.gpu_driver, b.gpu_driver), judge("cuda", a.cuda, b.cuda);
  judge("gpu_power_limit_w", a.gpu_power_limit_w, b.gpu_power_limit_w);
  judge("gpu_most_mhz", a.gpu_most_mhz, b.gpu_most_mhz), judge("gpu_ecc", a.gpu_ecc, b.gpu_ecc);
  judge("gpu_mig", a.gpu_mig, b.gpu_mig), judge("gpu_pcie", a.gpu_pcie, b.gpu_pcie);
  judge("binary", a.binary, b.binary), judge("command", a.command.value_or(""), b.command.value_or(""));
  judge("os", a.os.value_or(""), b.os.value_or("")), judge("cudnn", a.cudnn.value_or(""), b.cudnn.value_or(""));
  judge("gpu_memory_bytes", a.gpu_memory_bytes.value_or(0), b.gpu_memory_bytes.value_or(0));
  judge("gpu_sms", a.gpu_sms.value_or(0), b.gpu_sms.value_or(0));
  judge("gpu_bandwidth_gbs", a.gpu_bandwidth_gbs.value_or(0), b.gpu_bandwidth_gbs.value_or(0));
  judge("clocks", std::string(without_cause(a.clocks)), std::string(without_cause(b.clocks)));
  return what;
}

// Facts of a process with these threads in this mode, each measured once: of the timed records that have it.
struct Facts {
  std::map<std::string, std::pair<int, double>> first{};  // line and value

  void judge(const Reporter& a, const char* name, const char* what, const std::string& key, double value) {
    if (!(value > 0)) return;  // not measured
    const auto [it, is_new] = first.emplace(join(what, "|", key), std::pair(a.line.number, value));
    if (!is_new && !near(it->second.second, value, 1e-9))
      a.wrong(name, what, " is ", value, ", but ", it->second.second, " in line ", it->second.first,
              " of the same run");
  }
};

}  // namespace

int64_t seconds_of_time(std::string_view t) {
  if (t.size() != 20 || t[4] != '-' || t[7] != '-' || t[10] != 'T' || t[13] != ':' || t[16] != ':' || t[19] != 'Z')
    return -1;
  return seconds_of({number(t.substr(0, 4)), number(t.substr(5, 2)), number(t.substr(8, 2)), number(t.substr(11, 2)),
                     number(t.substr(14, 2)), number(t.substr(17, 2))});
}

int64_t seconds_of_run(std::string_view t) {
  if (t.size() < 18 || t[8] != 'T' || t[15] != 'Z' || t[16] != '-') return -1;
  return seconds_of({number(t.substr(0, 4)), number(t.substr(4, 2)), number(t.substr(6, 2)), number(t.substr(9, 2)),
                     number(t.substr(11, 2)), number(t.substr(13, 2))});
}

void audit_runs(std::span<const Line> lines, std::vector<Finding>& found) {
  std::map<std::string, const Line*> first, with_peers, subjects;
  Facts facts;
  for (const Line& l : lines) {
    const Record& r = l.record;
    if (r.run.empty()) continue;
    const Reporter a{l, r, found};
    const Line& one = *first.emplace(r.run, &l).first->second;
    if (const std::string what = difference(one.record, r); !what.empty())
      a.wrong("unequal-run", what, " in line ", one.number, " of the same run");
    if (!r.peer && !l.extract) {  // extracts do not tell peers
      const Line& other = *with_peers.emplace(r.run, &l).first->second;
      if (other.record.provenance.peers != r.provenance.peers)
        a.wrong("unequal-run", "peers are '", r.provenance.peers, "', but '", other.record.provenance.peers,
                "' in line ", other.number, " of the same run");
    }
    if (const auto [it, is_new] = subjects.emplace(join(row_key(r), "|", r.subject), &l); !is_new)
      a.wrong("copied-record", "line ", it->second->number, " has it already: a run measures a row once");
    if (!was_timed(r)) continue;
    const std::string key = join(r.run, "|", r.device, "|", r.threads, "|", timing_text(r));
    facts.judge(a, "unequal-run", "the A/A spread", key, r.aa_spread.value_or(0));  // 0: not measured
    facts.judge(a, "unequal-run", "the floor", join(key, r.peer), r.floor_ns);
    facts.judge(a, "unequal-run", "the precision", r.run, r.precision);
    facts.judge(a, "forged-ceiling", "the ceiling in GFLOP/s", join(key, "|", r.ceiling), r.ceiling_gflops);
    facts.judge(a, "forged-ceiling", "the ceiling in GB/s", key, r.copy_gbs);
  }
}

void audit_times(std::span<const Line> lines, std::vector<Finding>& found, int64_t now) {
  struct Run { int64_t last = 0; double work_s = 0; const Line* line = nullptr; std::string row{}; };
  std::map<std::string, Run> runs;
  for (const Line& l : lines) {
    const Record& r = l.record;
    const Reporter a{l, r, found};
    const int64_t time = seconds_of_time(r.provenance.time), start = seconds_of_run(r.run);
    if (time < 0) continue;
    if (now > 0 && time > now + kDay)
      a.wrong("impossible-time", "its time ", r.provenance.time, " is more than a day in the future");
    if (r.run.empty()) continue;
    if (start >= 0 && time + kStep < start)
      a.wrong("impossible-time", "its time ", r.provenance.time, " is before the start of its run, ", r.run);
    Run& run = runs[r.run];
    if (const std::string row = row_key(r); row != run.row) {
      // The sampling of a row begins when all its records have their time, and ends before the next row has one.
      const double passed = double(time - run.last + kStep);
      if (run.line && run.work_s > 1.01 * passed)
        a.wrong("impossible-time", "it began ", time - run.last, " s after the row of line ", run.line->number,
                ", whose samples and warm-up take ", run.work_s, " s");
      run.row = row, run.work_s = 0;
    }
    if (run.line && time + kStep < run.last)
      a.wrong("impossible-time", "its time ", r.provenance.time, " is before that of line ", run.line->number,
              " of the same run, ", run.line->record.provenance.time);
    double samples = 0;
    for (const double ns : r.samples_ns) samples += ns;
    run.work_s += 1e-9 * samples * r.calls + r.warm_up_s;
    run.last = run.line ? std::max(run.last, time) : time, run.line = &l;
  }
}

}  // namespace attune
