// SPDX-License-Identifier: Apache-2.0
// The common part of the two methods of attention over ranks: checks of a call, and tensors in a workspace.
#pragma once
#include <algorithm>

#include "core/check.h"
#include "core/variant/ring.h"
#include "plan/backend.h"
#include "transport/communicator.h"

namespace attune::ring_detail {

inline CopyLane lane_of(const Args& a, Stream stream) {
  return {a[Role::q].device, a[Role::q].device_index, stream};
}

// A compact tensor at `data`, on the device of `like`.
inline Tensor compact(void* data, DType dtype, const Extents& e, const Tensor& like) {
  Strides stride{int64_t(e.seq) * e.head * e.dim, int64_t(e.head) * e.dim, e.dim};
  if (e.batch == 1) stride.batch = 0;
  if (e.seq == 1) stride.seq = 0;
  if (e.head == 1) stride.head = 0;
  return {data, dtype, like.device, like.device_index, e, stride};
}

inline size_t elements(const Extents& e) { return size_t(e.batch) * size_t(e.seq) * size_t(e.head) * size_t(e.dim); }

// Heads [first, first + count) of a tensor.
inline Tensor pick_heads(Tensor t, int64_t first, int32_t count) {
  t.data = row_address(t, 0, 0, first);
  t.extent.head = count;
  return t;
}

// Checks the sequences of a packed stream. On a GPU they are not checked; the values read there are clamped.
inline Status check_sequences(std::string_view who, const Problem& p, const Shards& shards, const Args& a) {
  const int32_t* at = a.row<const int32_t>(variant_tensor(kRingSequences));
  if (!at || a[Role::q].device != DeviceKind::cpu) return Status::good();
  const auto no = [&](int b, const auto&... why) { return Status::no(who, ": sequences[", b, "] = ", at[b], why...); };
  if (at[0]) return no(0, "; the first sequence must begin at 0");
  for (int b = 0; b < p.batch; ++b)
    if (at[b + 1] < at[b] || at[b + 1] - at[b] > p.len_q)
      return no(b + 1, "; it must be in ", at[b], " ... ", at[b], " + ", p.len_q);
  if (at[p.batch] != shards.tokens) return no(p.batch, "; the last sequence must end at ", shards.tokens);
  return Status::good();
}

// Checks that a communicator, null for one rank, has the right number of ranks, and sets `rank`.
inline Status rank_of(std::string_view who, const Shards& shards, void* given, Communicator*& comm, int& rank) {
  const auto no = [&](const auto&... why) {
    return Status::no(who, ": the problem has ", shards.ranks, " ranks, but ", why...);
  };
  comm = static_cast<Communicator*>(given);
  if (!comm && shards.ranks > 1) return no("no communicator is given");
  if (comm && comm->ranks() != shards.ranks) return no("the communicator has ", comm->ranks());
  return rank = comm ? comm->rank() : 0, Status::good();
}

// Checks that the call fits the shard of its rank.
inline Status joined(std::string_view who, const Problem& p, const Shards& shards, const Args& a, Communicator*& comm,
                     int& rank) {
  const auto no = [&](const auto&... why) { return Status::no(who, ": ", why...); };
  if (Status s = rank_of(who, shards, a.communicator, comm, rank); !s.ok()) return s;
  for (const Role r : {Role::used_q, Role::used_k, Role::left_pad, Role::cache_index})
    if (a.given(r)) return no(name(r), " given; lengths come from the shards");
  if (p.keys == KeySource::linear && a.given(Role::cu_q)) return no("cu_q given, but the keys are not ragged");
  for (const Role r : {Role::q, Role::k})
    if (a[r].extent.seq != shards.count(rank))
      return no(r == Role::q ? "q" : "k", " has ", a[r].extent.seq, " tokens, but rank ", rank, " has ",
                shards.count(rank), " of the ", shards.tokens);
  return check_sequences(who, p, shards, a);
}

// Runs a part of a plan if it fits the arguments.
inline Status run_part(const Plan& part, const Args& args, std::byte* scratch, Stream stream) {
  if (part.backend->fits)
    if (Status s = part.backend->fits(part, args); !s.ok()) return s;
  return part.backend->run(part, args, {.data = scratch}, stream);
}

}  // namespace attune::ring_detail
