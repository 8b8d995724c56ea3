// SPDX-License-Identifier: Apache-2.0
// The request: only what affects the choice of a backend or the code that runs. Values that may change from call to
// call (lengths, seeds, scale) are in Args. A Problem prints to one line, which is its name everywhere: tests,
// benchmarks, tuned files, error messages.
#pragma once
#include <cstring>
#include <string>
#include <string_view>
#include <type_traits>

#include "core/mask.h"
#include "core/status.h"

namespace attune {

enum class Pass : int32_t { forward, backward };
enum class KeySource : int32_t { linear, ragged, paged };
enum class Reproducible : int32_t { no, run, batch };   // batch: a row's bits do not depend on the other rows
enum class Precision : int32_t { full, tf32, tf32x3 };  // how f32 inputs may be multiplied
enum class Option : uint32_t {
  softcap, alibi, bias, dropout, sink,
  accumulate,           // a forward merges with out and lse, a backward adds to its gradients: read and written
  append,               // k_new and v_new are written after the used keys of the cache, then attended
  rotary, rotary_half,  // q and k_new, with append: pairs (2i, 2i + 1), or (i, i + rotated dims / 2)
  descale,              // q, k and v have a scale per (batch, KV head)
  block_bias,           // a value per entry of the block list, added to the logits of its pairs
  count
};

struct Types {
  DType q, kv, out;
  DType grad;  // dtype of dq, dk, dv; none in a forward
  DType bias;  // none without the option; always f32 with block_bias
};

// A word and its named parameters, stored as the text it prints to: "dilated rates=1,2 segments=2048,4096". Parameters
// are sorted by name, so each variant has one spelling. The rest of the text is zero.
struct Variant { char text[160]; };

struct Problem {
  Pass pass = Pass::forward;
  Types dtype{DType::f32, DType::f32, DType::f32, DType::none, DType::none};
  int32_t batch = 1, heads_q = 1, heads_kv = 1;
  int32_t len_q = 1, len_k = 1;    // upper bounds for one sequence
  int32_t dim_qk = 64, dim_v = 64;
  Mask mask{};
  uint32_t options = 0;            // one bit per Option
  KeySource keys = KeySource::linear;
  int32_t page = 0;                // keys per page; 0 unless paged
  Reproducible reproducible = Reproducible::no;
  Precision precision = Precision::full;
  Variant variant{};

  ATTUNE_HD constexpr bool has(Option o) const { return options >> int(o) & 1; }
  ATTUNE_HD constexpr bool rotates() const { return has(Option::rotary) || has(Option::rotary_half); }
  constexpr void set(Option o) { options |= 1u << int(o); }
  constexpr void clear(Option o) { options &= ~(1u << int(o)); }
  bool operator==(const Problem& other) const { return !std::memcmp(this, &other, sizeof *this); }
};
// No padding and no floats: equal problems have equal bytes, so the bytes are the key of the plan cache.
static_assert(std::is_trivially_copyable_v<Problem> && std::has_unique_object_representations_v<Problem>);

struct HashBytes { size_t operator()(const Problem&) const; };

std::string name(DType);
std::string name(Pass);
std::string name(Option);
std::string name(KeySource);
std::string name(const Mask&);
std::string name(const Types&);
// "forward bf16 b2 h32/8 q4096 k4096 d128 causal"; grammar in problem.cpp. parse(name(p)) yields p.
std::string name(const Problem&);
Status parse(std::string_view line, Problem& out);
Status parse(std::string_view word, DType& out);

Problem filled(Problem);       // zero fields take their defaults: heads_kv = heads_q, ...
Status valid(const Problem&);  // requires a filled problem

// Sorts, checks and stores "word name=value name=value".
Status assign(Variant&, std::string_view text);
std::string_view word(const Variant&);                          // "" without a variant
std::string_view value(const Variant&, std::string_view name);  // "" if not given
// The numbers of "1,2,4"; empty if the text is anything else. Fixed size: variants read it in `run`, which never
// allocates.
struct Numbers {
  int count = 0, value[32] = {};
  int operator[](int n) const { return value[n]; }
};
Numbers numbers(const Variant&, std::string_view name);

}  // namespace attune
