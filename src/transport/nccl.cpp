// SPDX-License-Identifier: Apache-2.0
// A transport over NCCL, opened at run time: one rank per GPU. The transfers of one start() form one group, on the
// rank's own stream between events of the caller's stream. finish() polls its event, so a lost peer yields an error
// within the timeout instead of a stream that never ends. Polling is impossible during stream capture, where the graph
// just waits. ncclCommInitRank waits for every rank without a timeout; it runs in a thread that is abandoned if a rank
// never joins.
#include <chrono>
#include <condition_variable>
#include <cstring>
#include <mutex>
#include <thread>

#include "machine/cuda/copies.h"
#include "machine/cuda/runtime.h"
#include "machine/library.h"
#include "transport/communicator.h"

namespace attune {
namespace {

// The part of nccl.h that is used. The values have not changed since NCCL 2.0.
struct Id { char bytes[kNcclIdBytes]; };
using Comm = void*;
constexpr int kGood = 0, kInProgress = 7, kInt8 = 0;

struct Nccl {
  int (*get_id)(Id*) = nullptr;
  int (*init)(Comm*, int ranks, Id, int rank) = nullptr;
  int (*abort)(Comm) = nullptr;
  int (*destroy)(Comm) = nullptr;
  int (*group_start)() = nullptr;
  int (*group_end)() = nullptr;
  int (*send)(const void*, size_t, int type, int peer, Comm, void* stream) = nullptr;
  int (*receive)(void*, size_t, int type, int peer, Comm, void* stream) = nullptr;
  int (*async_error)(Comm, int*) = nullptr;
  const char* (*text)(int) = nullptr;
  std::string missed{};

  Nccl() {
    const Library library({"libnccl.so.2", "libnccl.so"},
                          {"ncclGetUniqueId", "ncclCommInitRank", "ncclCommAbort", "ncclCommDestroy", "ncclGroupStart",
                           "ncclGroupEnd", "ncclSend", "ncclRecv", "ncclCommGetAsyncError", "ncclGetErrorString"});
    missed = library.missed();
    if (!library.ok()) return;
    const auto take = [&](auto& to, const char* name) {
      to = reinterpret_cast<std::remove_reference_t<decltype(to)>>(library.symbol(name));
    };
    take(get_id, "ncclGetUniqueId"), take(init, "ncclCommInitRank"), take(abort, "ncclCommAbort");
    take(destroy, "ncclCommDestroy"), take(group_start, "ncclGroupStart"), take(group_end, "ncclGroupEnd");
    take(send, "ncclSend"), take(receive, "ncclRecv"), take(async_error, "ncclCommGetAsyncError");
    take(text, "ncclGetErrorString");
  }
};

Status nccl(const Nccl*& out) {
  static const Nccl opened;
  out = &opened;
  return opened.init ? Status::good() : Status::unsupported("NCCL: ", opened.missed);
}

struct Ticket {
  cuda::Mark ready, moved;
  bool open = false;
};

struct Rank {
  const Nccl* nccl = nullptr;
  Comm comm = nullptr;
  int device = 0;
  cuda::OwnStream stream;
  Ticket tickets[4];
  std::string error;

