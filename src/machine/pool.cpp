#include "machine/pool.h"

#include <algorithm>
#include <bit>

namespace attune {
namespace {

constexpr size_t kUnit = 512;  // bytes: the grain of the driver's pool

}  // namespace

int pool_bucket(size_t bytes) {
  const size_t units = (bytes + kUnit - 1) / kUnit;
  if (units <= 8) return std::max(int(units) - 1, 0);
  const int octave = std::bit_width(units - 1) - 1;  // 2^octave < units <= 2^(octave + 1)
  const size_t step = size_t(1) << (octave - 3), above = units - (size_t(1) << octave);
  return 8 + (octave - 3) * 8 + int((above + step - 1) / step) - 1;
}

size_t pool_bytes(int bucket) {
  if (bucket < 8) return size_t(bucket + 1) * kUnit;
  const int octave = (bucket - 8) / 8 + 3, steps = (bucket - 8) % 8 + 1;
  return ((size_t(1) << octave) + (size_t(steps) << (octave - 3))) * kUnit;
}

int Pool::Home::first(int bucket) const {
  for (int b = bucket; b < std::min(bucket + 2, kPoolBuckets); ++b)
    if (!free[size_t(b)].empty()) return b;
  return -1;
}

Pool::Home* Pool::find(uint64_t id) {
  for (const auto& home : homes_)
    if (home->id == id && home->count) return home.get();
  return nullptr;
}

Pool::Home& Pool::home_of(PoolStream stream) {
  if (Home* mine = find(stream.id)) return *mine;
  const auto empty = std::find_if(homes_.begin(), homes_.end(), [](const auto& home) { return !home->count; });
  Home& home = empty != homes_.end() ? **empty : *homes_.emplace_back(std::make_unique<Home>());
  home.id = stream.id, home.marked = false;
  return home;
}

Status Pool::mark(Home& home, void* stream) {
  Status s = driver_.mark(driver_.self, stream, home.event);
  home.marked = s.ok();
  return s;
}

size_t Pool::recent_peak() const { return std::max(peak_, peak_before_); }

void Pool::count_live(const Block& block) {
  now_.live_buffers += 1, now_.live_bytes += block.asked, now_.block_bytes += block.bytes;
  now_.high_buffers = std::max(now_.high_buffers, now_.live_buffers);
  now_.high_bytes = std::max(now_.high_bytes, now_.live_bytes);
  now_.high_reserved = std::max<uint64_t>(now_.high_reserved, reserved());
  peak_ = std::max(peak_, size_t(now_.block_bytes));
}

void* Pool::out_of(Home& home, int bucket, size_t asked) {
  Blocks& from = home.free[size_t(bucket)];
  live_.splice(live_.begin(), from, from.begin());
  home.count -= 1;
  Block& block = live_.front();
  block.live = true, block.asked = asked;
  now_.free_blocks -= 1, now_.free_bytes -= block.bytes, now_.hits += 1;
  count_live(block);
  return block.data;
}

// A block of a stream that is done with it. `later`: a home whose block would have to be waited for.
bool Pool::from_others(int bucket, size_t asked, PoolStream stream, Home*& later, void*& out) {
  for (const auto& home : homes_) {
    if (home->id == stream.id || !home->count || !home->marked || home->first(bucket) < 0) continue;
    if (driver_.passed(driver_.self, home->event)) {
      out = out_of(*home, home->first(bucket), asked);
      now_.crossed += 1;
      return true;
    }
    if (!later) later = home.get();
  }
  return false;
}

// Gives blocks back, the longest unused first, until that many bytes are left or no block may be touched: those whose
// home has no event must have been freed by `done_until`, when the whole device was waited for.
void Pool::release_to(size_t bytes, uint64_t done_until) {
  while (reserved() > bytes) {
    Home* home = nullptr;
    Blocks* from = nullptr;
    for (const auto& h : homes_) {
      if (!h->count) continue;
      for (Blocks& blocks : h->free)
        if (!blocks.empty() && (h->marked || blocks.back().freed <= done_until) &&
            (!from || blocks.back().freed < from->back().freed))
          home = h.get(), from = &blocks;
    }
    if (!from) return;
    const Block& block = from->back();
    // A stream that cannot be made to wait gives nothing back: the block stays where it is.
    if (block.freed > done_until && !driver_.wait(driver_.self, driver_.side, home->event).ok()) return;
    if (!driver_.give(driver_.self, block.data, driver_.side).ok()) return;
    now_.free_blocks -= 1, now_.free_bytes -= block.bytes, now_.given_back += 1;
    blocks_.erase(block.data);
    from->pop_back();
    home->count -= 1;
  }
}

// The own stream has no block of that size. In this order: one that another stream is done with; a new one, while
// little is kept; one that another stream will be done with, for which this one waits; a new one, for which old ones
// are given back.
Status Pool::grow(int bucket, size_t asked, PoolStream stream, void*& out) {
  const size_t bytes = policy_.keep ? pool_bytes(bucket) : (asked + kUnit - 1) / kUnit * kUnit;
  if (policy_.keep) {
    Home* mine = find(stream.id);
    if (mine && !mine->marked) (void)mark(*mine, stream.handle);  // so that its blocks can be given back
    Home* later = nullptr;
    if (from_others(bucket, asked, stream, later, out)) return Status::good();
    const size_t limit = std::max(recent_peak(), size_t(now_.block_bytes) + bytes) + policy_.slack;
    if (reserved() + bytes > limit) {
      if (later && driver_.wait(driver_.self, stream.handle, later->event).ok()) {
        out = out_of(*later, later->first(bucket), asked);
        now_.crossed += 1, now_.waited += 1;
        return Status::good();
      }
      release_to(limit - bytes, 0);
    }
  }
  // The record first, under a key that cannot be an address of the driver: after this nothing can fail but the driver.
  live_.push_front({.data = nullptr, .bytes = bytes, .asked = asked, .bucket = bucket, .live = true});
  auto record = blocks_.extract(blocks_.emplace(&live_.front(), live_.begin()).first);
  bool full = false;
  Status s = driver_.take(driver_.self, bytes, stream.handle, out, full);
  if (!s.ok() && full) {
    now_.full += 1;
    release_to(0, 0);
    (void)driver_.shrink(driver_.self, 0);
    s = driver_.take(driver_.self, bytes, stream.handle, out, full);
    if (!s.ok())
      s = Status::no("memory: ", asked, " bytes could not be had: ", s.message, "; ", now_.live_buffers,
                     " buffers of ", now_.live_bytes, " bytes are in use");
  }
  if (!s.ok()) {
    live_.pop_front();
    out = nullptr;
    return s;
  }
  live_.front().data = record.key() = out;
  blocks_.insert(std::move(record));
  now_.misses += 1;
  count_live(live_.front());
  return Status::good();
}

Status Pool::allocate(size_t bytes, PoolStream stream, void*& out) {
  out = nullptr;
  if (bytes > kPoolMost) return Status::no("memory: ", bytes, " bytes are over the limit of 2^48");
  const size_t asked = std::max<size_t>(bytes, 1);
  const int bucket = pool_bucket(asked);
  const std::lock_guard lock(mutex_);
  if (!any_) any_ = true, only_id_ = stream.id;
  many_ = many_ || stream.id != only_id_;
  if (Home* mine = find(stream.id))
    if (const int b = mine->first(bucket); b >= 0) {
      out = out_of(*mine, b, asked);
      return Status::good();
    }
  return grow(bucket, asked, stream, out);
}

Status Pool::free(void* data, PoolStream stream) {
  if (!data) return Status::good();
  const std::lock_guard lock(mutex_);
  const auto found = blocks_.find(data);
  if (found == blocks_.end() || !found->second->live)
    return Status::no("memory: the address ", reinterpret_cast<uintptr_t>(data), " is not a live buffer of this pool");
  many_ = many_ || stream.id != only_id_;
  const Blocks::iterator block = found->second;
  Home* const home = policy_.keep ? &home_of(stream) : nullptr;
  now_.live_buffers -= 1, now_.live_bytes -= block->asked, now_.block_bytes -= block->bytes;
  if (!home) {
    blocks_.erase(found);
    live_.erase(block);
    return driver_.give(driver_.self, data, stream.handle);
  }
  block->live = false, block->freed = ++frees_;
  now_.free_blocks += 1, now_.free_bytes += block->bytes;
  Blocks& to = home->free[size_t(block->bucket)];
  to.splice(to.begin(), live_, block);
  home->count += 1, home->marked = false;
  const Status s = many_ || block->bytes >= policy_.mark_from ? mark(*home, stream.handle) : Status::good();
  if (frees_ % policy_.epoch == 0) {
    release_to(recent_peak() + policy_.slack, 0);
    peak_before_ = peak_, peak_ = size_t(now_.block_bytes);
  }
  return s;
}

Status Pool::trim(size_t keep) {
  uint64_t until = 0;
  {
    const std::lock_guard lock(mutex_);
    until = frees_;
  }
  if (Status s = driver_.finish(driver_.self); !s.ok()) return s;
  const std::lock_guard lock(mutex_);
  release_to(keep, until);
  return driver_.shrink(driver_.self, keep);
}

PoolStatistics Pool::statistics() {
  const std::lock_guard lock(mutex_);
  PoolStatistics s = now_;
  s.held_bytes = driver_.held(driver_.self);
  return s;
}

void Pool::reset_marks() {
  const std::lock_guard lock(mutex_);
  now_.high_buffers = now_.live_buffers, now_.high_bytes = now_.live_bytes, now_.high_reserved = reserved();
}

}  // namespace attune
