// SPDX-License-Identifier: Apache-2.0
// SkyPilot, through its own program `sky`, for the clouds that it reaches: "sky:aws", "sky:gcp/us-central1". A
// cluster's name is the lease's, so a launch that is repeated finds the first one. Commands and files go by ssh, whose
// configuration `sky status` writes. The cluster ends itself when it is idle, where its cloud can do that.
#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cmath>

#include "tool/files.h"
#include "tool/json.h"
#include "tool/json_value.h"
#include "tool/remote/drivers/drivers.h"
#include "tool/remote/drivers/over_ssh.h"
#include "tool/remote/process.h"
#include "tool/text.h"

namespace attune {
namespace {

using Clock = std::chrono::steady_clock;
constexpr int kCheck_s = 18;
constexpr double kSetup_s = 420;  // until a command can run, as assumed by the plan

class SkyDriver final : public Driver {
 public:
  SkyDriver(Target target, std::string folder) : target_(std::move(target)), folder_(std::move(folder)) {}

  Status check() override {
    if (!is_on_path("sky"))
      return Status::no(target_.name, ": the program 'sky' is not on PATH; accepted is SkyPilot: pip install skypilot");
    std::vector<RemoteOffer> ignored;
    const auto begin = Clock::now();
    if (Status s = is_enabled(kCheck_s); !s.ok()) return s;
    const int left = kCheck_s - int(std::chrono::duration<double>(Clock::now() - begin).count());
    return listed(target_.gpu, std::max(1, target_.gpus), std::max(left, 2), ignored);
  }

  Status offers(const Wanted& wanted, std::vector<RemoteOffer>& out) override {
    return listed(wanted.gpu.empty() ? target_.gpu : wanted.gpu, std::max(1, wanted.gpus), 60, out);
  }

  Status acquire(const Wanted& wanted, const RemoteOffer& offer, Lease& lease) override {
    const std::string task = folder_ + "/task.yaml";
    if (Status s = write_file(task, task_text(wanted, offer)); !s.ok()) return fault("'", task, "' ", s.message);
    const int idle = std::max(1, int(std::ceil(wanted.silence_s / 60)));
    std::vector<std::string> words{"launch", "-c", wanted.name, "-y", "-d", "--async", "--down", "-i",
                                   std::to_string(idle)};
    words.insert(words.end(), target_.options.begin(), target_.options.end());
    words.push_back(task);
    lease.name = wanted.name, lease.id = wanted.name, lease.usd_an_hour = offer.usd_an_hour;
    lease.where = OverSsh::where(wanted);
    launched_ = Clock::now();
    std::string out;
    return sky(words, 300, out);
  }

  Status life(const Lease& lease, Life& life, std::string& why) override {
    std::vector<JsonValue> all;
    if (Status s = clusters(lease.name, all); !s.ok()) return s;
    const auto it = std::find_if(all.begin(), all.end(), [&](const JsonValue& c) {
      return c["name"].text() == lease.name;
    });
    life = Life::gone, why = "SkyPilot does not know it";
    if (it == all.end()) {  // a launch is listed a little later than it was accepted
      const bool fresh = launched_ && std::chrono::duration<double>(Clock::now() - *launched_).count() < settle_s();
      return fresh ? (life = Life::pending, Status::good()) : Status::good();
    }
    const std::string status = (*it)["status"].text();
    why = in_one_line(join(status, (*it)["init_status_reason"].is_text() ? ": " : "",
                           (*it)["init_status_reason"].text()));
    life = status == "UP" ? Life::ready : status == "STOPPED" ? Life::failed : Life::pending;
    if ((*it)["init_kind"].text() == "unhealthy") life = Life::failed;
    if (life == Life::ready)
      if (const Status s = reach(lease); !s.ok()) life = Life::pending, why = s.message;
    return Status::good();
  }

