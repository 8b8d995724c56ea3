// SPDX-License-Identifier: Apache-2.0
#include "capi/local.h"

#include "machine/host.h"

namespace attune {
namespace {

void raise(std::atomic<uint64_t>& mark, uint64_t to) {
  uint64_t now = mark.load(std::memory_order_relaxed);
  while (now < to && !mark.compare_exchange_weak(now, to, std::memory_order_relaxed)) {}
}

}  // namespace

LentTotals& lent_totals() {
  static constinit LentTotals all;  // trivially destroyed: threads may end after main
  return all;
}

void Lent::release() {
  if (!data_) return;
  free_scratch(data_);
  lent_totals().buffers.fetch_sub(1, std::memory_order_relaxed);
  lent_totals().bytes.fetch_sub(bytes_, std::memory_order_relaxed);
  data_ = nullptr, bytes_ = 0;
}

std::byte* Lent::grown(size_t wanted) {
  release();
  data_ = static_cast<std::byte*>(take_scratch(wanted));
  if (!data_) return nullptr;
  bytes_ = wanted;
  LentTotals& all = lent_totals();
  raise(all.high_buffers, all.buffers.fetch_add(1, std::memory_order_relaxed) + 1);
  raise(all.high_bytes, all.bytes.fetch_add(wanted, std::memory_order_relaxed) + wanted);
  return data_;
}

}  // namespace attune
