// SPDX-License-Identifier: Apache-2.0
// attune for C++20: a header-only wrapper of the C interface. It has plans that free themselves, tensors from a pointer
// and a shape, and exceptions that carry the library's message.
#ifndef ATTUNE_HPP
#define ATTUNE_HPP
#include <cstdint>
#include <initializer_list>
#include <memory>
#include <stdexcept>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "attune/attune.h"

namespace attune {

class Error : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

inline void require(int code) {
  if (code) throw Error(attune_last_error());
}

// A number format in DLPack's encoding.
struct DataType {
  uint8_t code = 2, bits = 32;
};
inline constexpr DataType kF64{2, 64}, kF32{2, 32}, kF16{2, 16}, kBf16{4, 16}, kE4m3{10, 8}, kI32{0, 32}, kI64{0, 64};

template <class T>
constexpr DataType data_type() {
  using Plain = std::remove_const_t<T>;
  static_assert(std::is_same_v<Plain, double> || std::is_same_v<Plain, float> || std::is_same_v<Plain, int32_t> ||
                    std::is_same_v<Plain, int64_t>,
                "double, float, int32_t and int64_t have a name of their own; say kF16, kBf16 or kE4m3 for the others");
  if constexpr (std::is_same_v<Plain, double>) return kF64;
  if constexpr (std::is_same_v<Plain, float>) return kF32;
  if constexpr (std::is_same_v<Plain, int32_t>) return kI32;
  return kI64;
}

// Borrowed memory with named axes: Tensor(q, "bshd", {2, 128, 8, 64}). Strides are in elements; none: compact.
class Tensor {
 public:
  using Sizes = std::vector<int64_t>;

  template <class T>
    requires(!std::is_void_v<T>)
  Tensor(T* data, std::string axes, Sizes shape, Sizes strides = {})
      : Tensor(const_cast<std::remove_const_t<T>*>(data), data_type<T>(), std::move(axes), std::move(shape),
               std::move(strides)) {}
  Tensor(void* data, DataType type, std::string axes, Sizes shape, Sizes strides = {}, int32_t cuda_device = -1)
      : data_(data), type_(type), axes_(std::move(axes)), shape_(std::move(shape)), strides_(std::move(strides)),
        cuda_device_(cuda_device) {
    if (axes_.size() != shape_.size() || (!strides_.empty() && strides_.size() != shape_.size()))
      throw Error("tensor: axes '" + axes_ + "', shape and strides are not of one length");
  }

  // Valid until this tensor is moved or destroyed.
  attune_tensor c() const {
    attune_tensor t{};
    t.data = data_;
    t.device.type = cuda_device_ < 0 ? 1 : 2;
    t.device.id = cuda_device_ < 0 ? 0 : cuda_device_;
    t.ndim = static_cast<int32_t>(shape_.size());
    t.dtype.code = type_.code, t.dtype.bits = type_.bits, t.dtype.lanes = 1;
    t.shape = shape_.data();
    t.strides = strides_.empty() ? nullptr : strides_.data();
    t.axes = axes_.c_str();
    return t;
  }

 private:
  void* data_;
  DataType type_;
  std::string axes_;
  Sizes shape_, strides_;
  int32_t cuda_device_;
};

// Any field may still be set: problem.c.left = 127.
struct Problem {
  attune_problem c{};

  explicit Problem(const std::string& line) {
    c.size = sizeof c;
    require(attune_problem_parse(line.c_str(), &c));
  }
  std::string line() const {
    std::string text(1024, '\0');
    require(attune_problem_format(&c, text.data(), text.size()));
    text.resize(text.find('\0'));
    return text;
  }
};

// The arguments of a call, by role: Args().set(ATTUNE_Q, q).set(ATTUNE_K, k) ...
class Args {
 public:
  float scale = 0, softcap = 0, dropout = 0;
  void* workspace = nullptr;  // null with 0 bytes: the library lends one
  size_t workspace_bytes = 0;
  void* communicator = nullptr;

