// SPDX-License-Identifier: Apache-2.0
// A module as a list of steps over values. Builders (build.cpp) record the steps; everything else follows from the
// list: the location and lifetime of each value and gradient, and the backward, which is the steps in reverse. All
// sizes are known once the graph is finished, and a run allocates nothing.
//
// A value is a tensor [batch, seq, head, dim] on the tape, a piece of another value (q of a fused projection), or a
// tensor of the caller. One step writes each value; steps that modify it in place (rotary) follow. Overlapping pieces
// of a value are never both inputs of steps.
#pragma once
#include <memory>
#include <string>
#include <vector>

#include "core/device.h"
#include "core/problem.h"
#include "core/workspace.h"
#include "plan/backend.h"

namespace attune {

enum class Argument : int32_t {
  none, x, memory, out,
  k_cache, v_cache, used_k, cache_index,  // of a layer that appends to a cache; without gradients
  count
};

struct Value {
  Extents extent{};
  DType dtype = DType::f32;
  Strides stride{};
  int root = -1;                         // the value it is a piece of; itself if it is not a piece
  int64_t offset = 0;                    // elements from the root's first
  Argument argument = Argument::none;    // roots: the caller's argument
  size_t tape_at = 0, lean_at = 0;       // roots: bytes on the tape, and in the memory of a run without one
  size_t gradient_at = 0;                // roots: bytes in the workspace of a backward
};

// The initial value of a parameter.
struct Init {
  enum Kind { zero, one, xavier, constant } kind = zero;
  double fan = 0;     // xavier: in + out; normal with deviation value * sqrt(2 / fan)
  double value = 1;   // the gain of xavier, or the constant
};

// A named parameter: a weight or some of its rows.
struct Parameter {
  std::string name{};
  DType dtype = DType::f32;
  std::vector<int64_t> shape{};   // as in a file
  size_t at = 0, gradient_at = 0; // bytes in the memory of parameters and of their f32 gradients
  Init init{};
  int64_t count() const {
    int64_t n = 1;
    for (const int64_t x : shape) n *= x;
    return n;
  }
};

// The operand of a step: one compact tensor, made of one parameter or several consecutive ones.
struct Weight {
  DType dtype = DType::f32;
  Extents extent{};
  size_t at = 0, gradient_at = 0;
};

// Immutable data of a module: rotary tables, block lists. Bytes as on the device.
struct Constant {
  DType dtype = DType::f32;
  Extents extent{};
  size_t at = 0;
  std::vector<std::byte> bytes{};
};

struct Run;

class Step {
 public:
  virtual ~Step() = default;
  virtual Status forward(const Run&) const = 0;
  virtual Status backward(const Run&) const = 0;
  virtual size_t scratch(Pass) const { return 0; }  // bytes; for a backward, called once `keep` is known
  virtual Status check(const Run&) const { return Status::good(); }  // after placement; reads no memory

  std::vector<int> inputs{};     // values that receive a gradient from it
  std::vector<float> keep{};     // for each input: 1 to add to its gradient, 0 if this step writes it first
  std::vector<int> outputs{};    // values it writes; it reads the gradient of the first
  int passes = -1;               // the input whose gradient equals the output's (a residual), or -1
  bool in_place = false;         // modifies its input, which is its output
};

class Graph {
 public:
  int batch = 1, len = 1;        // extents of x
  Device device{};
  bool tf32 = false;             // f32 products may be rounded
  std::vector<Value> values{};
  std::vector<Weight> weights{};
  std::vector<Parameter> parameters{};
  std::vector<Constant> constants{};
  std::vector<std::unique_ptr<Step>> steps{};

  int input(Argument, Extents, DType);
  int value(Extents, DType);
  // Elements first ... of each row of a value [batch, seq, 1, dim], as [batch, seq, head, dim].
  int piece(int of, int64_t first, int heads, int dim);
  int constant(DType, Extents, const void* data);  // without data, for sizes alone
  // Names with their shares of the rows of [rows, columns], in order; or one name of any shape.
  struct Named { std::string name; int rows; Init init; };
  int matrix(const std::vector<Named>&, int columns, DType);  // 1-d if columns is 0
  int weight(const std::string& name, std::vector<int64_t> shape, Extents, DType, Init);
  template <class S, class... A>
  S& step(A&&... a) {
    auto made = std::make_unique<S>(std::forward<A>(a)...);
    S& s = *made;
    steps.push_back(std::move(made));
    return s;
  }
  void finish(int out);  // `out` is the value returned to the caller

  size_t parameter_bytes = 0, gradient_bytes = 0, constant_bytes = 0;
  size_t tape_bytes = 0;                         // memory that a forward saves for its backward
  size_t forward_bytes = 0, lean_bytes = 0;      // workspace of a forward with a tape, and of one without
  size_t gradients_end = 0, backward_bytes = 0;  // workspace of a backward: gradients of values, then scratch

 private:
  size_t bytes(const Value&) const;
  void place_values();
  void place_gradients();
};

// One call.
struct Run {
  const Graph& graph;
  void* stream = nullptr;
  Tensor given[int(Argument::count)]{};     // the caller's values,
  Tensor gradient_given[int(
      Argument::count)]{};  // and their gradients; out's is read. Missing ones are in the workspace
  std::byte* tape = nullptr;                // values
  bool lean = false;                        // values share memory as early as possible
  std::byte* workspace = nullptr;           // gradients of values, then
  std::byte* scratch = nullptr;             // scratch for one step at a time
  std::byte *parameters = nullptr, *parameter_gradients = nullptr, *constants = nullptr;
  float keep = 0.f;                         // parameter gradients: 0 overwrites, 1 adds
  Tensor seed{};                            // dropout: [2] i64
  void* communicator = nullptr;

  Tensor value(int) const;
  Tensor gradient(int) const;
  Tensor weight(int) const;
  Tensor weight_gradient(int) const;
  Tensor constant(int) const;
};

Strides compact(const Extents&);
Extents row_extent(int batch, int len, int dim);  // [batch, len, 1, dim]

}  // namespace attune
