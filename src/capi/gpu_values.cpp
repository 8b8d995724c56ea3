// SPDX-License-Identifier: Apache-2.0
#include "capi/gpu_values.h"

#include <list>
#include <vector>

#include "core/check.h"
#include "core/overlap.h"
#include "machine/cuda/runtime.h"

namespace attune {

Status check_values_on_gpu(const Problem& p, const Args& a) {
  const int index = a[Role::q].device_index;
  const cuda::DeviceGuard use(index);
  if (!use.status.ok()) return use.status;
  if (Status s = cuda::wait_all(index); !s.ok()) return s;
  Args here = a;
  std::list<std::vector<char>> copies;
  for (int n = 0; n < int(Role::count); ++n) {
    Tensor& t = here[Role(n)];
    Bytes span;
    if (!t.data || !bytes_of(t, span) || span.first == span.last) continue;
    if (Status s = cuda::reachable(t.data, index, name(Role(n))); !s.ok()) return s;
    if (t.dtype != DType::i32 && t.dtype != DType::i64) continue;
    std::vector<char>& copy = copies.emplace_back(span.last - span.first);
    if (Status s = cuda::copy_from(copy.data(), t.data, copy.size(), nullptr); !s.ok())
      return s.after(name(Role(n)), ": ");
    t.data = copy.data(), t.device = DeviceKind::cpu;
  }
  return check_values(p, here);
}

}  // namespace attune
