// SPDX-License-Identifier: Apache-2.0
#include "core/device.h"

#include <iterator>

namespace attune {
namespace {

constexpr std::string_view kFeature[] = {"neon", "neon_bf16", "avx2", "avx512", "avx512_bf16", "amx_bf16", "blas"};
static_assert(std::size(kFeature) == size_t(Feature::count));

}  // namespace

std::string name(Feature f) { return f < Feature::count ? std::string(kFeature[int(f)]) : "?"; }

}  // namespace attune
