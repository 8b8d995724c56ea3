// What a variant takes and gives beside the dense roles, declared once: the check of arguments, the worlds that verify
// makes and the sentences about them all read it. A new variant is an entry in variants.cpp.
#pragma once
#include <array>

#include "core/args.h"

namespace attune {

enum class Use : int32_t {
  none,    // the variant has no tensor of this number
  input,   // read; its gradient is the d_variant tensor of the same number
  list,    // integers, read; no gradient
  saved,   // a forward writes it where it is given; a backward reads it and needs it
  result,  // only written, by a forward
};
// Whose rows a tensor has: those of no sequence are never read there, as they are not in q or k.
enum class RowsOf : int32_t { nobody, q, k };

struct VariantTensor {
  std::string_view name{};
  Use use = Use::none;
  DType dtype = DType::none;
  Extents extent{};                     // exactly
  RowsOf rows = RowsOf::nobody;
  bool optional = false;                // of inputs, lists and results; what is saved is optional in a forward
  std::array<int32_t, 2> or_heads{};    // other extents that the head axis may have; 0: none
  double inputs = 1;                    // of weights: how many values one sum of them takes; a trial draws them so
};

// Dense roles, one bit each.
using Roles = uint64_t;
template <class... R>
constexpr Roles roles(R... r) { return (Roles(0) | ... | (Roles(1) << int(r))); }
constexpr Roles roles_if(bool condition, Roles r) { return condition ? r : 0; }

struct Declared {
  bool dense = true;               // takes the dense roles as a problem without variant does, but for these:
  Roles required = 0, optional = 0;  // all of them, where it is not dense
  Roles read = 0;                  // of the roles that are written otherwise: lse, where it is an input
  Extents out{0, 0, 0, 0};         // what is not 0 is not as in a dense problem
  Extents k{0, 0, 0, 0};
  bool self = false;               // keys are as many as queries, sequence by sequence
  bool lengths_of_k = true;        // cu_k and used_k count rows of k
  int32_t listed = 0;              // tokens that block lists are of, where these are not len_q and len_k
  VariantTensor tensor[kVariantTensors]{};
};

struct VariantWord {
  std::string_view word;
  Status (*valid)(const Problem&);                          // its parameters and what it goes together with
  void (*declare)(const Problem&, const Args&, Declared&);  // of a valid problem; extents of q and k are those given
};
const VariantWord* find_variant(std::string_view word);  // null where no such word is known

Declared declared(const Problem&, const Args&);

}  // namespace attune
