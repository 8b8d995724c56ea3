// SPDX-License-Identifier: Apache-2.0
#include "tool/remote/target.h"

#include <cctype>
#include <charconv>
#include <cstdlib>
#include <filesystem>

#include "tool/files.h"
#include "tool/text.h"
#include "tool/toml.h"

namespace attune {
namespace {

constexpr std::string_view kAccepted =
    "local, ssh:USER@HOST, slurm:PARTITION, slurm:PARTITION@ssh:USER@HOST, prime:GPU, modal:GPU, sky:INFRA, or a name "
    "in remote.toml";

// Letters, digits and these: such a word can be neither an option nor shell code.
bool is_word(std::string_view text, std::string_view more) {
  if (text.empty() || text[0] == '-') return false;
  for (const char c : text) {
    const bool plain = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9');
    if (!plain && more.find(c) == more.npos) return false;
  }
  return true;
}

Status parse_host(std::string_view given, std::string_view text, Target& out, std::string& host) {
  const auto no = [&](const auto&... why) { return Status::no("--on: '", given, "': ", why...); };
  const size_t colon = text.rfind(':');
  const bool ipv6 = text.find(':') != colon && (text.empty() || text.back() != ']') && text.find(']') == text.npos;
  if (colon != text.npos && !ipv6 && text.find(']', colon) == text.npos) {
    const std::string_view digits = text.substr(colon + 1);
    const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), out.port);
    if (error != std::errc() || end != digits.data() + digits.size() || out.port < 1 || out.port > 65535)
      return no("'", digits, "' is not a port from 1 to 65535");
    text = text.substr(0, colon);
  }
  const size_t at = text.rfind('@');
  std::string_view name = at == text.npos ? text : text.substr(at + 1);
  if (name.size() > 2 && name.front() == '[' && name.back() == ']') name = name.substr(1, name.size() - 2);
  if (!is_word(name, ".-_:%") || (at != text.npos && !is_word(text.substr(0, at), ".-_+")))
    return no("'", text, "' is not a host; accepted are USER@HOST, HOST and a name of ssh's configuration");
  host = join(at == text.npos ? "" : text.substr(0, at + 1), name);
  return Status::good();
}

Status parse_word(std::string_view word, Target& out) {
  const auto no = [&](const auto&... why) { return Status::no("--on: '", in_one_line(word), "': ", why...); };
  const size_t colon = word.find(':');
  out.kind = word.substr(0, colon);
  std::string_view place = colon == word.npos ? "" : word.substr(colon + 1);
  if (out.kind == "local") return colon == word.npos ? Status::good() : no("nothing is accepted behind local");
  const bool known = out.kind == "ssh" || out.kind == "slurm" || out.kind == "prime" || out.kind == "modal" ||
                     out.kind == "sky";
  if (!known) return no("is not a target; accepted are ", kAccepted);
  if (out.kind == "ssh") return parse_host(word, place, out, out.place);
  if (out.kind == "slurm") {
    if (const size_t at = place.find("@ssh:"); at != place.npos) {
      if (Status s = parse_host(word, place.substr(at + 5), out, out.through); !s.ok()) return s;
      place = place.substr(0, at);
    }
    if (!place.empty() && !is_word(place, "_.-")) return no("'", place, "' is not the name of a partition");
  } else if (!is_word(place, "_.-/:@")) {
    return no(place.empty() ? "nothing" : "a word with other characters", " is given behind ", out.kind, ":; accepted "
              "is ", out.kind == "sky" ? "an infrastructure such as sky:aws" : "a GPU such as " + out.kind + ":H100");
  }
  out.place = place;
  if (out.kind == "prime" || out.kind == "modal") out.gpu = place;
  return Status::good();
}

std::string at_home(const std::string& path) {
  const char* const home = std::getenv("HOME");
  return path.starts_with("~/") && home ? join(home, path.substr(1)) : path;
}

