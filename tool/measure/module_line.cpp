// Rows of modules as text: which lines they are, the attention inside, what can be timed and what it costs. A module's
// line is read by the modules' own reader.
#include "machine/host.h"
#include "modules/settings.h"
#include "tool/measure/module_run.h"

namespace attune {
namespace {

constexpr std::string_view kKind = "multihead ";

Settings settings_of(const BenchRow& row) {
  Settings s;
  (void)read_settings(row.module, s);  // it was read before
  return s;
}

}  // namespace

bool is_module_row(std::string_view text) {
  for (const std::string_view pass : {"forward ", "backward "})
    if (text.starts_with(pass)) return text.substr(pass.size()).starts_with(kKind);
  return false;
}

Status parse_module_row(std::string_view text, BenchRow& out) {
  if (!is_module_row(text)) return Status::no("'", text, "' is not forward or backward and a line of a multihead");
  const size_t space = text.find(' ');
  const std::string_view line = text.substr(space + 1);
  Settings s;
  if (Status bad = read_settings(line, s); !bad.ok()) return bad;
  BenchRow row;
  Problem forward;
  if (Status bad = attention_of(s, s.attention, s.memory ? s.memory : s.len, forward); !bad.ok()) return bad;
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
    return Status::no("not built: modules are timed warm or cold, not in graphs");
  if (on_cpu && device.units != this_cpu().units)
    return Status::no("not built: modules are timed with all ", this_cpu().units, " threads, not ", device.units);
  if (s.dtype == DType::f32)
    return Status::no("not built: a module is checked against itself in f32, and so those in f32 are not timed");
  if (s.memory || s.dropout > 0 || !s.pattern.empty() || (!variant.empty() && variant != "dilated"))
    return Status::no("not built: modules are timed with plain and dilated self-attention, without dropout");
  return Status::good();
}

Cost module_cost(const BenchRow& row) {
  const Settings s = settings_of(row);
  const bool backward = row.problem.pass == Pass::backward;
  const double tokens = double(s.batch) * s.len, size = size_of(s.dtype), embed = s.embed;
  const double matrices = embed * (s.heads * (s.dim + s.dim_v) + s.heads_kv * (s.dim + s.dim_v));
  Cost c = cost(row.problem);
  c.flops += (backward ? 4 : 2) * tokens * matrices;
  c.bytes = (backward ? 3 : 2) * tokens * embed * size + matrices * (backward ? size + sizeof(float) : size);
  return c;
}

}  // namespace attune
