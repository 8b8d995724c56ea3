// SPDX-License-Identifier: Apache-2.0
#include "transport/communicator.h"

#include <chrono>
#include <cstring>
#include <thread>
#include <utility>

#include "machine/cuda/copies.h"
#include "machine/cuda/runtime.h"

namespace attune {

// Staging of GPU transfers through the host: two pinned buffers, one for each open transfer, and a separate stream, so
// that copies overlap with the kernels of the caller's stream.
struct Communicator::Staging {
  cuda::OwnStream stream;
  bool open = false;
  struct Slot {
    cuda::Pinned memory;
    cuda::Mark ready, copied;  // events: the caller's stream at start; the copies
  } slot[2];

  Status prepare(int index) {
    if (!open)
      if (Status s = stream.open(index); !s.ok()) return s;
    open = true;
    for (Slot& s : slot) {
      if (Status made = s.ready.open(index); !made.ok()) return made;
      if (Status made = s.copied.open(index); !made.ok()) return made;
    }
    return Status::good();
  }
};

namespace {

size_t padded(size_t bytes) { return (bytes + 255) / 256 * 256; }

}  // namespace

Communicator::Communicator(const Transport& transport, double seconds) : transport_(transport), seconds_(seconds) {}

Communicator::~Communicator() {
  for (Open& o : open_)  // nothing may write to memory that its owner may free next
    if (o.begun && transport_.fail) transport_.fail(transport_.self, "it was destroyed during a transfer");
  if (transport_.destroy) transport_.destroy(transport_.self);
}

Status Communicator::said(std::string_view doing) {
  const char* why = transport_.error ? transport_.error(transport_.self) : nullptr;
  return failed_ = Status::failure(Code::device, "rank ", rank(), " of ", ranks(), ": ", doing, ": ",
                                   why && *why ? why : "the transport gives no reason");
}

Status Communicator::fail(Status why) {
  if (why.ok() || !failed_.ok()) return why;
  failed_ = why.after("rank ", rank(), " of ", ranks(), " failed earlier: ");
  if (transport_.fail) transport_.fail(transport_.self, why.message.c_str());
  for (Open& o : open_) o.begun = o.waiting = false;
  return why;
}

// Copies outgoing data to the host, after the work already on the caller's stream. The transport starts in finish().
// Until then nothing waits, and kernels that the caller launches overlap with the copies.
Status Communicator::stage(Open& o, int slot, const CopyLane& lane) {
  if (!staging_) staging_ = std::make_unique<Staging>();
  if (Status s = staging_->prepare(lane.index); !s.ok()) return s;
  Staging::Slot& mine = staging_->slot[slot];
  size_t bytes = 0;
  for (const Transfer& t : o.asked) bytes += padded(t.bytes);
  // A buffer is freed before it grows, and the last copies out of it may still run.
  if (bytes > mine.memory.bytes())
    if (Status s = cuda::wait(staging_->stream.get()); !s.ok()) return s;
  if (Status s = mine.memory.at_least(bytes); !s.ok()) return s;
  if (Status s = mine.ready.set(lane.stream); !s.ok()) return s;
  if (Status s = mine.ready.before(staging_->stream.get()); !s.ok()) return s;
  o.staged = o.asked;
  std::byte* at = mine.memory.data();
  for (Transfer& t : o.staged) {
    if (!t.receive)
      if (Status s = cuda::copy_later(at, t.data, t.bytes, staging_->stream.get()); !s.ok()) return s;
    t.data = at, at += padded(t.bytes);
  }
  if (Status s = mine.copied.set(staging_->stream.get()); !s.ok()) return s;
  o.waiting = true;
  return Status::good();
}

Status Communicator::unstage(Open& o, int slot, const CopyLane& lane) {
  Staging::Slot& mine = staging_->slot[slot];
  for (size_t n = 0; n < o.asked.size(); ++n)
    if (o.asked[n].receive)
      if (Status s = cuda::copy_later(o.asked[n].data, o.staged[n].data, o.asked[n].bytes, staging_->stream.get());
          !s.ok())
        return s;
  if (Status s = mine.copied.set(staging_->stream.get()); !s.ok()) return s;
  return mine.copied.before(lane.stream);
}

Status Communicator::start(std::span<const Transfer> transfers, const CopyLane& lane, Ticket& out) {
  if (!failed_.ok()) return failed_;
  const int slot = !open_[0].begun && !open_[0].waiting ? 0 : 1;
  Open& o = open_[slot];
  if (o.begun || o.waiting) return Status::no("communicator: two transfers are open; a third cannot be started");
  for (const Transfer& t : transfers) {
    if (t.peer < 0 || t.peer >= ranks() || t.peer == rank())
      return Status::no("communicator: peer ", t.peer, " is not another of the ", ranks(), " ranks");
    (t.receive ? traffic_.received : traffic_.sent) += t.bytes;
    traffic_.messages += !t.receive;
  }
  out = slot;
  o.asked.assign(transfers.begin(), transfers.end());
  if (lane.device == DeviceKind::cuda && !transport_.gpu) return fail(stage(o, slot, lane));
  const int32_t device = lane.device == DeviceKind::cuda ? lane.index : -1;
  if (transport_.start(transport_.self, o.asked.data(), int32_t(o.asked.size()), device, lane.stream, &o.ticket))
    return said("a transfer could not start");
  o.begun = true;
  return Status::good();
}

Status Communicator::finish(Ticket slot, const CopyLane& lane) {
  if (!failed_.ok()) return failed_;
  Open& o = open_[slot];
  const bool staged = o.waiting;
  if (staged) {
    const auto end = std::chrono::steady_clock::now() + std::chrono::duration<double>(seconds_);
    for (bool passed = false; !passed;) {
      if (Status s = staging_->slot[slot].copied.passed(passed); !s.ok()) return fail(s);
      if (!passed && std::chrono::steady_clock::now() > end)
        return fail(Status::failure(Code::device, "the GPU did not reach the transfer within ", seconds_, " s"));
      if (!passed) std::this_thread::yield();
    }
    if (transport_.start(transport_.self, o.staged.data(), int32_t(o.staged.size()), -1, nullptr, &o.ticket))
      return said("a transfer could not start");
    o.waiting = false, o.begun = true;
  }
  if (!o.begun) return Status::no("communicator: transfer ", slot, " is not open");
  o.begun = false;
  if (transport_.finish(transport_.self, o.ticket, seconds_, lane.stream)) return said("a transfer did not finish");
  return staged ? fail(unstage(o, slot, lane)) : Status::good();
}

Status Communicator::all_to_all(std::span<const Both> by_rank, const CopyLane& lane) {
  const Both& own = by_rank[size_t(rank())];
  if (own.from != own.to && own.send_bytes) {
    if (lane.device == DeviceKind::cuda) {
      if (Status s = cuda::copy_later(own.to, own.from, own.send_bytes, lane.stream); !s.ok()) return fail(s);
    } else {
      std::memcpy(own.to, own.from, own.send_bytes);
    }
  }
  list_.clear();
  for (int r = 0; r < ranks(); ++r) {
    const Both& x = by_rank[size_t(r)];
    if (r == rank()) continue;
    if (x.send_bytes) list_.push_back({r, 0, const_cast<void*>(x.from), x.send_bytes});
    if (x.receive_bytes) list_.push_back({r, 1, x.to, x.receive_bytes});
  }
  if (list_.empty()) return Status::good();
  Ticket ticket = 0;
  if (Status s = start(list_, lane, ticket); !s.ok()) return s;
  return finish(ticket, lane);
}

Status Communicator::barrier() {
  char token = 0;
  std::vector<char> theirs(static_cast<size_t>(ranks()));
  std::vector<Both> all(static_cast<size_t>(ranks()));
  for (size_t r = 0; r < all.size(); ++r) all[r] = {&token, &theirs[r], 1, 1};
  return all_to_all(all, {});
}

}  // namespace attune
