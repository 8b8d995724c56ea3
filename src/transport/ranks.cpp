// SPDX-License-Identifier: Apache-2.0
// Virtual ranks: threads of one process, so that all code above a transport can be tested on one machine, bitwise
// reproducibly. A send and a receive meet in a queue per pair of ranks; the second to arrive copies. On a GPU the copy
// is enqueued on the receiver's own stream, between events of both sides' streams. The only wait is for the other
// thread to arrive.
#include <chrono>
#include <condition_variable>
#include <cstring>
#include <deque>
#include <mutex>

#include "machine/cuda/copies.h"
#include "machine/cuda/runtime.h"
#include "transport/communicator.h"

namespace attune {
namespace {

constexpr int kMostRanks = 1024;

enum class State { posted, copying, done, failed };

// One side of a message. It lives from start() to finish() of its rank.
struct Post {
  Transfer what{};
  int rank = 0;
  int device = -1;
  State state = State::posted;
  cuda::Mark ready{}, moved{};  // events: its rank's stream when it was posted; the copy
  std::string why{};
};

struct Ticket {
  std::vector<std::unique_ptr<Post>> posts{};
  size_t used = 0;
  bool open = false;
};

struct Group {
  std::mutex mutex;
  std::condition_variable changed;
  int ranks = 0;
  std::vector<std::deque<Post*>> sends, receives;  // [from][to]
  std::vector<std::string> gone;                   // why a rank stopped; "" while it runs

