// SPDX-License-Identifier: Apache-2.0
#include "tool/tune/between.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "tool/text.h"

namespace attune {
namespace {

Threshold threshold_of(const KeyCurves& k, const std::string& faster, const std::string& baseline,
                       const TuneSettings& settings) {
  const Curves& c = k.curves;
  Threshold t{.key = k.key, .lengths = c.lengths};
  const auto index = [&](const std::string& name) {
    const auto is = [&](const Curve& curve) { return curve.backend == name; };
    return size_t(std::find_if(c.backends.begin(), c.backends.end(), is) - c.backends.begin());
  };
  const size_t ours = index(faster), base = index(baseline);
  if (ours == c.backends.size()) return t.why_not = faster + " was not measured", t;
  if (base == c.backends.size()) return t.why_not = baseline + " was not measured", t;
  for (size_t n = 0; n < c.lengths.size(); ++n) {
    const CurvePoint &a = c.backends[ours].points[n], &b = c.backends[base].points[n];
    const bool no_room = a.measured && std::isinf(a.low);  // for the baseline
    t.ratios.push_back(a.measured && b.measured ? std::exp(b.log_time - a.log_time) : no_room ? INFINITY : NAN);
    t.lows.push_back(a.low);
  }
  const auto shown = std::count_if(t.ratios.begin(), t.ratios.end(), [](double x) { return !std::isnan(x); });
  if (shown == 0) {
    t.why_not = "nothing to compare";
    for (const Evidence& e : k.rows)
      if (!e.note.empty() && e.note != "the baseline") t.why_not = join(e.backend, ": ", e.note);
    return t;
  }
  if (c.lengths.size() == 1) return t.why_not = join("only ", c.lengths[0], " was measured; a threshold needs two"), t;
  TuneSettings plain = settings;
  plain.hysteresis = 0;
  t.from = threshold(c, ours, plain);
  return t;
}

const KeyCurves* find(const Gathered& g, const std::string& device, const RuleKey& key) {
  for (const DeviceCurves& d : g.devices)
    for (const KeyCurves& k : d.keys)
      if (d.device == device && k.key == key) return &k;
  return nullptr;
}

}  // namespace

Between between(const std::vector<Record>& records, const std::string& faster, const std::string& baseline,
                const GatherSettings& given, const TuneSettings& settings) {
  GatherSettings gathering = given;
  gathering.only = {faster, baseline}, gathering.against = baseline, gathering.by_window = true;
  const Gathered by_window = gather(records, gathering);
  gathering.by_window = false;
  const Gathered by_keys = gather(records, gathering);
  Between out{.left_out = by_keys.left_out};
  for (const DeviceCurves& d : by_keys.devices) {
    BetweenDevice& device = out.devices.emplace_back(BetweenDevice{.device = d.device, .measured = d.measured});
    for (const KeyCurves& k : d.keys) {
      const KeyCurves* const windows = find(by_window, d.device, k.key);
      const bool use = k.key.mask == MaskKind::window && windows && windows->curves.lengths.size() > 1;
      Threshold& t = device.thresholds.emplace_back(threshold_of(use ? *windows : k, faster, baseline, settings));
      t.by_window = use;
    }
  }
  return out;
}

std::string text_of(const Threshold& t) {
  std::string s = name(t.key) + ": ";
  if (!t.why_not.empty()) return s + t.why_not;
  s += t.from ? fmt::format("from {}{} on", *t.from, t.by_window ? " keys of the window" : "") : "never";
  for (size_t n = 0; n < t.lengths.size(); ++n) {
    const std::string ratio = std::isnan(t.ratios[n])   ? "not measured"
                              : std::isinf(t.ratios[n]) ? "the other does not fit"
                                                        : factor_text(t.ratios[n]);
    s += fmt::format("{}{}: {}", n ? ", " : " (", t.lengths[n], ratio);
  }
  return s + (t.lengths.empty() ? "" : ")");
}

Status read_yaml_key(std::string_view word, YamlKey& out) {
  constexpr std::string_view kWhat[] = {"full", "causal", "window", "compressed", "all"};
  const size_t equals = word.rfind('=');
  out.path = word.substr(0, equals);
  out.what = equals == word.npos ? "all" : word.substr(equals + 1);
  if (equals == word.npos && out.path.ends_with("fa2_min_len_win")) out.what = "window";
  if (equals == word.npos && out.path.ends_with("fa2_min_len_cmp")) out.what = "compressed";
  const bool is_known = std::find(std::begin(kWhat), std::end(kWhat), out.what) != std::end(kWhat);
  if (!is_known || out.path.empty() || out.path.starts_with('.') || out.path.ends_with('.'))
    return Status::no("--key: '", word, "' is not <path.to.key>=full|causal|window|compressed|all");
  return Status::good();
}

namespace {

std::string_view kind_of(const Threshold& t) {
  return t.key.apart                         ? "compressed"
         : t.key.mask == MaskKind::window ? "window"
         : t.key.mask == MaskKind::causal ? "causal"
                                          : "full";
}
bool concerns(const YamlKey& key, const Threshold& t) {
  const std::string_view what = kind_of(t);
  if (!t.why_not.empty() || (key.what != "all" && key.what != what)) return false;
  return what != "window" || t.by_window;  // else its lengths are not windows
}

}  // namespace

Status has_one_unit(const YamlKey& key, const std::vector<Threshold>& thresholds) {
  std::string_view of_windows{}, of_keys{};
  for (const Threshold& t : thresholds)
    if (concerns(key, t)) (kind_of(t) == "window" ? of_windows : of_keys) = kind_of(t);
  if (of_windows.empty() || of_keys.empty()) return Status::good();
  return Status::no("--key: ", key.path, "=", key.what, " mixes lengths (", of_keys,
                    ") with keys of a window (window); accepted is a key for each, such as ", key.path, "=", of_keys);
}

std::optional<int> value_of(const YamlKey& key, const std::vector<Threshold>& thresholds) {
  std::optional<int> value;
  bool never = false;
  for (const Threshold& t : thresholds) {
    if (!concerns(key, t)) continue;
    value = std::max(value.value_or(0), t.from.value_or(0));
    never = never || !t.from;
  }
  return never ? -1 : value;
}

}  // namespace attune
