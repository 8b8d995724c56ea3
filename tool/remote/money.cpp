// SPDX-License-Identifier: Apache-2.0
#include "tool/remote/money.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "tool/table.h"

namespace attune {
namespace {

constexpr double kTiny = 1e-9;

// Two decimals for dollars, three for cents, since a machine may be rented for seconds.
std::string cents_text(double usd) { return usd < 0.1 ? fmt::format("${:.3f}", usd) : fmt::format("${:.2f}", usd); }

std::string minutes_text(double seconds) { return fmt::format("{:.1f}", seconds / 60); }

// "prime:H200 $1.90, prime:L4 $0.40"
std::string list_of(const std::vector<PlannedTarget>& all) {
  std::string text;
  for (const PlannedTarget& t : all)
    text += fmt::format("{}{} {} for {} minutes", text.empty() ? "" : ", ", t.name,
                        cents_text(t.rate.usd(t.time.all())), minutes_text(t.time.all()));
  return text;
}

Status fits_minutes(double minutes, const std::vector<PlannedTarget>& all) {
  for (const PlannedTarget& t : all)
    if (t.time.all() > minutes * 60 + kTiny)
      return Status::failure(Code::out_of_memory, "--max-minutes: ", fmt::format("{:g}", minutes), " minutes given; ",
                             t.name, " needs about ", minutes_text(t.time.all()), ": ",
                             minutes_text(t.time.provision_s + t.time.setup_s), " to start, ",
                             minutes_text(t.time.run_s), " to run, ", minutes_text(t.time.teardown_s), " to end");
  return Status::good();
}

}  // namespace

double Rate::usd(double seconds) const {
  const double billed = std::ceil(std::max(0.0, seconds) / step_s - kTiny) * step_s;
  return std::max(minimum_usd, billed * usd_an_hour / 3600) + fixed_usd;
}

double Rate::seconds_for(double usd) const {
  const double left = usd - fixed_usd;
  if (left + kTiny < minimum_usd || left < 0) return 0;
  if (usd_an_hour <= 0) return INFINITY;
  return std::floor(left / (usd_an_hour / 3600) / step_s + kTiny) * step_s;
}

Status limits_of(const Cap& cap, const std::vector<PlannedTarget>& all, std::vector<Limits>& out) {
  double needed = 0;
  for (const PlannedTarget& t : all) {
    needed += t.rate.usd(t.time.all());
    if (t.rate.usd_an_hour > 0 && !cap.usd && !cap.minutes)
      return Status::no("--max-usd: not given, and ", t.name, " costs ", cents_text(t.rate.usd_an_hour),
                        " an hour; give --max-usd or --max-minutes");
  }
  if (cap.minutes)
    if (Status s = fits_minutes(*cap.minutes, all); !s.ok()) return s;
  if (cap.usd && needed > *cap.usd + kTiny)
    return Status::failure(Code::out_of_memory, "--max-usd: ", cents_text(*cap.usd), " given; the plan needs about ",
                           cents_text(needed), " with start, set-up and teardown: ", list_of(all));
  out.clear();
  for (const PlannedTarget& t : all) {
    const double need = t.rate.usd(t.time.all());
    // What the plans leave of the total is shared in proportion to what they need.
    const double share = !cap.usd ? INFINITY : needed > 0 ? *cap.usd * need / needed : *cap.usd;
    double lease = std::isinf(share) ? kUnlimitedLease_s : std::min(t.rate.seconds_for(share), kUnlimitedLease_s);
    if (cap.minutes) lease = std::min(lease, *cap.minutes * 60);
    const double kill = std::max(0.0, lease - t.time.teardown_s);
    out.push_back({.stop_s = std::min(kStopShare * lease, kill), .kill_s = kill, .lease_s = lease,
                   .usd = t.rate.usd(lease)});
  }
  return Status::good();
}

Spent spent_by(const std::string& target, const Rate& rate, const TargetState& state) {
  Spent spent{.target = target, .rate = rate, .rows = state.rows, .billed = state.billed};
  // A step that was never reached took no time, and the time until the end belongs to the step before it.
  const double end = std::max({state.gone_at, state.ended_at, state.started_at, state.ready_at, state.acquired_at,
                               state.intent_at});
  const auto or_end = [&](double time) { return time > 0 ? time : end; };
  const double ready = or_end(state.ready_at), started = or_end(state.started_at), ended = or_end(state.ended_at);
  if (state.intent_at <= 0) return spent;
  spent.provision_s = std::max(0.0, ready - state.intent_at);
  spent.setup_s = std::max(0.0, started - ready);
  spent.run_s = std::max(0.0, ended - started);
  spent.idle_s = std::max(0.0, end - ended);
  return spent;
}

double ByHand::usd(const Spent& s) const {
  Rate rate = s.rate;
  rate.step_s = std::max(step_s, rate.step_s);
  return rate.usd(s.provision_s + setup_s + s.run_s);
}

namespace {

std::string phase(const Spent& s, double seconds) {
  return fmt::format("{} min {}", minutes_text(seconds), cents_text(seconds / 3600 * s.rate.usd_an_hour));
}

struct Totals {
  double usd = 0, dearest = 0, by_hand = 0, dearest_an_hour = 0;
  bool billed = true, compared = false;
};
Totals totals_of(const std::vector<Spent>& all) {
  Totals t;
  for (const Spent& s : all) {
    t.usd += s.usd(), t.by_hand += ByHand{}.usd(s), t.billed = t.billed && s.billed;
    Rate dearest = s.rate;
    if (s.dearest_an_hour) dearest.usd_an_hour = *s.dearest_an_hour, t.compared = true;
    t.dearest += s.dearest_an_hour ? dearest.usd(s.seconds()) : s.usd();
  }
  return t;
}

std::string saved(double other, double usd) {
  return other >= usd ? cents_text(other - usd) + " saved" : cents_text(usd - other) + " more";
}

}  // namespace

std::string spending_text(const std::vector<Spent>& all, const Cap& cap, int width) {
  TextTable table{.columns = {{"target"}, {"per hour", Cells::number}, {"provision", Cells::number},
                              {"set-up", Cells::number}, {"run", Cells::number}, {"idle", Cells::number},
                              {"rows", Cells::number}, {"by our clock", Cells::number}, {"billed", Cells::number}}};
  for (const Spent& s : all)
    table.rows.push_back({s.target, cents_text(s.rate.usd_an_hour), phase(s, s.provision_s), phase(s, s.setup_s),
                          phase(s, s.run_s), phase(s, s.idle_s), std::to_string(s.rows),
                          cents_text(s.rate.usd(s.seconds())), s.billed ? cents_text(*s.billed) : "not told"});
  std::string text = to_text(std::move(table), width);
  const Totals t = totals_of(all);
  text += fmt::format("total {}{}{}\n", cents_text(t.usd), t.billed ? ", as billed" : ", by our clock",
                      cap.usd ? fmt::format(", of at most {}", cents_text(*cap.usd)) : "");
  if (t.usd <= 0 && t.by_hand <= 0) return text;
  if (t.compared)
    text += fmt::format("the dearest offer {}: {}, for the same time\n", cents_text(t.dearest),
                        saved(t.dearest, t.usd));
  const ByHand hand;
  text += fmt::format("by hand {}: {}, with {:.0f} minutes of set-up by a person, whole hours, and a machine that is "
                      "never forgotten\n", cents_text(t.by_hand), saved(t.by_hand, t.usd), hand.setup_s / 60);
  return text;
}

Json spending_json(const std::vector<Spent>& all, const Cap& cap) {
  Json targets = Json::array();
  for (const Spent& s : all) {
    Json one{{"target", s.target}, {"usd_an_hour", s.rate.usd_an_hour}, {"rows", s.rows},
             {"provision_s", s.provision_s}, {"setup_s", s.setup_s}, {"run_s", s.run_s}, {"idle_s", s.idle_s},
             {"usd", s.rate.usd(s.seconds())}, {"billed_usd", s.billed ? Json(*s.billed) : Json()}};
    if (s.rows > 0) one["usd_a_row"] = s.usd() / s.rows;
    targets.push_back(std::move(one));
  }
  const Totals t = totals_of(all);
  const ByHand hand;
  Json out{{"targets", targets}, {"usd", t.usd}, {"all_billed", t.billed},
           {"max_usd", cap.usd ? Json(*cap.usd) : Json()}, {"by_hand_usd", t.by_hand},
           {"assumed_hand_setup_minutes", hand.setup_s / 60}, {"assumed_hand_step_minutes", hand.step_s / 60}};
  out["dearest_offer_usd"] = t.compared ? Json(t.dearest) : Json();
  return out;
}

}  // namespace attune
