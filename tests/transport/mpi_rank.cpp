// SPDX-License-Identifier: Apache-2.0
// One process of transport_mpi_test, started by mpirun: mpi_rank WHAT SECONDS. Prints one line and returns 0 only if
// everything succeeded.
#define OMPI_SKIP_MPICXX 1
#define MPICH_SKIP_MPICXX 1
#include <mpi.h>
#include <unistd.h>

#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <string_view>

#include "transport/communicator.h"

using namespace attune;

namespace {

Status one(Communicator& comm, int peer, bool receive, void* data, size_t bytes) {
  const Transfer transfer{peer, receive, data, bytes};
  Communicator::Ticket ticket = 0;
  if (Status s = comm.start({&transfer, 1}, {}, ticket); !s.ok()) return s;
  return comm.finish(ticket, {});
}

// Every rank gets a number from every rank, and rank 0 a long message from each.
Status exchange(Communicator& comm) {
  const int ranks = comm.ranks(), me = comm.rank();
  std::vector<int> sent(size_t(ranks), me * 100), got(size_t(ranks), -1);
  std::vector<Communicator::Both> all;
  for (int r = 0; r < ranks; ++r) all.push_back({&sent[size_t(r)], &got[size_t(r)], sizeof(int), sizeof(int)});
  if (Status s = comm.all_to_all(all, {}); !s.ok()) return s;
  for (int r = 0; r < ranks; ++r)
    if (got[size_t(r)] != r * 100) return Status::no("from rank ", r, " came ", got[size_t(r)]);
  std::vector<char> bytes(size_t(5) << 20, char(me));
  for (int r = 1; r < ranks; ++r) {
    if (me && me != r) continue;
    if (Status s = one(comm, me ? 0 : r, !me, bytes.data(), bytes.size()); !s.ok()) return s;
    if (bytes.back() != char(r)) return Status::no("from rank ", r, " came ", int(bytes.back()));
  }
  return comm.barrier();
}

// Rank 0 starts one transfer before rank 1 creates the group, and another afterwards.
Status ordered(Communicator& comm) {
  char x[2] = {'a', 'b'};
  if (comm.rank()) {
    for (char& c : x)
      if (Status s = one(comm, 0, true, &c, 1); !s.ok()) return s;
    return x[0] == 'a' && x[1] == 'b' ? Status::good() : Status::no("came ", x[0], ", then ", x[1]);
  }
  Communicator::Ticket ticket[2] = {};
  for (int n = 0; n < 2; ++n) {
    const Transfer transfer{1, false, x + n, 1};
    if (Status s = comm.start({&transfer, 1}, {}, ticket[n]); !s.ok()) return s;
    if (n == 0) MPI_Barrier(MPI_COMM_WORLD);
    for (int turn = 0, there = 0; n == 0 && turn < 1000; ++turn)  // MPI progresses only when it is called
      MPI_Iprobe(MPI_ANY_SOURCE, 0, MPI_COMM_WORLD, &there, MPI_STATUS_IGNORE), usleep(200);
  }
  for (const Communicator::Ticket t : ticket)
    if (Status s = comm.finish(t, {}); !s.ok()) return s;
  return Status::good();
}

Status run(Communicator& comm, std::string_view what) {
  char x[8] = {};
  const int me = comm.rank(), last = comm.ranks() - 1;
  if (what == "exchange") return exchange(comm);
  if (what == "ordered") return ordered(comm);
  if (what == "absent") return one(comm, 1 - me, me, x, sizeof x);
  if (what == "sizes") return me > 1 ? Status::good() : one(comm, 1 - me, me, x, me ? 8 : 4);
  if (Status s = comm.barrier(); !s.ok()) return s;
  if (me == last && what == "killed") raise(SIGKILL);
  if (me == last && what == "silent") return sleep(3), Status::good();
  return one(comm, last, true, x, sizeof x);
}

// A process of the job that creates the group late or never.
bool absent(std::string_view what) {
  if (what != "absent" && what != "ordered") return false;
  int level = 0, rank = 0, ranks = 0;
  MPI_Init_thread(nullptr, nullptr, MPI_THREAD_MULTIPLE, &level);
  MPI_Comm_rank(MPI_COMM_WORLD, &rank), MPI_Comm_size(MPI_COMM_WORLD, &ranks);
  if (what == "ordered") return rank && MPI_Barrier(MPI_COMM_WORLD) != MPI_SUCCESS;
  if (rank + 1 == ranks) sleep(3);
  return rank + 1 == ranks;
}

}  // namespace

int main(int, char** argv) {
  if (absent(argv[1])) _exit(0);
  Transport transport;
  Status s = open_mpi(nullptr, transport);
  if (s.ok()) {
    Communicator comm(transport, std::atof(argv[2]));
    s = comm.fail(run(comm, argv[1]));
    std::printf("%s\n", s.ok() ? "good" : s.message.c_str());
    std::fflush(stdout);
    if (!s.ok()) _exit(0);  // MPI cannot be finalized after losing a rank
    return 0;
  }
  std::printf("%s\n", s.message.c_str());
  return 1;
}
