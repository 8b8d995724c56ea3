// SPDX-License-Identifier: Apache-2.0
// Ranks, transports and shards as a user of the C interface sees them. Attention over threads equals attention on one
// rank, with the library's own ranks and with a caller's transport; every mistake returns an error message.
#include <cmath>
#include <condition_variable>
#include <cstdio>
#include <cstring>
#include <deque>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "expect.h"

namespace {

constexpr int kTokens = 37, kHeads = 4, kDim = 16, kRanks = 3;
using Floats = std::vector<float>;

Floats numbers(int seed) {
  Floats all(size_t(kTokens) * kHeads * kDim);
  for (size_t n = 0; n < all.size(); ++n) all[n] = float(std::sin(double(n) * 0.7 + seed));
  return all;
}

// The minimum a user's transport needs: mailboxes.
struct Mail {
  std::mutex mutex;
  std::condition_variable came;
  std::deque<std::vector<char>> box[kRanks][kRanks];
};
struct Post {
  Mail* mail;
  int rank;
  std::vector<attune_transfer> waiting;
  std::string error;
};

int post_start(void* self, const attune_transfer* transfers, int32_t count, int32_t, void*, void** ticket) {
  Post& me = *static_cast<Post*>(self);
  me.waiting.assign(transfers, transfers + count);
  for (const attune_transfer& t : me.waiting) {
    if (t.receive) continue;
    const std::lock_guard lock(me.mail->mutex);
    me.mail->box[me.rank][t.peer].emplace_back(static_cast<char*>(t.data), static_cast<char*>(t.data) + t.bytes);
    me.mail->came.notify_all();
  }
  *ticket = self;
  return 0;
}

int post_finish(void* self, void*, double seconds, void*) {
  Post& me = *static_cast<Post*>(self);
  for (const attune_transfer& t : me.waiting) {
    if (!t.receive) continue;
    std::unique_lock lock(me.mail->mutex);
    auto& box = me.mail->box[t.peer][me.rank];
    if (!me.mail->came.wait_for(lock, std::chrono::duration<double>(seconds), [&] { return !box.empty(); }))
      return me.error = "the post did not come", 1;
    std::memcpy(t.data, box.front().data(), t.bytes);
    box.pop_front();
  }
  return 0;
}

const char* post_error(void* self) { return static_cast<Post*>(self)->error.c_str(); }

attune_problem problem_of(const std::string& line) {
  attune_problem p{};
  p.size = sizeof p;
  attune::require(attune_problem_parse(line.c_str(), &p));
  return p;
}

attune::Tensor tensor(Floats& x, int rows) { return {x.data(), "bshd", {1, rows, kHeads, kDim}}; }

int copy(const char* layout, int rank, const attune::Tensor& whole, const attune::Tensor& shard, int back) {
  const attune_tensor all = whole.c(), own = shard.c();
  return attune_shard_copy(layout, kRanks, rank, &all, &own, back, nullptr);
}

void run(const Floats& q, const Floats& k, const Floats& v, Floats& out, const char* layout, int rank,
         const attune::Communicator& comm) {
  const int rows = int(attune::shard_tokens(layout, kTokens, kRanks, rank).size());
  Floats shard[4];
  const Floats* whole[3] = {&q, &k, &v};
  for (int n = 0; n < 4; ++n) shard[n].resize(size_t(rows) * kHeads * kDim);
  for (int n = 0; n < 3; ++n) {
    attune::require(copy(layout, rank, tensor(const_cast<Floats&>(*whole[n]), kTokens), tensor(shard[n], rows), 0));
  }
  attune::Args args;
  const int roles[4] = {ATTUNE_Q, ATTUNE_K, ATTUNE_V, ATTUNE_OUT};
  for (int n = 0; n < 4; ++n) args.set(roles[n], tensor(shard[n], rows));
  args.communicator = comm.get();
  const int most = (kTokens + kRanks - 1) / kRanks + 1;
  const attune_problem p = problem_of("forward f32 b1 h4 q" + std::to_string(most) + " k" + std::to_string(most) +
                                      " d16 causal : ring layout=" + layout + " ranks=3 tokens=37");
  attune::require(args.with_c([&](const attune_args* a) { return attune_call(&p, a, nullptr); }));
  attune::require(copy(layout, rank, tensor(out, kTokens), tensor(shard[3], rows), 1));
}

// Runs every rank in a thread; returns the combined output.
Floats together(const char* layout, const std::vector<attune::Communicator>& comms) {
  const Floats q = numbers(1), k = numbers(2), v = numbers(3);
  Floats out(q.size(), NAN);
  std::vector<std::thread> threads;
  for (int r = 0; r < kRanks; ++r)
    threads.emplace_back([&, r] {
      try {
        run(q, k, v, out, layout, r, comms[size_t(r)]);
      } catch (const attune::Error& e) {
        std::printf("rank %d: %s\n", r, e.what());
      }
    });
  for (std::thread& t : threads) t.join();
  return out;
}

Floats alone() {
  Floats q = numbers(1), k = numbers(2), v = numbers(3), out(q.size());
  attune::Args args;
  args.set(ATTUNE_Q, tensor(q, kTokens)).set(ATTUNE_K, tensor(k, kTokens)).set(ATTUNE_V, tensor(v, kTokens));
  args.set(ATTUNE_OUT, tensor(out, kTokens));
  const attune_problem p = problem_of("forward f32 b1 h4 q37 k37 d16 causal");
  attune::require(args.with_c([&](const attune_args* a) { return attune_call(&p, a, nullptr); }));
  return out;
}

double apart(const Floats& a, const Floats& b) {
  double worst = 0;
  for (size_t n = 0; n < a.size(); ++n) worst = std::isnan(b[n]) ? 1 : std::fmax(worst, std::fabs(double(a[n]) - b[n]));
  return worst;
}

// Refused before any row is written.
void mistakes_of_copies() {
  const Floats before[] = {Floats(72, 1.f), Floats(72, 2.f)};
  Floats whole = before[0], shard = before[1];
  const int64_t none[] = {0, 1}, far[] = {int64_t(1) << 60, 1}, two[] = {2, 3, 8}, narrow[] = {3, 4};
  const attune::Tensor of_whole(whole.data(), "sd", {9, 8}), of_shard(shard.data(), "sd", {3, 8});
  const attune_tensor w = of_whole.c(), good = of_shard.c();
  const auto wrong = [&](attune_tensor from, attune_tensor to, int back, const char* words) {
    refused(attune_shard_copy("striped", kRanks, 0, &from, &to, back, nullptr), words);
    expect(whole == before[0] && shard == before[1], "nothing is copied");
  };
  attune_tensor bad = good;
  bad.data = whole.data() + 8;
  wrong(w, bad, 0, "shard: output shares memory with whole");
  wrong(w, bad, 1, "whole: output shares memory with shard");
  bad = good, bad.strides = none;
  wrong(w, bad, 0, "shard: output strides overlap: two elements share an address");
  bad = w, bad.strides = none;
  wrong(bad, good, 1, "whole: output strides overlap: two elements share an address");
  bad = good, bad.byte_offset = 2;
  wrong(w, bad, 0, "shard: data is not aligned to its dtype f32");
  bad = w, bad.byte_offset = 2;
  wrong(bad, good, 0, "whole: data is not aligned to its dtype f32");
  bad = good, bad.ndim = 3, bad.shape = two, bad.axes = "bsd";
  wrong(w, bad, 0, "shard: batch = 2, but whole has 1");
  bad.axes = "hsd";
  wrong(w, bad, 0, "shard: head = 2, but whole has 1");
  bad = good, bad.shape = narrow;
  wrong(w, bad, 0, "shard: dim = 4, but whole has 8");
  bad = w, bad.dtype.code = 0;
  wrong(bad, good, 0, "whole: dtype i32 is not one of f64, f32, f16, bf16, e4m3");
  bad = good, bad.dtype.code = 0;
  wrong(w, bad, 0, "shard: dtype i32 is not one of f64, f32, f16, bf16, e4m3");
  bad = good, bad.device.type = 2;
  wrong(w, bad, 0, "shard: is not on the device of whole");
  bad = good, bad.data = nullptr;
  wrong(w, bad, 0, "shard: data is null");
  bad = w, bad.strides = far;
  wrong(bad, good, 0, "whole: extents or strides are negative, or reach past the end of memory");
  bad = w, bad.strides = none;  // a source may be broadcast
  expect(!attune_shard_copy("striped", kRanks, 0, &bad, &good, 0, nullptr), "a source of one row");
}

void mistakes() {
  attune_communicator* made = nullptr;
  int32_t count = 0;
  refused(attune_ranks_create(0, &made), "ranks = 0 is not in 1 ... 1024");
  refused(attune_ranks_create(2, nullptr), "out is null");
  attune_transport t{};
  refused(attune_transport_create(&t, &made), "transport.size = 0 is not sizeof(attune_transport)");
  t.size = sizeof t, t.ranks = 2;
  refused(attune_transport_create(&t, &made), "transport: start and finish are both required");
  t.start = post_start, t.finish = post_finish, t.rank = 2;
  refused(attune_transport_create(&t, &made), "transport: rank = 2 is not in 0 ... 1");
  refused(attune_communicator_limit(nullptr, 1), "communicator is null");
  refused(attune_shard_tokens("spiral", 8, 2, 0, &count, nullptr), "layout=spiral is not one of");
  refused(attune_shard_tokens("ring", 8, 2, 2, &count, nullptr), "rank = 2 is not in 0 ... 1");
  refused(attune_shard_tokens("ring", 0, 2, 0, &count, nullptr), "tokens=0 is not a number in");
  int64_t tokens[4] = {-1, -1, -1, -1};
  count = 3;
  refused(attune_shard_tokens("zigzag", 12, 3, 0, &count, tokens),
          "count = 3 given, but tokens_out needs room for the 4 tokens of rank 0");
  expect(count == 3 && tokens[0] == -1 && tokens[3] == -1, "nothing is written where there is no room");
  count = 9;
  expect(!attune_shard_tokens("zigzag", 12, 3, 0, &count, tokens) && count == 4 && tokens[3] == 11, "room for more");
  refused(attune_nccl_id(nullptr), "id is null");
  Floats whole(72), shard(72);
  refused(copy("ring", 0, {whole.data(), "sd", {9, 8}}, {shard.data(), "sd", {9, 8}}, 0),
          "shard: has 9 rows, but rank 0 has 3 of 9 tokens");
  const auto ranks = attune::Communicator::ranks(1);
  refused(attune_communicator_limit(ranks[0].get(), 0), "seconds = 0 is not above 0");
}

}  // namespace

