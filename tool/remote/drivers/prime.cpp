// SPDX-License-Identifier: Apache-2.0
// Prime Intellect. A GPU sandbox comes first: the server ends it after timeout_minutes, creates it once per
// idempotency_key, and finds it by its label. A pod has none of these: it is looked up by name before and after the
// request, reached by ssh, and ends only by deletion.
#include <fmt/format.h>
#include <sys/stat.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdlib>
#include <fstream>
#include <thread>

#include "tool/remote/drivers/drivers.h"
#include "tool/remote/drivers/over_ssh.h"
#include "tool/remote/drivers/prime_gateway.h"
#include "tool/text.h"

namespace attune {
namespace {

constexpr std::string_view kSandbox = "sandbox:", kPod = "pod:", kLabel = "attune";
constexpr double kCheckLimit_s = 15, kListLimit_s = 45;
constexpr double kSandboxSetup_s = 90, kPodSetup_s = 300;  // until a command can run, as assumed by the plan

// "root@203.0.113.4 -p 22" of a text, or of a list whose first element it is.
std::string ssh_place(const JsonValue& connection, int& port) {
  const JsonValue& one = connection.is_array() && !connection.items().empty() ? connection.items()[0] : connection;
  std::string text = one.text();
  if (text.starts_with("ssh ")) text.erase(0, 4);
  const size_t blank = text.find(' '), flag = text.find("-p ");
  port = flag == text.npos ? 22 : std::atoi(text.c_str() + flag + 3);
  const std::string place = text.substr(0, blank);
  const bool plain = !place.empty() && place[0] != '-' && std::all_of(place.begin(), place.end(), [](unsigned char c) {
    return std::isalnum(c) || std::string_view("@.-_:").find(char(c)) != std::string_view::npos;
  });
  return plain && port > 0 && port < 65536 ? place : "";
}

std::string environment(const char* name) {
  const char* const value = std::getenv(name);
  return value ? value : "";
}

class PrimeDriver final : public Driver {
 public:
  PrimeDriver(Target target, std::string folder) : target_(std::move(target)), folder_(std::move(folder)) {}

  Status check() override;
  Status offers(const Wanted&, std::vector<RemoteOffer>&) override;
  Status acquire(const Wanted&, const RemoteOffer&, Lease&) override;
  Status life(const Lease&, Life&, std::string& why) override;
  Status find(std::string_view prefix, std::vector<Lease>&) override;
  Status push(const Lease&, const std::string& from, const std::string& to) override;
  Status run(const Lease&, const std::string& script, int limit_s, std::string& out, int& code) override;
  Status read(const Lease&, const std::string& file, std::uint64_t offset, std::string& bytes) override;
  Status start(const Lease&) override;
  Status silent_for(const Lease&, double& seconds) override;
  Status release(const Lease&) override;
  Status bill(const Lease&, std::optional<double>& usd) override;
  double settle_s() const override { return 15; }

 private:
  Status ready();  // the key, the address and the GPU's name, read once
  Status named(Status s) const { return s.after(target_.name, ": "); }
  std::string option(std::string_view name, std::string otherwise) const;
  Status sandboxes(std::string_view label, std::vector<JsonValue>&);
  Status pods(std::vector<JsonValue>&);
  Status leases_named(std::string_view prefix, bool whole, std::vector<Lease>&);
  Status create_sandbox(const Wanted&, const RemoteOffer&, Lease&);
  Status create_pod(const Wanted&, const RemoteOffer&, Lease&);
  Status adopt(const Status&, Lease&);
  Status life_of_sandbox(const std::string& id, Life&, std::string& why);
  Status life_of_pod(const Lease&, Life&, std::string& why);
  Status reach_pod(const Lease&);
  Status command(const Lease&, const PrimeGateway::Command&, CommandOutput&);
  Status with_id(const Lease&, Lease& out);  // a lease whose reply was lost has only a name

