// SPDX-License-Identifier: Apache-2.0
// Virtual ranks and what a communicator adds: order, sizes, all-to-all exchanges. A missing, late or broken rank gives
// an error on the others, never a hang.
#include <gtest/gtest.h>

#include <functional>
#include <thread>

#include "transport/communicator.h"

namespace attune {
namespace {

// Runs `work` as every rank, one thread each, and returns their statuses.
std::vector<Status> as_ranks(int count, double seconds, const std::function<Status(Communicator&)>& work) {
  std::vector<Transport> transports;
  EXPECT_TRUE(make_ranks(count, transports).ok());
  std::vector<Status> said(static_cast<size_t>(count));
  std::vector<std::thread> threads;
  for (int r = 0; r < count; ++r)
    threads.emplace_back([&, r] {
      Communicator comm(transports[size_t(r)], seconds);
      said[size_t(r)] = comm.fail(work(comm));
    });
  for (std::thread& t : threads) t.join();
  return said;
}

Status one(Communicator& comm, int peer, bool receive, void* data, size_t bytes) {
  const Transfer transfer{peer, receive, data, bytes};
  Communicator::Ticket ticket = 0;
  if (Status s = comm.start({&transfer, 1}, {}, ticket); !s.ok()) return s;
  return comm.finish(ticket, {});
}

TEST(ranks, a_number_goes_round) {
  for (const Status& s : as_ranks(5, 10, [](Communicator& comm) {
         int mine = comm.rank(), sum = 0;
         for (int step = 0; step < comm.ranks(); ++step) {
           sum += mine;
           int next = -1;
           const Transfer both[2] = {{(comm.rank() + 1) % comm.ranks(), 0, &mine, sizeof mine},
                                     {(comm.rank() + comm.ranks() - 1) % comm.ranks(), 1, &next, sizeof next}};
           Communicator::Ticket ticket = 0;
           if (Status s = comm.start(both, {}, ticket); !s.ok()) return s;
           if (Status s = comm.finish(ticket, {}); !s.ok()) return s;
           mine = next;
         }
         return sum == 10 && mine == comm.rank() ? Status::good() : Status::no("sum ", sum, ", mine ", mine);
       }))
    EXPECT_TRUE(s.ok()) << s.message;
}

TEST(ranks, messages_arrive_in_the_order_they_were_sent) {
  for (const Status& s : as_ranks(2, 10, [](Communicator& comm) {
         for (int n = 0; n < 100; ++n) {
           int x = comm.rank() ? -1 : n;
           if (Status s = one(comm, 1 - comm.rank(), comm.rank(), &x, sizeof x); !s.ok()) return s;
           if (x != n) return Status::no("message ", n, " is ", x);
         }
         return Status::good();
       }))
    EXPECT_TRUE(s.ok()) << s.message;
}

TEST(ranks, everybody_exchanges_with_everybody) {
  for (const Status& s : as_ranks(4, 10, [](Communicator& comm) {
         // Rank r sends r + 1 numbers to every rank.
         const int ranks = comm.ranks(), me = comm.rank();
         std::vector<int> sent(size_t(me + 1), me);
         std::vector<std::vector<int>> got(static_cast<size_t>(ranks));
         std::vector<Communicator::Both> all(static_cast<size_t>(ranks));
         for (int r = 0; r < ranks; ++r) {
           got[size_t(r)].assign(size_t(r + 1), -1);
           all[size_t(r)] = {sent.data(), got[size_t(r)].data(), sent.size() * sizeof(int),
                             size_t(r + 1) * sizeof(int)};
         }
         if (Status s = comm.all_to_all(all, {}); !s.ok()) return s;
         for (int r = 0; r < ranks; ++r)
           for (const int x : got[size_t(r)])
             if (x != r) return Status::no("from ", r, " came ", x);
         return comm.barrier();
       }))
    EXPECT_TRUE(s.ok()) << s.message;
}

TEST(ranks, what_was_moved_is_counted) {
  for (const Status& s : as_ranks(2, 10, [](Communicator& comm) {
         char bytes[48] = {};
         if (Status s = one(comm, 1 - comm.rank(), comm.rank(), bytes, sizeof bytes); !s.ok()) return s;
         const Traffic& t = comm.traffic();
         const bool right = comm.rank() ? t.received == 48 && !t.sent && !t.messages
                                        : t.sent == 48 && !t.received && t.messages == 1;
         return right ? Status::good() : Status::no("counted ", t.sent, " and ", t.received);
       }))
    EXPECT_TRUE(s.ok()) << s.message;
}

TEST(ranks, a_message_of_another_size_is_an_error_on_both_sides) {
  const std::vector<Status> said = as_ranks(2, 10, [](Communicator& comm) {
    char bytes[8] = {};
    return one(comm, 1 - comm.rank(), comm.rank(), bytes, comm.rank() ? 8 : 4);
  });
  EXPECT_EQ(said[0].message,
            "rank 0 of 2: a transfer did not finish: rank 0 sends 4 bytes, but rank 1 expects 8");
  EXPECT_EQ(said[1].message,
            "rank 1 of 2: a transfer did not finish: rank 0 sends 4 bytes, but rank 1 expects 8");
}

TEST(ranks, a_rank_that_never_comes_is_a_sentence_within_the_limit) {
  std::vector<Transport> transports;
  ASSERT_TRUE(make_ranks(2, transports).ok());
  Communicator present(transports[0], 0.2), absent(transports[1], 0.2);
  int x = 0;
  const Status s = one(present, 1, true, &x, sizeof x);
  EXPECT_EQ(s.message, "rank 0 of 2: a transfer did not finish: rank 1 sent nothing within 0.2 s");
  EXPECT_EQ(s.code, Code::device);
  // The error persists: a group that lost a rank is not reused by accident.
  const Status again = one(present, 1, true, &x, sizeof x);
  EXPECT_EQ(again.message, s.message);
  EXPECT_EQ(again.code, s.code);
  // A late rank learns why the others are gone.
  EXPECT_EQ(one(absent, 0, false, &x, sizeof x).message,
            "rank 1 of 2: a transfer did not finish: rank 0 stopped: rank 1 sent nothing within 0.2 s");
}

TEST(ranks, a_rank_that_fails_ends_the_others_at_once) {
  const std::vector<Status> said = as_ranks(3, 300, [](Communicator& comm) {
    if (comm.rank() == 2) return Status::no("the GPU fell off the bus");
    int x = 0;
    return one(comm, 2, true, &x, sizeof x);
  });
  for (int r = 0; r < 2; ++r)
    EXPECT_EQ(said[size_t(r)].message,
              join("rank ", r, " of 3: a transfer did not finish: rank 2 stopped: the GPU fell off the bus"));
  EXPECT_EQ(said[2].message, "the GPU fell off the bus");
}

TEST(ranks, a_rank_that_ends_early_is_said_to_have_ended) {
  const std::vector<Status> said = as_ranks(2, 300, [](Communicator& comm) {
    int x = 0;
    return comm.rank() ? Status::good() : one(comm, 1, true, &x, sizeof x);
  });
  EXPECT_EQ(said[0].message, "rank 0 of 2: a transfer did not finish: rank 1 stopped: it was destroyed");
}

TEST(ranks, nothing_is_written_after_a_wait_has_given_up) {
  std::vector<Transport> transports;
  ASSERT_TRUE(make_ranks(2, transports).ok());
  Communicator receiver(transports[0], 0.05), sender(transports[1], 0.05);
  int x = 7, y = 8;
  EXPECT_FALSE(one(receiver, 1, true, &x, sizeof x).ok());
  EXPECT_FALSE(one(sender, 0, false, &y, sizeof y).ok());
  EXPECT_EQ(x, 7);
}

TEST(ranks, a_transfer_with_itself_or_with_nobody_is_refused) {
  std::vector<Transport> transports;
  ASSERT_TRUE(make_ranks(2, transports).ok());
  Communicator comm(transports[0], 0.1), other(transports[1], 0.1);
  int x = 0;
  EXPECT_EQ(one(comm, 0, true, &x, sizeof x).message, "communicator: peer 0 is not another of the 2 ranks");
  EXPECT_EQ(one(comm, 2, true, &x, sizeof x).message, "communicator: peer 2 is not another of the 2 ranks");
  EXPECT_EQ(make_ranks(0, transports).message, "ranks = 0 is not in 1 ... 1024");
}

}  // namespace
}  // namespace attune