int main() {
  const Floats one = alone();
  for (const char* layout : {"ring", "zigzag", "striped"}) {
    auto ranks = attune::Communicator::ranks(kRanks);
    expect(apart(one, together(layout, ranks)) < 1e-5, layout);
    expect(ranks[0].traffic().ranks == kRanks && ranks[0].traffic().sent > 0, "traffic is counted");

    Mail mail;
    Post posts[kRanks];
    std::vector<attune::Communicator> own;
    for (int r = 0; r < kRanks; ++r) {
      posts[r] = {&mail, r, {}, {}};
      attune_transport t{};
      t.rank = r, t.ranks = kRanks, t.self = &posts[r];
      t.start = post_start, t.finish = post_finish, t.error = post_error;
      own.emplace_back(t);
    }
    expect(apart(one, together(layout, own)) < 1e-5, std::string(layout) + ", a transport of the caller's");
    own[0].limit(0.05);
    refused(attune_communicator_barrier(own[0].get()), "rank 0 of 3: a transfer did not finish: the post did not come");
  }
  const std::vector<int64_t> tokens = attune::shard_tokens("zigzag", 12, 3, 0);
  expect(tokens == std::vector<int64_t>({0, 1, 10, 11}), "tokens of a zigzag");
  mistakes();
  mistakes_of_copies();
  return finish("ring");
}
