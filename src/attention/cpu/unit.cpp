// SPDX-License-Identifier: Apache-2.0
#include "attention/cpu/unit.h"

#include "core/dtypes.h"

namespace attune::cpu {

Status supports(std::string_view who, Pass pass, const Problem& p, const Device& d) {
  const auto no = [&](const auto&... why) { return Status::unsupported(who, ": ", why...); };
  if (d.kind != DeviceKind::cpu) return no("requires a CPU, but the device is ", d.name.empty() ? "a GPU" : d.name);
  if (p.pass != pass) return no("computes a ", name(pass), ", not a ", name(p.pass));
  if (!word(p.variant).empty() && word(p.variant) != "formula")
    return no("does not implement the variant ", word(p.variant));
  if (p.has(Option::descale)) return no("does not support the option ", name(Option::descale));
  if (p.dtype.q != p.dtype.kv)
    return no("q is ", name(p.dtype.q), " and kv is ", name(p.dtype.kv), "; both must be the same");
  if (!is_f32_or_half(p.dtype.q)) return no("dtype ", name(p.dtype.q), " is not one of f32, f16, bf16");
  for (const DType t : {p.dtype.out, p.dtype.grad})
    if (t != DType::none && t != p.dtype.q && t != DType::f32)
      return no("out or grad dtype ", name(t), " is neither ", name(p.dtype.q), " nor f32");
  for (const int dim : {p.dim_qk, p.dim_v})
    if (dim % 8 || dim > 256) return no("dim ", dim, " is not a multiple of 8 up to 256");
  if (!best_kernels(p.dtype.q, d.features)) return no("this build has no kernels for ", d.name);
  return Status::good();
}

}  // namespace attune::cpu
