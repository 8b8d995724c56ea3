// SPDX-License-Identifier: Apache-2.0
// Also known_device() and known_devices() of core/device.h.
#include "machine/known_gpus.h"

#include <iterator>

#include "core/device.h"
#include "core/problem_line.h"

namespace attune {
namespace {

// Compute capability, SMs and bandwidth (GB/s) from NVIDIA's data sheets; memory (MiB) as its driver reports it. The
// first of cards of one name is the usual one.
constexpr KnownGpu kKnown[] = {
    {"t4", "Tesla T4", 75, 40, 15360, 320},
    {"rtx2080ti", "NVIDIA GeForce RTX 2080 Ti", 75, 68, 11264, 616},
    {"a100", "NVIDIA A100-SXM4-80GB", 80, 108, 81920, 2039},
    {"a100-40gb", "NVIDIA A100-SXM4-40GB", 80, 108, 40960, 1555},
    {"a100-pcie", "NVIDIA A100 80GB PCIe", 80, 108, 81920, 1935},
    {"a100-pcie-40gb", "NVIDIA A100-PCIE-40GB", 80, 108, 40960, 1555},
    {"a800", "NVIDIA A800-SXM4-80GB", 80, 108, 81920, 2039},
    {"a30", "NVIDIA A30", 80, 56, 24576, 933},
    {"a10", "NVIDIA A10", 86, 72, 23028, 600},
    {"a10g", "NVIDIA A10G", 86, 80, 23028, 600},
    {"a40", "NVIDIA A40", 86, 84, 46068, 696},
    {"a6000", "NVIDIA RTX A6000", 86, 84, 49140, 768},
    {"rtx3080", "NVIDIA GeForce RTX 3080", 86, 68, 10240, 760},
    {"rtx3090", "NVIDIA GeForce RTX 3090", 86, 82, 24576, 936},
    {"l4", "NVIDIA L4", 89, 58, 23034, 300},
    {"l40", "NVIDIA L40", 89, 142, 46068, 864},
    {"l40s", "NVIDIA L40S", 89, 142, 46068, 864},
    {"rtx6000ada", "NVIDIA RTX 6000 Ada Generation", 89, 142, 49140, 960},
    {"rtx4080", "NVIDIA GeForce RTX 4080", 89, 76, 16376, 717},
    {"rtx4090", "NVIDIA GeForce RTX 4090", 89, 128, 24564, 1008},
    {"h100", "NVIDIA H100 80GB HBM3", 90, 132, 81559, 3352},
    {"h100-pcie", "NVIDIA H100 PCIe", 90, 114, 81559, 2039},
    {"h100-nvl", "NVIDIA H100 NVL", 90, 132, 95830, 3938},
    {"h800", "NVIDIA H800", 90, 132, 81559, 3352},
    {"h20", "NVIDIA H20", 90, 78, 97871, 4000},
    {"h200", "NVIDIA H200", 90, 132, 143771, 4800},
    {"gh200", "NVIDIA GH200 480GB", 90, 132, 97871, 4000},
};

// A name without what people leave out: the letters and digits, in lower case, without the maker and the series.
std::string bare(std::string_view name) {
  std::string out;
  for (const char c : name) {
    const char lower = c >= 'A' && c <= 'Z' ? char(c - 'A' + 'a') : c;
    if ((lower >= 'a' && lower <= 'z') || (lower >= '0' && lower <= '9')) out += lower;
  }
  for (const std::string_view word : {"nvidia", "geforce", "tesla"})
    if (out.starts_with(word)) out.erase(0, word.size());
  return out;
}

}  // namespace

std::string known_devices() {
  std::string all;
  for (const KnownGpu& d : kKnown) all += (all.empty() ? "" : ", ") + std::string(d.word);
  return all;
}

const KnownGpu* known_gpu(std::string_view name) {
  const std::string asked = bare(name);
  for (const KnownGpu& d : kKnown)
    if (asked == bare(d.word) || asked == bare(d.name)) return &d;
  return nullptr;
}

Status known_device(std::string_view word, Device& out) {
  if (const KnownGpu* const d = known_gpu(word)) {
    out = {.kind = DeviceKind::cuda, .index = -1, .arch = d->arch, .units = d->units, .name = std::string(d->name)};
    return Status::good();
  }
  std::string_view words[std::size(kKnown)];
  for (size_t n = 0; n < std::size(kKnown); ++n) words[n] = kKnown[n].word;
  const std::string plain = bare(word);
  const std::string_view meant = closest_word(plain, words);
  return Status::no("device '", word, "' is not one of ", known_devices(),
                    meant.empty() ? "" : join("; did you mean ", meant, "?"));
}

}  // namespace attune
