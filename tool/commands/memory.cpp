// SPDX-License-Identifier: Apache-2.0
// `attune memory`: shows the memory of a problem, tensor by tensor, with the exact workspace of its plan, and the
// longest context that fits. On a GPU in this machine everything is allocated from the pool, so the output shows what
// rounding and the driver add. Nothing runs, except with --measure, which runs every implementation once.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <memory>
#include <vector>

#include "attune/attune.h"
#include "core/check.h"
#include "core/variant/ring.h"
#include "core/variant/variants.h"
#include "machine/cuda/runtime.h"
#include "machine/host.h"
#include "machine/known_gpus.h"
#include "plan/plan.h"
#include "plan/tuned.h"
#include "tool/cli.h"
#include "tool/commands/commands.h"
#include "tool/json.h"
#include "tool/line.h"
#include "tool/machine.h"
#include "tool/bench/axes.h"
#include "tool/subjects/ring_run.h"
#include "tool/subjects/workload.h"
#include "tool/commands/memory_module.h"
#include "tool/bench/memory.h"
#include "tool/text.h"

namespace attune {
namespace {

struct Asked {
  std::string line{}, device{"cpu"}, backend{}, python{"python3"};
  std::vector<std::string> peers{};
  bool measure = false;
};

struct Piece {
  Role role = Role::q;
  double bytes = 0;
  std::string name{};  // name of a variant's tensor; "" for a tensor of a role
  std::string text() const { return name.empty() ? attune::name(role) : name; }
};

double elements(const Extents& e) { return double(e.batch) * e.seq * e.head * e.dim; }

// Adds a variant's tensors and removes the dense roles that it does not take. The variant may set the extents of k and
// out. Saved tensors exist after a forward that is followed by a backward.
void add_variant(const Problem& p, std::vector<Piece>& all) {
  Args a;
  const bool ragged = p.keys == KeySource::ragged;
  const auto at = [&](int length, int heads, int dim) {
    return Extents{ragged ? 1 : p.batch, ragged ? p.batch * length : length, heads, dim};
  };
  a[Role::q].extent = at(p.len_q, p.heads_q, p.dim_qk), a[Role::k].extent = at(p.len_k, p.heads_kv, p.dim_qk);
  const Declared variant = declared(p, a);
  if (!variant.dense)
    std::erase_if(all, [&](const Piece& x) { return !((variant.required | variant.optional) >> int(x.role) & 1); });
  for (Piece& x : all) {
    const bool out = x.role == Role::out || x.role == Role::d_out, k = x.role == Role::k || x.role == Role::dk;
    const Extents own = out ? variant.out : k ? variant.k : Extents{0, 0, 0, 0};
    Extents e = out ? at(p.len_q, p.heads_q, p.dim_v) : a[Role::k].extent;
    if (!own.batch && !own.seq && !own.head && !own.dim) continue;
    if (own.batch) e.batch = own.batch;
    if (own.seq) e.seq = own.seq;
    if (own.head) e.head = own.head;
    if (own.dim) e.dim = own.dim;
    const DType type = x.role == Role::dk ? p.dtype.grad : out ? p.dtype.out : p.dtype.kv;
    x.bytes = elements(e) * size_of(type);
  }
  for (int n = 0; n < kVariantTensors; ++n) {
    const VariantTensor& t = variant.tensor[n];
    if (t.use == Use::none) continue;
    all.push_back({variant_tensor(n), elements(t.extent) * size_of(t.dtype), std::string(t.name)});
    const DType grad = t.dtype == DType::f32 ? DType::f32 : p.dtype.grad;
    if (p.pass == Pass::backward && t.use == Use::input)
      all.push_back({d_variant_tensor(n), elements(t.extent) * size_of(grad), join("d_", t.name)});
  }
}

std::vector<Piece> dense_pieces(const Problem&);

// The tensors of a problem at its bounds. A broadcast bias is smaller.
std::vector<Piece> pieces_of(const Problem& p) {
  std::vector<Piece> all = dense_pieces(p);
  if (p.variant.text[0]) add_variant(p, all);
  return all;
}

std::vector<Piece> dense_pieces(const Problem& p) {
  const double b = p.batch, rows_q = b * p.len_q, pages = p.page ? std::ceil(double(p.len_k) / p.page) : 0;
  const double rows_k = p.page ? b * pages * p.page : b * p.len_k;
  const auto size = [](DType d) { return double(size_of(d)); };
  const double scores = rows_q * p.heads_q * p.len_k;
  std::vector<Piece> all = {{Role::q, rows_q * p.heads_q * p.dim_qk * size(p.dtype.q)},
                            {Role::k, rows_k * p.heads_kv * p.dim_qk * size(p.dtype.kv)},
                            {Role::v, rows_k * p.heads_kv * p.dim_v * size(p.dtype.kv)},
                            {Role::out, rows_q * p.heads_q * p.dim_v * size(p.dtype.out)},
                            {Role::lse, rows_q * p.heads_q * 4}};
  const auto add = [&](bool there, Role r, double bytes) {
    if (there) all.push_back({r, bytes});
  };
  const bool ragged = p.keys == KeySource::ragged, bias = p.has(Option::bias), append = p.has(Option::append);
  const bool rotary = p.has(Option::rotary) || p.has(Option::rotary_half);
  add(ragged, Role::cu_q, (b + 1) * 4), add(ragged, Role::cu_k, (b + 1) * 4);
  add(p.page > 0, Role::page_table, b * pages * 4);
  add(append, Role::k_new, rows_q * p.heads_kv * p.dim_qk * size(p.dtype.kv));
  add(append, Role::v_new, rows_q * p.heads_kv * p.dim_v * size(p.dtype.kv));
  add(rotary, Role::rotary_cos, double(p.len_k) * p.dim_qk / 2 * 4);
  add(rotary, Role::rotary_sin, double(p.len_k) * p.dim_qk / 2 * 4);
  add(bias, Role::bias, scores * size(p.dtype.bias));
  const Blocks blocks = p.mask.blocks;
  const Problem whole = whole_problem(p);  // every rank holds the lists of the whole problem
  const auto list = [&](Role begin, Role entries, int length, int size_of_block) {
    add(true, begin, b * p.heads_q * (double(ceil_div(length, size_of_block)) + 1) * 4);
    add(true, entries, double(blocks.bound) * 4);
  };
  if (blocks.q) list(Role::block_begin, Role::block_column, whole.len_q, blocks.q);
  if (blocks.q && p.pass == Pass::backward) list(Role::block_begin_k, Role::block_row_k, whole.len_k, blocks.k);
  add(p.has(Option::block_bias), Role::bias, double(blocks.bound) * 4);
  add(p.has(Option::alibi), Role::slopes, p.heads_q * 4.), add(p.has(Option::sink), Role::sinks, p.heads_q * 4.);
  if (p.pass == Pass::forward) return all;
  add(true, Role::d_out, rows_q * p.heads_q * p.dim_v * size(p.dtype.out));
  add(true, Role::dq, rows_q * p.heads_q * p.dim_qk * size(p.dtype.grad));
  add(true, Role::dk, rows_k * p.heads_kv * p.dim_qk * size(p.dtype.grad));
  add(true, Role::dv, rows_k * p.heads_kv * p.dim_v * size(p.dtype.grad));
  add(bias, Role::d_bias, scores * 4), add(p.has(Option::sink), Role::d_sinks, p.heads_q * 4.);
  return all;
}

double total(const std::vector<Piece>& pieces) {
  double all = 0;
  for (const Piece& piece : pieces) all += piece.bytes;
  return all;
}

// Memory of one backend besides the tensors, which are the same for all.
struct Way {
  std::string_view backend{};
  double workspace = 0;
  int64_t longest = 0;  // most keys that fit
};

struct Answer {
  Plan plan{};
  std::vector<Piece> pieces{};
  double device_bytes = 0;         // memory of the whole device; 0: unknown
  int64_t longest = 0;             // most keys that fit; 0: none, or unknown
  bool taken = false;              // allocated on the GPU
  bool elsewhere = false;          // what fits is an estimate, from the data sheet of a GPU that is not here
  bool is_planned() const { return plan.backend != nullptr; }  // false: this build has no code for the device
  std::string does_not_fit{};
  std::vector<Way> ways{};         // every backend that supports the problem
  std::vector<Record> measured{};  // backends and peers, with --measure
};

// Sets the total number of tokens to the keys of one rank times the ranks.
Status lengthen_ring(Problem& p) {
  const Ring ring = ring_of(p);
  if (p.keys == KeySource::ragged) return Status::good();
  const std::string_view inner = ring.inner.text;
  return assign(p.variant, join("ring", inner.empty() ? "" : join(" inner=", inner), " layout=", name(ring.shards.cut),
                                " ranks=", ring.shards.ranks, " tokens=", int64_t(p.len_k) * ring.shards.ranks));
}

// The most keys, and queries if there were as many, that fit in `room` bytes. Planning is pure, so this plans many
// lengths.
int64_t longest_of(const Planner& planner, const BenchRow& asked, double room, bool planned = true) {
  const auto fits = [&](int64_t keys) {
    Problem p = asked.problem;
    p.len_k = int32_t(keys);
    if (asked.problem.len_q == asked.problem.len_k) p.len_q = p.len_k;
    if (word(p.variant) == "ring" && !lengthen_ring(p).ok()) return false;
    if (!asked.pattern.empty()) {  // whose bound grows with the length, and is looked for only if the rest fits
      p.mask.blocks.bound = 1;
      if (total(pieces_of(p)) > room || !bound_by(asked.pattern, p).ok()) return false;
    }
    Plan plan;
    return valid(p).ok() && (!planned || planner.plan(p, plan).ok()) &&
           total(pieces_of(p)) + double(plan.workspace_bytes) <= room;
  };
  int64_t low = 0, high = 1;
  constexpr int64_t kMost = int64_t(1) << 30;
  while (high < kMost && fits(high)) low = high, high *= 2;
  while (high - low > 1) {
    const int64_t middle = (low + high) / 2;
    (fits(middle) ? low : high) = middle;
  }
  return low;
}

// Allocates from the pool of a GPU, in the order of its default stream.
class Taken {
 public:
  explicit Taken(std::string device) : device_(std::move(device)) {}
  ~Taken() {
    for (void* data : all_) (void)attune_memory_free(device_.c_str(), data, nullptr);
    (void)attune_memory_trim(device_.c_str(), 0);
  }
  Taken(const Taken&) = delete;
  Taken& operator=(const Taken&) = delete;
  bool add(double bytes) {
    void* data = nullptr;
    if (attune_memory_allocate(device_.c_str(), size_t(bytes), nullptr, &data)) return false;
    all_.push_back(data);
    return true;
  }

