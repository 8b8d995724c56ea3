// SPDX-License-Identifier: Apache-2.0
// A module: named parameters, a forward that saves what its backward needs on a tape, and a backward. Shapes are fixed
// at creation, so every size is known before a call; modules of other shapes may share its parameters. Concurrent calls
// on one module are safe while no thread changes its parameters or gradients.
#pragma once
#include <mutex>

#include "machine/cuda/runtime.h"
#include "modules/graph.h"
#include "modules/settings.h"

namespace attune {

// Device memory owned by the module.
class Storage {
 public:
  Status allocate(const Device&, size_t bytes);  // zeroed
  std::byte* data() const { return data_; }

 private:
  std::byte* data_ = nullptr;
  std::unique_ptr<std::byte[]> here_{};
  cuda::Memory there_{};
};

struct ModuleCall {
  Tensor x{}, memory{}, out{};             // [batch, seq, embed], compact
  Tensor d_out{}, dx{}, d_memory{};        // backward; the last two are optional
  Tensor seed{};                           // dropout: [2] i64; none: no dropout
  std::byte* tape = nullptr;               // tape_bytes; null in a forward: no backward follows
  std::byte* workspace = nullptr;
  bool add = false;                        // add to parameter gradients instead of overwriting them
  bool parameters = true;                  // compute parameter gradients
  void* communicator = nullptr;
  void* stream = nullptr;
};

class Module {
 public:
  // Uses the parameters of another module with the same names and shapes, or its own, initialised from the seed.
  static Status make(const Settings&, const Device&, const Module* shares, std::unique_ptr<Module>& out);

  const Settings& settings() const { return settings_; }
  const Graph& graph() const { return graph_; }
  const std::string& why() const { return why_; }
  // Workspace bytes of a backward, of a forward with a tape, or of a forward without one.
  size_t workspace_bytes(Pass, bool tape) const;

  const Parameter* find(std::string_view name) const;  // null if there is none
  void* data(const Parameter& p) const { return shared_->parameters.data() + p.at; }
  // The f32 gradients, with the same shapes. Allocated and cleared on first use.
  Status gradients(std::byte*& out) const;
  // The module's own tape memory, for callers with one forward and its backward at a time.
  Status tape(std::byte*& out) const;
  // Copies a whole parameter between host and device, in its dtype.
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