  Args& set(int role, Tensor tensor) {
    if (role < 0 || role >= ATTUNE_ROLES) throw Error("args: role " + std::to_string(role) + " is unknown");
    for (auto& [r, t] : tensors_)
      if (r == role) return t = std::move(tensor), *this;
    tensors_.emplace_back(role, std::move(tensor));
    return *this;
  }

  // Calls f with the struct of the C interface, which is valid only during the call.
  template <class F>
  auto with_c(F f) const {
    attune_tensor tensor[ATTUNE_ROLES];
    attune_args a{};
    a.size = sizeof a;
    a.scale = scale, a.softcap = softcap, a.dropout = dropout;
    a.workspace = workspace, a.workspace_bytes = workspace_bytes, a.communicator = communicator;
    for (const auto& [role, t] : tensors_) tensor[role] = t.c(), a.role[role] = &tensor[role];
    return f(&a);
  }

 private:
  std::vector<std::pair<int, Tensor>> tensors_;
};

// Runs with a plan from the library's cache: the usual way.
inline void call(const Problem& problem, const Args& args, void* stream = nullptr) {
  require(args.with_c([&](const attune_args* a) { return attune_call(&problem.c, a, stream); }));
}
inline void check(const Problem& problem, const Args& args) {
  require(args.with_c([&](const attune_args* a) { return attune_check(&problem.c, a); }));
}
inline size_t workspace(const Problem& problem, const char* device = nullptr) {
  size_t bytes = 0;
  require(attune_workspace(&problem.c, device, &bytes));
  return bytes;
}

// Statistics of a device's memory pool; "cpu": of the buffers lent to threads.
inline attune_memory memory(const char* device = nullptr) {
  attune_memory m{};
  m.size = sizeof m;
  require(attune_memory_statistics(device, &m));
  return m;
}

// Memory from the pool of a GPU, freed in the order of its allocation stream.
class Buffer {
 public:
  Buffer(std::string device, size_t bytes, void* stream = nullptr) : device_(std::move(device)), stream_(stream) {
    require(attune_memory_allocate(device_.c_str(), bytes, stream_, &data_));
  }
  Buffer(Buffer&& other) noexcept
      : device_(std::move(other.device_)), stream_(other.stream_), data_(std::exchange(other.data_, nullptr)) {}
  Buffer& operator=(Buffer&&) = delete;
  ~Buffer() {
    if (data_) attune_memory_free(device_.c_str(), data_, stream_);
  }
  void* data() const { return data_; }

 private:
  std::string device_;
  void* stream_;
  void* data_ = nullptr;
};

// A plan to keep, or to inspect.
class Plan {
 public:
  explicit Plan(const Problem& problem, const char* device = nullptr, const char* backend = nullptr) {
    attune_plan* made = nullptr;
    require(attune_plan_create(&problem.c, device, backend, &made));
    plan_.reset(made);
  }
  size_t workspace() const { return attune_plan_workspace(plan_.get()); }
  std::string backend() const { return attune_plan_backend(plan_.get()); }
  std::string why() const { return attune_plan_why(plan_.get()); }
  void run(const Args& args, void* stream = nullptr) const {
    require(args.with_c([&](const attune_args* a) { return attune_plan_run(plan_.get(), a, stream); }));
  }

