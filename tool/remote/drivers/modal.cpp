// SPDX-License-Identifier: Apache-2.0
// Modal, through its own Python client: app.py is written into the run's folder and started for each call. Modal ends a
// sandbox after its timeout, and a name is unique, so a creation that is repeated finds the first one.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <fstream>

#include "tool/files.h"
#include "tool/json.h"
#include "tool/json_value.h"
#include "tool/remote/drivers/base64.h"
#include "tool/remote/drivers/drivers.h"
#include "tool/remote/drivers/modal_app.h"
#include "tool/remote/price_list.h"
#include "tool/remote/process.h"
#include "tool/text.h"

namespace attune {
namespace {

constexpr const char* kGpus[] = {"T4", "L4", "A10", "A10G", "L40S", "A100", "A100-40GB", "A100-80GB", "RTX-PRO-6000",
                                 "H100", "H100!", "H200", "B200"};
constexpr double kSetup_s = 60, kMost_s = 24 * 3600;

// The Python of the program `modal`: the first line of that script names it.
std::string python_of_modal() {
  const char* const path = std::getenv("PATH");
  for (std::string_view rest = path ? path : ""; !rest.empty();) {
    const size_t end = std::min(rest.find(':'), rest.size());
    std::ifstream script(join(rest.substr(0, end), "/modal"));
    rest.remove_prefix(std::min(end + 1, rest.size()));
    std::string line;
    std::error_code error;
    if (!script || !std::getline(script, line)) continue;
    if (line.starts_with("#!/") && line.find(' ') == line.npos && std::filesystem::exists(line.substr(2), error))
      return line.substr(2);
    break;
  }
  return "python3";
}

class ModalDriver final : public Driver {
 public:
  ModalDriver(Target target, std::string folder) : target_(std::move(target)), folder_(std::move(folder)) {}
  ~ModalDriver() override {
    std::error_code ignored;
    if (is_own_folder_) std::filesystem::remove_all(folder_, ignored);
  }

  Status check() override {
    std::string gpu;
    if (Status s = gpu_named(target_.gpu.empty() ? target_.place : target_.gpu, gpu); !s.ok()) return s;
    JsonValue answer;
    return ask("check", Json::object(), 17, answer);
  }

  Status offers(const Wanted& wanted, std::vector<RemoteOffer>& out) override {
    std::string gpu;
    const std::string& word = wanted.gpu.empty() ? target_.place : wanted.gpu;
    if (Status s = gpu_named(word, gpu); !s.ok()) return s;
    const int gpus = std::max(1, wanted.gpus);
    double price = target_.usd_an_hour.value_or(0) / gpus, host = 0;
    if (!target_.usd_an_hour) {
      if (Status s = listed_price("modal " + gpu, price); !s.ok()) return s.after(target_.name, ": ");
      if (Status s = listed_price("modal host", host); !s.ok()) return s.after(target_.name, ": ");
    }
    out = {{.id = gpu, .provider = "modal", .gpu = gpu, .gpus = gpus, .usd_an_hour = price * gpus + host,
            .setup_s = kSetup_s, .facts = join("machine x86_64\ngpu ", gpu, "\n")}};
    if (option("image").empty()) out[0].facts += "glibc 2.36\n";  // Modal's own image is Debian 12
    return Status::good();
  }

  Status acquire(const Wanted& wanted, const RemoteOffer& offer, Lease& lease) override {
    const double seconds = std::clamp(std::floor(wanted.minutes * 60), 10.0, kMost_s);
    JsonValue answer;
    Json words{{"name", wanted.name}, {"gpu", offer.gpu}, {"gpus", std::max(1, offer.gpus)},
               {"seconds", int64_t(seconds)}, {"image", option("image")},
               {"idle_s", int64_t(std::min(seconds, std::ceil(wanted.silence_s)))}};
    if (Status s = ask("acquire", words, 120, answer); !s.ok()) return s;
    lease.name = wanted.name, lease.id = answer["id"].text(), lease.where = "sandbox";
    lease.usd_an_hour = offer.usd_an_hour;
    return Status::good();
  }

  Status life(const Lease& lease, Life& life, std::string& why) override {
    JsonValue answer;
    Status s = ask("life", {{"name", lease.name}, {"probe", !reached_}}, reached_ ? 20 : 30, answer);
    if (!s.ok()) return s;
    const std::string word = answer["life"].text();
    why = in_one_line(answer["why"].text());
    life = word == "ready" ? Life::ready : word == "gone" ? Life::gone : Life::pending;
    reached_ = reached_ || life == Life::ready;
    return s;
  }

  Status find(std::string_view prefix, std::vector<Lease>& out) override {
    JsonValue answer;
    if (Status s = ask("find", {{"prefix", prefix}}, 60, answer); !s.ok()) return s;
    out.clear();
    for (const JsonValue& one : answer["leases"].items())
      out.push_back({.name = one["name"].text(), .id = one["id"].text(), .where = "sandbox"});
    return Status::good();
  }