 private:
  std::string device_;
  std::vector<void*> all_{};
};

Json as_json(const attune_memory& m) {
  return {{"keeps_blocks", m.keeps != 0},
          {"live_buffers", m.live_buffers},
          {"live_bytes", m.live_bytes},
          {"block_bytes", m.block_bytes},
          {"free_blocks", m.free_blocks},
          {"free_bytes", m.free_bytes},
          {"held_bytes", m.held_bytes},
          {"high_buffers", m.high_buffers},
          {"high_bytes", m.high_bytes},
          {"high_reserved_bytes", m.high_reserved_bytes},
          {"hits", m.hits},
          {"misses", m.misses},
          {"crossed", m.crossed},
          {"waited", m.waited},
          {"given_back", m.given_back},
          {"full", m.full},
          {"graph_buffers", m.graph_buffers}};
}

// All memory divided by the tokens: queries, or keys if few queries read a cache. MB are 10^6 bytes.
double megabytes_a_token(const Answer& a) {
  const Problem& p = a.plan.problem;
  const double tokens = double(p.batch) * std::max(p.len_q, p.len_k);
  return (total(a.pieces) + double(a.plan.workspace_bytes)) / tokens * 1e-6;
}

// The tensors plus what a call was measured to take besides them.
double peak_of(const Answer& a, const Record& r) { return total(a.pieces) + r.taken_bytes; }

Json as_json(const Answer& a) {
  const Problem& p = a.plan.problem;
  Json tensors = Json::array();
  for (const Piece& piece : a.pieces) tensors.push_back({{"role", piece.text()}, {"bytes", uint64_t(piece.bytes)}});
  Json j = {{"problem", name(p)},
            {"backend", a.is_planned() ? Json(a.plan.backend->name) : Json(nullptr)},
            {"workspace_bytes", a.is_planned() ? Json(a.plan.workspace_bytes) : Json(nullptr)},
            {"estimated", a.elsewhere},
            {"tensors", tensors},
            {"tensor_bytes", uint64_t(total(a.pieces))},
            {"total_bytes", uint64_t(total(a.pieces)) + a.plan.workspace_bytes},
            {"key_value_bytes_a_token", uint64_t(token_bytes(p))},
            {"megabytes_a_token", megabytes_a_token(a)},
            {"score_matrix_bytes", uint64_t(scores_bytes(p))},
            {"longest", a.device_bytes ? Json(a.longest) : Json(nullptr)}};
  Json ways = Json::array();
  for (const Way& w : a.ways)
    ways.push_back({{"backend", w.backend}, {"workspace_bytes", uint64_t(w.workspace)},
                    {"longest", a.device_bytes ? Json(w.longest) : Json(nullptr)}});
  j["backends"] = ways;
  Json measured = Json::array();
  for (const Record& r : a.measured)
    measured.push_back({{"subject", r.subject}, {"status", r.status.text()}, {"message", r.message},
                        {"taken_bytes", r.taken_bytes < 0 ? Json(nullptr) : Json(uint64_t(r.taken_bytes))},
                        {"peak_bytes", r.taken_bytes < 0 ? Json(nullptr) : Json(uint64_t(peak_of(a, r)))}});
  if (!a.measured.empty()) j["measured"] = measured;
  if (!a.does_not_fit.empty()) j["error"] = a.does_not_fit;
  return j;
}

void row(std::string_view what, std::string_view value) { fmt::print("  {:<15} {}\n", what, value); }

void print(const Answer& a) {
  const Problem& p = a.plan.problem;
  fmt::print("{}\n", name(p));
  if (a.is_planned()) {
    row("backend", join(a.plan.backend->name, a.plan.why == kByEnvironment ? join(", ", kByEnvironment) : ""));
    row("workspace", fmt::format("{} ({} bytes)", bytes_text(double(a.plan.workspace_bytes)), a.plan.workspace_bytes));
  } else {
    row("workspace", "unknown: this build of attune has no GPU code, so nothing is planned");
  }
  for (const Piece& piece : a.pieces) row(piece.text(), bytes_text(piece.bytes));
  row("together", bytes_text(total(a.pieces) + double(a.plan.workspace_bytes)));
  row("per token", fmt::format("{} of keys and values; {} MB of everything", bytes_text(token_bytes(p)),
                               digits_text(megabytes_a_token(a))));
  row("not stored", fmt::format("{} of scores in {}", bytes_text(scores_bytes(p)), name(p.dtype.kv)));
  if (a.device_bytes)
    row("longest", fmt::format("{}{} in {}{}", a.elsewhere ? "est. " : "",
                               a.longest == 1 ? "1 key fits" : join(a.longest, " keys fit"),
                               bytes_text(a.device_bytes), a.is_planned() ? "" : ", tensors alone"));
  if (a.ways.size() > 1) fmt::print("by backend\n");
  for (size_t n = 0; n < a.ways.size() && a.ways.size() > 1; ++n)
    row(a.ways[n].backend, join(bytes_text(a.ways[n].workspace), " of workspace",
                                a.device_bytes ? join(", ", counted(a.ways[n].longest, "key"), " at most") : ""));
}

// What every implementation took, next to what its plan states.
void print_measured(const Answer& a) {
  if (a.measured.empty()) return;
  fmt::print("measured, a first call\n");
  for (const Record& r : a.measured) {
    if (r.taken_bytes < 0) {
      row(r.subject, r.message.empty() ? "memory use not reported" : r.message);
      continue;
    }
    const double tokens = double(a.plan.problem.batch) * std::max(a.plan.problem.len_q, a.plan.problem.len_k);
    const bool ours = find_backend(r.subject) != nullptr;
    row(r.subject, fmt::format("{} besides the tensors{}; {} in all, {} MB per token", bytes_text(r.taken_bytes),
                               ours ? fmt::format(", {} planned", bytes_text(double(r.workspace_bytes))) : "",
                               bytes_text(peak_of(a, r)), digits_text(peak_of(a, r) / tokens * 1e-6)));
  }
}

void print(const attune_memory& m, bool gpu, bool taken) {
  const auto bytes = [](uint64_t n) { return bytes_text(double(n)); };
  if (!gpu) {
    fmt::print("lent to threads of this process\n");
    row("now", fmt::format("{}, {}", counted(m.live_buffers, "buffer"), bytes(m.live_bytes)));
    row("highest", fmt::format("{}, {}", counted(m.high_buffers, "buffer"), bytes(m.high_bytes)));
    return;
  }
  fmt::print("pool of this process{}{}\n", m.keeps ? "" : ", which leaves everything to the driver",
             taken ? ", with the tensors and the workspace" : "");
  const uint64_t reserved = m.block_bytes + m.free_bytes;
  const double share = m.held_bytes ? 100 * (1 - double(m.live_bytes) / double(m.held_bytes)) : 0;
  row("live", fmt::format("{}, {}", counted(m.live_buffers, "buffer"), bytes(m.live_bytes)));
  row("rounding", fmt::format("{} inside blocks", bytes(m.block_bytes - m.live_bytes)));
  row("kept free", fmt::format("{}, {}", counted(m.free_blocks, "block"), bytes(m.free_bytes)));
  row("held", fmt::format("{} from the system, {} beyond the blocks; {}% is not in use", bytes(m.held_bytes),
                          bytes(m.held_bytes > reserved ? m.held_bytes - reserved : 0), digits_text(share)));
  row("highest", fmt::format("{}, {}; {} with free blocks", counted(m.high_buffers, "buffer"), bytes(m.high_bytes),
                             bytes(m.high_reserved_bytes)));
  row("served", fmt::format("{} from kept blocks, {} by the driver, {} full", m.hits, m.misses,
                            counted(m.full, "time")));
}

// The plan, the bytes and what fits.
Status answer(const ForcedBackend& forced, const BenchRow& row, const Device& device, double device_bytes,
              Answer& out) {
  const Problem& problem = row.problem;
  Tuned tuned;
  if (Status s = load_tuned(device, tuned); !s.ok()) return s;
  const Planner planner{.device = device, .rules = tuned.rules, .forced = forced.name};
  out.elsewhere = device.kind == DeviceKind::cuda && device.index < 0;
  const bool has_code = find_backend("cuda_standard");  // a build with GPU code has it
  if (Status s = planner.plan(problem, out.plan); !s.ok()) {
    if (has_code || !out.elsewhere || !valid(problem).ok() || !forced.name.empty()) return s;
    out.plan = {.problem = problem, .device = device};
  }
  if (forced.by_environment) out.plan.why = kByEnvironment;
  out.pieces = pieces_of(problem);
  out.device_bytes = device_bytes;
  if (device_bytes > 0) out.longest = longest_of(planner, row, device_bytes, out.is_planned());
  if (!out.is_planned()) return Status::good();
  for (const Backend* b : backends()) {
    if (b->only_by_name || !forced.name.empty()) continue;
    const Planner one{.device = device, .rules = {}, .forced = b->name};
    Plan plan;
    if (!one.plan(problem, plan).ok()) continue;
    out.ways.push_back({b->name, double(plan.workspace_bytes),
                        device_bytes > 0 ? longest_of(one, row, device_bytes) : 0});
  }
  return Status::good();
}

void run(const Asked& asked, Context& context) {
  const bool module = is_module(asked.line);
  if (module && (asked.measure || !asked.backend.empty() || !asked.peers.empty()))
    return fail(context, kUsage,
                "attune memory: --measure, --peer or --backend given with a module line; they need a problem line");
  BenchRow row;
  if (!asked.line.empty() && !module) {
    Status s = parse_row(asked.line, row);
    if (s.ok() && !row.module.empty())
      s = Status::no("a pass given with a module line; give '", row.module, "', both passes are shown");
    if (const std::string module = meant_module(asked.line); !s.ok() && !module.empty()) s.message = module;
    const std::string_view see = s.message.ends_with('?') ? " See" : "; see";
    if (!s.ok())
      return fail(context, kUsage, join("attune memory: ", s.message, see, " attune memory --help",
                                        row.module.empty() ? caret_below(asked.line) : ""));
  }
  Device device;
  if (const Status s = device_named(asked.device, device); !s.ok())
    return fail(context, exit_of_device(asked.device), join("attune memory: ", s.message));
  if (module) return module_memory(asked.line, device, context);
  ForcedBackend forced;
  if (const Status s = forced_backend(asked.backend, forced); !s.ok())
    return fail(context, kUsage, join("attune memory: ", s.message));

  const bool gpu = device.kind == DeviceKind::cuda, here = !gpu || device.index >= 0;
  const std::string where = gpu ? join("cuda:", device.index) : "cpu";
  size_t gpu_bytes = 0;
  if (gpu && here)
    if (const Status s = cuda::memory_of(device.index, gpu_bytes); !s.ok())
      return fail(context, kMachine, join("attune memory: ", s.message));
  const KnownGpu* const known = gpu && !here ? known_gpu(device.name) : nullptr;
  const double device_bytes = known ? known->bytes() : gpu ? double(gpu_bytes) : this_machine().memory_bytes;

  std::vector<std::string> names;
  std::vector<const attune_peer*> peers;
  if (asked.measure && (asked.line.empty() || !here))
    return fail(context, kUsage, "attune memory: --measure: needs a problem line and a device in this machine");
  if (!asked.peers.empty() && !asked.measure)
    return fail(context, kUsage, "attune memory: --peer: given without --measure, which it needs");
  if (const Status s = peers_named(asked.peers, gpu, names); !s.ok())
    return fail(context, kUsage, join("attune memory: ", s.message));
  if (const Status s = open_peers(names, asked.python, peers); !s.ok())
    return fail(context, kMachine, join("attune memory: ", s.message));

  Answer found;
  if (!asked.line.empty())
    if (const Status s = answer(forced, row, device, device_bytes, found); !s.ok())
      return fail(context, kFailed, s.message);
  if (asked.measure) {
    const AnswerKept kept;
    if (const Status s = measure_memory(row, device, where, forced.name, peers, found.measured); !s.ok())
      return fail(context, kMachine, join("attune memory: ", s.message));
  }
  Taken taken(where);
  if (gpu && here && found.plan.backend) {
    found.taken = found.plan.workspace_bytes == 0 || taken.add(double(found.plan.workspace_bytes));
    for (const Piece& piece : found.pieces) found.taken = found.taken && taken.add(piece.bytes);
    if (!found.taken) found.does_not_fit = attune_last_error();
  }
  if (const double all = total(found.pieces) + double(found.plan.workspace_bytes);
      device_bytes > 0 && all > device_bytes && found.does_not_fit.empty())
    found.does_not_fit = join(bytes_text(all), " do not fit in the ", bytes_text(device_bytes), " of the device");
  attune_memory now{};
  now.size = sizeof now;
  if (here && attune_memory_statistics(where.c_str(), &now))
    return fail(context, kMachine, join("attune memory: ", attune_last_error()));

  if (context.json) {
    Json j = asked.line.empty() ? Json::object() : as_json(found);
    j["device"] = device.name;
    j["device_bytes"] = device_bytes ? Json(uint64_t(device_bytes)) : Json(nullptr);
    j["pool"] = here ? as_json(now) : Json(nullptr);
    fmt::print("{}\n", j.dump(2));
  } else {
    if (!asked.line.empty()) print(found), print_measured(found);
    if (here) fmt::print("{}, {}\n", device.name, bytes_text(device_bytes));
    else fmt::print("{}, {} by its data sheet; it is not in this machine, so the rest is computed\n", device.name,
                    bytes_text(device_bytes));
    if (here) print(now, gpu, found.taken);
  }
  if (!found.does_not_fit.empty()) fail(context, kMachine, join("attune memory: ", found.does_not_fit));
}

}  // namespace

void add_memory(CLI::App& app, Context& context) {
  const Command sub = add_command(app, "memory", "Show the memory of a problem and the state of the memory pool");
  const auto asked = std::make_shared<Asked>();
  sub.add_option("problem", asked->line,
                 "Show this problem line, for block lists with ' | pattern', or this module line; without one only "
                 "the device state")
      .type_name("LINE");
  sub.add_option("--device", asked->device,
                 join("Plan for cpu, cuda:<n>, or one of ", known_devices(), ", which need not be in this machine"))
      .type_name("NAME")
      .show_default();
  sub.add_option("--backend", asked->backend, "Use only this backend; its refusal is an error").type_name("NAME");
  sub.add_flag("--measure", asked->measure,
               "Run every backend, or --backend, and each --peer once, and measure what it takes");
  sub.add_option("--peer", asked->peers, "With --measure: also run these peers, as in bench: torch, torch:math, ...")
      .delimiter(',')
      .one_word()
      .type_name("LIST");
  sub.add_option("--python", asked->python, "Run peers in this Python").type_name("PROGRAM").show_default();
  sub.footer(
      "Examples:\n"
      "  attune memory \"forward bf16 b1 h32/8 q1 k131072 d128 full\" --device h200\n"
      "  attune memory \"forward bf16 b8 h32 q4096 k4096 d64 full\" --device cuda:0 --measure --peer torch,torch:math\n"
      "  attune memory \"backward bf16 b4 h16 q8192 k8192 d128 causal\" --device cuda:0 --json\n"
      "  attune memory \"backward f16 b1 h8 q262144 k262144 d64 causal : dilated rates=1,2,4 segments=1024,2048,4096\""
      " \\\n    --device h200\n"
      "  attune memory \"forward bf16 b1 h16 q16384 k16384 d128 causal blocks64x64x1 | random density=0.1\"\n"
      "  attune memory \"llama bf16 b1 s4096 e4096 h32/8 ffn=14336 | causal\"\n"
      "  attune memory --device cuda:0\n\n"
      "On a GPU in this machine, the tensors and the workspace are allocated from the pool meanwhile.\n"
      "ATTUNE_POOL=attune keeps freed blocks; otherwise freed memory is left to the driver.\n"
      "Exit code 1 if no backend supports the problem, 3 if it does not fit.");
  sub.callback([asked, &context] { run(*asked, context); });
}

}  // namespace attune
