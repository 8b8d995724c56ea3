// SPDX-License-Identifier: Apache-2.0
// cpu_reads: counts the tokens that the branches of native sparse attention read: compressed, selected, in the window,
// and distinct raw ones. It counts from the lists in use, not by a formula.
#include <algorithm>

#include "core/variant/nsa.h"
#include "plan/backend.h"

namespace attune {
namespace {

Status supports(const Problem& p, const Device& d) {
  const auto no = [](const auto&... why) { return Status::unsupported("cpu_reads: ", why...); };
  if (word(p.variant) != "reads") return no("is for the variant reads");
  if (d.kind != DeviceKind::cpu) return no("requires a CPU, but the device is ", d.name.empty() ? "a GPU" : d.name);
  return Status::good();
}

Status run(const Plan& plan, const Args& a, Workspace, Stream) {
  const Problem& p = plan.problem;
  const Nsa nsa = nsa_of(p);
  int64_t compressed = 0, selected = 0, window = 0, distinct = 0;
  for (int b = 0; b < p.batch; ++b) {
    const SelectSequence s = select_sequence(p, a, nsa, b);
    const int tokens = int(s.position) + s.len_q;
    for (int i = 0; i < s.len_q; ++i)
      for (int g = 0; g < p.heads_kv; ++g) {
        const int64_t t = s.position + i, near = std::max<int64_t>(0, t + 1 - nsa.w);
        const int32_t* list = a.row<const int32_t>(variant_tensor(0), s.batch, s.first + i, g);
        const int64_t last = std::max<int64_t>(0, t + 1);
        compressed += nsa.visible(t), window += last - std::min(near, last);
        distinct += last - std::min(near, last);
        int32_t most = -1;
        for (int n = 0; n < nsa.n; ++n) {
          const Rows keys = block_keys(nsa, list[n], most, t, tokens);
          most = std::max(most, list[n]);
          selected += std::max(0, keys.last - keys.first);
          distinct += std::max<int64_t>(0, std::min<int64_t>(keys.last, near) - keys.first);
        }
      }
  }
  const int64_t all[] = {compressed, selected, window, distinct};
  std::copy_n(all, 4, a.row<int64_t>(variant_tensor(1)));
  return Status::good();
}

}  // namespace

extern const Backend cpu_reads{.name = "cpu_reads", .supports = supports,
                               .shape = [](Plan&, const Planner&) { return Status::good(); }, .run = run};

}  // namespace attune
