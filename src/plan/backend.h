// A backend is one file that fills in this table and one line in backends.def.
#pragma once
#include <span>
#include <string_view>
#include <vector>

#include "core/args.h"
#include "core/device.h"
#include "core/workspace.h"

namespace attune {

using Stream = void*;  // cudaStream_t; ignored on the CPU

struct Backend;
struct Rule;

// Everything decided before any work is done. A plain value: print it, compare it, store it.
struct Plan {
  const Backend* backend = nullptr;
  Problem problem{};
  Device device{};
  int tile_q = 64, tile_k = 64, splits = 1;
  int tail_q = 0;             // so many queries at the end of every sequence are tiles of another kind
  int kernel = 0;             // which of the backend's kernels, where it has several
  size_t workspace_bytes = 0;
  std::string why{};          // "h200.tsv:7", or the order of backends.def
  std::string refused{};      // a line for each backend that was asked before and said no
  const Backend* instead_of = nullptr;  // the link before it, where that did not fit the arguments of a call
  std::vector<Plan> parts{};  // a variant composed of simpler problems: theirs
};

// What planning may look at. Nothing here touches a device.
struct Planner {
  Device device{};
  std::span<const Rule> rules{};
  std::string_view forced{};  // a backend by name; its refusal is an error, never a substitute
  std::span<const Backend* const> unfit{};  // backends that the arguments of a call have ruled out
  Status plan(const Problem&, Plan& out) const;
};

struct Backend {
  std::string_view name;
  bool only_by_name = false;                          // the reference: for checking, never chosen
  Status (*supports)(const Problem&, const Device&);  // pure; a refusal is a sentence
  Status (*shape)(Plan&, const Planner&);             // pure: tiles, splits, parts, workspace
  Status (*run)(const Plan&, const Args&, Workspace, Stream);
  // What only arguments tell: alignment, lengths, gradients that are not wanted. Pure and quick, since every call asks;
  // a refusal sends the call to the next link of the chain. Null: every valid call fits.
  Status (*fits)(const Plan&, const Args&) = nullptr;
};

}  // namespace attune
