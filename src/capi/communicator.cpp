// SPDX-License-Identifier: Apache-2.0
// Ranks and shards in the C interface. An attune_communicator is a Communicator; args.communicator points to one.
#include "transport/communicator.h"

#include <cmath>

#include "capi/convert.h"
#include "capi/local.h"
#include "core/dtypes.h"
#include "core/overlap.h"
#include "core/variant/ring.h"
#include "machine/host.h"
#include "machine/tensor_ops.h"

using namespace attune;

namespace {

static_assert(ATTUNE_NCCL_ID == kNcclIdBytes);
static_assert(sizeof(attune_transfer) == sizeof(Transfer));
static_assert(offsetof(attune_transfer, data) == offsetof(Transfer, data));
static_assert(offsetof(attune_transfer, bytes) == offsetof(Transfer, bytes));

constexpr double kMostSeconds = 1e6;

attune_communicator* handle(Communicator* c) { return reinterpret_cast<attune_communicator*>(c); }
Communicator* inside(attune_communicator* c) { return reinterpret_cast<Communicator*>(c); }
const Communicator* inside(const attune_communicator* c) { return reinterpret_cast<const Communicator*>(c); }

// A transport implemented by the caller: its C table, stored next to the self pointer that it is called with.
struct Callers {
  attune_transport c;
};
int start(void* self, const Transfer* transfers, int32_t count, int32_t device, void* stream, void** ticket) {
  const attune_transport& c = static_cast<Callers*>(self)->c;
  return c.start(c.self, reinterpret_cast<const attune_transfer*>(transfers), count, device, stream, ticket);
}
int finish(void* self, void* ticket, double seconds, void* stream) {
  const attune_transport& c = static_cast<Callers*>(self)->c;
  return c.finish(c.self, ticket, seconds, stream);
}
void fail(void* self, const char* why) {
  const attune_transport& c = static_cast<Callers*>(self)->c;
  if (c.fail) c.fail(c.self, why);
}
const char* error(void* self) {
  const attune_transport& c = static_cast<Callers*>(self)->c;
  return c.error ? c.error(c.self) : nullptr;
}
void destroy(void* self) {
  Callers* mine = static_cast<Callers*>(self);
  if (mine->c.destroy) mine->c.destroy(mine->c.self);
  delete mine;
}

Status shards_of(const char* layout, int32_t tokens, int32_t ranks, int32_t rank, Shards& out) {
  if (!layout) return Status::no("layout is null");
  Problem p;
  Ring ring;
  const std::string text = join("ring layout=", layout, " ranks=", ranks, " tokens=", tokens);
  if (Status s = assign(p.variant, text); !s.ok()) return s;
  if (Status s = read_ring(p.variant, ring); !s.ok()) return s;
  if (rank < 0 || rank >= ranks) return Status::no("ring: rank = ", rank, " is not in 0 ... ", ranks - 1);
  return out = ring.shards, Status::good();
}

// A tensor of a copy, under its name in the interface.
Status tensor_named(std::string_view name, const attune_tensor* given, Tensor& out) {
  const auto no = [&](const auto&... why) { return Status::no(name, ": ", why...); };
  if (!given) return Status::no(name, " is null");
  if (Status s = tensor_of(*given, name, out); !s.ok()) return s;
  if (!is_floating(out.dtype)) return no("dtype ", attune::name(out.dtype), " is not one of f64, f32, f16, bf16, e4m3");
  if (reinterpret_cast<uintptr_t>(out.data) % uintptr_t(size_of(out.dtype)))
    return no("data is not aligned to its dtype ", attune::name(out.dtype));
  return Status::good();
}

// Checks everything but the number of rows for a copy from `whole` into a shard, or back.
Status check_copy(const Tensor& whole, const Tensor& shard, bool back) {
  const auto no = [](const auto&... why) { return Status::no("shard: ", why...); };
  const Extents &w = whole.extent, &s = shard.extent;
  if (s.batch != w.batch) return no("batch = ", s.batch, ", but whole has ", w.batch);
  if (s.head != w.head) return no("head = ", s.head, ", but whole has ", w.head);
  if (s.dim != w.dim) return no("dim = ", s.dim, ", but whole has ", w.dim);
  if (shard.device != whole.device || shard.device_index != whole.device_index)
    return no("is not on the device of whole");
  const Placed both[] = {{"whole", whole, back}, {"shard", shard, !back}};
  return check_places(both);
}

}  // namespace

int attune_ranks_create(int32_t ranks, attune_communicator** out) {
  return answer([&] {
    if (!out) return Status::no("out is null");
    std::vector<Transport> transports;
    if (Status s = make_ranks(ranks, transports); !s.ok()) return s;
    for (size_t n = 0; n < transports.size(); ++n) out[n] = handle(new Communicator(transports[n]));
    return Status::good();
  });
}

int attune_mpi_create(const void* comm, attune_communicator** out) {
  return answer([&] {
    if (!out) return Status::no("out is null");
    Transport transport;
    if (Status s = open_mpi(comm, transport); !s.ok()) return s;
    return *out = handle(new Communicator(transport)), Status::good();
  });
}