 private:
  struct Free {
    void operator()(attune_plan* p) const { attune_plan_destroy(p); }
  };
  std::unique_ptr<attune_plan, Free> plan_;
};

// Block lists of a pattern, in their own memory. They set the problem's bound, add themselves to arguments and report
// their density. There is one list for each batch row and head, by query block and by key block.
class Blocks {
 public:
  // The problem has its block sizes. With `full` false, sequences may be shorter than the problem's lengths, and
  // `lengths` holds the roles that define them (used_q, cu_k, ...).
  Blocks(Problem& problem, const std::string& pattern, std::string device = "cpu", void* stream = nullptr,
         bool full = true, Args lengths = {})
      : device_(std::move(device)), stream_(stream), batch_(problem.c.batch), heads_(problem.c.heads_q) {
    int64_t bound = 0;
    require(attune_blocks_bound(&problem.c, pattern.c_str(), batch_, heads_, full, &bound));
    if (bound > INT32_MAX) throw Error("blocks: " + std::to_string(bound) + " entries are over 2^31 - 1");
    problem.c.block_bound = static_cast<int32_t>(bound > 0 ? bound : 1);
    bound_ = problem.c.block_bound;
    rows_ = (problem.c.len_q - 1) / problem.c.block_q + 2, columns_ = (problem.c.len_k - 1) / problem.c.block_k + 2;
    const int64_t numbers = 2 * ATTUNE_BLOCK_COUNTS + lists() * (rows_ + columns_) + 2 * bound_;
    if (device_ == "cpu") memory_.resize(static_cast<size_t>(numbers));
    else buffer_ = std::make_unique<Buffer>(device_, static_cast<size_t>(numbers) * sizeof(int32_t), stream_);
    set(lengths, true);
    attune_blocks blocks{};
    blocks.size = sizeof blocks, blocks.pattern = pattern.c_str(), blocks.counts = reinterpret_cast<int64_t*>(at(0));
    require(lengths.with_c([&](const attune_args* a) { return attune_blocks_build(&problem.c, a, &blocks, stream); }));
  }
  // Adds the lists to the arguments of an attention. by_key: also the list that only a backward uses.
  Args& set(Args& args, bool by_key = false) const {
    const int64_t first = 2 * ATTUNE_BLOCK_COUNTS, column = first + lists() * rows_, first_k = column + bound_;
    args.set(ATTUNE_BLOCK_BEGIN, list(first, rows_)).set(ATTUNE_BLOCK_COLUMN, entries(column));
    if (by_key) args.set(ATTUNE_BLOCK_BEGIN_K, list(first_k, columns_));
    if (by_key) args.set(ATTUNE_BLOCK_ROW_K, entries(first_k + lists() * columns_));
    return args;
  }
  struct Counts {
    int64_t active, shown, longest, dropped;
    double density() const { return shown ? static_cast<double>(active) / static_cast<double>(shown) : 0; }
  };
  Counts counts() const {  // waits for the stream
    int64_t n[ATTUNE_BLOCK_COUNTS];
    require(attune_blocks_counts(device_.c_str(), reinterpret_cast<const int64_t*>(at(0)), n, stream_));
    return {n[ATTUNE_BLOCKS_ACTIVE], n[ATTUNE_BLOCKS_SHOWN], n[ATTUNE_BLOCKS_LONGEST], n[ATTUNE_BLOCKS_DROPPED]};
  }

 private:
  std::string device_;
  void* stream_;
  int64_t batch_, heads_, rows_ = 0, columns_ = 0, bound_ = 0;
  mutable std::vector<int32_t> memory_{};
  std::unique_ptr<Buffer> buffer_{};

  int64_t lists() const { return batch_ * heads_; }
  int32_t* at(int64_t n) const { return (buffer_ ? static_cast<int32_t*>(buffer_->data()) : memory_.data()) + n; }
  int32_t gpu() const {
    return device_ == "cpu" ? -1 : device_.size() > 5 ? static_cast<int32_t>(std::stol(device_.substr(5))) : 0;
  }
  Tensor list(int64_t n, int64_t length) const {
    return Tensor(at(n), kI32, "bhn", {batch_, heads_, length}, {}, gpu());
  }
  Tensor entries(int64_t n) const { return Tensor(at(n), kI32, "n", {bound_}, {}, gpu()); }
};

// One rank's endpoint of a group, for args.communicator: Communicator::ranks(4) makes four, one per thread.
class Communicator {
 public:
  static std::vector<Communicator> ranks(int32_t count) {
    std::vector<attune_communicator*> made(count > 0 ? static_cast<size_t>(count) : 0);
    require(attune_ranks_create(count, made.data()));
    std::vector<Communicator> all;
    for (attune_communicator* c : made) all.push_back(Communicator(c));
    return all;
  }
  static Communicator mpi(const void* comm = nullptr) {
    attune_communicator* made = nullptr;
    require(attune_mpi_create(comm, &made));
    return Communicator(made);
  }
  explicit Communicator(attune_transport transport) {
    attune_communicator* made = nullptr;
    transport.size = sizeof transport;
    require(attune_transport_create(&transport, &made));
    handle_.reset(made);
  }
  attune_communicator* get() const { return handle_.get(); }
  void limit(double seconds) { require(attune_communicator_limit(get(), seconds)); }
  void barrier() { require(attune_communicator_barrier(get())); }
  attune_traffic traffic() const {
    attune_traffic t{};
    t.size = sizeof t;
    require(attune_communicator_traffic(get(), &t));
    return t;
  }

