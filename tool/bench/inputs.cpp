// SPDX-License-Identifier: Apache-2.0
#include "tool/bench/inputs.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "core/check.h"

namespace attune {
namespace {

constexpr size_t kEnd = size_t(16) << 20;  // bytes at either end of a tensor that are looked at

uint64_t hash_of(const std::byte* at, size_t bytes, uint64_t hash) {
  constexpr uint64_t kPrime = 0x9E3779B97F4A7C15;
  for (; bytes >= 8; at += 8, bytes -= 8) {
    uint64_t word;
    std::memcpy(&word, at, 8);
    hash = (hash ^ word) * kPrime, hash ^= hash >> 29;
  }
  for (; bytes; ++at, --bytes) hash = (hash ^ uint64_t(*at)) * kPrime;
  return hash;
}

}  // namespace

Inputs::Inputs(Workload& work, GpuWorkload* gpu, bool train, std::function<std::unique_ptr<Workload>()> fresh)
    : work_(work), gpu_(gpu), fresh_(std::move(fresh)) {
  const std::vector<Role>& out = work.outputs();
  for (int n = 0; n < int(Role::count); ++n) {
    const Role r = Role(n);
    const bool written = std::find(out.begin(), out.end(), r) != out.end();
    if (work.args[r].data && !written && !(train && (r == Role::out || r == Role::lse))) were_.emplace_back(r, hash(r));
  }
}

uint64_t Inputs::hash(Role r) const {
  const Tensor& t = gpu_ ? gpu_->args()[r] : work_.args[r];
  const size_t bytes = span_bytes(t), first = std::min(bytes, kEnd), last = std::min(bytes - first, kEnd);
  uint64_t all = bytes;
  std::vector<std::byte> here;
  for (const auto& [from, count] : {std::pair(size_t(0), first), {bytes - last, last}}) {
    const std::byte* at = static_cast<const std::byte*>(t.data) + from;
    if (gpu_) {
      here.resize(count);
      if (!gpu_->read(here.data(), at, count).ok()) return 0;
      at = here.data();
    }
    all = hash_of(at, count, all);
  }
  return all;
}

std::string Inputs::changed() const {
  for (const auto& [role, was] : were_)
    if (hash(role) != was) return std::string(name(role));
  return "";
}

Status Inputs::restore() {
  std::unique_ptr<Workload> fresh = gpu_ ? nullptr : fresh_();
  for (const auto& [role, was] : were_) {
    if (gpu_) {
      if (Status s = gpu_->send(role); !s.ok()) return s;
    } else {
      const Tensor &to = work_.args[role], &from = fresh->args[role];
      std::memcpy(to.data, from.data, span_bytes(to));
    }
  }
  return Status::good();
}

double input_rms(const Tensor& t) {
  const Extents& e = t.extent;
  const int64_t all = int64_t(e.batch) * e.seq * e.head * e.dim, step = std::max<int64_t>(1, all / 4096) | 1;
  double sum = 0;
  int64_t count = 0;
  for (int64_t n = 0; n < all; n += step, ++count) {
    const int64_t d = n % e.dim, h = n / e.dim % e.head, row = n / e.dim / e.head;
    const double x = load(t, row / e.seq, row % e.seq, h, d);
    if (std::isfinite(x)) sum += x * x;  // rows outside all sequences are NaN
  }
  return count ? std::sqrt(sum / double(count)) : 0;
}

}  // namespace attune
