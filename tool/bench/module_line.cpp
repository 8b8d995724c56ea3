// SPDX-License-Identifier: Apache-2.0
// Rows of modules as text: how they are recognised and parsed, the attention inside, which of them can be timed, and
// their flops and bytes. The module line itself is parsed by modules/settings.h.
#include "core/variant/nsa.h"
#include "machine/host.h"
#include "modules/settings.h"
#include "tool/subjects/module_run.h"
#include "tool/subjects/ring_run.h"
#include "variants/blocks/blocks.h"

namespace attune {
namespace {

constexpr std::string_view kKinds[] = {"multihead ", "feed_forward ", "longnet_encoder ", "longnet_decoder ", "llama "};

Settings settings_of(const BenchRow& row) {
  Settings s;
  (void)read_settings(row.module, s);  // parse_module_row() has read it without error
  return s;
}

bool is_layer(const Settings& s) {
  return s.kind == ModuleKind::longnet_encoder || s.kind == ModuleKind::longnet_decoder;
}

// The keys of its (self-)attention.
int keys_of(const Settings& s) { return s.kind == ModuleKind::multihead && s.memory ? s.memory : s.len; }

}  // namespace

bool is_module_row(std::string_view text) {
  for (const std::string_view pass : {"forward ", "backward "})
    for (const std::string_view kind : kKinds)
      if (text.starts_with(pass) && text.substr(pass.size()).starts_with(kind)) return true;
  return false;
}

Status parse_module_row(std::string_view text, BenchRow& out) {
  if (!is_module_row(text)) return Status::no("'", text, "' is not 'forward' or 'backward' and a module line");
  const size_t space = text.find(' ');
  const std::string_view line = text.substr(space + 1);
  Settings s;
  if (Status bad = read_settings(line, s); !bad.ok()) return bad;
  BenchRow row;
  row.module = line, row.label = text;
  Problem forward;
  Pattern pattern;
  if (s.kind == ModuleKind::feed_forward) {  // it has no attention: one of its size that shows no key
    forward.dtype = {s.dtype, s.dtype, s.dtype, DType::none, DType::none};
    forward.batch = s.batch, forward.len_q = forward.len_k = s.len, forward.dim_qk = forward.dim_v = 8;
  } else if (Status bad = attention_of(s, s.attention, s.pattern, keys_of(s), forward, pattern); !bad.ok()) {
    return bad;
  }
  const std::string attention = name(forward);
  const std::string_view rest = std::string_view(attention).substr(attention.find(' '));
  if (Status bad = parse(join(text.substr(0, space), rest), row.problem); !bad.ok()) return bad;
  return out = std::move(row), Status::good();
}

Status can_time_module(const BenchRow& row, const Device& device, Mode mode) {
  const bool on_cpu = device.kind == DeviceKind::cpu;
  if (!on_cpu && mode == Mode::graph)
    return Status::unsupported("not built: modules are timed warm or cold, not in graphs");
  if (on_cpu && device.units != this_cpu().units)
    return Status::unsupported("not built: modules are timed with all ", this_cpu().units, " threads, not ",
                               device.units);
  if (is_ring(row.problem) && settings_of(row).memory)
    return Status::unsupported("not built: modules over ranks are timed without a second input");
  return Status::good();
}

Cost module_attention_cost(const BenchRow& row, BlockCounts& counts) {
  const Settings s = settings_of(row);
  const Problem p = whole_problem(row.problem);
  Problem listed;
  BlockSource from{.counts = counts.data()};
  counts.fill(0);
  if (s.pattern.empty() || !attention_of(s, s.attention, s.pattern, keys_of(s), listed, from.pattern).ok())
    return cost(p);
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

// The products of a module with the rows of each, and its attention. Biases, norms and small gates are left out.
Cost module_cost(const BenchRow& row) {
  const Settings s = settings_of(row);
  BlockCounts counts;
  const bool backward = row.problem.pass == Pass::backward;
  const double tokens = double(s.batch) * whole_problem(row.problem).len_q, memory = double(s.batch) * s.memory;
  const double size = size_of(s.dtype), embed = s.embed;
  const double of_q = embed * s.heads * (s.dim + s.dim_v), of_keys = embed * s.heads_kv * (s.dim + s.dim_v);
  Cost c{};
  double matrices = 0, products = 0;  // elements, and multiply-adds
  const auto add = [&](double elements, double rows) { matrices += elements, products += elements * rows; };
  if (s.kind != ModuleKind::feed_forward) {
    c = module_attention_cost(row, counts);
    const bool nsa = word(row.problem.variant) == "nsa";
    const int branches = !nsa ? 1 : nsa_of(row.problem).w > 0 ? 3 : 2;  // each with its own keys and values
    add(of_q, tokens), add(branches * of_keys, s.kind == ModuleKind::multihead && s.memory ? memory : tokens);
    if (nsa && nsa_of(row.problem).gate == GateOf::sigmoid) add(embed * 3 * s.heads, tokens);
  }
  if (Problem cross; s.kind == ModuleKind::longnet_decoder && attention_of(s, "full", s.memory, cross).ok()) {
    cross.pass = row.problem.pass;
    if (backward) cross.dtype.grad = cross.dtype.q;
    const Cost more = cost(cross);
    c.flops += more.flops, add(of_q, tokens), add(of_keys, memory);
  }
  if (s.kind == ModuleKind::llama) add(3 * embed * s.ffn, tokens);
  if (s.kind == ModuleKind::feed_forward || is_layer(s)) add(2 * embed * s.ffn, tokens);
  c.flops += (backward ? 4 : 2) * products;
  c.bytes = (backward ? 3 : 2) * (tokens + (s.memory ? memory / 2 : 0)) * embed * size +
            matrices * (backward ? size + sizeof(float) : size);
  return c;
}

}  // namespace attune