  Status push(const Lease& lease, const std::string& from, const std::string& to) override {
    constexpr int kLimit_s = 1800;
    JsonValue answer;
    if (Status s = ask("push", {{"name", lease.name}, {"from", from}, {"to", folder_of(lease) + "/" + to},
                                {"limit_s", kLimit_s}}, kLimit_s, answer); !s.ok())
      return s;
    if (answer["code"].number().value_or(1) != 0) return fault("'" + to + "' cannot be written there");
    return Status::good();
  }

  Status run(const Lease& lease, const std::string& script, int limit_s, std::string& out, int& code) override {
    const std::string folder = folder_of(lease);
    JsonValue answer;
    const std::string all = join("mkdir -p '", folder, "' && cd '", folder, "' || exit 125\n", script);
    if (Status s = ask("run", {{"name", lease.name}, {"script", all}, {"limit_s", limit_s}}, limit_s + 15, answer);
        !s.ok())
      return s;
    std::string err;
    if (!from_base64(answer["out"].text(), out) || !from_base64(answer["err"].text(), err))
      return fault("the output is not base64");
    code = int(answer["code"].number().value_or(1));
    if (out.empty() && code) out = err;
    return Status::good();
  }

  Status read(const Lease& lease, const std::string& file, std::uint64_t offset, std::string& bytes) override {
    int code = 0;
    const std::string script = fmt::format("[ ! -f './{0}' ] || tail -c +{1} './{0}' | head -c {2}", file, offset + 1,
                                           kReadBytes);
    if (Status s = run(lease, script, 60, bytes, code); !s.ok()) return s;
    return code ? fault("'" + file + "' could not be read: " + in_one_line(bytes)) : Status::good();
  }

  Status release(const Lease& lease) override {
    JsonValue answer;
    return ask("release", {{"name", lease.name}}, 60, answer);
  }

  // Modal reports costs of whole hours and of apps, not of one sandbox.
  Status bill(const Lease&, std::optional<double>& usd) override { return usd.reset(), Status::good(); }
  double settle_s() const override { return 10; }

 private:
  Target target_;
  std::string folder_;
  bool reached_ = false, is_own_folder_ = false;

  static std::string folder_of(const Lease& lease) { return "/tmp/" + lease.name; }
  template <class... Part>
  Status fault(const Part&... part) const { return Status::failure(Code::device, target_.name, ": ", part...); }

  std::string option(std::string_view name) const {
    for (const std::string& word : target_.options)
      if (word.starts_with(join(name, "="))) return word.substr(name.size() + 1);
    return "";
  }

  Status gpu_named(const std::string& word, std::string& out) const {
    std::string all;
    for (const char* const gpu : kGpus) {
      if (file_word(gpu) == file_word(word) || word == gpu) return out = gpu, Status::good();
      all += join(all.empty() ? "" : ", ", gpu);
    }
    return Status::no(target_.name, ": GPU '", in_one_line(word), "' is not one of ", all);
  }

  // Starts app.py. The request is its stdin, so that no process list shows it.
  Status ask(const std::string& verb, const Json& request, int limit_s, JsonValue& answer) {
    std::error_code ignored;
    if (folder_.empty()) {  // before a run has one
      std::string made = (std::filesystem::temp_directory_path(ignored) / "attune-modal-XXXXXX").string();
      if (!mkdtemp(made.data())) return fault("no temporary folder can be made");
      folder_ = made, is_own_folder_ = true;
    }
    const std::string script = folder_ + "/app.py";
    if (!std::filesystem::exists(script, ignored))
      if (Status s = write_file(script, kModalApp); !s.ok()) return fault("'", script, "' ", s.message);
    ProgramResult ran;
    const ProgramCall call{.words = {python_of_modal(), script, verb}, .input = request.dump(), .limit_s = limit_s};
    if (Status s = run_program(call, ran); !s.ok())
      return s.message.find("did not end") == s.message.npos
                 ? s.after(target_.name, ": Modal's client: ")
                 : fault("Modal does not answer: its client did not end within ", limit_s, " s");
    const std::string last = last_line(ran.out);
    if (!JsonValue::parse(last, answer).ok() || !answer.is_object())
      return fault("Modal's client did not answer", ran.err.empty() ? "" : ": ", in_one_line(last_line(ran.err)));
    const std::string error = answer["error"].text(), text = in_one_line(answer["text"].text());
    if (error == "missing")
      return Status::no(target_.name, ": Modal's Python client is not installed; accepted is: pip install modal");
    if (error == "gone") return fault("the sandbox is gone");
    if (error == "auth")
      return Status::no(target_.name, ": Modal does not accept MODAL_TOKEN_ID and MODAL_TOKEN_SECRET: ", text);
    return error.empty() ? Status::good() : fault(text);
  }
};

}  // namespace

std::unique_ptr<Driver> modal_driver(const Target& target, const std::string& folder) {
  return std::make_unique<ModalDriver>(target, folder);
}

}  // namespace attune
