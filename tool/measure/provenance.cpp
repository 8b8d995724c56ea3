#include "tool/measure/provenance.h"

#include <sys/utsname.h>
#include <unistd.h>

#include <ctime>
#include <fstream>

#include "build_info.h"
#include "machine/host.h"

namespace attune {

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
  if (uname(&system) == 0) p.kernel = join(system.sysname, " ", system.release, " ", system.machine);
  return p;
}

}  // namespace attune
