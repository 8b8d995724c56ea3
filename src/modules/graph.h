// A module as a list of steps over values. Builders (build.cpp) write the steps down; everything else follows from the
// list: where each value and each gradient lies and for how long, and the backward, which is the steps in reverse.
// Sizes are known once it is finished, and a run allocates nothing.
//
// A value is a tensor [batch, seq, head, dim] on the tape, a piece of another value (q of a fused projection), or what
// the caller gives. Each value has one step that writes it; steps that change a value in place (rotary) follow it. No
// two pieces of a value that overlap are both inputs of steps.
#pragma once
#include <memory>
#include <string>
#include <vector>

#include "core/device.h"
#include "core/problem.h"
#include "core/workspace.h"
#include "plan/backend.h"

namespace attune {

enum class Argument : int32_t { none, x, memory, out, count };

struct Value {
  Extents extent{};
  DType dtype = DType::f32;
  Strides stride{};
  int root = -1;                         // the value it is a piece of; itself if it is none
  int64_t offset = 0;                    // elements from the root's first
  Argument argument = Argument::none;    // of a root: the caller's
  size_t tape_at = 0, lean_at = 0;       // of a root: bytes on the tape, and in the memory of a run without one
  size_t gradient_at = 0;                // of a root: bytes in the workspace of a backward
};

// How a parameter begins.
struct Init {
  enum Kind { zero, one, xavier, constant } kind = zero;
  double fan = 0;     // in + out, of xavier: normal with deviation value * sqrt(2 / fan)
  double value = 1;   // the gain of xavier, or the constant
};

// What has a name: a weight or some rows of one.
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

// What a step multiplies by: one compact tensor, of one parameter or several one after the other.
struct Weight {
  DType dtype = DType::f32;
  Extents extent{};
  size_t at = 0, gradient_at = 0;
};

// What a module brings along and never changes: rotary tables, block lists. Bytes as on the device.
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
  virtual size_t scratch(Pass) const { return 0; }  // bytes; of a backward, asked once `keep` is known
  virtual Status check(const Run&) const { return Status::good(); }  // once all is placed; reads no memory

  std::vector<int> inputs{};     // values that get a gradient from it
  std::vector<float> keep{};     // of each: 1 where its gradient has begun, 0 where this step writes the first part
  std::vector<int> outputs{};    // values it writes; the gradient of the first comes to it
  int passes = -1;               // which input's gradient is the output's as it is (a residual), or none
  bool in_place = false;         // it changes its input, which is its output
};

class Graph {
 public:
  int batch = 1, len = 1;        // of x
  Device device{};
  bool tf32 = false;             // products of f32 may be rounded
  std::vector<Value> values{};
  std::vector<Weight> weights{};
  std::vector<Parameter> parameters{};
  std::vector<Constant> constants{};
  std::vector<std::unique_ptr<Step>> steps{};

  int input(Argument, Extents, DType);
  int value(Extents, DType);
  // Elements first ... of each row of a value [batch, seq, 1, dim], as [batch, seq, head, dim].
  int piece(int of, int64_t first, int heads, int dim);
  int constant(DType, Extents, const void* data);
  // Names with their shares of the rows of [rows, columns], one after the other; or one name of any shape.
  struct Named { std::string name; int rows; Init init; };
  int matrix(const std::vector<Named>&, int columns, DType);  // 1-d where columns is 0
  int weight(const std::string& name, std::vector<int64_t> shape, Extents, DType, Init);
  template <class S, class... A>
  S& step(A&&... a) {
    auto made = std::make_unique<S>(std::forward<A>(a)...);
    S& s = *made;
    steps.push_back(std::move(made));
    return s;
  }
  void finish(int out);  // this value is what the caller gets

  size_t parameter_bytes = 0, gradient_bytes = 0, constant_bytes = 0;
  size_t tape_bytes = 0;                       // what a backward needs of a forward
  size_t forward_bytes = 0, lean_bytes = 0;    // workspace of a forward with a tape, and of one without
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
  Tensor given[int(Argument::count)]{};     // the caller's values, and
  Tensor gradient_given[int(
      Argument::count)]{};  // their gradients; out's is read. One that is not given lies in the workspace
  std::byte* tape = nullptr;                // of values
  bool lean = false;                        // values share memory as soon as they can
  std::byte* workspace = nullptr;           // gradients of values, then
  std::byte* scratch = nullptr;             // of one step at a time
  std::byte *parameters = nullptr, *parameter_gradients = nullptr, *constants = nullptr;
  float keep = 0.f;                         // parameter gradients: 0 overwritten, 1 added to
  Tensor seed{};                            // of dropout: [2] i64
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
