// SPDX-License-Identifier: Apache-2.0
// The part of cuDNN's graph API that attention needs: tensors, four kinds of operation, and a plan that cuDNN's
// heuristics select for them. cuDNN is opened at run time without its headers: the values of its enums are part of its
// ABI and are listed in the .cpp. A graph is textbook attention, operation by operation; cuDNN recognizes the pattern
// and returns its fused kernel, or refuses.
#pragma once
#include <cstdint>
#include <memory>
#include <string_view>
#include <vector>

#include "core/number.h"
#include "core/status.h"

namespace attune::cudnn {

// Good if cuDNN can be opened. `version` is 91500 for 9.15.0.
Status found();
int64_t version();

enum class Type : int32_t { f32 = 0, f16 = 2, i32 = 4, bf16 = 9, boolean = 11 };  // cudnnDataType_t
enum class Op : int32_t {                                                         // cudnnPointwiseMode_t
  add = 0, multiply = 1, divide = 6, subtract = 9, exp = 13, log = 15, identity = 21,
  greater = 302, at_least = 303, index = 501, select = 601
};
enum class Fold : int32_t { add = 0, max = 3 };  // cudnnReduceTensorOp_t

struct Shape { int64_t dim[4] = {}, stride[4] = {}; };  // [batch, head, row, column]; strides in elements
Shape packed(int64_t b, int64_t h, int64_t rows, int64_t columns);
Shape transposed(Shape);  // exchanges rows and columns

// A tensor of a graph: given by the caller under its number, or virtual and never stored in memory.
struct Node {
  void* descriptor = nullptr;
  Shape shape{};
  Type type = Type::f32;
};

// A graph that cuDNN has compiled to a kernel. Any thread may run it; `Bindings` holds the addresses of one call.
struct Bindings {
  static constexpr int kMost = 32;
  int64_t numbers[kMost] = {};
  void* data[kMost] = {};
  int64_t count = 0;

  void add(int64_t number, void* address) { numbers[count] = number, data[count++] = address; }
};
class Program {
 public:
  ~Program() = default;
  size_t workspace_bytes() const { return workspace_bytes_; }
  // Requires `device` to be the current GPU. Launches the kernels on the stream; `scratch` has workspace_bytes().
  Status run(int device, Bindings, void* scratch, void* stream) const;

 private:
  friend class Graph;
  struct Constant {
    int64_t number;
    uint32_t bits;
  };
  std::vector<Constant> constants_{};
  void* plan_ = nullptr;
  size_t workspace_bytes_ = 0;
};

// After the first error every step does nothing, so building a graph needs no checks.
class Graph {
 public:
  Node given(int64_t number, Type, const Shape&);
  Node value(int64_t number);  // one f32 in host memory, passed per call
  Node constant(float);
  Node constant(int32_t);
  Node matmul(const Node& a, const Node& b, Type = Type::f32);
  void matmul_to(const Node& a, const Node& b, const Node& to);
  Node reduce(Fold, const Node& x, const Shape&);
  void reduce_to(Fold, const Node& x, const Node& to);
  // One, two or three inputs. `compute` is the type of the arithmetic, `type` that of the result.
  Node pointwise(Op, const Node& x, const Node* b = nullptr, const Node* t = nullptr, Type type = Type::f32,
                 Type compute = Type::f32);
  void pointwise_to(Op, const Node& x, const Node* b, const Node& to);
  Node indices(const Node& like, int axis);
  Node reshape(const Node& x, const Shape&, Type);

  // Queries the heuristics of the current GPU and keeps the first plan that can be built.
  Status build(int device, std::unique_ptr<const Program>& out);

 private:
  Status status_{};
  std::vector<void*> operations_{};
  std::unique_ptr<Program> program_ = std::make_unique<Program>();
  int64_t next_ = 1000;  // numbers of virtual tensors and constants

  // Where the values of a tensor lie; `none`: a virtual tensor, never in memory.
  enum class Storage { caller, none, descriptor };
  Node tensor(int64_t number, Type, const Shape&, Storage);
  void* make(int kind);
  template <class T>
  void set(void* descriptor, int name, int type, const T* values, int64_t count);
  void set(void* descriptor, int name, void* other);
  void finish(void* descriptor, std::string_view what);
  void operation(void* descriptor, std::string_view what);
  void add_pointwise(Op, const Node& x, const Node* b, const Node* t, const Node& to, Type compute, int64_t axis);
  Status plan_of(void* handle, void* graph, int mode);
};

}  // namespace attune::cudnn
