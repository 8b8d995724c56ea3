// SPDX-License-Identifier: Apache-2.0
#include "attention/cudnn/graph.h"

#include <algorithm>
#include <bit>
#include <map>
#include <mutex>
#include <type_traits>

#include "machine/library.h"

namespace attune::cudnn {
namespace {

// From cudnn_graph.h, the same in every cuDNN 9.
namespace kind {  // cudnnBackendDescriptorType_t
constexpr int pointwise = 0, engine_config = 3, heuristics = 4, plan = 5, operation_pointwise = 13, graph = 15,
              variant_pack = 16, tensor = 17, matmul = 18, operation_matmul = 19, reduction = 21,
              operation_reduction = 22, operation_reshape = 31;
}
namespace attribute {  // cudnnBackendAttributeName_t
constexpr int pointwise_mode = 0, pointwise_precision = 1, pointwise_axis = 9, heuristics_mode = 200,
              heuristics_graph = 201, heuristics_results = 202, plan_handle = 400, plan_config = 401,
              plan_workspace = 402, op_pointwise = 750, op_pointwise_x = 751, op_pointwise_b = 752,
              op_pointwise_y = 753, op_pointwise_t = 758, graph_handle = 800, graph_operations = 801,
              tensor_alignment = 900, tensor_type = 901, tensor_dims = 902, tensor_strides = 903, tensor_number = 906,
              tensor_virtual = 907, tensor_by_value = 908, pack_numbers = 1000, pack_pointers = 1001,
              pack_workspace = 1003, matmul_compute = 1500, op_matmul_a = 1520, op_matmul_b = 1521, op_matmul_c = 1522,
              op_matmul = 1523, reduction_operator = 1600, reduction_compute = 1601, op_reduction_x = 1610,
              op_reduction_y = 1611, op_reduction = 1612, op_reshape_x = 2200, op_reshape_y = 2201;
}
namespace type {  // cudnnBackendAttributeType_t
constexpr int handle = 0, data_type = 1, boolean = 2, int64 = 3, pointer = 6, heuristics_mode = 8, pointwise_mode = 14,
              descriptor = 15, reduction_operator = 18;
}
constexpr int kModeFallback = 2, kModeA = 3;  // cudnnBackendHeurMode_t
constexpr int kConfigs = 16;                  // number requested from the heuristics
constexpr int64_t kAlignment = 16;
constexpr int kNotSupported = 3, kHostAllocationFailed = 4003, kDeviceAllocationFailed = 4004;  // cudnnStatus_t

struct Functions {
  std::string missed{};
  int64_t version = 0;
  int (*create)(void** handle) = nullptr;
  int (*set_stream)(void* handle, void* stream) = nullptr;
  int (*make)(int kind, void** descriptor) = nullptr;
  int (*destroy)(void* descriptor) = nullptr;
  int (*finalize)(void* descriptor) = nullptr;
  int (*set)(void* descriptor, int name, int type, int64_t count, const void* values) = nullptr;
  int (*get)(void* descriptor, int name, int type, int64_t wanted, int64_t* count, void* values) = nullptr;
  int (*execute)(void* handle, void* plan, void* pack) = nullptr;
  const char* (*text)(int status) = nullptr;
  void (*last_error)(char* message, size_t most) = nullptr;

