// SPDX-License-Identifier: Apache-2.0
#include "tool/remote/run/plan.h"

#include <sys/stat.h>

#include <algorithm>
#include <charconv>
#include <filesystem>

#include "tool/files.h"
#include "tool/json.h"
#include "tool/json_value.h"
#include "tool/remote/driver.h"
#include "tool/remote/journal.h"

namespace attune {
namespace {

Json json_of(const Target& t) {
  Json j{{"name", t.name}, {"kind", t.kind}, {"place", t.place}, {"through", t.through}, {"port", t.port},
         {"ssh_config", t.ssh_config}, {"gpu", t.gpu}, {"gpus", t.gpus}, {"options", t.options}};
  if (t.usd_an_hour) j["usd_an_hour"] = *t.usd_an_hour;
  return j;
}

std::vector<std::string> texts_of(const JsonValue& array) {
  std::vector<std::string> all;
  for (const JsonValue& one : array.items()) all.push_back(one.text());
  return all;
}

Json json_of(const Leg& leg) {
  const RemoteOffer& o = leg.offer;
  const Limits& l = leg.limits;
  return {{"target", json_of(leg.target)},
          {"offer", {{"id", o.id}, {"provider", o.provider}, {"gpu", o.gpu}, {"region", o.region}, {"gpus", o.gpus},
                     {"usd_an_hour", o.usd_an_hour}, {"setup_s", o.setup_s}, {"spot", o.spot}}},
          {"limits", {{"stop_s", l.stop_s}, {"kill_s", l.kill_s}, {"lease_s", l.lease_s}, {"usd", l.usd}}},
          {"dearest_usd_an_hour", leg.dearest_usd_an_hour},
          {"share", leg.share},
          {"shares", leg.shares}};
}

Target target_of(const JsonValue& j) {
  return {.name = j["name"].text(), .kind = j["kind"].text(), .place = j["place"].text(),
          .through = j["through"].text(), .port = int(j["port"].number().value_or(0)),
          .ssh_config = j["ssh_config"].text(), .gpu = j["gpu"].text(), .gpus = int(j["gpus"].number().value_or(0)),
          .usd_an_hour = j["usd_an_hour"].number(), .options = texts_of(j["options"])};
}

Leg leg_of(const JsonValue& j) {
  const JsonValue &o = j["offer"], &l = j["limits"];
  const auto number = [](const JsonValue& v) { return v.number().value_or(0); };
  return {.target = target_of(j["target"]),
          .offer = {.id = o["id"].text(),
                    .provider = o["provider"].text(),
                    .gpu = o["gpu"].text(),
                    .region = o["region"].text(),
                    .gpus = int(number(o["gpus"])),
                    .usd_an_hour = number(o["usd_an_hour"]),
                    .setup_s = number(o["setup_s"]),
                    .spot = o["spot"].truth()},
          .limits = {.stop_s = number(l["stop_s"]),
                     .kill_s = number(l["kill_s"]),
                     .lease_s = number(l["lease_s"]),
                     .usd = number(l["usd"])},
          .dearest_usd_an_hour = number(j["dearest_usd_an_hour"]),
          .share = int(j["share"].number().value_or(1)),
          .shares = int(j["shares"].number().value_or(1))};
}

}  // namespace

Status write_plan(const RemotePlan& p) {
  const std::string folder = run_folder(p.id);
  std::error_code error;
  std::filesystem::create_directories(std::filesystem::path(folder).parent_path(), error);
  if (error || ::mkdir(folder.c_str(), 0700) != 0)
    return Status::failure(Code::device, "'", folder, "' cannot be created");
  Json legs = Json::array();
  for (const Leg& leg : p.legs) legs.push_back(json_of(leg));
  Json j{{"id", p.id}, {"command", p.command}, {"sent", p.sent}, {"bundle", p.bundle}, {"ranks", p.ranks},
         {"silence_s", p.silence_s}, {"out", p.out}, {"resumed", p.resumed},
         {"store", p.store}};
  if (p.cap.usd) j["max_usd"] = *p.cap.usd;
  if (p.cap.minutes) j["max_minutes"] = *p.cap.minutes;
  j["legs"] = legs;
  for (int n = 0; n < int(p.legs.size()); ++n) {
    std::filesystem::create_directories(results_folder(p, n) + "/files", error);
    if (error) return Status::failure(Code::device, "'", results_folder(p, n), "' cannot be created");
  }
  Status s = write_file(folder + "/plan.json", j.dump(2) + "\n");
  if (!s.ok()) s.code = Code::device;
  return s;
}

Status read_plan(const std::string& id, RemotePlan& p) {
  std::string text;
  JsonValue j;
  const std::string path = run_folder(id) + "/plan.json";
  if (Status s = read_file(path, text); !s.ok()) return s;
  if (Status s = JsonValue::parse(text, j); !s.ok()) return s.after("'", path, "' ");
  p = {.id = j["id"].text(), .command = texts_of(j["command"]), .sent = texts_of(j["sent"]),
       .bundle = j["bundle"].text(), .ranks = int(j["ranks"].number().value_or(1)),
       .cap = {.usd = j["max_usd"].number(), .minutes = j["max_minutes"].number()},
       .silence_s = j["silence_s"].number().value_or(600), .out = j["out"].text(), .resumed = j["resumed"].text(),
       .store = j["store"].truth()};
  for (const JsonValue& leg : j["legs"].items()) p.legs.push_back(leg_of(leg));
  if (p.id != id || p.legs.empty()) return Status::no("'", path, "' is not the plan of the run ", id);
  return Status::good();
}

std::string results_folder(const RemotePlan& p, int target) {
  return join(run_folder(p.id), "/", target, "-", file_word(p.legs[size_t(target)].target.name));
}

std::string lease_name(const RemotePlan& p, int target) { return join(kLeasePrefix, p.id, "-", target); }

std::optional<NamedLease> parse_lease_name(std::string_view name) {
  // A digit stands for any digit, f for a hexadecimal one: "attune-20261119-130501-3fa2c1-0".
  constexpr std::string_view kShape = "00000000-000000-ffffff-", kDigits = "0123456789", kHex = "0123456789abcdef";
  if (!name.starts_with(kLeasePrefix)) return std::nullopt;
  name.remove_prefix(kLeasePrefix.size());
  if (name.size() <= kShape.size()) return std::nullopt;
  for (size_t n = 0; n < kShape.size(); ++n) {
    const std::string_view accepted = kShape[n] == '0' ? kDigits : kShape[n] == 'f' ? kHex : kShape.substr(n, 1);
    if (accepted.find(name[n]) == accepted.npos) return std::nullopt;
  }
  NamedLease out{.run = std::string(name.substr(0, kShape.size() - 1))};
  const std::string_view number = name.substr(kShape.size());
  const auto [end, error] = std::from_chars(number.data(), number.data() + number.size(), out.target);
  const bool whole = error == std::errc() && end == number.data() + number.size() && out.target >= 0;
  return whole ? std::optional(out) : std::nullopt;
}

bool means_gpu(const RemotePlan& p, const Target& target) {
  const auto names_device = [](const std::string& word) { return word == "--device" || word.starts_with("--device="); };
  return !target.gpu.empty() && !p.command.empty() && (p.command[0] == "bench" || p.command[0] == "parity") &&
         std::none_of(p.command.begin(), p.command.end(), names_device);
}

std::vector<std::string> run_ids() {
  std::vector<std::string> all;
  std::error_code error;
  if (runs_folder().empty()) return all;
  for (std::filesystem::directory_iterator it(runs_folder(), error), end; !error && it != end; it.increment(error))
    if (std::filesystem::exists(it->path() / "plan.json", error)) all.push_back(it->path().filename());
  std::sort(all.begin(), all.end());
  return all;
}

}  // namespace attune
