// SPDX-License-Identifier: Apache-2.0
#include "core/device.h"

#include <iterator>

namespace attune {
namespace {

constexpr std::string_view kFeature[] = {"neon", "neon_bf16", "avx2", "avx512", "avx512_bf16", "amx_bf16", "blas"};
static_assert(std::size(kFeature) == size_t(Feature::count));

// Compute capability and SM count, from NVIDIA's data sheets.
constexpr struct { std::string_view word, name; int arch, units; } kKnown[] = {
    {"t4", "NVIDIA T4", 75, 40},          {"a100", "NVIDIA A100", 80, 108},    {"a10g", "NVIDIA A10G", 86, 80},
    {"rtx3090", "NVIDIA RTX 3090", 86, 82}, {"l4", "NVIDIA L4", 89, 58},       {"rtx4090", "NVIDIA RTX 4090", 89, 128},
    {"h100", "NVIDIA H100", 90, 132},     {"h200", "NVIDIA H200", 90, 132},
};

}  // namespace

std::string name(Feature f) { return f < Feature::count ? std::string(kFeature[int(f)]) : "?"; }

std::string known_devices() {
  std::string all;
  for (const auto& d : kKnown) all += (all.empty() ? "" : ", ") + std::string(d.word);
  return all;
}

Status known_device(std::string_view word, Device& out) {
  for (const auto& d : kKnown)
    if (word == d.word) {
      out = {.kind = DeviceKind::cuda, .index = -1, .arch = d.arch, .units = d.units, .name = std::string(d.name)};
      return Status::good();
    }
  return Status::no("device '", word, "' is not one of ", known_devices());
}

}  // namespace attune
