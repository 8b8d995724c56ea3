// SPDX-License-Identifier: Apache-2.0
// The factory in the C interface.
#include <cmath>
#include <memory>

#include "capi/local.h"
#include "capi/struct.h"
#include "machine/host.h"
#include "modules/factory.h"

using namespace attune;

struct attune_choice {
  MakeChoice choice{};
};

namespace {
// A float's 0.1 becomes one tenth. A value that would round to 0, which means "not given", is kept and refused later.
double tidy(float density) {
  const double rounded = std::round(double(density) * 1e6) / 1e6;
  return rounded == 0 ? double(density) : rounded;
}
}  // namespace

int attune_choose(const char* name, const attune_make_options* options, attune_choice** out) {
  return answer([&] {
    if (!name || !out) return Status::no(name ? "out is null" : "name is null");
    attune_make_options o;
    if (Status s = copied(options, "options", o); !s.ok()) return s;
    Device device;
    if (Status s = device_named(o.device ? o.device : "cpu", device); !s.ok()) return s;
    const auto or_else = [](int32_t given, int32_t usual) { return given ? given : usual; };
    const auto text = [](const char* given) { return std::string(given ? given : ""); };
    const MakeOptions usual;
    const MakeOptions wanted{.dtype = o.dtype ? DType(o.dtype) : usual.dtype,
                             .batch = or_else(o.batch, usual.batch),
                             .len = or_else(o.len, usual.len),
                             .heads = or_else(o.heads, usual.heads),
                             .heads_kv = o.heads_kv,
                             .dim = or_else(o.dim, usual.dim),
                             .dim_v = o.dim_v,
                             .embed = o.embed,
                             .causal = o.causal != 0,
                             .backward = o.backward != 0,
                             .ranks = or_else(o.ranks, 1),
                             .rank = o.rank,
                             .block = or_else(o.block, usual.block),
                             .density = tidy(o.density),
                             .segments = text(o.segments),
                             .rates = text(o.rates),
                             .pattern = text(o.pattern),
                             .nsa = text(o.nsa)};
    auto made = std::make_unique<attune_choice>();
    if (Status s = choose(name, wanted, device, made->choice); !s.ok()) return s;
    *out = made.release();
    return Status::good();
  });
}

void attune_choice_destroy(attune_choice* choice) { delete choice; }
const char* attune_choice_name(const attune_choice* c) { return c ? c->choice.name.c_str() : ""; }
const char* attune_choice_line(const attune_choice* c) { return c ? c->choice.line.c_str() : ""; }
const char* attune_choice_pattern(const attune_choice* c) { return c ? c->choice.pattern.c_str() : ""; }
const char* attune_choice_why(const attune_choice* c) { return c ? c->choice.why.c_str() : ""; }
int attune_choice_is_module(const attune_choice* c) { return c && c->choice.module; }
