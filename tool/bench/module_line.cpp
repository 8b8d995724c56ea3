// SPDX-License-Identifier: Apache-2.0
// Rows of modules as text: how they are recognised and parsed, the attention inside, which of them can be timed, and
// their flops and bytes. The module line itself is parsed by modules/settings.h.
#include "machine/host.h"
#include "modules/settings.h"
#include "tool/subjects/module_run.h"
#include "variants/blocks/blocks.h"

namespace attune {
namespace {

constexpr std::string_view kKind = "multihead ";

Settings settings_of(const BenchRow& row) {
  Settings s;
  (void)read_settings(row.module, s);  // parse_module_row() has read it without error
  return s;
}

}  // namespace

bool is_module_row(std::string_view text) {
  for (const std::string_view pass : {"forward ", "backward "})
    if (text.starts_with(pass)) return text.substr(pass.size()).starts_with(kKind);
  return false;
}

Status parse_module_row(std::string_view text, BenchRow& out) {
  if (!is_module_row(text)) return Status::no("'", text, "' is not 'forward' or 'backward' and a multihead line");
  const size_t space = text.find(' ');
  const std::string_view line = text.substr(space + 1);
  Settings s;
  if (Status bad = read_settings(line, s); !bad.ok()) return bad;
  BenchRow row;
  Problem forward;
  Pattern pattern;
  if (Status bad = attention_of(s, s.attention, s.pattern, s.memory ? s.memory : s.len, forward, pattern); !bad.ok())
    return bad;
  const std::string attention = name(forward);
  const std::string_view rest = std::string_view(attention).substr(attention.find(' '));
  if (Status bad = parse(join(text.substr(0, space), rest), row.problem); !bad.ok()) return bad;
  row.module = line, row.label = text;
  return out = std::move(row), Status::good();
}

Status can_time_module(const BenchRow& row, const Device& device, Mode mode) {
  const Settings s = settings_of(row);
  const std::string_view variant = word(row.problem.variant);
  const bool on_cpu = device.kind == DeviceKind::cpu;
  if (!on_cpu && mode == Mode::graph)
    return Status::unsupported("not built: modules are timed warm or cold, not in graphs");
  if (on_cpu && device.units != this_cpu().units)
    return Status::unsupported("not built: modules are timed with all ", this_cpu().units, " threads, not ",
                               device.units);
  if (s.dtype == DType::f32)
    return Status::unsupported("not built: modules in f32; modules are checked against themselves in f32");
  if (s.memory || s.dropout > 0 || (!variant.empty() && variant != "dilated"))
    return Status::unsupported(
        "not built: modules are timed with plain, dilated or block-sparse self-attention and no dropout");
  return Status::good();
}

Cost module_attention_cost(const BenchRow& row, BlockCounts& counts) {
  const Settings s = settings_of(row);
  const Problem& p = row.problem;
  Problem listed;
  BlockSource from{.counts = counts.data()};
  counts.fill(0);
  if (s.pattern.empty() || !attention_of(s, s.attention, s.pattern, s.len, listed, from.pattern).ok()) return cost(p);
  // Builds the module's block lists again: one for all heads, or one per head.
  const int32_t heads = from.pattern.by_head() ? p.heads_q : 1, rows = int32_t(ceil_div(p.len_q, p.mask.blocks.q)) + 1;
  std::vector<int32_t> begin(size_t(heads) * size_t(rows)), column(size_t(p.mask.blocks.bound));
  Args a;
  a[Role::block_begin] = {.data = begin.data(), .dtype = DType::i32, .extent = {1, 1, heads, rows},
                          .stride = {0, 0, heads == 1 ? 0 : rows}};
  a[Role::block_column] = {.data = column.data(), .dtype = DType::i32, .extent = {1, 1, 1, p.mask.blocks.bound}};
  a[Role::q].extent = {p.batch, p.len_q, p.heads_q, p.dim_qk};
  a[Role::k].extent = {p.batch, p.len_k, p.heads_kv, p.dim_qk};
  return build_blocks(p, a, from, nullptr).ok() ? cost(p, &a) : cost(p);
}

Cost module_cost(const BenchRow& row) {
  const Settings s = settings_of(row);
  BlockCounts counts;
  const bool backward = row.problem.pass == Pass::backward;
  const double tokens = double(s.batch) * s.len, size = size_of(s.dtype), embed = s.embed;
  const double matrices = embed * (s.heads * (s.dim + s.dim_v) + s.heads_kv * (s.dim + s.dim_v));
  Cost c = module_attention_cost(row, counts);
  c.flops += (backward ? 4 : 2) * tokens * matrices;
  c.bytes = (backward ? 3 : 2) * tokens * embed * size + matrices * (backward ? size + sizeof(float) : size);
  return c;
}

}  // namespace attune
