// SPDX-License-Identifier: Apache-2.0
// A layer of a model as a graph of module steps. One graph serves all layers of its kind: a run brings the parameters,
// the tape and the cache of its layer.
#pragma once
#include "models/config.h"
#include "modules/graph.h"
#include "modules/module.h"
#include "plan/rules.h"

namespace attune::models {

// How attention is computed: by the planner's choice ("auto"), by textbook attention ("standard") or by a backend.
struct Attention {
  std::string text = "auto";
  std::string backend(const Device&) const;  // "" for auto
};

struct LayerShape {
  int batch = 1, len = 1;
  int slots = 0, capacity = 0;  // of the cache that it appends to; capacity 0: no cache
  bool windowed = false;
  auto operator<=>(const LayerShape&) const = default;
};

struct Layer {
  Graph graph{};
  Storage constants{};
  std::string why{};            // the problem of its attention, and the backends
};

Status make_layer(const Config&, const LayerShape&, DType, const Attention&, const Device&, std::span<const Rule>,
                  Layer& out);
// The same without memory of its own, for sizes: nothing is allocated.
Status plan_layer(const Config&, const LayerShape&, DType, const Attention&, const Device&, std::span<const Rule>,
                  Layer& out);

}  // namespace attune::models
