// A module: parameters by name, a forward that keeps what its backward needs on a tape, and a backward. Shapes are
// fixed when it is made, so every size is known before a call; modules of other shapes may share its parameters. Calls
// of one module from many threads are safe as long as nobody changes its parameters or gradients meanwhile.
#pragma once
#include <mutex>

#include "machine/cuda/runtime.h"
#include "modules/graph.h"
#include "modules/settings.h"

namespace attune {

// Memory of a device that the module owns.
class Storage {
 public:
  Status allocate(const Device&, size_t bytes);  // cleared
  std::byte* data() const { return data_; }

 private:
  std::byte* data_ = nullptr;
  std::unique_ptr<std::byte[]> here_{};
  cuda::Memory there_{};
};

struct ModuleCall {
  Tensor x{}, memory{}, out{};             // [batch, seq, embed], compact
  Tensor d_out{}, dx{}, d_memory{};        // backward; the last two may be left out
  Tensor seed{};                           // [2] i64 of dropout; none: nothing is dropped
  std::byte* tape = nullptr;               // tape_bytes; null in a forward: no backward follows
  std::byte* workspace = nullptr;
  bool add = false;                        // to parameter gradients, instead of overwriting them
  bool parameters = true;                  // their gradients are wanted
  void* communicator = nullptr;
  void* stream = nullptr;
};

class Module {
 public:
  // With the parameters of another module of the same names and shapes, or its own, initialised by the seed.
  static Status make(const Settings&, const Device&, const Module* shares, std::unique_ptr<Module>& out);

  const Settings& settings() const { return settings_; }
  const Graph& graph() const { return graph_; }
  const std::string& why() const { return why_; }
  // Bytes of the workspace: of a backward, of a forward with a tape, and of one without.
  size_t workspace_bytes(Pass, bool tape) const;

  const Parameter* find(std::string_view name) const;  // null where there is none
  void* data(const Parameter& p) const { return shared_->parameters.data() + p.at; }
  // The f32 gradients, of the same shapes: allocated, and 0, when first asked for or written.
  Status gradients(std::byte*& out) const;
  // Memory for one tape, the module's own: for callers who have one forward and its backward at a time.
  Status tape(std::byte*& out) const;
  // Between the host and a parameter, whole, in its dtype.
  Status write(const Parameter&, const void* from) const;
  Status read(const Parameter&, void* to) const;

  Status forward(const ModuleCall&) const;
  Status backward(const ModuleCall&) const;

 private:
  struct Shared {
    Storage parameters{}, gradients{};
    std::mutex mutex{};
  };
  Status prepare();
  Status initialise() const;
  Status check(const ModuleCall&, Pass) const;
  Status check_memory(const ModuleCall&, Pass) const;
  Run run_of(const ModuleCall&, Pass) const;

  Settings settings_{};
  Graph graph_{};
  std::string why_{};
  Storage constants_{};
  mutable Storage tape_{};
  std::shared_ptr<Shared> shared_{};
};

}  // namespace attune
