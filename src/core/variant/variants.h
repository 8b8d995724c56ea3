// SPDX-License-Identifier: Apache-2.0
// The tensors that a variant takes and returns besides the dense roles, declared once. The argument check, the test
// inputs of verify and the error messages all use it. A new variant is an entry in variants.cpp.
#pragma once
#include <array>

#include "core/args.h"

namespace attune {

enum class Use : int32_t {
  none,    // the variant has no tensor with this number
  input,   // read; its gradient is the d_variant tensor of the same number
  list,    // integers, read; no gradient
  saved,   // written by a forward if given; read and required by a backward
  result,  // written only, by a forward
};
// Which rows a tensor has. Rows outside every sequence are never read, as in q or k.
enum class RowsOf : int32_t { none, q, k };

struct VariantTensor {
  std::string_view name{};
  Use use = Use::none;
  DType dtype = DType::none;
  Extents extent{};                   // exact
  RowsOf rows = RowsOf::none;
  bool optional = false;              // for inputs, lists and results; saved tensors are optional in a forward
  std::array<int32_t, 2> or_heads{};  // alternative extents of the head axis; 0: none
  double inputs = 1;                  // for weights: the number of values in one sum, which scales random test weights
};

// Dense roles, one bit each.
using Roles = uint64_t;
template <class... R>
constexpr Roles roles(R... r) { return (Roles(0) | ... | (Roles(1) << int(r))); }
constexpr Roles roles_if(bool condition, Roles r) { return condition ? r : 0; }

struct Declared {
  bool dense = true;                 // takes the dense roles of a problem without variant, except for these:
  Roles required = 0, optional = 0;  // all roles, if not dense
  Roles read = 0;                    // roles that are inputs here but outputs otherwise: lse
  Extents out{0, 0, 0, 0};           // nonzero extents replace those of a dense problem
  Extents k{0, 0, 0, 0};
  bool self = false;                 // as many keys as queries, in every sequence
  bool lengths_of_k = true;          // cu_k and used_k count rows of k
  int32_t listed = 0;                // tokens that block lists cover, if not len_q and len_k
  VariantTensor tensor[kVariantTensors]{};
};

struct VariantWord {
  std::string_view word;
  Status (*valid)(const Problem&);                          // checks parameters and compatible features
  void (*declare)(const Problem&, const Args&, Declared&);  // requires a valid problem; uses extents of given q and k
};
const VariantWord* find_variant(std::string_view word);  // null for an unknown word

Declared declared(const Problem&, const Args&);

}  // namespace attune