  Functions() {
    const Library library({"libcudnn.so.9"},
                          {"cudnnCreate", "cudnnSetStream", "cudnnGetVersion", "cudnnGetErrorString",
                           "cudnnGetLastErrorString", "cudnnBackendCreateDescriptor", "cudnnBackendDestroyDescriptor",
                           "cudnnBackendFinalize", "cudnnBackendSetAttribute", "cudnnBackendGetAttribute",
                           "cudnnBackendExecute"});
    missed = library.missed();
    if (!library.ok()) return;
    const auto get_function = [&](auto*& f, const char* name) {
      f = library.function<std::remove_pointer_t<std::remove_reference_t<decltype(f)>>>(name);
    };
    get_function(create, "cudnnCreate"), get_function(set_stream, "cudnnSetStream");
    get_function(make, "cudnnBackendCreateDescriptor"), get_function(destroy, "cudnnBackendDestroyDescriptor");
    get_function(finalize, "cudnnBackendFinalize"), get_function(set, "cudnnBackendSetAttribute");
    get_function(get, "cudnnBackendGetAttribute"), get_function(execute, "cudnnBackendExecute");
    get_function(text, "cudnnGetErrorString"), get_function(last_error, "cudnnGetLastErrorString");
    version = int64_t(library.function<size_t()>("cudnnGetVersion")());
  }
};

const Functions& cudnn() {
  static const Functions opened;
  return opened;
}

Code code_of(int status) {
  if (status == kHostAllocationFailed || status == kDeviceAllocationFailed) return Code::out_of_memory;
  return status / 1000 == kNotSupported ? Code::unsupported : Code::device;
}

// Includes cuDNN's own message.
Status failed(std::string_view call, int status) {
  char message[512] = "";
  cudnn().last_error(message, sizeof message);
  message[sizeof message - 1] = 0;
  std::string_view text = message;
  while (!text.empty() && (text.back() == '\n' || text.back() == ' ')) text.remove_suffix(1);
  return Status::failure(code_of(status), call, ": ", cudnn().text(status), text.empty() ? "" : ": ", text);
}

// A handle serves one stream at a time: a call takes one from the pool, or creates one, and puts it back. Handles are
// never destroyed, since that would wait for the GPU.
class BorrowedHandle {
 public:
  explicit BorrowedHandle(int device) : device_(device) {
    {
      const std::lock_guard lock(mutex());
      auto& free = handles()[device];
      if (!free.empty()) handle_ = free.back(), free.pop_back();
    }
    if (handle_) return;
    if (const int status = cudnn().create(&handle_); status) this->status = failed("cudnnCreate", status);
  }
  ~BorrowedHandle() {
    if (!handle_) return;
    const std::lock_guard lock(mutex());
    handles()[device_].push_back(handle_);
  }
  BorrowedHandle(const BorrowedHandle&) = delete;
  BorrowedHandle& operator=(const BorrowedHandle&) = delete;
  void* get() const { return handle_; }
  Status status{};