 private:
  explicit Communicator(attune_communicator* made) : handle_(made) {}
  struct Free {
    void operator()(attune_communicator* c) const { attune_communicator_destroy(c); }
  };
  std::unique_ptr<attune_communicator, Free> handle_;
};

// The tokens of a rank in row order, which are also their positions.
inline std::vector<int64_t> shard_tokens(const char* layout, int32_t tokens, int32_t ranks, int32_t rank) {
  int32_t count = 0;
  require(attune_shard_tokens(layout, tokens, ranks, rank, &count, nullptr));
  std::vector<int64_t> all(static_cast<size_t>(count));
  require(attune_shard_tokens(layout, tokens, ranks, rank, &count, all.data()));
  return all;
}

// A KV cache that tracks sequence lengths: Cache({.dtype = ATTUNE_BF16, .heads = 8, .dim_qk = 128, ...}).
class Cache {
 public:
  explicit Cache(attune_cache_options options) {
    attune_cache* made = nullptr;
    options.size = sizeof options;
    require(attune_cache_create(&options, &made));
    cache_.reset(made);
  }
  // Attends with the given sequences, `batch` of them; empty: sequences from 0 on.
  void attend(const Problem& problem, const Args& args, const std::vector<int32_t>& sequences = {},
              void* stream = nullptr) {
    if (!sequences.empty() && sequences.size() != static_cast<size_t>(problem.c.batch))
      throw Error("cache: " + std::to_string(sequences.size()) + " sequences are named for a batch of " +
                  std::to_string(problem.c.batch));
    require(args.with_c([&](const attune_args* a) {
      return attune_cache_attend(cache_.get(), &problem.c, a, sequences.empty() ? nullptr : sequences.data(), stream);
    }));
  }
  int32_t length(int32_t sequence) const {
    const int32_t keys = attune_cache_length(cache_.get(), sequence);
    if (keys < 0) throw Error(attune_last_error());
    return keys;
  }
  void resize(int32_t sequence, int32_t length) { require(attune_cache_resize(cache_.get(), sequence, length)); }
  void free(int32_t sequence) { resize(sequence, 0); }
  // The empty sequence `to` begins with the first keys of `from`, or all of them; shares pages until one is written.
  void fork(int32_t from, int32_t to, int32_t length, void* stream = nullptr) {
    require(attune_cache_fork(cache_.get(), from, to, length, stream));
  }
  void fork(int32_t from, int32_t to) { fork(from, to, length(from)); }
  int32_t free_pages() const { return attune_cache_free_pages(cache_.get()); }
  const int32_t* pages(int32_t sequence) const { return attune_cache_pages(cache_.get(), sequence); }
  attune_tensor view(int role) const {
    attune_tensor t{};
    require(attune_cache_view(cache_.get(), role, &t));
    return t;
  }