  Target target_;
  std::string folder_, gpu_{};
  PrimeApi api_{};
  PrimeGateway gateway_{api_};
  bool opened_ = false, reached_ = false;
  OverSsh ssh_{};
};

std::string folder_of(const Lease& lease) { return "/tmp/" + lease.name; }
bool is_sandbox(const Lease& lease) { return lease.id.starts_with(kSandbox); }
std::string bare_id(const Lease& lease) { return lease.id.substr(lease.id.find(':') + 1); }

Status PrimeDriver::ready() {
  if (opened_) return Status::good();
  if (Status s = prime_gpu(target_.gpu.empty() ? target_.place : target_.gpu, gpu_); !s.ok()) return s.after("GPU ");
  if (Status s = api_.open(); !s.ok()) return s;
  opened_ = true;
  return Status::good();
}

std::string PrimeDriver::option(std::string_view name, std::string otherwise) const {
  for (const std::string& word : target_.options)
    if (word.starts_with(join(name, "="))) return word.substr(name.size() + 1);
  return otherwise;
}

Status PrimeDriver::check() {
  if (Status s = ready(); !s.ok()) return named(s);
  JsonValue json;
  int code = 0;
  const std::string team = api_.team().empty() ? "" : "&team_id=" + url_escaped(api_.team());
  if (Status s = api_.call({.path = "/sandbox?page=1&per_page=1" + team, .limit_s = kCheckLimit_s}, json, code);
      !s.ok())
    return named(s);
  if (!json["sandboxes"].is_array()) return named(Status::failure(Code::device, "the answer has no list 'sandboxes'"));
  return Status::good();
}

Status PrimeDriver::offers(const Wanted& wanted, std::vector<RemoteOffer>& out) {
  if (Status s = ready(); !s.ok()) return named(s);
  std::string gpu = gpu_;
  if (!wanted.gpu.empty())
    if (Status s = prime_gpu(wanted.gpu, gpu); !s.ok()) return named(s.after("GPU "));
  const int gpus = std::max(1, wanted.gpus);
  std::vector<JsonValue> items;
  if (Status s = api_.pages(fmt::format("/availability/gpus?gpu_type={}&gpu_count={}", url_escaped(gpu), gpus),
                            "items", items, kListLimit_s); !s.ok())
    return named(s);
  std::vector<RemoteOffer> found;
  double dearest = 0;
  for (const JsonValue& item : items) {
    const JsonValue& prices = item["prices"];
    const auto price = prices["communityPrice"].number() ? prices["communityPrice"].number()
                                                         : prices["onDemand"].number();
    const auto count = item["gpuCount"].number();
    if (!price || *price <= 0 || item["gpuType"].text() != gpu || !count || int(*count) != gpus) continue;
    const std::string stock = item["stockStatus"].text();
    if (stock == "Unavailable" || stock == "unavailable") continue;
    found.push_back({.id = join(kPod, item["cloudId"].text(), "|", item["provider"].text(), "|",
                                item["dataCenter"].text()),
                     .provider = "prime pod, " + item["provider"].text(), .gpu = gpu, .region = item["country"].text(),
                     .gpus = gpus, .usd_an_hour = *price, .setup_s = kPodSetup_s, .spot = item["isSpot"].truth()});
    if (!item["isSpot"].truth()) dearest = std::max(dearest, *price);
  }
  std::stable_sort(found.begin(), found.end(), [](const RemoteOffer& a, const RemoteOffer& b) {
    return std::tie(a.spot, a.usd_an_hour) < std::tie(b.spot, b.usd_an_hour);
  });
  // The interface tells no price of a sandbox: the dearest pod of its GPU is assumed, so that a cap holds.
  const double sandbox = target_.usd_an_hour ? *target_.usd_an_hour : dearest;
  const bool wants_pod = option("machine", "sandbox") == "pod";
  if (sandbox > 0 && !wants_pod)
    out.push_back({.id = join(kSandbox, gpu), .provider = "prime sandbox", .gpu = gpu, .region = option("region", ""),
                   .gpus = gpus, .usd_an_hour = sandbox, .setup_s = kSandboxSetup_s});
  out.insert(out.end(), found.begin(), found.end());
  for (RemoteOffer& o : out) {
    const bool arm = gpu.starts_with("GH") || gpu.starts_with("GB");  // Grace, NVIDIA's own CPU
    o.facts = join("machine ", arm ? "aarch64" : "x86_64", "\ngpu ", gpu, "\n");
    if (option("image", "").empty()) o.facts += o.id.starts_with(kSandbox) ? "glibc 2.39\n" : "glibc 2.35\n";
  }
  if (out.empty())
    return named(Status::failure(Code::device, "no ", gpus, " x ", gpu, " is offered now; remote offers lists others"));
  return Status::good();
}

Status PrimeDriver::acquire(const Wanted& wanted, const RemoteOffer& offer, Lease& lease) {
  if (Status s = ready(); !s.ok()) return named(s);
  lease.name = wanted.name;
  lease.usd_an_hour = offer.usd_an_hour;
  lease.where = OverSsh::where(wanted);
  if (!offer.id.starts_with(kSandbox)) return named(create_pod(wanted, offer, lease));
  Status s = create_sandbox(wanted, offer, lease);
  if (s.code != Code::unsupported) return named(s);
  // No sandbox of this GPU can be had: a pod that costs no more is second.
  std::vector<RemoteOffer> all;
  if (!offers(wanted, all).ok()) return named(s);
  for (const RemoteOffer& pod : all)
    if (pod.id.starts_with(kPod) && !pod.spot && pod.usd_an_hour <= offer.usd_an_hour) {
      lease.usd_an_hour = pod.usd_an_hour;
      return named(create_pod(wanted, pod, lease));
    }
  return named(s);
}

Status PrimeDriver::create_sandbox(const Wanted& wanted, const RemoteOffer& offer, Lease& lease) {
  constexpr int kMostMinutes = 1440;
  const int minutes = std::clamp(int(std::floor(wanted.minutes)), 1, kMostMinutes);
  const int silence = std::clamp(int(std::ceil(wanted.silence_s / 60)), 1, minutes);
  Json body{{"name", wanted.name}, {"docker_image", option("image", "nvidia/cuda:12.8.1-base-ubuntu24.04")},
            {"vm", true}, {"gpu_type", offer.gpu}, {"gpu_count", offer.gpus}, {"cpu_cores", 8}, {"memory_gb", 64},
            {"disk_size_gb", 40}, {"timeout_minutes", minutes}, {"idle_timeout_minutes", silence},
            {"idempotency_key", wanted.name}};
  Json labels = Json::array();
  labels.push_back(kLabel), labels.push_back(wanted.name);
  body["labels"] = labels;
  if (!api_.team().empty()) body["team_id"] = api_.team();
  if (!offer.region.empty()) body["region"] = offer.region;
  JsonValue json;
  int code = 0;
  bool maybe_done = false;
  // The same key twice is one sandbox, so an answer that was lost is asked for again.
  const Status s = api_.call({.method = "POST", .path = "/sandbox", .body = body}, json, code, &maybe_done);
  if (!s.ok()) return maybe_done ? adopt(s, lease) : s;
  lease.id = join(kSandbox, json["id"].text());
  if (lease.id == kSandbox) return adopt(Status::failure(Code::device, "the answer has no id"), lease);
  return s;
}

Status PrimeDriver::create_pod(const Wanted& wanted, const RemoteOffer& offer, Lease& lease) {
  std::vector<Lease> found;
  if (Status s = leases_named(wanted.name, true, found); !s.ok()) return s;
  if (!found.empty()) return lease.id = found[0].id, Status::good();
  std::vector<std::string> parts{""};
  for (const char c : offer.id.substr(kPod.size()))
    if (c == '|') parts.emplace_back();
    else parts.back() += c;
  parts.resize(3);
  Json pod{{"name", wanted.name}, {"cloudId", parts[0]}, {"gpuType", offer.gpu}, {"gpuCount", offer.gpus},
           {"maxPrice", offer.usd_an_hour}, {"image", option("image", "ubuntu_22_cuda_12")}, {"autoRestart", false}};
  if (!parts[2].empty()) pod["dataCenterId"] = parts[2];
  if (!offer.region.empty()) pod["country"] = offer.region;
  Json body{{"pod", pod}, {"provider", Json{{"type", parts[1]}}}};
  if (!api_.team().empty()) body["team"] = Json{{"teamId", api_.team()}};
  JsonValue json;
  int code = 0;
  bool maybe_done = false;
  Status s = api_.call({.method = "POST", .path = "/pods", .body = body, .repeatable = false}, json, code, &maybe_done);
  if (s.ok() && json["id"].text().empty()) s = Status::failure(Code::device, "the answer has no id"), maybe_done = true;
  if (s.ok()) {
    lease.id = join(kPod, json["id"].text());
    if (const auto price = json["priceHr"].number()) lease.usd_an_hour = *price;
    return s;
  }
  return maybe_done ? adopt(s, lease) : s;
}

// A creation whose answer was lost: what it made appears under its name. `s` is the failure if nothing does.
Status PrimeDriver::adopt(const Status& s, Lease& lease) {
  lease.id.clear();
  std::vector<Lease> found;
  for (int second = 0; second < int(settle_s()); ++second) {
    if (leases_named(lease.name, true, found).ok() && !found.empty()) return lease.id = found[0].id, Status::good();
    std::this_thread::sleep_for(std::chrono::seconds(1));
  }
  return s;
}

Status PrimeDriver::sandboxes(std::string_view label, std::vector<JsonValue>& out) {
  std::string path = join("/sandbox?is_active=true&labels=", url_escaped(label));
  if (!api_.team().empty()) path += "&team_id=" + url_escaped(api_.team());
  return api_.pages(path, "sandboxes", out, kListLimit_s);
}

Status PrimeDriver::pods(std::vector<JsonValue>& out) {
  constexpr int kPage = 100, kMostPods = 10000;
  while (out.size() < kMostPods) {
    JsonValue json;
    int code = 0;
    if (Status s = api_.call({.path = fmt::format("/pods?offset={}&limit={}", out.size(), kPage)}, json, code);
        !s.ok())
      return s;
    const JsonValue& data = json["data"];
    if (!data.is_array()) return Status::failure(Code::device, "the answer has no list 'data'");
    out.insert(out.end(), data.items().begin(), data.items().end());
    if (data.items().size() < kPage) return Status::good();
  }
  return Status::good();
}

Status PrimeDriver::leases_named(std::string_view prefix, bool whole, std::vector<Lease>& out) {
  out.clear();
  const auto fits = [&](const std::string& name) { return whole ? name == prefix : name.starts_with(prefix); };
  std::vector<JsonValue> all;
  if (Status s = sandboxes(whole ? prefix : kLabel, all); !s.ok()) return s;
  for (const JsonValue& one : all)
    if (fits(one["name"].text()) && one["status"].text() != "TERMINATED" && !one["id"].text().empty())
      out.push_back({.name = one["name"].text(), .id = join(kSandbox, one["id"].text()), .where = "gateway"});
  all.clear();
  if (Status s = pods(all); !s.ok()) return s;
  for (const JsonValue& one : all)
    if (fits(one["name"].text()) && one["status"].text() != "TERMINATED" && !one["id"].text().empty())
      out.push_back({.name = one["name"].text(), .id = join(kPod, one["id"].text()),
                     .usd_an_hour = one["priceHr"].number().value_or(0)});
  return Status::good();
}

Status PrimeDriver::find(std::string_view prefix, std::vector<Lease>& out) {
  if (Status s = ready(); !s.ok()) return named(s);
  return named(leases_named(prefix, false, out));
}

Status PrimeDriver::with_id(const Lease& lease, Lease& out) {
  out = lease;
  if (!out.id.empty()) return Status::good();
  std::vector<Lease> found;
  if (Status s = leases_named(lease.name, true, found); !s.ok()) return s;
  if (!found.empty()) out.id = found[0].id, out.where = found[0].where;
  return Status::good();
}

Status PrimeDriver::life(const Lease& lease, Life& life, std::string& why) {
  if (Status s = ready(); !s.ok()) return named(s);
  Lease known;
  if (Status s = with_id(lease, known); !s.ok()) return named(s);
  if (known.id.empty()) return life = Life::gone, why = "no machine has this name", Status::good();
  return named(is_sandbox(known) ? life_of_sandbox(bare_id(known), life, why) : life_of_pod(known, life, why));
}

Status PrimeDriver::life_of_sandbox(const std::string& id, Life& life, std::string& why) {
  JsonValue json;
  int code = 0;
  if (Status s = api_.call({.path = "/sandbox/" + url_escaped(id)}, json, code); !s.ok()) return s;
  const std::string status = code == 404 ? "TERMINATED" : json["status"].text();
  if (status.empty()) return Status::failure(Code::device, "the answer has no status of the sandbox");
  why = in_one_line(join(status, json["errorMessage"].is_text() ? ": " : "", json["errorMessage"].text()));
  if (status == "TERMINATED" || status == "TIMEOUT") return life = Life::gone, Status::good();
  if (status == "ERROR") return life = Life::failed, Status::good();
  life = status == "RUNNING" ? Life::ready : Life::pending;
  if (life == Life::pending || reached_) return Status::good();
  CommandOutput out;  // it runs a little before its gateway knows it
  reached_ = gateway_.run(id, {.script = "true", .limit_s = 10, .repeatable = true}, out).ok() && out.code == 0;
  if (!reached_) life = Life::pending, why = "it runs, and its gateway does not answer yet";
  return Status::good();
}

Status PrimeDriver::life_of_pod(const Lease& lease, Life& life, std::string& why) {
  JsonValue json;
  int code = 0;
  const std::string id = bare_id(lease);
  if (Status s = api_.call({.path = "/pods/status?pod_ids=" + url_escaped(id)}, json, code); !s.ok()) return s;
  const JsonValue* pod = nullptr;
  for (const JsonValue& one : json["data"].items())
    if (one["podId"].text() == id) pod = &one;
  if (code != 404 && !json["data"].is_array()) return Status::failure(Code::device, "the answer has no list 'data'");
  if (!pod) return life = Life::gone, why = "the provider does not know it", Status::good();
  const std::string status = (*pod)["status"].text();
  why = in_one_line(join(status, (*pod)["installationFailure"].is_text() ? ": " : "",
                         (*pod)["installationFailure"].text()));
  if (status == "TERMINATED") return life = Life::gone, Status::good();
  if (status == "ERROR" || (*pod)["installationFailure"].is_text()) return life = Life::failed, Status::good();
  int port = 0;
  const std::string place = ssh_place((*pod)["sshConnection"], port);
  const bool installed = (*pod)["installationProgress"].number().value_or(100) >= 100;
  life = status == "ACTIVE" && installed && !place.empty() ? Life::ready : Life::pending;
  if (life == Life::ready && !reached_ && !folder_.empty()) {
    const Status reached = reach_pod(lease);
    reached_ = reached.ok();
    if (!reached_) life = Life::pending, why = "it is active, and ssh does not answer yet: " + reached.message;
  }
  return Status::good();
}

// The pod's address comes from its status each time: it is not known when the pod is created.
Status PrimeDriver::reach_pod(const Lease& lease) {
  if (ssh_.is_open()) return Status::good();
  JsonValue json;
  int code = 0;
  const std::string id = bare_id(lease);
  if (Status s = api_.call({.path = "/pods/status?pod_ids=" + url_escaped(id)}, json, code); !s.ok()) return s;
  Target ssh{.name = target_.name, .kind = "ssh"};
  for (const JsonValue& one : json["data"].items())
    if (one["podId"].text() == id) ssh.place = ssh_place(one["sshConnection"], ssh.port);
  if (ssh.place.empty()) return Status::failure(Code::device, "the pod has no address yet");
  ssh.ssh_config = folder_ + "/prime_ssh.conf";
  std::ofstream file(ssh.ssh_config);
  file << "Host *\n  StrictHostKeyChecking accept-new\n  UserKnownHostsFile \"" << folder_ << "/prime_known_hosts\"\n";
  if (const std::string key = environment("PRIME_SSH_KEY_PATH"); !key.empty())
    file << "  IdentityFile \"" << key << "\"\n  IdentitiesOnly yes\n";
  file.close();
  if (!file) return Status::failure(Code::device, "'", ssh.ssh_config, "' cannot be written");
  return ssh_.open(ssh, folder_, lease);
}

Status PrimeDriver::command(const Lease& lease, const PrimeGateway::Command& command, CommandOutput& out) {
  if (Status s = ready(); !s.ok()) return s;
  if (is_sandbox(lease)) {
    PrimeGateway::Command there = command;
    const std::string folder = folder_of(lease);
    there.script = join("mkdir -p '", folder, "' && cd '", folder, "' || exit 125\n", command.script);
    return gateway_.run(bare_id(lease), there, out);
  }
  return Status::no("the lease '", in_one_line(lease.id), "' is not a sandbox");
}

Status PrimeDriver::push(const Lease& lease, const std::string& from, const std::string& to) {
  constexpr double kLimit_s = 1800;
  if (Status s = ready(); !s.ok()) return named(s);
  if (!is_sandbox(lease)) {
    if (Status s = reach_pod(lease); !s.ok()) return named(s);
    return ssh_.driver().push(lease, from, to);
  }
  CommandOutput out;
  if (Status s = command(lease, {.script = "mkdir -p \"$(dirname './" + to + "')\"", .limit_s = 30, .repeatable = true},
                         out); !s.ok())
    return named(s);
  return named(gateway_.upload(bare_id(lease), from, join(folder_of(lease), "/", to), kLimit_s));
}

Status PrimeDriver::run(const Lease& lease, const std::string& script, int limit_s, std::string& out, int& code) {
  if (Status s = ready(); !s.ok()) return named(s);
  if (!is_sandbox(lease)) {
    if (Status s = reach_pod(lease); !s.ok()) return named(s);
    return ssh_.driver().run(lease, script, limit_s, out, code);
  }
  CommandOutput got;
  if (Status s = command(lease, {.script = script, .limit_s = double(limit_s)}, got); !s.ok()) return named(s);
  code = got.code;
  out = got.out.empty() && code ? got.err : got.out;
  return Status::good();
}

Status PrimeDriver::read(const Lease& lease, const std::string& file, std::uint64_t offset, std::string& bytes) {
  if (Status s = ready(); !s.ok()) return named(s);
  if (!is_sandbox(lease)) {
    if (Status s = reach_pod(lease); !s.ok()) return named(s);
    return ssh_.driver().read(lease, file, offset, bytes);
  }
  CommandOutput got;
  const std::string script = fmt::format("[ ! -f './{0}' ] || tail -c +{1} './{0}' | head -c {2}", file, offset + 1,
                                         kReadBytes);
  if (Status s = command(lease, {.script = script, .limit_s = 60, .repeatable = true}, got); !s.ok()) return named(s);
  if (got.code)
    return named(Status::failure(Code::device, "'", file, "' could not be read: ", in_one_line(got.err)));
  bytes = std::move(got.out);
  return Status::good();
}

Status PrimeDriver::start(const Lease& lease) {
  if (is_sandbox(lease)) return Driver::start(lease);
  if (Status s = ready(); !s.ok()) return named(s);
  if (Status s = reach_pod(lease); !s.ok()) return named(s);
  return ssh_.driver().start(lease);
}

Status PrimeDriver::silent_for(const Lease& lease, double& seconds) {
  if (is_sandbox(lease)) return Driver::silent_for(lease, seconds);
  if (Status s = ready(); !s.ok()) return named(s);
  if (Status s = reach_pod(lease); !s.ok()) return named(s);
  return ssh_.driver().silent_for(lease, seconds);
}

Status PrimeDriver::release(const Lease& lease) {
  if (Status s = ready(); !s.ok()) return named(s);
  // By name, even with an id: whatever has this name is ours, and a second one must not stay.
  std::vector<Lease> found;
  const Status listed = leases_named(lease.name, true, found);
  if (!lease.id.empty() && std::none_of(found.begin(), found.end(), [&](const Lease& l) { return l.id == lease.id; }))
    found.push_back(lease);
  Status first = lease.id.empty() ? listed : Status::good();
  for (const Lease& one : found) {
    JsonValue json;
    int code = 0;
    const std::string path = join(is_sandbox(one) ? "/sandbox/" : "/pods/", url_escaped(bare_id(one)));
    Status s = api_.call({.method = "DELETE", .path = path, .limit_s = 30}, json, code);
    if (s.code == Code::unsupported && code == 409) s = Status::good();  // it is being deleted; life() tells when
    if (first.ok() && !s.ok()) first = s;
  }
  ssh_.close();
  return named(first);
}

Status PrimeDriver::bill(const Lease& lease, std::optional<double>& usd) {
  usd.reset();
  if (Status s = ready(); !s.ok()) return named(s);
  if (lease.id.empty()) return Status::good();
  const bool sandbox = is_sandbox(lease);
  const std::string id = bare_id(lease);
  const std::string team = api_.team().empty() ? "" : "&teamId=" + url_escaped(api_.team());
  JsonValue json;
  int code = 0;
  if (Status s = api_.call({.path = sandbox ? "/billing/wallet?limit=100&offset=0" + team
                                            : std::string("/pods/history?limit=100&offset=0")}, json, code); !s.ok())
    return named(s);
  for (const JsonValue& one : json[sandbox ? "recent_billings" : "data"].items())
    if (one[sandbox ? "resource_id" : "id"].text() == id)
      if (const auto amount = one[sandbox ? "amount_usd" : "totalBilledPrice"].number())
        usd = usd.value_or(0) + std::fabs(*amount);
  return Status::good();
}

}  // namespace

std::unique_ptr<Driver> prime_driver(const Target& target, const std::string& folder) {
  return std::make_unique<PrimeDriver>(target, folder);
}

}  // namespace attune