 private:
  void* handle_ = nullptr;
  int device_;
  static std::mutex& mutex() {
    static std::mutex& one = *new std::mutex;
    return one;
  }
  static std::map<int, std::vector<void*>>& handles() {
    static auto& all = *new std::map<int, std::vector<void*>>;
    return all;
  }
};

}  // namespace

Status found() { return cudnn().missed.empty() ? Status::good() : Status::unsupported(cudnn().missed); }
int64_t version() { return cudnn().version; }

Shape packed(int64_t b, int64_t h, int64_t rows, int64_t columns) {
  return {{b, h, rows, columns}, {h * rows * columns, rows * columns, columns, 1}};
}
Shape transposed(Shape s) {
  std::swap(s.dim[2], s.dim[3]), std::swap(s.stride[2], s.stride[3]);
  return s;
}

void* Graph::make(int kind) {
  void* made = nullptr;
  if (status_.ok())
    if (const int status = cudnn().make(kind, &made); status) status_ = failed("cudnnBackendCreateDescriptor", status);
  return made;
}

template <class T>
void Graph::set(void* descriptor, int name, int type, const T* values, int64_t count) {
  if (!status_.ok()) return;
  if (const int status = cudnn().set(descriptor, name, type, count, values); status)
    status_ = failed(join("cudnnBackendSetAttribute ", name), status);
}
void Graph::set(void* descriptor, int name, void* other) { set(descriptor, name, type::descriptor, &other, 1); }

void Graph::finish(void* descriptor, std::string_view what) {
  if (!status_.ok()) return;
  if (const int status = cudnn().finalize(descriptor); status)
    status_ = failed(join("cudnnBackendFinalize of ", what), status);
}
void Graph::operation(void* descriptor, std::string_view what) {
  finish(descriptor, what);
  operations_.push_back(descriptor);
}

Node Graph::tensor(int64_t number, Type t, const Shape& shape, Storage storage) {
  Node n{make(kind::tensor), shape, t};
  const auto data_type = int32_t(t);
  set(n.descriptor, attribute::tensor_type, type::data_type, &data_type, 1);
  set(n.descriptor, attribute::tensor_dims, type::int64, shape.dim, 4);
  set(n.descriptor, attribute::tensor_strides, type::int64, shape.stride, 4);
  set(n.descriptor, attribute::tensor_number, type::int64, &number, 1);
  set(n.descriptor, attribute::tensor_alignment, type::int64, &kAlignment, 1);
  const bool yes = true;
  if (storage == Storage::none) set(n.descriptor, attribute::tensor_virtual, type::boolean, &yes, 1);
  if (storage == Storage::descriptor) set(n.descriptor, attribute::tensor_by_value, type::boolean, &yes, 1);
  finish(n.descriptor, "a tensor");
  return n;
}

Node Graph::given(int64_t number, Type t, const Shape& shape) { return tensor(number, t, shape, Storage::caller); }
Node Graph::value(int64_t number) { return tensor(number, Type::f32, packed(1, 1, 1, 1), Storage::descriptor); }
Node Graph::constant(float x) {
  program_->constants_.push_back({next_, std::bit_cast<uint32_t>(x)});
  return tensor(next_++, Type::f32, packed(1, 1, 1, 1), Storage::descriptor);
}
Node Graph::constant(int32_t x) {
  program_->constants_.push_back({next_, std::bit_cast<uint32_t>(x)});
  return tensor(next_++, Type::i32, packed(1, 1, 1, 1), Storage::descriptor);
}

void Graph::matmul_to(const Node& a, const Node& b, const Node& to) {
  const auto compute = int32_t(Type::f32);
  void* how = make(kind::matmul);
  set(how, attribute::matmul_compute, type::data_type, &compute, 1);
  finish(how, "a matmul");
  void* op = make(kind::operation_matmul);
  set(op, attribute::op_matmul_a, a.descriptor), set(op, attribute::op_matmul_b, b.descriptor);
  set(op, attribute::op_matmul_c, to.descriptor), set(op, attribute::op_matmul, how);
  operation(op, "a matmul operation");
}
Node Graph::matmul(const Node& a, const Node& b, Type t) {
  const Shape shape = packed(a.shape.dim[0], a.shape.dim[1], a.shape.dim[2], b.shape.dim[3]);
  const Node to = tensor(next_++, t, shape, Storage::none);
  return matmul_to(a, b, to), to;
}

void Graph::reduce_to(Fold fold, const Node& x, const Node& to) {
  const auto compute = int32_t(Type::f32), how_folded = int32_t(fold);
  void* how = make(kind::reduction);
  set(how, attribute::reduction_operator, type::reduction_operator, &how_folded, 1);
  set(how, attribute::reduction_compute, type::data_type, &compute, 1);
  finish(how, "a reduction");
  void* op = make(kind::operation_reduction);
  set(op, attribute::op_reduction_x, x.descriptor), set(op, attribute::op_reduction_y, to.descriptor);
  set(op, attribute::op_reduction, how);
  operation(op, "a reduction operation");
}
Node Graph::reduce(Fold fold, const Node& x, const Shape& shape) {
  const Node to = tensor(next_++, Type::f32, shape, Storage::none);
  return reduce_to(fold, x, to), to;
}

void Graph::add_pointwise(Op mode, const Node& x, const Node* b, const Node* t, const Node& to, Type compute,
                          int64_t axis) {
  const auto precision = int32_t(compute), which = int32_t(mode);
  void* how = make(kind::pointwise);
  set(how, attribute::pointwise_mode, type::pointwise_mode, &which, 1);
  set(how, attribute::pointwise_precision, type::data_type, &precision, 1);
  if (mode == Op::index) set(how, attribute::pointwise_axis, type::int64, &axis, 1);
  finish(how, "a pointwise");
  void* op = make(kind::operation_pointwise);
  set(op, attribute::op_pointwise, how), set(op, attribute::op_pointwise_x, x.descriptor);
  if (b) set(op, attribute::op_pointwise_b, b->descriptor);
  if (t) set(op, attribute::op_pointwise_t, t->descriptor);
  set(op, attribute::op_pointwise_y, to.descriptor);
  operation(op, "a pointwise operation");
}
Node Graph::pointwise(Op mode, const Node& x, const Node* b, const Node* t, Type out, Type compute) {
  const Node to = tensor(next_++, out, x.shape, Storage::none);
  return add_pointwise(mode, x, b, t, to, compute, 0), to;
}
void Graph::pointwise_to(Op mode, const Node& x, const Node* b, const Node& to) {
  add_pointwise(mode, x, b, nullptr, to, Type::f32, 0);
}
Node Graph::indices(const Node& like, int axis) {
  const Node to = tensor(next_++, Type::i32, like.shape, Storage::none);
  return add_pointwise(Op::index, like, nullptr, nullptr, to, Type::f32, axis), to;
}

Node Graph::reshape(const Node& x, const Shape& shape, Type t) {
  const Node to = tensor(next_++, t, shape, Storage::none);
  void* op = make(kind::operation_reshape);
  set(op, attribute::op_reshape_x, x.descriptor), set(op, attribute::op_reshape_y, to.descriptor);
  operation(op, "a reshape operation");
  return to;
}

// Keeps the first of the heuristics' configurations that becomes a plan.
Status Graph::plan_of(void* handle, void* graph, int mode) {
  const Functions& f = cudnn();
  void* heuristics = make(kind::heuristics);
  set(heuristics, attribute::heuristics_graph, graph);
  set(heuristics, attribute::heuristics_mode, type::heuristics_mode, &mode, 1);
  finish(heuristics, "the heuristics");
  void* configs[kConfigs] = {};
  for (void*& c : configs) c = make(kind::engine_config);
  if (!status_.ok()) return status_;
  int64_t count = 0;
  if (const int status = f.get(heuristics, attribute::heuristics_results, type::descriptor, kConfigs, &count, configs))
    return failed("the heuristics", status);
  Status why = Status::unsupported("the heuristics find no kernel");
  for (int64_t n = 0; n < std::min<int64_t>(count, kConfigs); ++n) {
    void* plan = make(kind::plan);
    set(plan, attribute::plan_handle, type::handle, &handle, 1);
    set(plan, attribute::plan_config, configs[n]);
    if (!status_.ok()) return status_;
    if (const int status = f.finalize(plan); status) {
      why = failed("cudnnBackendFinalize of a plan", status);
      f.destroy(plan);
      continue;
    }
    int64_t bytes = 0, got = 0;
    if (const int status = f.get(plan, attribute::plan_workspace, type::int64, 1, &got, &bytes); status)
      return failed("the workspace of a plan", status);
    program_->plan_ = plan, program_->workspace_bytes_ = size_t(bytes);
    return Status::good();
  }
  return why;
}

Status Graph::build(int device, std::unique_ptr<const Program>& out) {
  if (!status_.ok()) return status_;
  const BorrowedHandle handle(device);
  if (!handle.status.ok()) return handle.status;
  void* graph = make(kind::graph);
  void* of = handle.get();
  set(graph, attribute::graph_operations, type::descriptor, operations_.data(), int64_t(operations_.size()));
  set(graph, attribute::graph_handle, type::handle, &of, 1);
  finish(graph, "the graph");
  if (!status_.ok()) return status_;
  Status chosen = plan_of(of, graph, kModeA);
  if (!chosen.ok() && status_.ok() && plan_of(of, graph, kModeFallback).ok()) chosen = Status::good();
  if (chosen.ok()) out = std::move(program_);
  return chosen;
}

Status Program::run(int device, Bindings all, void* scratch, void* stream) const {
  const Functions& f = cudnn();
  const BorrowedHandle handle(device);
  if (!handle.status.ok()) return handle.status;
  if (const int status = f.set_stream(handle.get(), stream); status) return failed("cudnnSetStream", status);
  for (const Constant& c : constants_) all.add(c.number, const_cast<uint32_t*>(&c.bits));
  void* pack = nullptr;
  if (const int status = f.make(kind::variant_pack, &pack); status)
    return failed("cudnnBackendCreateDescriptor", status);
  int status = f.set(pack, attribute::pack_numbers, type::int64, all.count, all.numbers);
  if (!status) status = f.set(pack, attribute::pack_pointers, type::pointer, all.count, all.data);
  if (!status) status = f.set(pack, attribute::pack_workspace, type::pointer, 1, &scratch);
  if (!status) status = f.finalize(pack);
  if (!status) status = f.execute(handle.get(), plan_, pack);
  Status done = status ? failed("cudnnBackendExecute", status) : Status::good();
  f.destroy(pack);
  return done;
}

}  // namespace attune::cudnn