  Status find(std::string_view prefix, std::vector<Lease>& out) override {
    std::vector<JsonValue> all;
    if (Status s = clusters("", all); !s.ok()) return s;
    out.clear();
    for (const JsonValue& one : all)
      if (const std::string name = one["name"].text(); name.starts_with(prefix))
        out.push_back({.name = name, .id = name});
    return Status::good();
  }

  Status push(const Lease& lease, const std::string& from, const std::string& to) override {
    if (Status s = reach(lease); !s.ok()) return s;
    return ssh_.driver().push(lease, from, to);
  }
  Status run(const Lease& lease, const std::string& script, int limit_s, std::string& out, int& code) override {
    if (Status s = reach(lease); !s.ok()) return s;
    return ssh_.driver().run(lease, script, limit_s, out, code);
  }
  Status read(const Lease& lease, const std::string& file, std::uint64_t offset, std::string& bytes) override {
    if (Status s = reach(lease); !s.ok()) return s;
    return ssh_.driver().read(lease, file, offset, bytes);
  }
  Status start(const Lease& lease) override {
    if (Status s = reach(lease); !s.ok()) return s;
    return ssh_.driver().start(lease);
  }

  Status silent_for(const Lease& lease, double& seconds) override {
    if (Status s = reach(lease); !s.ok()) return s;
    return ssh_.driver().silent_for(lease, seconds);
  }

  Status release(const Lease& lease) override {
    ssh_.close();
    launched_.reset();
    std::vector<JsonValue> all;
    if (Status s = clusters(lease.name, all); !s.ok()) return s;
    if (all.empty()) return Status::good();
    std::string out;
    return sky({"down", "-y", lease.name}, 600, out);
  }

  // `sky cost-report` is SkyPilot's own estimate, not what the cloud charges.
  Status bill(const Lease&, std::optional<double>& usd) override { return usd.reset(), Status::good(); }
  double settle_s() const override { return 60; }

 private:
  Target target_;
  std::string folder_;
  OverSsh ssh_{};
  std::optional<Clock::time_point> launched_{};

  template <class... Part>
  Status fault(const Part&... part) const { return Status::failure(Code::device, target_.name, ": ", part...); }

  Status sky(std::vector<std::string> words, int limit_s, std::string& out) const {
    words.insert(words.begin(), "sky");
    ProgramResult ran;
    const ProgramCall call{.words = words, .environment = {"SKYPILOT_DISABLE_USAGE_COLLECTION=1", "NO_COLOR=1"},
                           .limit_s = limit_s};
    if (Status s = run_program(call, ran); !s.ok()) return s.after(target_.name, ": ");
    out = std::move(ran.out);
    if (ran.code == 0) return Status::good();
    const std::string said = last_line(ran.err.empty() ? out : ran.err);
    return fault("sky ", words[1], " failed", said.empty() ? "" : ": ", in_one_line(said));
  }

  // JSON that may follow lines for people.
  Status sky_json(const std::vector<std::string>& words, int limit_s, JsonValue& out) const {
    std::string text;
    if (Status s = sky(words, limit_s, text); !s.ok()) return s;
    for (size_t at = text.find_first_of("[{"); at != text.npos; at = text.find_first_of("[{", at + 1))
      if (at == 0 || text[at - 1] == '\n')
        if (JsonValue::parse(std::string_view(text).substr(at), out).ok()) return Status::good();
    return fault("sky ", words[0], " did not answer with JSON");
  }

  // The cloud of "aws/us-east-1".
  std::string cloud() const { return target_.place.substr(0, target_.place.find('/')); }

