// SPDX-License-Identifier: Apache-2.0
// A backend is one file that fills in this table, and one line in backends.def.
#pragma once
#include <cstring>
#include <span>
#include <string_view>
#include <type_traits>
#include <vector>

#include "core/args.h"
#include "core/device.h"
#include "core/workspace.h"

namespace attune {

using Stream = void*;  // cudaStream_t; ignored on the CPU

struct Backend;
struct Rule;

// What a backend decided beyond tiles and splits, as a struct of its own: shape() sets it, run() obeys it, and
// Backend::describe puts it into words.
class Choice {
 public:
  template <class T>
  void set(const T& chosen) {
    static_assert(std::is_trivially_copyable_v<T> && sizeof(T) <= sizeof bytes_);
    std::memcpy(bytes_, &chosen, sizeof(T));
  }
  template <class T>
  T as() const {  // what set() stored; all zero before
    T chosen;
    std::memcpy(&chosen, bytes_, sizeof(T));
    return chosen;
  }

 private:
  alignas(8) unsigned char bytes_[64]{};
};

// Everything decided before a run. A plain value that can be printed, compared and stored.
struct Plan {
  const Backend* backend = nullptr;
  Problem problem{};
  Device device{};
  int tile_q = 64, tile_k = 64, splits = 1;
  int kernel = 0;             // index of the backend's kernel, if it has several
  Choice choice{};
  size_t workspace_bytes = 0;
  std::string why{};          // "h200.tsv:7", or the order of backends.def
  std::string refused{};      // one line for each backend that refused before
  const Backend* instead_of = nullptr;  // the previous link of the chain, if it did not fit the arguments of a call
  std::vector<Plan> sub_plans{};  // the plans of the simpler problems that a composition runs
};

// The inputs of planning. Nothing here touches a device.
struct Planner {
  Device device{};
  std::span<const Rule> rules{};
  std::string_view forced{};  // a backend by name; its refusal is an error, with no substitute
  std::span<const Backend* const> unfit{};  // backends ruled out by the arguments of a call
  Status plan(const Problem&, Plan& out) const;
};

struct Backend {
  std::string_view name;
  bool only_by_name = false;                          // never chosen by the planner: the reference, for checking
  Status (*supports)(const Problem&, const Device&);  // pure; a refusal is a sentence
  Status (*shape)(Plan&, const Planner&);             // pure: tiles, splits, choice, sub-plans, workspace
  Status (*run)(const Plan&, const Args&, Workspace, Stream);
  // Checks what only the arguments show: alignment, lengths, unused gradients. Pure and fast, because every call runs
  // it. A refusal sends the call to the next link of the chain. Null: every valid call fits.
  Status (*fits)(const Plan&, const Args&) = nullptr;
  std::string (*describe)(const Plan&) = nullptr;  // Plan::choice in words, for `attune plan`
};

}  // namespace attune
