// SPDX-License-Identifier: Apache-2.0
// What the GPU backends refuse, with one sentence for each reason. The first reason counts:
//   return Refusal(kWho, p, d).needs_arch(90).pass(Pass::forward).no_variant().dims(8, 256).status();
#pragma once
#include <initializer_list>

#include "core/device.h"
#include "core/dtypes.h"
#include "core/problem.h"

namespace attune::cuda {

class Refusal {
 public:
  Refusal(std::string_view who, const Problem& p, const Device& d) : who_(who), p_(p), d_(d) {
    require(d.kind == DeviceKind::cuda, "requires a GPU, but ", d.name.empty() ? "this device" : d.name, " is a CPU");
  }

  // `good`: the requirement holds. Otherwise `why` is the reason, unless there is one already.
  template <class... Why>
  Refusal& require(bool good, const Why&... why) {
    if (!good && status_.ok()) status_.code = Code::unsupported, status_.message = join(who_, ": ", why...);
    return *this;
  }
  Refusal& needs_arch(int arch) {
    return require(d_.arch == arch, "requires sm_", arch, ", but ", d_.name, " is sm_", d_.arch);
  }
  Refusal& needs_arch_from(int arch) {
    return require(d_.arch >= arch, "requires sm_", arch, " or later, but ", d_.name, " is sm_", d_.arch);
  }
  Refusal& pass(Pass pass) { return require(p_.pass == pass, "computes a ", name(pass), ", not a ", name(p_.pass)); }
  Refusal& no_variant() {
    return require(word(p_.variant).empty(), "does not implement the variant ", word(p_.variant));
  }
  Refusal& variant(std::string_view wanted) {
    const std::string_view given = word(p_.variant);
    return require(given == wanted, "computes the variant ", wanted, ", not ",
                   given.empty() ? "dense attention" : given);
  }
  Refusal& without(std::initializer_list<Option> options) {
    for (const Option o : options) require(!p_.has(o), "does not support the option ", name(o));
    return *this;
  }
  Refusal& f32_or_half(DType t) {
    return require(is_f32_or_half(t), "dtype ", name(t), " is not one of f32, f16, bf16");
  }
  // f16 or bf16 for q, k and v.
  Refusal& half_inputs() {
    require(p_.dtype.q == DType::f16 || p_.dtype.q == DType::bf16, "dtype ", name(p_.dtype.q),
            " is not one of f16, bf16");
    return kv_like_q();
  }
  Refusal& kv_like_q() { return like_q("kv", p_.dtype.kv); }
  Refusal& out_like_q_or_f32() { return like_q_or_f32("out", p_.dtype.out); }
  // Out like q; gradients like q or f32.
  Refusal& half_gradients() { return like_q("out", p_.dtype.out).like_q_or_f32("grad", p_.dtype.grad); }
  // For kernels that add to d_bias by atomics.
  Refusal& no_reproducible_bias() {
    return require(p_.reproducible == Reproducible::no || !(p_.has(Option::bias) || p_.has(Option::block_bias)),
                   "sums the gradient of a bias in no fixed order; a reproducible run cannot have a bias");
  }
  Refusal& dims(int multiple, int most) {
    for (const int dim : {p_.dim_qk, p_.dim_v})
      require(dim % multiple == 0 && dim <= most, "dim ", dim, " is not a multiple of ", multiple, " up to ", most);
    return *this;
  }
  Status status() const { return status_; }

 private:
  Refusal& like_q(std::string_view what, DType t) {
    return require(t == p_.dtype.q, "q is ", name(p_.dtype.q), " and ", what, " is ", name(t),
                   "; both must be the same");
  }
  Refusal& like_q_or_f32(std::string_view what, DType t) {
    const DType q = p_.dtype.q;
    return require(t == q || t == DType::f32, what, " dtype ", name(t), " is ",
                   q == DType::f32 ? "" : join("neither ", name(q), " nor "), q == DType::f32 ? "not f32" : "f32");
  }

  std::string_view who_;
  const Problem& p_;
  const Device& d_;
  Status status_{};
};

}  // namespace attune::cuda