  Status is_enabled(int limit_s) const {
    std::vector<std::string> words{"check", "-o", "json"};
    if (!cloud().empty()) words.insert(words.begin() + 1, cloud());
    JsonValue enabled;
    if (Status s = sky_json(words, limit_s, enabled); !s.ok()) return s;
    for (const JsonValue& workspace : enabled.items())  // the clouds of each workspace
      for (const JsonValue& one : workspace.items())
        if (cloud().empty() || file_word(one.text()) == file_word(cloud()) || lower(one.text()) == lower(cloud()))
          return Status::good();
    return Status::no(target_.name, ": SkyPilot has no access to '", cloud().empty() ? "any cloud" : cloud(),
                      "'; accepted is one that `sky check` enables");
  }

  Status listed(const std::string& gpu, int gpus, int limit_s, std::vector<RemoteOffer>& out) const {
    if (gpu.empty()) return Status::no(target_.name, ": no GPU given; accepted is --gpu NAME");
    std::vector<std::string> words{"gpus", "list", fmt::format("{}:{}", gpu, gpus), "--all-regions", "-o", "json"};
    if (!target_.place.empty()) words.insert(words.end(), {"--infra", target_.place});
    JsonValue all;
    if (Status s = sky_json(words, limit_s, all); !s.ok()) return s;
    out.clear();
    for (const JsonValue& of_gpu : all.items())
      for (const JsonValue& one : of_gpu.items()) {
        const auto price = one["price"].number(), spot = one["spot_price"].number();
        if (lower(one["accelerator_name"].text()) != lower(gpu)) continue;
        const RemoteOffer offer{.id = one["cloud"].text(), .provider = "sky " + one["cloud"].text(),
                                .gpu = one["accelerator_name"].text(), .region = one["region"].text(), .gpus = gpus,
                                .usd_an_hour = price.value_or(0), .setup_s = kSetup_s,
                                .facts = join("gpu ", one["accelerator_name"].text(), "\n")};
        if (price && *price > 0) out.push_back(offer);
        if (spot && *spot > 0) out.push_back(offer), out.back().usd_an_hour = *spot, out.back().spot = true;
      }
    std::stable_sort(out.begin(), out.end(), [](const RemoteOffer& a, const RemoteOffer& b) {
      return a.spot != b.spot ? b.spot : a.usd_an_hour < b.usd_an_hour;
    });
    if (out.empty())
      return Status::no(target_.name, ": ", gpus, " x GPU '", in_one_line(gpu), "' is not offered there; ",
                        "`sky gpus list` names the GPUs that are");
    return Status::good();
  }

  Status clusters(const std::string& name, std::vector<JsonValue>& out) const {
    std::vector<std::string> words{"status", "-o", "json", "--refresh"};
    if (!name.empty()) words.push_back(name);
    JsonValue all;
    if (Status s = sky_json(words, 60, all); !s.ok()) return s;
    if (!all.is_array()) return fault("sky status did not answer with a list");
    out = all.items();
    return Status::good();
  }

  Status reach(const Lease& lease) {
    return ssh_.open({.name = target_.name, .kind = "ssh", .place = lease.name}, folder_, lease);
  }

  static std::string lower(std::string text) {
    for (char& c : text) c = char(std::tolower(static_cast<unsigned char>(c)));
    return text;
  }

  // No command: what runs comes by ssh.
  std::string task_text(const Wanted& wanted, const RemoteOffer& offer) const {
    std::string infra = target_.place.empty() ? lower(offer.id) : target_.place;
    if (!offer.region.empty() && infra.find('/') == infra.npos) infra += "/" + offer.region;
    return fmt::format("# Written by attune remote.\nname: {}\nnum_nodes: 1\nresources:\n  infra: {}\n"
                       "  accelerators: {}:{}\n  use_spot: {}\n  max_hourly_cost: {:.4f}\n",
                       wanted.name, Json(infra).dump(), offer.gpu, offer.gpus, offer.spot ? "true" : "false",
                       offer.usd_an_hour * 1.001);
  }
};

}  // namespace

std::unique_ptr<Driver> sky_driver(const Target& target, const std::string& folder) {
  return std::make_unique<SkyDriver>(target, folder);
}

}  // namespace attune