Status read_target(const std::string& name, const toml::table& table, std::string_view file, Target& out) {
  TomlTable t{table, file};
  std::string on;
  std::optional<double> gpus;
  t.text("on", on);
  t.text("gpu", out.gpu);
  const std::string gpu = out.gpu;
  t.number("gpus", gpus);
  t.text("ssh_config", out.ssh_config);
  t.number("usd_an_hour", out.usd_an_hour);
  t.list("options", out.options);
  t.finish();
  if (!t.status.ok()) return t.status;
  if (on.empty()) return Status::no(place_of(file, table), "[targets.", name, "]: 'on' is missing; accepted are ",
                                    kTargetKinds);
  if (gpus && (*gpus > 1024 || *gpus != double(int(*gpus))))
    return Status::no(place_of(file, table), "gpus: accepted is a whole number up to 1024");
  if (Status s = parse_word(on, out); !s.ok()) return s.after(place_of(file, table));
  if (out.usd_an_hour == 0 && (out.kind == "prime" || out.kind == "modal" || out.kind == "sky"))
    return Status::no(place_of(file, table), "usd_an_hour: 0 given; a machine of ", out.kind, " is rented: accepted is "
                      "a price above 0");
  if (!gpu.empty()) out.gpu = gpu;
  if (!is_word(out.gpu.empty() ? "none" : out.gpu, "_.-:"))
    return Status::no(place_of(file, table), "gpu: '", in_one_line(out.gpu), "' is not the name of a GPU");
  out.gpus = int(gpus.value_or(0)), out.name = name, out.ssh_config = at_home(out.ssh_config);
  return Status::good();
}

}  // namespace

Status read_remote_settings(const std::string& given, RemoteSettings& out) {
  out = {};
  std::string path = given, text;
  if (path.empty()) {
    const char* const config = std::getenv("XDG_CONFIG_HOME");
    const char* const home = std::getenv("HOME");
    if (config && *config == '/') path = join(config, "/attune/remote.toml");
    else if (home && *home) path = join(home, "/.config/attune/remote.toml");
    std::error_code error;
    if (path.empty() || !std::filesystem::exists(path, error)) return Status::good();
  }
  if (Status s = read_file(path, text); !s.ok()) return s.after("--config: ");
  toml::table table;
  if (Status s = parse_toml(text, path, table); !s.ok()) return s;
  TomlTable all{table, path};
  all.number("max_usd", out.max_usd);
  all.number("max_minutes", out.max_minutes);
  for (const auto& [key, given] : {std::pair("max_usd", out.max_usd), std::pair("max_minutes", out.max_minutes)})
    if (given == 0) all.wrong(*table.get(key), key, "0 given; accepted is a number above 0");
  all.text("prices", out.prices);
  const toml::node* const targets = all.take("targets");
  all.finish();
  if (!all.status.ok()) return all.status;
  out.path = path;
  if (!targets) return Status::good();
  if (!targets->is_table()) return Status::no(place_of(path, *targets), "targets: accepted are tables, [targets.NAME]");
  for (const auto& [key, node] : *targets->as_table()) {
    const std::string name(key.str());
    if (!node.is_table() || !is_word(name, "_-."))
      return Status::no(place_of(path, node), "targets: '", in_one_line(name),
                        "': accepted are tables, [targets.NAME]");
    if (Status s = read_target(name, *node.as_table(), path, out.targets[name]); !s.ok()) return s;
  }
  return Status::good();
}

Status parse_target(const std::string& word, const RemoteSettings& settings, Target& out) {
  if (const auto it = settings.targets.find(word); it != settings.targets.end())
    return out = it->second, Status::good();
  out = {};
  out.name = word;
  Status s = parse_word(word, out);
  if (s.ok() || word.find(':') != word.npos || settings.targets.empty()) return s;
  std::vector<std::string> names;
  for (const auto& [name, target] : settings.targets) names.push_back(name);
  return Status::no(s.message, near_key(word, names));
}

std::string planner_word(const std::string& gpu) {
  std::string word;
  for (const unsigned char c : gpu) {
    if (c == '-' || c == '_' || c == ' ' || c == '!') break;
    word += char(std::tolower(c));
  }
  return word;
}

std::string file_word(std::string_view text) {
  std::string word;
  for (const char c : text) {
    const bool plain = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_';
    if (plain) word += c;
    else if (!word.empty() && word.back() != '-') word += '-';
  }
  while (!word.empty() && word.back() == '-') word.pop_back();
  return word.empty() ? "target" : word.substr(0, 48);
}

}  // namespace attune