int attune_nccl_id(void* id) {
  return answer([&] {
    if (!id) return Status::no("id is null");
    return make_nccl_id(std::span<std::byte, kNcclIdBytes>(static_cast<std::byte*>(id), kNcclIdBytes));
  });
}

int attune_nccl_create(const void* id, int32_t rank, int32_t ranks, const char* device, attune_communicator** out) {
  return answer([&] {
    if (!id || !out) return Status::no(out ? "id is null" : "out is null");
    Device d;
    Transport transport;
    if (Status s = device_named(device ? device : "cuda:0", d); !s.ok()) return s;
    if (d.kind != DeviceKind::cuda || d.index < 0)
      return Status::no("NCCL: device '", device ? device : "cuda:0", "' is not a GPU of this machine");
    const std::span<const std::byte, kNcclIdBytes> bytes(static_cast<const std::byte*>(id), kNcclIdBytes);
    if (Status s = open_nccl(bytes, rank, ranks, d.index, transport); !s.ok()) return s;
    return *out = handle(new Communicator(transport)), Status::good();
  });
}

int attune_transport_create(const attune_transport* given, attune_communicator** out) {
  return answer([&] {
    if (!given || !out) return Status::no(out ? "transport is null" : "out is null");
    if (given->size < sizeof *given || given->size > kMostBytes)
      return Status::no("transport.size = ", given->size, " is not sizeof(attune_transport)");
    if (!given->start || !given->finish) return Status::no("transport: start and finish are both required");
    if (given->ranks < 1 || given->rank < 0 || given->rank >= given->ranks)
      return Status::no("transport: rank = ", given->rank, " is not in 0 ... ", given->ranks - 1);
    auto mine = std::make_unique<Callers>(Callers{*given});
    auto made = std::make_unique<Communicator>(Transport{.self = mine.get(), .rank = given->rank, .ranks = given->ranks,
                                                         .gpu = given->gpu, .start = start, .finish = finish,
                                                         .fail = fail, .error = error, .destroy = destroy});
    (void)mine.release();
    return *out = handle(made.release()), Status::good();
  });
}

int attune_communicator_limit(attune_communicator* communicator, double seconds) {
  return answer([&] {
    if (!communicator) return Status::no("communicator is null");
    if (!(seconds > 0 && seconds <= kMostSeconds))
      return Status::no("seconds = ", seconds, " is not above 0 and at most ", kMostSeconds);
    return inside(communicator)->set_seconds(seconds), Status::good();
  });
}

int attune_communicator_traffic(const attune_communicator* communicator, attune_traffic* out) {
  return answer([&] {
    if (!communicator || !out) return Status::no(out ? "communicator is null" : "out is null");
    if (out->size < sizeof *out || out->size > kMostBytes)
      return Status::no("traffic.size = ", out->size, " is not sizeof(attune_traffic)");
    const Traffic& t = inside(communicator)->traffic();
    out->rank = inside(communicator)->rank(), out->ranks = inside(communicator)->ranks();
    out->sent = t.sent, out->received = t.received, out->messages = t.messages;
    return Status::good();
  });
}

int attune_communicator_barrier(attune_communicator* communicator) {
  return answer([&] { return communicator ? inside(communicator)->barrier() : Status::no("communicator is null"); });
}

void attune_communicator_destroy(attune_communicator* communicator) { delete inside(communicator); }

int attune_shard_tokens(const char* layout, int32_t tokens, int32_t ranks, int32_t rank, int32_t* count,
                        int64_t* tokens_out) {
  return answer([&] {
    Shards shards;
    if (!count) return Status::no("count is null");
    if (Status s = shards_of(layout, tokens, ranks, rank, shards); !s.ok()) return s;
    if (tokens_out && *count < shards.count(rank))
      return Status::no("count = ", *count, " given, but tokens_out needs room for the ", shards.count(rank),
                        " tokens of rank ", rank);
    *count = shards.count(rank);
    for (int row = 0; tokens_out && row < *count; ++row) tokens_out[row] = shards.token(rank, row);
    return Status::good();
  });
}

int attune_shard_copy(const char* layout, int32_t ranks, int32_t rank, const attune_tensor* whole,
                      const attune_tensor* shard, int back, void* stream) {
  return answer([&] {
    Tensor all, own;
    Shards shards;
    if (Status s = tensor_named("whole", whole, all); !s.ok()) return s;
    if (Status s = tensor_named("shard", shard, own); !s.ok()) return s;
    if (Status s = shards_of(layout, all.extent.seq, ranks, rank, shards); !s.ok()) return s;
    if (own.extent.seq != shards.count(rank))
      return Status::no("shard: has ", own.extent.seq, " rows, but rank ", rank, " has ", shards.count(rank), " of ",
                        shards.tokens, " tokens");
    if (Status s = check_copy(all, own, back); !s.ok()) return s;
    for (int n = 0; n < shards.pieces(); ++n) {
      const Piece piece = shards.piece(rank, n);
      const Tensor there = pick_rows(all, piece.first, piece.count, piece.step);
      const Tensor here = pick_rows(own, shards.first_row(rank, n), piece.count);
      if (!piece.count) continue;
      if (Status s = back ? convert(here, there, stream) : convert(there, here, stream); !s.ok()) return s;
    }
    return Status::good();
  });
}
