// SPDX-License-Identifier: Apache-2.0
#include "tool/tune/curves.h"

#include <algorithm>
#include <cmath>
#include <set>

#include "plan/plan.h"

namespace attune {
namespace {

// Records of one row: the same problem, timed the same way.
struct Row {
  int length = 0;
  int64_t work = 0;
  std::string line{}, timing{};
  std::map<std::string, const Record*> by_backend{};
};
struct RowSet {
  std::vector<Row> all{};
  std::map<std::string, size_t> at{};
  void add(int length, int64_t work, const Record& r) {
    const std::string timing = timing_text(r) + (r.layout == "bhsd" ? "" : ", " + r.layout);
    const auto [it, is_new] = at.try_emplace(join(r.problem, "\n", timing), all.size());
    if (is_new) all.push_back({length, work, r.problem, timing, {}});
    all[it->second].by_backend[r.subject] = &r;
  }
};

int seen_keys(const Problem& p) {
  if (p.mask.kind != MaskKind::window) return p.len_k;
  return int(std::min<int64_t>(p.len_k, int64_t(p.mask.left) + p.mask.right + 1));
}

int64_t work_of(const Problem& p) {
  const int64_t heads = int64_t(p.batch) * p.heads_q;
  return heads > INT64_MAX / std::max(p.len_k, 1) ? INT64_MAX : heads * p.len_k;
}

size_t order_of(const std::string& backend) {
  const auto all = backends();
  return size_t(std::find_if(all.begin(), all.end(), [&](const Backend* b) { return b->name == backend; }) -
                all.begin());
}

// The measured backends, in the list order that decides without measurements.
std::vector<std::string> in_order(const std::vector<Row>& rows) {
  std::set<std::pair<size_t, std::string>> all;
  for (const Row& row : rows)
    for (const auto& [backend, record] : row.by_backend) all.emplace(order_of(backend), backend);
  std::vector<std::string> names;
  for (const auto& [at, name] : all) names.push_back(name);
  return names;
}

Evidence evidence_of(const Row& row, const std::string& backend, const std::string& baseline) {
  Evidence e{.problem = row.line, .timing = row.timing, .backend = backend, .length = row.length, .work = row.work};
  const auto own = row.by_backend.find(backend), other = row.by_backend.find(baseline);
  if (own == row.by_backend.end()) return e.note = "not measured", e;
  if (!counts(*own->second, e.note)) return e;
  e.median_ns = median(own->second->samples_ns);
  std::string why;
  if (backend == baseline) e.note = "the baseline";
  else if (other == row.by_backend.end()) e.note = baseline + " was not measured";
  else if (counts(*other->second, why))
    e.speed_up = median_ratio(other->second->samples_ns, own->second->samples_ns);
  // A baseline that does not fit into memory loses to anything that does. One that failed, was wrong or was not checked
  // shows nothing.
  else if (other->second->status == RecordStatus::oom) e.speed_up = {INFINITY, {INFINITY, INFINITY, 1}};
  else e.note = baseline + ": " + why;
  return e;
}

// Fills the points of every backend. at(row) is the point of a row; `seen` is the evidence of the rows, by backend.
template <class At>
void fill(Curves& c, const std::vector<Row>& rows, const std::vector<Evidence>& seen,
          const std::vector<std::string>& names, size_t points, const At& at) {
  const CurvePoint none{.measured = true, .low = NAN};
  for (const std::string& name : names) c.backends.push_back({name, std::vector<CurvePoint>(points, none)});
  c.spread.assign(points, 0);
  std::vector<std::vector<double>> many(names.size(), std::vector<double>(points, 0));
  const Evidence* next = seen.data();
  for (const Row& row : rows) {
    const size_t n = at(row);
    for (size_t b = 0; b < names.size(); ++b) {
      CurvePoint& p = c.backends[b].points[n];
      const Evidence& e = *next++;
      p.measured = p.measured && e.median_ns > 0;
      if (e.median_ns <= 0) continue;
      const Record& r = *row.by_backend.at(names[b]);
      const Interval i = median_interval(r.samples_ns);
      if (e.speed_up.interval.is_sure()) p.low = std::fmin(p.low, e.speed_up.interval.low);
      p.log_time += std::log(e.median_ns), ++many[b][n];
      p.half += i.low > 0 ? std::log(i.high / i.low) / 2 : INFINITY;
      c.spread[n] = std::max(c.spread[n], r.aa_spread.value_or(0));
    }
  }
  for (size_t b = 0; b < names.size(); ++b)
    for (size_t n = 0; n < points; ++n)
      if (CurvePoint& p = c.backends[b].points[n]; many[b][n] > 0) p.log_time /= many[b][n], p.half /= many[b][n];
}

KeyCurves curves_of(const RuleKey& key, std::vector<Row> rows, const GatherSettings& settings) {
  KeyCurves k{.key = key};
  const std::vector<std::string> names = in_order(rows);
  for (size_t b = 0; b < names.size(); ++b)
    if (settings.against.empty() ? names[b].ends_with("_standard") : names[b] == settings.against)
      k.curves.baseline = k.by_work.baseline = b;
  const bool is_there = settings.against.empty() || names[k.curves.baseline] == settings.against;
  if (!is_there) k.without = settings.against;
  const std::string baseline = is_there ? names[k.curves.baseline] : settings.against;
  std::stable_sort(rows.begin(), rows.end(), [](const Row& a, const Row& b) { return a.length < b.length; });
  for (const Row& row : rows)
    for (const std::string& name : names) k.rows.push_back(evidence_of(row, name, baseline));
  std::set<int> lengths;
  std::set<int64_t> works;
  for (const Row& row : rows) lengths.insert(row.length), works.insert(row.work);
  k.curves.lengths.assign(lengths.begin(), lengths.end());
  k.by_work.works.assign(works.begin(), works.end());
  fill(k.curves, rows, k.rows, names, lengths.size(),
       [&](const Row& row) { return size_t(std::distance(lengths.begin(), lengths.find(row.length))); });
  fill(k.by_work, rows, k.rows, names, works.size(),
       [&](const Row& row) { return size_t(std::distance(works.begin(), works.find(row.work))); });
  return k;
}

// The timing mode and, on a CPU, the number of threads whose rows count.
struct Wanted { std::string mode{}; int threads = 0; };
Wanted wanted(const std::vector<const Record*>& records, const std::string& asked) {
  std::set<std::string> modes;
  Wanted w{.mode = asked};
  for (const Record* r : records) modes.insert(r->mode), w.threads = std::max(w.threads, r->threads);
  const std::string usual = w.threads ? "warm" : "cold";
  if (asked.empty()) w.mode = modes.count(usual) ? usual : *modes.begin();
  return w;
}

}  // namespace

std::string name(const RuleKey& k) {
  constexpr const char* kMask[] = {"full", "causal", "window"};
  std::string s = join(name(k.pass), " ", name(k.dtype), " d", k.dim_qk);
  if (k.dim_v != k.dim_qk) s += join("/", k.dim_v);
  s += join(" ", kMask[int(k.mask)], k.apart ? " compressed" : "", k.decode ? " few queries" : "", " heads ",
            k.min_heads, "-");
  return s + (k.max_heads == INT64_MAX ? "*" : join(k.max_heads));
}

Status key_of(const Problem& p, const std::vector<int>& buckets, RuleKey& out) {
  if (!word(p.variant).empty()) return Status::no("a variant");
  if (p.mask.blocks.q) return Status::no("a list of blocks");
  if (p.options) return Status::no("options");
  if (p.keys != KeySource::linear) return Status::no("ragged or paged keys");
  if (p.reproducible != Reproducible::no || p.precision != Precision::full)
    return Status::no("another precision, or asked to be reproducible");
  if (p.dtype.kv != p.dtype.q) return Status::no("two dtypes");
  out = {.pass = p.pass, .dtype = p.dtype.q, .dim_qk = p.dim_qk, .dim_v = p.dim_v, .mask = p.mask.kind,
         .decode = p.len_q <= kDecodeQueries, .apart = p.mask.k_step > 1};
  const int64_t heads = int64_t(p.batch) * p.heads_q;
  for (const int first : buckets) {
    if (first <= heads) out.min_heads = first;
    else return out.max_heads = first - 1, Status::good();
  }
  return Status::good();
}

bool counts(const Record& r, std::string& why_not) {
  if (r.status != RecordStatus::ok) why_not = r.status.text() + (r.message.empty() ? "" : ": " + r.message);
  else if (r.parity.verdict == CheckVerdict::fail) why_not = "its result was wrong";
  else if (!passed(r.parity.verdict)) why_not = "its result was not checked";
  else if (r.samples_ns.empty() || !(median(r.samples_ns) > 0)) why_not = "it has no samples";
  else return true;
  return false;
}

Gathered gather(const std::vector<Record>& records, const GatherSettings& settings) {
  Gathered out;
  std::map<std::string, std::vector<const Record*>> devices;
  for (const Record& r : records) {
    const bool named = std::find(settings.only.begin(), settings.only.end(), r.subject) != settings.only.end();
    if (!settings.only.empty() && !named) ++out.left_out["another subject: " + r.subject];
    else if (r.status == RecordStatus::interrupted || r.status == RecordStatus::unsupported)
      ++out.left_out[r.status.text()];
    else if (r.status == RecordStatus::ok && !(median(r.samples_ns) > 0)) ++out.left_out["its time is not above 0"];
    else if (named && !machine_of(r).empty()) devices[machine_of(r)].push_back(&r);
    else if (!find_backend(r.subject)) ++out.left_out[r.subject + " is not a backend of this build"];
    else if (find_backend(r.subject)->only_by_name) ++out.left_out[r.subject + " is never chosen"];
    else if (machine_of(r).empty()) ++out.left_out["the record does not name its device"];
    else devices[machine_of(r)].push_back(&r);
  }
  for (const auto& [device, all] : devices) {
    DeviceCurves d{.device = device};
    const Wanted w = wanted(all, settings.timing);
    std::map<RuleKey, RowSet> keys;
    const Record* newest = nullptr;
    for (const Record* r : all) {
      Problem p;
      RuleKey key;
      if (r->mode != w.mode || r->threads != w.threads) ++out.left_out["timed another way, or on fewer threads"];
      else if (!parse(r->problem, p).ok()) ++out.left_out["its problem line cannot be read"];
      else if (const Status s = key_of(p, settings.buckets, key); !s.ok())
        ++out.left_out["no rule is for " + s.message];
      else {
        keys[key].add(settings.by_window ? seen_keys(p) : p.len_k, work_of(p), *r);
        if (!newest || newest->provenance.time <= r->provenance.time) newest = r;
      }
    }
    for (const auto& [key, rows] : keys) d.keys.push_back(curves_of(key, rows.all, settings));
    if (!newest) continue;
    d.measured = join(newest->provenance.time, " commit ", newest->provenance.commit);
    out.devices.push_back(std::move(d));
  }
  return out;
}

}  // namespace attune
