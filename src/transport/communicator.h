// One rank's end of a group, as a variant sees it: transfers that begin and end, on either device. It adds to a
// transport what all of them need: a limit for every wait, an error that stays, pinned memory to stage what lies on a
// GPU where the transport knows only the host, exchanges among all ranks, and a count of what was moved. One thread at
// a time.
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

// Where the memory of transfers lies, and in which order it is used.
struct CopyLane {
  DeviceKind device = DeviceKind::cpu;
  int32_t index = 0;
  void* stream = nullptr;
};

struct Traffic {
  uint64_t sent = 0, received = 0;  // bytes
  uint64_t messages = 0;            // that were sent
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

  // Two may be under way at once, and each is finished.
  using Ticket = int;
  Status start(std::span<const Transfer>, const CopyLane&, Ticket& out);
  Status finish(Ticket, const CopyLane&);
  // Where `why` is an error: tells the others that this rank stops. Returns it.
  Status fail(Status why);

  // To every rank, itself included, and from it.
  struct Both { const void* from = nullptr; void* to = nullptr; size_t send_bytes = 0, receive_bytes = 0; };
  Status all_to_all(std::span<const Both> by_rank, const CopyLane&);
  Status barrier();

 private:
  struct Staging;
  struct Open {
    void* ticket = nullptr;
    bool begun = false;     // a ticket of the transport's
    bool waiting = false;   // started here; begins at the host when the GPU has copied its part there
    std::vector<Transfer> asked{}, staged{};
  };
  Status said(std::string_view doing);
  Status stage(Open&, int slot, const CopyLane&);
  Status unstage(Open&, int slot, const CopyLane&);

  Transport transport_;
  double seconds_;
  std::string failed_{};
  Traffic traffic_{};
  Open open_[2]{};
  std::vector<Transfer> list_{};
  std::unique_ptr<Staging> staging_;
};

// `count` ranks in this process, each for a thread of the caller's: memory of the host, or of GPUs.
Status make_ranks(int count, std::vector<Transport>& out);

// A rank of MPI, through the plug-in libattune_mpi. `comm` is an MPI_Comm*, null for all that were started.
Status open_mpi(const void* comm, Transport& out);

// A rank of NCCL, one a GPU. Rank 0 makes the id, and the caller brings it to the others; all are there within the
// limit, or none is.
inline constexpr size_t kNcclIdBytes = 128;
Status make_nccl_id(std::span<std::byte, kNcclIdBytes> out);
Status open_nccl(std::span<const std::byte, kNcclIdBytes> id, int rank, int ranks, int device, Transport& out,
                 double seconds = kPatience);

}  // namespace attune
