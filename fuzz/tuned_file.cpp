// SPDX-License-Identifier: Apache-2.0
// Parses arbitrary bytes as a tuned file. Parsing terminates, a refusal names the file, and an accepted file is written
// to one that parses to the same rules.
#include <cstdint>
#include <string>

#include "fuzz/require.h"
#include "plan/rules.h"

using namespace attune;

namespace {

bool same(const Rule& a, const Rule& b) {  // except for the source line
  return a.pass == b.pass && a.dtype == b.dtype && a.dim_qk == b.dim_qk && a.dim_v == b.dim_v && a.mask == b.mask &&
         a.min_heads == b.min_heads && a.max_heads == b.max_heads && a.min_len == b.min_len && a.decode == b.decode &&
         a.min_work == b.min_work && a.backend == b.backend;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string text(reinterpret_cast<const char*>(data), size);
  Tuned tuned, again;
  if (const Status read = read_tuned(text, "given.tsv", tuned); !read.ok()) {
    require(read.message.starts_with("given.tsv"), "a mistake names its file");
    return 0;
  }
  const Status second = read_tuned(write_tuned(tuned), "written.tsv", again);
  require(second.ok(), "what was written reads back");
  require(again.device == tuned.device && again.measured == tuned.measured, "device and origin");
  require(again.rules.size() == tuned.rules.size(), "as many rules");
  for (size_t n = 0; n < tuned.rules.size(); ++n) require(same(tuned.rules[n], again.rules[n]), "the same rules");
  for (const Rule& r : tuned.rules) {
    Problem p;
    p.pass = r.pass, p.dtype.q = r.dtype, p.dim_qk = r.dim_qk, p.dim_v = r.dim_v, p.mask.kind = r.mask;
    p.len_k = r.min_len;
    const Rule* found = match(p, tuned.rules);
    require(!found || found->backend.size() > 0, "a rule names a backend");
  }
  return 0;
}
