// SPDX-License-Identifier: Apache-2.0
// libattune_mpi: a transport over MPI. MPI has no stable binary interface, so this is a separate library, built where
// MPI is found and opened on request; libattune does not link to it. It transfers host memory only; the communicator
// stages GPU memory. Waits poll, because MPI has no timeouts. For the same reason the group is created in the
// background and the first transfer waits for it: a rank that never joins causes a timeout, not an endless
// MPI_Comm_dup.
#define OMPI_SKIP_MPICXX 1
#define MPICH_SKIP_MPICXX 1
#include <mpi.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "transport/transport.h"

namespace attune {
namespace {

constexpr size_t kMostBytes = size_t(1) << 30;  // per message: MPI counts are int
constexpr int kTag = 41;

struct Ticket {
  std::vector<MPI_Request> requests{};
  std::vector<Transfer> pieces{};
  std::vector<MPI_Status> statuses{};
  bool open = false;
  bool posted = false;  // its requests are with MPI
};

struct Rank {
  MPI_Comm comm = MPI_COMM_NULL;
  MPI_Request making = MPI_REQUEST_NULL;  // creation of comm, until all ranks have joined
  bool ours = false;  // this library initialized MPI and finalizes it
  bool broken = false;
  double seconds = 60;  // timeout of the last wait
  std::vector<std::unique_ptr<Ticket>> tickets{};
  std::string error{};
};

int said(Rank& me, std::string why) {
  me.broken = true;
  return me.error = std::move(why), 1;
}

std::string text(int code) {
  char words[MPI_MAX_ERROR_STRING] = {};
  int length = 0;
  return MPI_Error_string(code, words, &length) == MPI_SUCCESS ? std::string(words, size_t(length)) : "unknown error";
}

// Withdraws unfinished requests. A receive no longer writes. MPI may still read the memory of a send if its peer
// returns, so that memory should live as long as the process.
void withdraw(Ticket& t) {
  for (size_t n = 0; n < t.requests.size(); ++n) {
    if (t.requests[n] == MPI_REQUEST_NULL) continue;
    if (t.pieces[n].receive) MPI_Cancel(&t.requests[n]);
    MPI_Request_free(&t.requests[n]);
  }
  t.open = false;
}

// Whether all ranks have joined, so that messages can be sent.
bool made(Rank& me) {
  if (me.making == MPI_REQUEST_NULL) return true;
  int done = 0;
  if (const int code = MPI_Test(&me.making, &done, MPI_STATUS_IGNORE); code != MPI_SUCCESS)
    return said(me, "MPI_Comm_idup: " + text(code)), false;
  if (done) MPI_Comm_set_errhandler(me.comm, MPI_ERRORS_RETURN);
  return done;
}

int post(Rank& me, Ticket& t) {
  t.posted = true;
  for (size_t n = 0; n < t.pieces.size(); ++n) {
    const Transfer& p = t.pieces[n];
    const int code = p.receive ? MPI_Irecv(p.data, int(p.bytes), MPI_BYTE, p.peer, kTag, me.comm, &t.requests[n])
                               : MPI_Isend(p.data, int(p.bytes), MPI_BYTE, p.peer, kTag, me.comm, &t.requests[n]);
    if (code != MPI_SUCCESS) {
      withdraw(t);
      return said(me, "rank " + std::to_string(p.peer) + ": " + text(code));
    }
  }
  return 0;
}

// MPI matches messages between two ranks in posting order, so transfers that waited for the group are posted first.
// No ticket is reused before the group exists, so tickets are in the order of their starts.
int post_all(Rank& me) {
  for (const auto& t : me.tickets)
    if (t->open && !t->posted && post(me, *t)) return 1;
  return 0;
}

std::string within(double seconds) {
  std::string limit = std::to_string(seconds);
  limit.erase(limit.find_last_not_of('0') + 1);
  if (limit.back() == '.') limit.pop_back();
  return " within " + limit + " s";
}

int start(void* self, const Transfer* transfers, int32_t count, int32_t, void*, void** ticket) {
  Rank& me = *static_cast<Rank*>(self);
  Ticket* t = nullptr;
  for (const auto& one : me.tickets)
    if (!one->open) t = one.get();
  if (!t) t = me.tickets.emplace_back(std::make_unique<Ticket>()).get();
  t->pieces.clear();
  for (int n = 0; n < count; ++n)
    for (size_t at = 0; at < transfers[n].bytes || !at; at += kMostBytes) {
      Transfer piece = transfers[n];
      piece.data = static_cast<char*>(piece.data) + at;
      piece.bytes = std::min(kMostBytes, transfers[n].bytes - at);
      t->pieces.push_back(piece);
    }
  t->requests.assign(t->pieces.size(), MPI_REQUEST_NULL);
  t->statuses.resize(t->pieces.size());
  t->open = true, t->posted = false;
  *ticket = t;
  if (!made(me)) return me.broken;  // 0 if the group does not exist yet: finish() posts it
  return post_all(me);
}

int finish(void* self, void* ticket, double seconds, void*) {
  Rank& me = *static_cast<Rank*>(self);
  Ticket& t = *static_cast<Ticket*>(ticket);
  using Clock = std::chrono::steady_clock;
  const auto begin = Clock::now();
  me.seconds = seconds;
  for (int done = 0; !done;) {
    int code = MPI_SUCCESS;
    size_t waiting = t.requests.size();
    if (!t.posted) {
      if (made(me) && post_all(me)) return 1;
      if (me.broken) return withdraw(t), 1;
    }
    done = t.posted;
    // One by one, so that an error or a timeout names a rank.
    for (size_t n = 0; n < t.requests.size(); ++n) {
      if (t.requests[n] == MPI_REQUEST_NULL) continue;
      int ended = 0;
      code = MPI_Test(&t.requests[n], &ended, &t.statuses[n]);
      const std::string peer = "rank " + std::to_string(t.pieces[n].peer);
      if (code != MPI_SUCCESS) {
        t.requests[n] = MPI_REQUEST_NULL;
        withdraw(t);
        return said(me, peer + ": " + text(code));
      }
      if (!ended) {
        done = 0, waiting = std::min(waiting, n);
        continue;
      }
      int bytes = 0;
      if (t.pieces[n].receive && MPI_Get_count(&t.statuses[n], MPI_BYTE, &bytes) == MPI_SUCCESS &&
          size_t(bytes) != t.pieces[n].bytes) {
        withdraw(t);
        return said(me, peer + " sent " + std::to_string(bytes) + " bytes, but " + std::to_string(t.pieces[n].bytes) +
                            " were expected");
      }
    }
    if (done) break;
    const double waited = std::chrono::duration<double>(Clock::now() - begin).count();
    if (waited > seconds) {
      withdraw(t);
      if (!t.posted) return said(me, "not all ranks joined" + within(seconds));
      const Transfer& p = t.pieces[waiting];
      const std::string peer = "rank " + std::to_string(p.peer);
      return said(me, peer + (p.receive ? " sent nothing" : " received nothing") + within(seconds));
    }
    // Ranks that share a core must let each other run.
    if (waited > 1e-3) std::this_thread::sleep_for(std::chrono::microseconds(50));
    else std::this_thread::yield();
  }
  t.open = false;
  return 0;
}

void fail(void* self, const char*) {
  Rank& me = *static_cast<Rank*>(self);
  me.broken = true;
  for (const auto& t : me.tickets)
    if (t->open) withdraw(*t);
}

const char* error(void* self) { return static_cast<Rank*>(self)->error.c_str(); }

// MPI_Finalize waits for every rank without a timeout, so it is called only if all have arrived.
bool all_end(const Rank& me) {
  using Clock = std::chrono::steady_clock;
  MPI_Request barrier = MPI_REQUEST_NULL;
  if (MPI_Ibarrier(me.comm, &barrier) != MPI_SUCCESS) return false;
  for (const auto begin = Clock::now(); Clock::now() - begin < std::chrono::duration<double>(me.seconds);) {
    int done = 0;
    if (MPI_Test(&barrier, &done, MPI_STATUS_IGNORE) != MPI_SUCCESS) return false;
    if (done) return true;
    std::this_thread::sleep_for(std::chrono::microseconds(50));
  }
  return false;
}

void destroy(void* self) {
  Rank* me = static_cast<Rank*>(self);
  int ended = 0;
  MPI_Finalized(&ended);
  // MPI may still write the group, so it is leaked. After MPI_Finalize no MPI function may be called.
  if (!ended && me->making != MPI_REQUEST_NULL && !made(*me)) return;
  // A group that lost a rank would wait for it here.
  if (!ended && !me->broken && (!me->ours || all_end(*me))) {
    MPI_Comm_free(&me->comm);
    if (me->ours) MPI_Finalize();
  }
  delete me;
}

}  // namespace
}  // namespace attune

