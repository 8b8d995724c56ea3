// SPDX-License-Identifier: Apache-2.0
// Everything a problem needs to run: inputs generated from a seed, and poisoned outputs. Memory outside every sequence
// (guards, padding, unused rows and pages) is 0xFF: NaN in every floating dtype and -1 in every integer, so a stray
// read shows. Outputs have another poison, because a NaN that was read keeps its bits.
#pragma once
#include <list>
#include <string>
#include <vector>

#include "core/variant/variants.h"
#include "reference/naive.h"

namespace attune {

// Sequence lengths: all at the problem's bounds; random up to them, including 0; or from 1, 31, 33, 65, 127, 1025, at
// the edges of tiles.
enum class Lengths : int32_t { full, drawn, odd };
enum class Layout : int32_t { bshd, bhsd };  // order of the axes in memory

// The arguments of a case that are not part of the plan key.
struct Variation {
  uint32_t seed = 1;
  int32_t magnitude = 0;      // values are N(0, 1) times 10 to this power
  bool large_logits = false;  // q and k give logits of the order of 2^33
  Lengths lengths = Lengths::full;
  Layout layout = Layout::bshd;
  int32_t pad = 8;            // elements between consecutive rows
  bool cu_q = false;          // packed queries; ragged keys always have them
  bool cache = false;         // keys are in a larger cache, or between others: used_k, left_pad, cache_index
  bool shared = false;        // sequences share a cache row, their first page, the block lists
  bool used_q = false;
  uint32_t bias_once = 0;     // axes along which the bias is broadcast, one bit each: batch, query, head, key
  bool d_lse = false;         // a backward gets a gradient of lse
  bool lean = false;          // optional outputs are omitted
  int32_t added = -1;         // new keys of an append; -1: as many as queries
  int32_t pairs = 0;          // rotated pairs of dims; 0: all
  bool empty = false;         // no query is meant to see a key: zeros are what is compared

  bool operator==(const Variation&) const = default;
};

// Random numbers that are the same with every standard library.
struct Random {
  uint64_t state = 0;

  uint64_t next();
  int below(int n) { return int(next() % uint64_t(n)); }
  double uniform() { return double(next() >> 11) * 0x1p-53; }  // [0, 1)
  double normal();
};

double load(const Tensor&, int64_t b, int64_t s, int64_t h, int64_t d);
void store(const Tensor&, int64_t b, int64_t s, int64_t h, int64_t d, double);

// A tensor and its memory, with guards at both ends and padding after each row. All state is in `memory`, plain bytes,
// so it can be copied to a device and back.
struct Owned {
  static constexpr int kGuard = 64;  // elements
  static constexpr unsigned char kUnread = 0xFF, kUnwritten = 0x7E;
  unsigned char filler = kUnread;
  std::vector<unsigned char> memory;
  std::vector<unsigned char> before{};  // previous contents, if not all poison: a cache that is appended to
  Tensor t;

  Owned(DType, Extents, Layout = Layout::bshd, int pad = 8, unsigned char filler = kUnread);
  Owned(Owned&&) = default;
  Owned(const Owned&) = delete;

  template <class F>
  void each(F f) const {  // f(b, s, h, d), in axis order
    for (int b = 0; b < t.extent.batch; ++b)
      for (int s = 0; s < t.extent.seq; ++s)
        for (int h = 0; h < t.extent.head; ++h)
          for (int d = 0; d < t.extent.dim; ++d) f(b, s, h, d);
  }
  template <class V>
  void set(const std::vector<V>& values) {
    size_t n = 0;
    each([&](int b, int s, int h, int d) { store(t, b, s, h, d, double(values[n++])); });
  }
  void poison(int b, int s);                            // a row, all its heads
  bool untouched(int b, int s, int h, int d) const;     // still poison, or the previous contents
  bool surroundings_intact() const;                     // everything outside the elements is still poison
};

// Outputs of one run, and the arguments that include them.
struct Outputs {
  std::list<Owned> owned{};
  Args args{};
  std::vector<Role> roles{};

  const Owned& of(Role) const;
};

class World {
 public:
  // `draw`: 0 for the inputs of the seed itself; others of the same case, for a seed whose lengths and lists show
  // nothing.
  World(const Problem&, const Variation&, uint32_t draw = 0);
  World(const World&) = delete;
  World& operator=(World&&) = default;

  Problem problem;
  Variation variation;
  Args args{};  // inputs; for a backward also out and lse, after forward_result()

  // The outputs of the problem, poisoned, or a running result if it accumulates (the same each time). Golden outputs
  // are f64, so nothing is rounded.
  Outputs outputs(bool golden) const;
  // Adds a backward's out and lse for a forward to fill.
  Args forward_result();
  // The same inputs with every value moved by up to one rounding of the dtype in which a naive computation keeps it;
  // see tolerance.h.
  Outputs shaken(uint32_t seed) const;
  double largest_shake() const;  // relative
  NaiveRounding naive_rounding_of(uint32_t seed) const;  // of what a naive backward computes besides
  const std::list<Owned>& inputs() const { return owned_; }
  // Changes if any byte of the inputs does.
  uint64_t fingerprint() const;

 private:
  std::list<Owned> owned_{};
  Random random_;
  std::vector<int> cu_q_{0}, cu_k_{0}, used_q_{}, used_k_{}, left_pad_{}, index_{}, table_{};
  int added_ = 0, least_k_ = 0;  // new keys, and the minimum keys of a sequence including them

  void draw_lengths();
  void draw_tables(int pages);
  double size_of_factors() const;
  void add_keys(const Extents&);
  void add_new_keys();
  void add_integers();
  void add_mask();
  void add_options();
  void add_gradients();
  void add_variant();  // this and the next: in world_variants.cpp
  void add_saved();
  void poison_unused();
  int length(int bound, int n);
  Owned& add(Role, DType, Extents);
  void normal(Owned&, double scale, bool keep_sign = true);
  void draw_list(Owned&, const VariantTensor&);
};

// Outputs of a variant: what a forward saves and returns, or gradients of its inputs.
void add_variant_outputs(const World&, Outputs&, bool golden);

std::string name(Lengths);
std::string name(Layout);

}  // namespace attune