  std::deque<Post*>& queue(const Post& p) {
    const bool in = p.what.receive;
    const int from = in ? p.what.peer : p.rank, to = in ? p.rank : p.what.peer;
    return (in ? receives : sends)[size_t(from * ranks + to)];
  }
  std::deque<Post*>& opposite(const Post& p) {
    Post mirror;
    mirror.what.peer = p.rank, mirror.what.receive = !p.what.receive, mirror.rank = p.what.peer;
    return queue(mirror);
  }
};

struct Rank {
  std::shared_ptr<Group> group;
  int rank = 0;
  Ticket tickets[4];
  cuda::OwnStream stream;  // for copies to this rank
  bool has_stream = false;
  std::string error;
};

using Lock = std::unique_lock<std::mutex>;

// Both sides have arrived: moves the bytes. Releases the lock meanwhile; neither post can go away.
Status move(Rank& me, Post& send, Post& receive, Lock& lock) {
  if (send.what.bytes != receive.what.bytes)
    return Status::no("rank ", send.rank, " sends ", send.what.bytes, " bytes, but rank ", receive.rank, " expects ",
                      receive.what.bytes);
  if ((send.device < 0) != (receive.device < 0))
    return Status::no("ranks ", send.rank, " and ", receive.rank, " do not both use GPU memory or both host memory");
  send.state = receive.state = State::copying;
  lock.unlock();
  Status s = Status::good();
  if (receive.device < 0) {
    std::memcpy(receive.what.data, send.what.data, send.what.bytes);
  } else {
    void* const side = me.stream.get();
    s = send.ready.before(side);
    if (s.ok()) s = receive.ready.before(side);
    if (s.ok()) s = cuda::copy_later(receive.what.data, send.what.data, send.what.bytes, side);
    if (s.ok()) s = send.moved.set(side);
    if (s.ok()) s = receive.moved.set(side);
  }
  lock.lock();
  return s;
}

int said(Rank& me, std::string why) { return me.error = std::move(why), 1; }

void drop(Group& g, Post& p) {
  std::deque<Post*>& q = g.queue(p);
  for (auto it = q.begin(); it != q.end(); ++it)
    if (*it == &p) return void(q.erase(it));
}

// Takes back posts that have not met, and waits for those being copied, which does not depend on a peer.
void withdraw(Group& g, Ticket& t, Lock& lock) {
  for (size_t n = 0; n < t.used; ++n) {
    Post& p = *t.posts[n];
    g.changed.wait(lock, [&] { return p.state != State::copying; });
    if (p.state == State::posted) drop(g, p);
  }
  t.used = 0, t.open = false;
}

void stop(Rank& me, const std::string& why, Lock& lock) {
  Group& g = *me.group;
  if (g.gone[size_t(me.rank)].empty()) g.gone[size_t(me.rank)] = why;
  g.changed.notify_all();
  for (Ticket& t : me.tickets)
    if (t.open) withdraw(g, t, lock);
}

int start(void* self, const Transfer* transfers, int32_t count, int32_t device, void* stream, void** ticket) {
  Rank& me = *static_cast<Rank*>(self);
  Group& g = *me.group;
  Ticket* t = me.tickets;
  while (t != std::end(me.tickets) && t->open) ++t;
  if (t == std::end(me.tickets)) return said(me, "too many transfers are open");
  if (device >= 0 && !me.has_stream) {
    if (Status s = me.stream.open(device); !s.ok()) return said(me, s.message);
    me.has_stream = true;
  }
  while (t->posts.size() < size_t(count)) t->posts.push_back(std::make_unique<Post>());
  for (int n = 0; n < count; ++n) {
    Post& p = *t->posts[size_t(n)];
    p.what = transfers[n], p.rank = me.rank, p.device = device, p.state = State::posted, p.why.clear();
    if (device < 0) continue;
    Status s = p.ready.open(device);
    if (s.ok()) s = p.moved.open(device);
    if (s.ok()) s = p.ready.set(stream);
    if (!s.ok()) return said(me, s.message);
  }
  Lock lock(g.mutex);
  t->open = true, t->used = size_t(count);
  for (int n = 0; n < count; ++n) {
    Post& p = *t->posts[size_t(n)];
    std::deque<Post*>& others = g.opposite(p);
    if (others.empty()) {
      g.queue(p).push_back(&p);
      continue;
    }
    Post& other = *others.front();
    others.pop_front();
    Post &from = p.what.receive ? other : p, &to = p.what.receive ? p : other;
    const Status s = move(me, from, to, lock);
    p.state = other.state = s.ok() ? State::done : State::failed;
    if (!s.ok()) p.why = other.why = s.message;
    g.changed.notify_all();
  }
  *ticket = t;
  return 0;
}

int finish(void* self, void* ticket, double seconds, void* stream) {
  Rank& me = *static_cast<Rank*>(self);
  Group& g = *me.group;
  Ticket& t = *static_cast<Ticket*>(ticket);
  const auto end = std::chrono::steady_clock::now() + std::chrono::duration<double>(seconds);
  Lock lock(g.mutex);
  std::string why;
  for (size_t n = 0; n < t.used && why.empty(); ++n) {
    Post& p = *t.posts[n];
    const std::string& gone = g.gone[size_t(p.what.peer)];
    const bool in_time = g.changed.wait_until(lock, end, [&] {
      return p.state == State::done || p.state == State::failed || (p.state == State::posted && !gone.empty());
    });
    if (p.state == State::done) continue;
    if (p.state == State::failed) why = p.why;
    else if (in_time) why = join("rank ", p.what.peer, " stopped: ", gone);
    else if (p.what.receive) why = join("rank ", p.what.peer, " sent nothing within ", seconds, " s");
    else why = join("rank ", p.what.peer, " received nothing within ", seconds, " s");
  }
  if (!why.empty()) {
    stop(me, why, lock);
    return said(me, why);
  }
  lock.unlock();
  for (size_t n = 0; n < t.used; ++n)
    if (Post& p = *t.posts[n]; p.device >= 0)
      if (Status s = p.moved.before(stream); !s.ok()) return said(me, s.message);
  lock.lock();
  t.open = false, t.used = 0;
  return 0;
}

void fail(void* self, const char* why) {
  Rank& me = *static_cast<Rank*>(self);
  Lock lock(me.group->mutex);
  stop(me, why, lock);
}

const char* error(void* self) { return static_cast<Rank*>(self)->error.c_str(); }

void destroy(void* self) {
  Rank* me = static_cast<Rank*>(self);
  {
    Lock lock(me->group->mutex);
    stop(*me, "it was destroyed", lock);
  }
  // An enqueued copy reads memory of its rank and an event of this one.
  if (me->has_stream) (void)cuda::wait(me->stream.get());
  delete me;
}

}  // namespace

Status make_ranks(int count, std::vector<Transport>& out) {
  if (count < 1 || count > kMostRanks) return Status::no("ranks = ", count, " is not in 1 ... ", kMostRanks);
  auto group = std::make_shared<Group>();
  group->ranks = count;
  group->sends.resize(size_t(count) * size_t(count)), group->receives.resize(size_t(count) * size_t(count));
  group->gone.resize(size_t(count));
  out.clear();
  for (int r = 0; r < count; ++r) {
    auto* rank = new Rank;
    rank->group = group, rank->rank = r;
    out.push_back({.self = rank, .rank = r, .ranks = count, .gpu = 1, .start = start, .finish = finish, .fail = fail,
                   .error = error, .destroy = destroy});
  }
  return Status::good();
}

}  // namespace attune