 private:
  struct Free {
    void operator()(attune_cache* c) const { attune_cache_destroy(c); }
  };
  std::unique_ptr<attune_cache, Free> cache_;
};

// A layer with parameters: Module("llama bf16 b1 s4096 e4096 h32/8 | causal", "cuda:0"). docs/modules.md has the lines.
class Module {
 public:
  explicit Module(const std::string& text, const char* device = nullptr, const Module* shares = nullptr) {
    attune_module_options options{};
    options.size = sizeof options;
    options.device = device, options.shares = shares ? shares->module_.get() : nullptr;
    attune_module* made = nullptr;
    require(attune_module_create(text.c_str(), &options, &made));
    module_.reset(made);
  }
  std::string text() const { return attune_module_text(module_.get()); }
  std::string why() const { return attune_module_why(module_.get()); }
  attune_module_sizes sizes() const {
    attune_module_sizes s{};
    s.size = sizeof s;
    require(attune_module_measure(module_.get(), &s));
    return s;
  }
  std::vector<std::string> parameters() const {
    std::vector<std::string> names;
    while (const char* name = attune_module_parameter_name(module_.get(), static_cast<int32_t>(names.size())))
      names.emplace_back(name);
    return names;
  }
  attune_tensor parameter(const std::string& name) const {
    attune_tensor t{};
    require(attune_module_parameter(module_.get(), name.c_str(), &t));
    return t;
  }
  attune_tensor gradient(const std::string& name) const {
    attune_tensor t{};
    require(attune_module_gradient(module_.get(), name.c_str(), &t));
    return t;
  }
  void* tape() const {  // the module's own, for one forward and its backward at a time
    void* memory = nullptr;
    require(attune_module_tape(module_.get(), &memory));
    return memory;
  }
  void load(const std::string& path, const std::string& prefix = "", bool convert = false) {
    require(attune_module_load(module_.get(), path.c_str(), prefix.c_str(), convert));
  }
  void save(const std::string& path, const std::string& prefix = "") const {
    require(attune_module_save(module_.get(), path.c_str(), prefix.c_str()));
  }

  // The arguments of a call. The workspace is optional: the library lends one.
  struct Call {
    const Tensor *x = nullptr, *memory = nullptr, *out = nullptr, *d_out = nullptr, *dx = nullptr, *d_memory = nullptr;
    const Tensor* seed = nullptr;
    void* tape = nullptr;  // null in a forward: no backward follows
    bool add = false;      // add to parameter gradients
    void* workspace = nullptr;
    size_t workspace_bytes = 0;
    void* communicator = nullptr;
  };
  void forward(const Call& call, void* stream = nullptr) const { run(attune_module_forward, call, stream); }
  void backward(const Call& call, void* stream = nullptr) const { run(attune_module_backward, call, stream); }

 private:
  void run(int (*pass)(const attune_module*, const attune_module_args*, void*), const Call& call, void* stream) const {
    const Tensor* const given[] = {call.x, call.memory, call.out, call.d_out, call.dx, call.d_memory, call.seed};
    attune_tensor tensor[7];
    const attune_tensor* to[7] = {};
    for (int n = 0; n < 7; ++n)
      if (given[n]) tensor[n] = given[n]->c(), to[n] = &tensor[n];
    attune_module_args a{};
    a.size = sizeof a;
    a.x = to[0], a.memory = to[1], a.out = to[2], a.d_out = to[3], a.dx = to[4], a.d_memory = to[5], a.seed = to[6];
    a.tape = call.tape, a.add = call.add, a.communicator = call.communicator;
    a.workspace = call.workspace, a.workspace_bytes = call.workspace_bytes;
    require(pass(module_.get(), &a, stream));
  }
  struct Free {
    void operator()(attune_module* m) const { attune_module_destroy(m); }
  };
  std::unique_ptr<attune_module, Free> module_;
};

// Native Sparse Attention over a cache of its streams: docs/nsa.md.
class NsaCache {
 public:
  explicit NsaCache(attune_nsa_cache_options options) {
    attune_nsa_cache* made = nullptr;
    options.size = sizeof options;
    require(attune_nsa_cache_create(&options, &made));
    cache_.reset(made);
  }
  // Attends with the given sequences, `batch` of them; empty: sequences from 0 on.
  void attend(const Problem& problem, const Args& args, const std::vector<int32_t>& sequences = {},
              void* stream = nullptr) {
    if (!sequences.empty() && sequences.size() != static_cast<size_t>(problem.c.batch))
      throw Error("nsa cache: " + std::to_string(sequences.size()) + " sequences are named for a batch of " +
                  std::to_string(problem.c.batch));
    require(args.with_c([&](const attune_args* a) {
      return attune_nsa_cache_attend(cache_.get(), &problem.c, a, sequences.empty() ? nullptr : sequences.data(),
                                     stream);
    }));
  }
  int32_t length(int32_t sequence) const { return known(attune_nsa_cache_length(cache_.get(), sequence)); }
  int32_t compressed(int32_t sequence) const { return known(attune_nsa_cache_compressed(cache_.get(), sequence)); }
  void shorten(int32_t sequence, int32_t length) {
    require(attune_nsa_cache_shorten(cache_.get(), sequence, length));
  }
  void free(int32_t sequence) { shorten(sequence, 0); }
  attune_tensor view(int stream) const {
    attune_tensor t{};
    require(attune_nsa_cache_view(cache_.get(), stream, &t));
    return t;
  }

