// SPDX-License-Identifier: Apache-2.0
#include "tool/remote/offers.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cctype>
#include <cstdlib>
#include <map>

#include "core/device.h"
#include "machine/library.h"
#include "tool/json.h"
#include "tool/json_value.h"
#include "tool/remote/drivers/drivers.h"
#include "tool/remote/money.h"
#include "tool/remote/price_list.h"
#include "tool/remote/process.h"
#include "tool/table.h"
#include "tool/text.h"

namespace attune {
namespace {

constexpr double kSetUp_s = 60, kTeardown_s = 60, kListedStart_s = 300;

struct RankedOffer {
  RemoteOffer offer{};
  Rate rate{};
  std::string from{};              // "prime:H100", or "" where only the list has it
  std::optional<double> run_s{};   // of the command
  std::optional<double> cost() const {
    if (!run_s) return std::nullopt;
    return rate.usd(PlannedTime{offer.setup_s, kSetUp_s, *run_s, kTeardown_s}.all());
  }
};

// The GPU of an offer of the list is the second word of its name.
std::string gpu_of(const Offer& o) {
  const size_t blank = o.name.find(' ');
  return blank == o.name.npos ? "" : o.name.substr(blank + 1);
}
bool is_gpu(const std::string& listed, const std::string& wanted) {
  return planner_word(listed) == planner_word(wanted) && listed.size() >= wanted.size();
}

// The providers that can be asked from here: Prime with a key, SkyPilot where its program is.
std::vector<Target> reachable(const std::string& gpu) {
  std::vector<Target> all;
  const char* const home = std::getenv("HOME");
  if (std::getenv("PRIME_API_KEY") || (home && ::access(join(home, "/.prime/config.json").c_str(), R_OK) == 0))
    all.push_back({.name = "prime:" + gpu, .kind = "prime", .place = gpu, .gpu = gpu});
  if (is_on_path("sky")) all.push_back({.name = "sky", .kind = "sky", .gpu = gpu});
  return all;
}

struct Found {
  std::vector<RankedOffer> offers{};
  std::vector<std::string> notes{};  // providers that did not answer
};

Status add_listed(const AskedOffers& asked, const std::string& gpu, Found& found, std::string& dated) {
  PriceList list;
  if (Status s = price_list(list); !s.ok()) return s;
  dated = join(list.source, list.date.empty() ? "" : ", of " + list.date);
  double host = 0;
  for (const Offer& o : list.offers)
    if (o.name == "modal host") host = o.usd_an_hour;
  for (const Offer& o : list.offers) {
    if (!is_gpu(gpu_of(o), gpu) || gpu_of(o).ends_with('!')) continue;
    const bool modal = o.name.starts_with("modal ");
    const double hour = o.usd_an_hour * asked.count + (modal ? host : 0);
    RankedOffer one{.offer = {.id = o.name, .provider = o.name.substr(0, o.name.find(' ')) + ", listed",
                              .gpu = gpu_of(o), .gpus = asked.count, .usd_an_hour = hour,
                              .setup_s = modal ? 60 : kListedStart_s},
                    .rate = {.usd_an_hour = hour, .step_s = o.step_s, .minimum_usd = o.minimum_usd}};
    if (modal) one.from = "modal:" + gpu_of(o);
    found.offers.push_back(std::move(one));
  }
  return Status::good();
}

Status add_asked(const AskedOffers& asked, const std::string& gpu, Found& found) {
  for (Target t : asked.targets.empty() ? reachable(gpu) : asked.targets) {
    t.gpu = gpu, t.gpus = asked.count;
    std::vector<RemoteOffer> offers;
    const Status s = driver_of(t, "")->offers({.gpu = gpu, .gpus = asked.count}, offers);
    if (s.code == Code::invalid && !asked.targets.empty()) return s;
    if (!s.ok()) found.notes.push_back(s.message);
    for (RemoteOffer& o : offers) {
      const double hour = o.usd_an_hour;
      found.offers.push_back({.offer = std::move(o), .rate = {.usd_an_hour = hour}, .from = t.name});
    }
  }
  return Status::good();
}

std::string rent_words(const RankedOffer& o) {
  if (o.from.empty()) return "by hand, or sky";
  return o.offer.spot ? o.from + " (spot)" : o.from;
}

void print_offers(const Found& found, const std::string& dated, Context& context) {
  std::map<const RankedOffer*, int> by_price;
  std::vector<const RankedOffer*> order;
  for (const RankedOffer& o : found.offers) order.push_back(&o);
  std::stable_sort(order.begin(), order.end(), [](const RankedOffer* a, const RankedOffer* b) {
    return a->offer.usd_an_hour < b->offer.usd_an_hour;
  });
  for (size_t n = 0; n < order.size(); ++n) by_price[order[n]] = int(n + 1);
  std::stable_sort(order.begin(), order.end(), [](const RankedOffer* a, const RankedOffer* b) {
    return a->cost().value_or(1e300) < b->cost().value_or(1e300);
  });
  Json all = Json::array();
  TextTable table{.columns = {{"rank", Cells::number}, {"by price", Cells::number}, {"GPU"}, {"offer"}, {"region"},
                              {"per hour", Cells::number}, {"minutes", Cells::number}, {"expected", Cells::number},
                              {"--on"}}};
  for (size_t n = 0; n < order.size(); ++n) {
    const RankedOffer& o = *order[n];
    const std::string gpu = o.offer.gpus > 1 ? join(o.offer.gpus, " x ", o.offer.gpu) : o.offer.gpu;
    table.rows.push_back({join(n + 1), join(by_price[&o]), in_one_line(gpu), in_one_line(o.offer.provider),
                          in_one_line(o.offer.region), usd_text(o.offer.usd_an_hour),
                          o.run_s ? fmt::format("{:.1f}", *o.run_s / 60) : "", o.cost() ? usd_text(*o.cost()) : "",
                          rent_words(o)});
    Json j{{"rank", n + 1}, {"rank_by_price", by_price[&o]}, {"gpu", o.offer.gpu}, {"gpus", o.offer.gpus},
           {"provider", o.offer.provider}, {"region", o.offer.region}, {"usd_an_hour", o.offer.usd_an_hour},
           {"spot", o.offer.spot}, {"start_s", o.offer.setup_s}, {"on", o.from}};
    j["run_s"] = o.run_s ? Json(*o.run_s) : Json();
    j["expected_usd"] = o.cost() ? Json(*o.cost()) : Json();
    all.push_back(std::move(j));
  }
  if (context.json) {
    Json j{{"offers", all}, {"prices", dated}, {"notes", found.notes}};
    return fmt::print("{}\n", j.dump(2));
  }
  fmt::print("{}", to_text(std::move(table), terminal_width(STDOUT_FILENO)));
  fmt::print("listed prices: {}; the other offers were asked for now\n", dated);
  if (std::any_of(order.begin(), order.end(), [](const RankedOffer* o) { return o->run_s.has_value(); }))
    fmt::print("expected: the start that is usual there, {:.0f} minute of set-up, the rows by attune bench --dry-run, "
               "{:.0f} minute of teardown\n", kSetUp_s / 60, kTeardown_s / 60);
  for (const std::string& note : found.notes) fmt::print("{}\n", in_one_line(note));
}

}  // namespace

Status estimated_on(const std::vector<std::string>& command, const std::string& gpu, std::optional<double>& seconds) {
  seconds.reset();
  Device device;
  if (command.empty() || command[0] != "bench" || !known_device(planner_word(gpu), device).ok()) return Status::good();
  ProgramCall call{.words = {own_file()}, .limit_s = 60};
  for (size_t n = 0; n < command.size(); ++n) {  // the device of the command is that of the machine it runs on
    if (command[n] == "--device") ++n;
    else if (!command[n].starts_with("--device=")) call.words.push_back(command[n]);
  }
  call.words.insert(call.words.end(), {"--device", planner_word(gpu), "--dry-run", "--json"});
  ProgramResult r;
  if (const Status s = run_program(call, r); !s.ok()) return s;
  if (r.code == kUsage) return Status::no(last_line(r.err));
  JsonValue answer;
  if (r.code == kOk && JsonValue::parse(last_line(r.out), answer).ok())
    if (const auto minutes = answer["estimated_minutes"].number()) seconds = *minutes * 60;
  return Status::good();
}

void show_offers(const AskedOffers& asked, Context& context) {
  const auto no = [&](const Status& s) {
    fail(context, s.code == Code::invalid ? kUsage : kMachine, join("attune remote offers: ", s.message));
  };
  std::vector<std::string> gpus = asked.gpus;
  if (gpus.empty())
    for (const Target& t : asked.targets)
      if (!t.gpu.empty()) gpus.push_back(t.gpu);
  if (gpus.empty()) return no(Status::no("--gpu: not given; accepted are names such as H100, L4"));
  Found found;
  std::string dated;
  for (const std::string& gpu : gpus) {
    const size_t before = found.offers.size();
    if (const Status s = add_asked(asked, gpu, found); !s.ok()) return no(s);
    if (asked.targets.empty())
      if (const Status s = add_listed(asked, gpu, found, dated); !s.ok()) return no(s);
    if (found.offers.size() == before)
      found.notes.push_back(join("no offer of '", gpu, "' is known; the price list can be replaced with --prices"));
    std::optional<double> seconds;
    if (const Status s = estimated_on(asked.command, gpu, seconds); !s.ok()) return no(s);
    for (size_t n = before; n < found.offers.size(); ++n) found.offers[n].run_s = seconds;
  }
  if (dated.empty()) dated = "none used";
  if (found.offers.empty()) return no(Status::failure(Code::device, found.notes.empty() ? "none" : found.notes[0]));
  print_offers(found, dated, context);
}

}  // namespace attune
