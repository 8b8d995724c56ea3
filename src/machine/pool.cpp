// SPDX-License-Identifier: Apache-2.0
#include "machine/pool.h"

#include <algorithm>
#include <bit>

namespace attune {
namespace {

constexpr size_t kGranule = 512;  // bytes: the granularity of the driver's pool

}  // namespace

int pool_bucket(size_t bytes) {
  const size_t granules = (bytes + kGranule - 1) / kGranule;
  if (granules <= 8) return std::max(int(granules) - 1, 0);
  const int octave = std::bit_width(granules - 1) - 1;  // 2^octave < granules <= 2^(octave + 1)
  const size_t step = size_t(1) << (octave - 3), above = granules - (size_t(1) << octave);
  return 8 + (octave - 3) * 8 + int((above + step - 1) / step) - 1;
}

size_t pool_bytes(int bucket) {
  if (bucket < 8) return size_t(bucket + 1) * kGranule;
  const int octave = (bucket - 8) / 8 + 3, steps = (bucket - 8) % 8 + 1;
  return ((size_t(1) << octave) + (size_t(steps) << (octave - 3))) * kGranule;
}

int Pool::Home::first(int bucket) const {
  for (int b = bucket; b < std::min(bucket + 2, kPoolBuckets); ++b)
    if (!free[size_t(b)].empty()) return b;
  return -1;
}

// The lock is held for a tenth of a microsecond: sleeping at once would cost more than a few retries.
Pool::Lock Pool::locked() {
  Lock lock(mutex_, std::defer_lock);
  for (int tries = 0; tries < 100; ++tries)
    if (lock.try_lock()) return lock;
  lock.lock();
  return lock;
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
  home.id = stream.id, home.bare = home.covered = 0;
  return home;
}

// Records the home's event, without the lock once there is one. An event only moves forward on its stream, so two
// threads may record it at once. The caller has counted a block, so the home cannot move to another stream.
Status Pool::mark(Home& home, void* stream, Lock& lock) {
  const uint64_t before = home.bare;
  const bool is_new = !home.event;
  if (!is_new) lock.unlock();
  Status s = driver_.mark(driver_.self, stream, home.event);
  if (!is_new) lock = locked();
  if (s.ok()) home.covered = std::max(home.covered, before);
  return s;
}

// Limit on the bytes of kept blocks, such that `wanted` more bytes can be live.
size_t Pool::limit(size_t wanted) const {
  return std::max({peak_, peak_before_, kept_live_ + wanted}) + policy_.slack;
}

void Pool::count_live(const Block& block) {
  now_.live_buffers += 1, now_.live_bytes += block.asked, now_.block_bytes += block.bytes;
  if (block.bucket >= 0) kept_live_ += block.bytes;
  now_.high_buffers = std::max(now_.high_buffers, now_.live_buffers);
  now_.high_bytes = std::max(now_.high_bytes, now_.live_bytes);
  now_.high_reserved = std::max(now_.high_reserved, now_.block_bytes + now_.free_bytes);
  peak_ = std::max(peak_, kept_live_);
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

// Takes a block that another stream is done with. `later`: a home whose block would have to be waited for.
bool Pool::from_others(int bucket, size_t asked, PoolStream stream, Home*& later, void*& out) {
  for (const auto& home : homes_) {
    if (home->id == stream.id || !home->marked() || home->first(bucket) < 0) continue;
    if (driver_.passed(driver_.self, home->event)) {
      out = out_of(*home, home->first(bucket), asked);
      now_.crossed += 1;
      return true;
    }
    if (!later) later = home.get();
  }
  return false;
}

// Gives back free blocks, least recently used first, until `bytes` are left or the rest may not be touched. Blocks of a
// home without an event must have been freed by `done_until`, when the whole device was waited for.
void Pool::release_to(size_t bytes, uint64_t done_until) {
  while (now_.free_bytes > bytes) {
    Home* home = nullptr;
    Blocks* from = nullptr;
    for (const auto& h : homes_) {
      if (!h->count) continue;
      for (Blocks& blocks : h->free)
        if (!blocks.empty() && (h->marked() || blocks.back().freed <= done_until) &&
            (!from || blocks.back().freed < from->back().freed))
          home = h.get(), from = &blocks;
    }
    if (!from) return;
    const Block& block = from->back();
    // If the stream cannot be made to wait, nothing is given back and the block stays.
    if (block.freed > done_until && !driver_.wait(driver_.self, driver_.side, home->event).ok()) return;
    if (!driver_.give(driver_.self, block.data, driver_.side).ok()) return;
    now_.free_blocks -= 1, now_.free_bytes -= block.bytes, now_.given_back += 1;
    blocks_.erase(block.data);
    from->pop_back();
    home->count -= 1;
  }
}

// Called if the stream has no block of that size. Tries, in order: a block that another stream is done with; a new one,
// while little is kept; a block that another stream will be done with, for which this stream waits; a new one, for
// which old ones are given back. Returns true if `out` is an old block.
bool Pool::crossed(int bucket, size_t asked, PoolStream stream, Lock& lock, void*& out) {
  Home* later = nullptr;
  if (from_others(bucket, asked, stream, later, out)) return true;
  const size_t bytes = pool_bytes(bucket);
  if (kept_live_ + now_.free_bytes + bytes <= limit(bytes)) return false;
  if (later && driver_.wait(driver_.self, stream.handle, later->event).ok()) {
    out = out_of(*later, later->first(bucket), asked);
    now_.crossed += 1, now_.waited += 1;
    return true;
  }
  if (Home* mine = find(stream.id); mine && !mine->marked()) {  // so that its own blocks can be given back
    mine->count += 1;
    (void)mark(*mine, stream.handle, lock);
    mine->count -= 1;
  }
  const size_t all = limit(bytes), used = kept_live_ + bytes;
  release_to(all > used ? all - used : 0, 0);
  return false;
}

Status Pool::grow(int bucket, size_t asked, PoolStream stream, Lock& lock, void*& out) {
  const size_t bytes = bucket >= 0 ? pool_bytes(bucket) : (asked + kGranule - 1) / kGranule * kGranule;
  // Creates the record first, under a key that cannot be a driver address: after this only the driver can fail.
  live_.push_front({.data = nullptr, .bytes = bytes, .asked = asked, .bucket = bucket, .live = true});
  const Blocks::iterator block = live_.begin();
  auto record = blocks_.extract(blocks_.emplace(&*block, block).first);
  lock.unlock();
  bool full = false;
  Status s = driver_.take(driver_.self, bytes, stream.handle, out, full);
  lock = locked();
  if (!s.ok() && full) {
    now_.full += 1;
    release_to(0, driver_.finish(driver_.self).ok() ? frees_ : 0);
    (void)driver_.shrink(driver_.self, 0);
    s = driver_.take(driver_.self, bytes, stream.handle, out, full);
  }
  if (s.ok()) {
    block->data = record.key() = out;
    blocks_.insert(std::move(record));
    now_.misses += 1;
    count_live(*block);
    return s;
  }
  live_.erase(block);
  out = nullptr;
  if (!full) return s;
  return Status::failure(Code::out_of_memory, "memory: ", asked, " bytes could not be allocated: ", s.message, "; ",
                         now_.live_buffers, " buffers with ", now_.live_bytes, " bytes are in use");
}

Status Pool::allocate(size_t bytes, PoolStream stream, void*& out) {
  out = nullptr;
  if (bytes > kPoolMost)
    return Status::failure(Code::out_of_memory, "memory: ", bytes, " bytes exceed the limit of 2^48");
  const size_t asked = std::max<size_t>(bytes, 1);
  const int bucket = policy_.keep && asked <= policy_.keep_most ? pool_bucket(asked) : -1;
  Lock lock = locked();
  if (bucket >= 0) {
    Home* const mine = find(stream.id);
    if (const int b = mine ? mine->first(bucket) : -1; b >= 0) {
      out = out_of(*mine, b, asked);
      return Status::good();
    }
    if (crossed(bucket, asked, stream, lock, out)) return Status::good();
  }
  return grow(bucket, asked, stream, lock, out);
}

Status Pool::free(void* data, PoolStream stream) {
  if (!data) return Status::good();
  Lock lock = locked();
  const auto found = blocks_.find(data);
  if (found == blocks_.end() || !found->second->live)
    return Status::no("memory: the address ", reinterpret_cast<uintptr_t>(data), " is not a live buffer of this pool");
  const Blocks::iterator block = found->second;
  Home* const home = block->bucket >= 0 ? &home_of(stream) : nullptr;
  now_.live_buffers -= 1, now_.live_bytes -= block->asked, now_.block_bytes -= block->bytes;
  if (!home) {  // erase the record first: the driver may reuse the address at once
    blocks_.erase(found);
    live_.erase(block);
    lock.unlock();
    return driver_.give(driver_.self, data, stream.handle);
  }
  block->live = false;
  kept_live_ -= block->bytes;
  home->count += 1;
  Status s = Status::good();
  const bool marks = block->bytes >= policy_.mark_from || homes_.size() > policy_.min_homes;
  if (marks) s = mark(*home, stream.handle, lock);
  if (!marks || !s.ok()) home->bare += 1;
  block->freed = ++frees_;
  now_.free_blocks += 1, now_.free_bytes += block->bytes;
  Blocks& to = home->free[size_t(block->bucket)];
  to.splice(to.begin(), live_, block);
  if (frees_ % policy_.epoch == 0) {
    const size_t all = limit(0);
    release_to(all > kept_live_ ? all - kept_live_ : 0, 0);
    peak_before_ = peak_, peak_ = kept_live_;
  }
  return s;
}

Status Pool::trim(size_t keep) {
  Lock lock = locked();
  const uint64_t until = frees_;
  lock.unlock();
  if (Status s = driver_.finish(driver_.self); !s.ok()) return s;
  lock = locked();
  release_to(keep > now_.block_bytes ? keep - size_t(now_.block_bytes) : 0, until);
  return driver_.shrink(driver_.self, keep);
}

PoolStatistics Pool::statistics() {
  const Lock lock = locked();
  PoolStatistics s = now_;
  s.held_bytes = driver_.held(driver_.self);
  return s;
}

void Pool::reset_marks() {
  const Lock lock = locked();
  now_.high_buffers = now_.live_buffers, now_.high_bytes = now_.live_bytes;
  now_.high_reserved = now_.block_bytes + now_.free_bytes;
}

}  // namespace attune