  int said(std::string why) { return error = std::move(why), 1; }
  int said(const char* call, int code) { return said(join(call, ": ", nccl->text(code))); }
  // After this, started transfers no longer touch memory.
  void abort() {
    if (comm) nccl->abort(comm);
    comm = nullptr;
  }
};

// Shared by the thread that makes a communicator and its requester, which may have given up.
struct Joining {
  std::mutex mutex;
  std::condition_variable changed;
  bool done = false, given_up = false;
  int code = kGood;
  Comm comm = nullptr;
};

Status join_group(const Nccl& nccl, const Id& id, int rank, int ranks, int device, double seconds, Comm& out) {
  const auto joining = std::make_shared<Joining>();
  std::thread([joining, &nccl, id, rank, ranks, device] {
    Comm comm = nullptr;
    const cuda::DeviceGuard use(device);
    const int code = nccl.init(&comm, ranks, id, rank);
    const std::lock_guard lock(joining->mutex);
    if (joining->given_up && !code) nccl.abort(comm);
    joining->code = code, joining->comm = comm, joining->done = true;
    joining->changed.notify_one();
  }).detach();
  std::unique_lock lock(joining->mutex);
  if (!joining->changed.wait_for(lock, std::chrono::duration<double>(seconds), [&] { return joining->done; })) {
    joining->given_up = true;
    return Status::failure(Code::device, "NCCL: rank ", rank, " of ", ranks, ": not all ranks joined within ", seconds,
                           " s");
  }
  out = joining->comm;
  return joining->code ? Status::failure(Code::device, "ncclCommInitRank: ", nccl.text(joining->code)) : Status::good();
}

int start(void* self, const Transfer* transfers, int32_t count, int32_t device, void* stream, void** ticket) {
  Rank& me = *static_cast<Rank*>(self);
  if (!me.comm) return me.said("the group was aborted");
  if (device != me.device)
    return me.said(device < 0 ? std::string("NCCL transfers GPU memory, not host memory")
                              : join("this rank is on cuda:", me.device, ", but the data is on cuda:", device));
  Ticket* t = me.tickets;
  while (t != std::end(me.tickets) && t->open) ++t;
  if (t == std::end(me.tickets)) return me.said("too many transfers are open");
  const cuda::DeviceGuard use(device);
  Status s = use.status;
  if (s.ok()) s = t->ready.open(device);
  if (s.ok()) s = t->moved.open(device);
  if (s.ok()) s = t->ready.set(stream);
  if (s.ok()) s = t->ready.before(me.stream.get());
  if (!s.ok()) return me.said(s.message);
  if (const int code = me.nccl->group_start()) return me.said("ncclGroupStart", code);
  int wrong = kGood;
  for (int n = 0; n < count && !wrong; ++n) {
    const Transfer& x = transfers[n];
    wrong = x.receive ? me.nccl->receive(x.data, x.bytes, kInt8, x.peer, me.comm, me.stream.get())
                      : me.nccl->send(x.data, x.bytes, kInt8, x.peer, me.comm, me.stream.get());
  }
  const int ended = me.nccl->group_end();
  if (wrong) return me.said("ncclSend or ncclRecv", wrong);
  if (ended && ended != kInProgress) return me.said("ncclGroupEnd", ended);
  if (s = t->moved.set(me.stream.get()); !s.ok()) return me.said(s.message);
  t->open = true;
  *ticket = t;
  return 0;
}

int finish(void* self, void* ticket, double seconds, void* stream) {
  Rank& me = *static_cast<Rank*>(self);
  Ticket& t = *static_cast<Ticket*>(ticket);
  t.open = false;
  if (!me.comm) return me.said("the group was aborted");
  const auto end = std::chrono::steady_clock::now() + std::chrono::duration<double>(seconds);
  for (bool passed = cuda::capturing(stream); !passed;) {
    int code = kGood;
    if (const int asked = me.nccl->async_error(me.comm, &code)) code = asked;
    if (code && code != kInProgress) {
      me.abort();
      return me.said("NCCL", code);
    }
    if (Status s = t.moved.passed(passed); !s.ok()) return me.said(s.message);
    if (!passed && std::chrono::steady_clock::now() > end) {
      me.abort();
      return me.said(join("a peer did not respond within ", seconds, " s"));
    }
    if (!passed) std::this_thread::yield();
  }
  const Status s = t.moved.before(stream);
  return s.ok() ? 0 : me.said(s.message);
}

void fail(void* self, const char*) { static_cast<Rank*>(self)->abort(); }
const char* error(void* self) { return static_cast<Rank*>(self)->error.c_str(); }

void destroy(void* self) {
  Rank* me = static_cast<Rank*>(self);
  if (me->comm) me->nccl->destroy(me->comm);
  delete me;
}

}  // namespace

Status make_nccl_id(std::span<std::byte, kNcclIdBytes> out) {
  const Nccl* library = nullptr;
  if (Status s = nccl(library); !s.ok()) return s;
  Id id;
  if (const int code = library->get_id(&id))
    return Status::failure(Code::device, "ncclGetUniqueId: ", library->text(code));
  std::memcpy(out.data(), id.bytes, sizeof id.bytes);
  return Status::good();
}

Status open_nccl(std::span<const std::byte, kNcclIdBytes> id, int rank, int ranks, int device, Transport& out,
                 double seconds) {
  if (ranks < 1 || rank < 0 || rank >= ranks) return Status::no("NCCL: rank ", rank, " is not in 0 ... ", ranks - 1);
  auto me = std::make_unique<Rank>();
  if (Status s = nccl(me->nccl); !s.ok()) return s;
  me->device = device;
  const cuda::DeviceGuard use(device);
  if (!use.status.ok()) return use.status;
  if (Status s = me->stream.open(device); !s.ok()) return s;
  Id theirs;
  std::memcpy(theirs.bytes, id.data(), sizeof theirs.bytes);
  if (Status s = join_group(*me->nccl, theirs, rank, ranks, device, seconds, me->comm); !s.ok()) return s;
  out = {.self = me.release(), .rank = rank, .ranks = ranks, .gpu = 1, .start = start, .finish = finish, .fail = fail,
         .error = error, .destroy = destroy};
  return Status::good();
}

}  // namespace attune
