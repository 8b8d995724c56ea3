// SPDX-License-Identifier: Apache-2.0
// One rank's endpoint of a group, as a variant sees it: transfers that start and finish, on either device. It adds what
// all transports need: a timeout for every wait, a sticky error, pinned memory to stage GPU data for host-only
// transports, collective exchanges, and traffic counters. Used by one thread at a time.
#pragma once
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "core/status.h"
#include "core/tensor.h"
#include "transport/transport.h"

namespace attune {

inline constexpr double kPatience = 60;  // seconds

// The device of the memory in transfers, and the stream that orders its use.
struct CopyLane {
  DeviceKind device = DeviceKind::cpu;
  int32_t index = 0;
  void* stream = nullptr;
};

struct Traffic {
  uint64_t sent = 0, received = 0;  // bytes
  uint64_t messages = 0;            // number sent
};

class Communicator {
 public:
  explicit Communicator(const Transport& transport, double seconds = kPatience);
  ~Communicator();
  Communicator(const Communicator&) = delete;
  Communicator& operator=(const Communicator&) = delete;

  int rank() const { return transport_.rank; }
  int ranks() const { return transport_.ranks; }
  double seconds() const { return seconds_; }
  void set_seconds(double s) { seconds_ = s; }
  const Traffic& traffic() const { return traffic_; }

  // Two transfers may be open at once; each must be finished.
  using Ticket = int;
  Status start(std::span<const Transfer>, const CopyLane&, Ticket& out);
  Status finish(Ticket, const CopyLane&);
  // If `why` is an error, tells the other ranks that this one stops. Returns `why`.
  Status fail(Status why);

  // Data to and from every rank, including this one.
  struct Both { const void* from = nullptr; void* to = nullptr; size_t send_bytes = 0, receive_bytes = 0; };
  Status all_to_all(std::span<const Both> by_rank, const CopyLane&);
  Status barrier();

 private:
  struct Staging;
  struct Open {
    void* ticket = nullptr;
    bool begun = false;     // has a ticket of the transport
    bool waiting = false;   // started here; the transport starts when the GPU has copied its data to the host
    std::vector<Transfer> asked{}, staged{};
  };
  Status said(std::string_view doing);
  Status stage(Open&, int slot, const CopyLane&);
  Status unstage(Open&, int slot, const CopyLane&);

  Transport transport_;
  double seconds_;
  Status failed_{};  // of every later call
  Traffic traffic_{};
  Open open_[2]{};
  std::vector<Transfer> list_{};
  std::unique_ptr<Staging> staging_;
};

// `count` ranks in this process, each for one thread of the caller: host or GPU memory.
Status make_ranks(int count, std::vector<Transport>& out);

// An MPI rank, through the plug-in libattune_mpi. `comm` is an MPI_Comm*, null for MPI_COMM_WORLD.
Status open_mpi(const void* comm, Transport& out);

// An NCCL rank, one per GPU. Rank 0 makes the id, and the caller distributes it. Either all ranks join within the
// timeout, or none does.
inline constexpr size_t kNcclIdBytes = 128;
Status make_nccl_id(std::span<std::byte, kNcclIdBytes> out);
Status open_nccl(std::span<const std::byte, kNcclIdBytes> id, int rank, int ranks, int device, Transport& out,
                 double seconds = kPatience);

}  // namespace attune