// `comm` is an MPI_Comm*, or null for MPI_COMM_WORLD. `size` is sizeof(Transport) of the caller, to detect another
// version.
extern "C" __attribute__((visibility("default"))) int attune_mpi_open(size_t size, const void* comm,
                                                                       attune::Transport* out, char* why, size_t room) {
  using namespace attune;
  const auto no = [&](const std::string& text) {
    std::strncpy(why, text.c_str(), room - 1);
    why[room - 1] = 0;
    return 1;
  };
  if (size != sizeof(Transport)) return no("libattune_mpi belongs to another version of attune");
  int started = 0, ended = 0;
  MPI_Finalized(&ended);
  if (ended) return no("MPI is already finalized");
  auto me = std::make_unique<Rank>();
  MPI_Initialized(&started);
  if (!started) {
    int level = 0;
    if (MPI_Init_thread(nullptr, nullptr, MPI_THREAD_MULTIPLE, &level) != MPI_SUCCESS)
      return no("MPI_Init_thread failed");
    me->ours = true;
  }
  const MPI_Comm from = comm ? *static_cast<const MPI_Comm*>(comm) : MPI_COMM_WORLD;
  if (const int code = MPI_Comm_idup(from, &me->comm, &me->making); code != MPI_SUCCESS)
    return no("MPI_Comm_idup: " + text(code));
  *out = {.start = start, .finish = finish, .fail = fail, .error = error, .destroy = destroy};
  MPI_Comm_rank(from, &out->rank);
  MPI_Comm_size(from, &out->ranks);
  out->self = me.release();
  return 0;
}
