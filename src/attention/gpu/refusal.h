// What the GPU backends refuse, with one sentence for each reason. The first reason counts:
//   return Refusal(kWho, p, d).needs_arch(90).pass(Pass::forward).no_variant().dims(8, 256).status();
#pragma once
#include <initializer_list>

#include "core/device.h"
#include "core/problem.h"

namespace attune::cuda {

class Refusal {
 public:
  Refusal(std::string_view who, const Problem& p, const Device& d) : who_(who), p_(p), d_(d) {
    require(d.kind == DeviceKind::cuda, "requires a GPU, but ", d.name.empty() ? "this device" : d.name, " is a CPU");
  }

  // `good`: the requirement holds. Otherwise `why` is the reason, unless there is one already.
  template <class... Part>
  Refusal& require(bool good, const Part&... why) {
    if (!good && status_.ok()) status_ = Status::unsupported(who_, ": ", why...);
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
  Refusal& without(std::initializer_list<Option> options) {
    for (const Option o : options) require(!p_.has(o), "does not support the option ", name(o));
    return *this;
  }
  // f16 or bf16 for q, k and v.
  Refusal& half_inputs() {
    require(p_.dtype.q == DType::f16 || p_.dtype.q == DType::bf16, "dtype ", name(p_.dtype.q),
            " is not one of f16, bf16");
    return require(p_.dtype.kv == p_.dtype.q, "q is ", name(p_.dtype.q), " and kv is ", name(p_.dtype.kv),
                   "; both must be the same");
  }
  Refusal& out_like_q_or_f32() { return like_q_or_f32("out", p_.dtype.out); }
  // Out like q; gradients like q or f32.
  Refusal& half_gradients() {
    require(p_.dtype.out == p_.dtype.q, "q is ", name(p_.dtype.q), " and out is ", name(p_.dtype.out),
            "; both must be the same");
    return like_q_or_f32("grad", p_.dtype.grad);
  }
  Refusal& dims(int multiple, int most) {
    for (const int dim : {p_.dim_qk, p_.dim_v})
      require(dim % multiple == 0 && dim <= most, "dim ", dim, " is not a multiple of ", multiple, " up to ", most);
    return *this;
  }
  Status status() const { return status_; }

 private:
  Refusal& like_q_or_f32(std::string_view what, DType t) {
    return require(t == p_.dtype.q || t == DType::f32, what, " dtype ", name(t), " is neither ", name(p_.dtype.q),
                   " nor f32");
  }

  std::string_view who_;
  const Problem& p_;
  const Device& d_;
  Status status_{};
};

}  // namespace attune::cuda
