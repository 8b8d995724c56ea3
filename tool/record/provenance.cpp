// SPDX-License-Identifier: Apache-2.0
#include "tool/record/provenance.h"

#include <sys/utsname.h>
#include <unistd.h>

#include <cstdio>
#include <cstring>
#include <ctime>
#include <fstream>
#include <string_view>

#include "build_info.h"
#include "machine/host.h"
#include "machine/library.h"

namespace attune {
namespace {

// FNV-1a over words of 8 bytes. It distinguishes builds; it is not a signature.
std::string hash_of(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  uint64_t hash = 0xCBF29CE484222325u;
  uint64_t block[8192];
  bool any = false;
  while (file) {
    std::memset(block, 0, sizeof block);
    file.read(reinterpret_cast<char*>(block), sizeof block);
    for (int64_t n = 0; n < (file.gcount() + 7) / 8; ++n) hash = (hash ^ block[n]) * 0x100000001B3u, any = true;
  }
  char text[17] = "";
  std::snprintf(text, sizeof text, "%016llx", static_cast<unsigned long long>(hash));
  return any ? text : "";
}

// The name of the system, of "PRETTY_NAME="Debian GNU/Linux 12 (bookworm)"" in /etc/os-release.
std::optional<std::string> system_name() {
  constexpr std::string_view kName = "PRETTY_NAME=";
  std::ifstream file("/etc/os-release");
  for (std::string line; std::getline(file, line);) {
    if (!line.starts_with(kName)) continue;
    line.erase(0, kName.size());
    std::erase_if(line, [](char c) { return c == '"' || c == '\'' || (c >= 0 && c < ' '); });
    if (!line.empty()) return line;
  }
  return {};
}

// Without the folder of each path in a list: "~/a.toml", "/b/c.py:f,torch:sdpa".
std::string without_folders(const std::string& word) {
  std::string text;
  for (size_t at = 0; at < word.size();) {
    const size_t end = std::min(word.find_first_of(",=", at), word.size());
    const std::string_view part = std::string_view(word).substr(at, end - at);
    const bool is_path = part.starts_with('/') || part.starts_with('~');
    text += is_path && part.rfind('/') != part.npos ? part.substr(part.rfind('/') + 1) : part;
    if (end < word.size()) text += word[end];
    at = end + 1;
  }
  return text;
}

}  // namespace

std::string command_text(const std::vector<std::string>& words) {
  constexpr std::string_view kPlain = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_=+,./:@%";
  std::string text = "attune";
  for (size_t n = 1; n < words.size(); ++n) {
    const std::string word = without_folders(words[n]);
    if (word.find_first_not_of(kPlain) == word.npos && !word.empty()) { text += " " + word; continue; }
    std::string quoted;
    for (const char c : word) quoted += c == '\'' ? std::string("'\\''") : std::string(1, c);
    text += " '" + quoted + "'";
  }
  return text;
}

std::optional<double> gpu_bandwidth_gbs(const std::string& pci) {
  constexpr int kMemoryClock = 36, kBusWidth = 37;  // CUdevice_attribute: kHz, bits
  const Library driver({"libcuda.so.1"}, {"cuInit", "cuDeviceGetByPCIBusId", "cuDeviceGetAttribute"});
  int device = 0, khz = 0, bits = 0;
  if (!driver.ok() || driver.function<int(unsigned)>("cuInit")(0) != 0) return {};
  if (driver.function<int(int*, const char*)>("cuDeviceGetByPCIBusId")(&device, pci.c_str()) != 0) return {};
  const auto get = driver.function<int(int*, int, int)>("cuDeviceGetAttribute");
  if (get(&khz, kMemoryClock, device) != 0 || get(&bits, kBusWidth, device) != 0 || khz <= 0 || bits <= 0) return {};
  return 2.0 * khz * 1e3 * bits / 8 * 1e-9;  // two transfers a clock
}

std::optional<std::string> cudnn_version() {
  const Library library({"libcudnn.so.9"}, {"cudnnGetVersion"});
  if (!library.ok()) return {};
  const size_t v = library.function<size_t()>("cudnnGetVersion")();  // 91500 is 9.15.0
  return join(v / 10000, ".", v / 100 % 100, ".", v % 100);
}

std::string utc_now() {
  const std::time_t now = std::time(nullptr);
  std::tm parts{};
  gmtime_r(&now, &parts);
  char text[32];
  return {text, std::strftime(text, sizeof text, "%Y-%m-%dT%H:%M:%SZ", &parts)};
}

std::string new_run() {
  std::string now = utc_now();
  std::erase_if(now, [](char c) { return c == '-' || c == ':'; });
  return join(now, "-", getpid());
}

Provenance provenance() {
  Provenance p{.time = utc_now(),
               .commit = build::kCommit,
               .dirty = build::kDirty,
               .version = build::kVersion,
               .compiler = build::kCompiler,
               .flags = build::kFlags};
  const Device& cpu = this_cpu();
  p.cpu = cpu.name;
  p.cores = cpu.units;
  for (int n = 0; n < int(Feature::count); ++n)
    if (cpu.has(Feature(n))) p.features += join(p.features.empty() ? "" : " ", name(Feature(n)));
  std::ifstream governor("/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor");
  if (!std::getline(governor, p.governor)) p.governor = "unknown";
  p.clocks = join("governor ", p.governor);
  p.os = system_name();
  utsname system{};
  static const std::string binary = hash_of(own_file());
  p.binary = binary;
  if (uname(&system) == 0) p.kernel = join(system.sysname, " ", system.release, " ", system.machine);
  return p;
}

}  // namespace attune