 private:
  static int32_t known(int32_t tokens) {
    if (tokens < 0) throw Error(attune_last_error());
    return tokens;
  }
  struct Free {
    void operator()(attune_nsa_cache* c) const { attune_nsa_cache_destroy(c); }
  };
  std::unique_ptr<attune_nsa_cache, Free> cache_;
};

// Options of make(); attune_make_options documents each of them and its default.
struct MakeOptions {
  int32_t dtype = 0, batch = 0, len = 0, heads = 0, heads_kv = 0, dim = 0, dim_v = 0, embed = 0;
  bool causal = false, backward = false;
  int32_t ranks = 0, rank = 0, block = 0;
  float density = 0;
  std::string device = "cpu", segments{}, rates{}, pattern{}, nsa{};
};

// The result of make(): a problem for call() and Plan, or the text of a Module, with the reason.
class Made {
 public:
  Made(const std::string& name, const MakeOptions& wanted) : device_(wanted.device) {
    const auto text = [](const std::string& s) { return s.empty() ? nullptr : s.c_str(); };
    attune_make_options o{};
    o.size = sizeof o;
    o.dtype = wanted.dtype, o.batch = wanted.batch, o.len = wanted.len, o.heads = wanted.heads;
    o.heads_kv = wanted.heads_kv, o.dim = wanted.dim, o.dim_v = wanted.dim_v, o.embed = wanted.embed;
    o.causal = wanted.causal, o.backward = wanted.backward, o.ranks = wanted.ranks, o.block = wanted.block;
    o.rank = wanted.rank;
    o.density = wanted.density, o.device = device_.c_str(), o.segments = text(wanted.segments);
    o.rates = text(wanted.rates), o.pattern = text(wanted.pattern), o.nsa = text(wanted.nsa);
    attune_choice* made = nullptr;
    require(attune_choose(name.c_str(), &o, &made));
    choice_.reset(made);
  }
  std::string name() const { return attune_choice_name(choice_.get()); }
  std::string line() const { return attune_choice_line(choice_.get()); }
  std::string pattern() const { return attune_choice_pattern(choice_.get()); }
  std::string why() const { return attune_choice_why(choice_.get()); }
  bool is_module() const { return attune_choice_is_module(choice_.get()); }
  Problem problem() const { return Problem(line()); }
  Module module(const Module* shares = nullptr) const { return Module(line(), device_.c_str(), shares); }

 private:
  struct Free {
    void operator()(attune_choice* c) const { attune_choice_destroy(c); }
  };
  std::unique_ptr<attune_choice, Free> choice_;
  std::string device_;
};

// make("dilated", {.len = 8192, .heads = 12, .causal = true}), make("multihead_nsa", ...), make("auto", ...).
inline Made make(const std::string& name, const MakeOptions& options = {}) { return Made(name, options); }

}  // namespace attune
#endif
