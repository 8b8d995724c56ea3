// SPDX-License-Identifier: Apache-2.0
#include "tool/record/provenance.h"

#include <sys/utsname.h>
#include <unistd.h>

#include <cstdio>
#include <cstring>
#include <ctime>
#include <fstream>

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

}  // namespace

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
  utsname system{};
  static const std::string binary = hash_of(own_file());
  p.binary = binary;
  if (uname(&system) == 0) p.kernel = join(system.sysname, " ", system.release, " ", system.machine);
  return p;
}

}  // namespace attune
