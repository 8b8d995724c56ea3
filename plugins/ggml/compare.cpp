// SPDX-License-Identifier: Apache-2.0
// ggml_compare: FLASH_ATTN_EXT by ggml's CPU backend and by attune's, in one process, in turns. docs/llama_cpp.md.
//   ggml_compare PLUGIN [check | decode | prefill] [threads] [seconds per row] [text of the rows to run]
#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <random>
#include <string>
#include <vector>

#include "ggml-alloc.h"
#include "ggml-backend.h"
#include "ggml.h"

namespace {

enum class Pattern { none, causal, window, sequences, numbers };
const char* const kPatterns[] = {"none", "causal", "window", "sequences", "numbers"};

struct Row {
  ggml_type k, v;
  int dim, heads, heads_kv, len_q, len_k;
  Pattern pattern = Pattern::causal;
  float max_bias = 0.f, softcap = 0.f;
  bool sinks = false;
  int batch = 1;
};

std::string text(const Row& r) {
  char line[160];
  std::snprintf(line, sizeof line, "%s/%s b%d h%d/%d q%d k%d d%d %s%s%s%s", ggml_type_name(r.k), ggml_type_name(r.v),
                r.batch, r.heads, r.heads_kv, r.len_q, r.len_k, r.dim, kPatterns[int(r.pattern)],
                r.max_bias > 0 ? " alibi" : "", r.softcap > 0 ? " softcap" : "", r.sinks ? " sinks" : "");
  return line;
}

// The last queries of a cache whose last 7 rows (of more than 64) are not used yet.
float mask_at(const Row& r, int i, int j, std::mt19937& random) {
  const int used = r.len_k > 64 && r.len_q + 7 < r.len_k ? r.len_k - 7 : r.len_k, at = used - r.len_q + i;
  const auto hide = [](bool hidden) { return hidden ? -INFINITY : 0.f; };
  switch (r.pattern) {
    case Pattern::none:
      return 0.f;
    case Pattern::causal:
      return r.max_bias > 0 && j <= at ? -float(at - j) : hide(j > at);
    case Pattern::window:
      return hide(j > at || j + 256 <= at);
    case Pattern::sequences:
      return hide(j >= used || j % 4 != i % 4);
    case Pattern::numbers:
      return random() % 5 ? float(random() % 1000) / 500.f - 1.f : -INFINITY;
  }
  return 0.f;
}

void fill(ggml_tensor* t, const std::vector<float>& x) {
  const int64_t dim = t->ne[0], rows = ggml_nelements(t) / dim;
  if (t->type == GGML_TYPE_F32) {
    std::memcpy(t->data, x.data(), x.size() * sizeof(float));
    return;
  }
  ggml_quantize_chunk(t->type, x.data(), t->data, 0, rows, dim, nullptr);
}

struct Sides {
  ggml_backend_t ggml = nullptr, attune = nullptr;
};

void use_threads(ggml_backend_t backend, int threads) {
  ggml_backend_reg_t registry = ggml_backend_dev_backend_reg(ggml_backend_get_device(backend));
  using Set = void (*)(ggml_backend_t, int);
  if (auto set = Set(ggml_backend_reg_get_proc_address(registry, "ggml_backend_set_n_threads"))) set(backend, threads);
}

// One operation in host memory, run by either side.
class Operation {
 public:
  explicit Operation(const Row& r) : context_(ggml_init({1 << 20, nullptr, true})) {
    std::mt19937 random(1);
    std::normal_distribution<float> normal;
    ggml_context* c = context_;
    ggml_tensor* q = ggml_new_tensor_4d(c, GGML_TYPE_F32, r.dim, r.heads, r.len_q, r.batch);
    ggml_tensor* k = ggml_new_tensor_4d(c, r.k, r.dim, r.heads_kv, r.len_k, r.batch);
    ggml_tensor* v = ggml_new_tensor_4d(c, r.v, r.dim, r.heads_kv, r.len_k, r.batch);
    ggml_tensor* m = ggml_new_tensor_4d(c, GGML_TYPE_F16, r.len_k, r.len_q, 1, 1);
    ggml_tensor* s = ggml_new_tensor_1d(c, GGML_TYPE_F32, r.heads);
    const auto heads_first = [&](ggml_tensor* t) { return ggml_permute(c, t, 0, 2, 1, 3); };  // as llama.cpp's caches
    ggml_tensor* const mask = r.pattern == Pattern::none ? nullptr : m;
    out_ = ggml_flash_attn_ext(c, heads_first(q), heads_first(k), heads_first(v), mask, 1.f / std::sqrt(float(r.dim)),
                               r.max_bias, r.softcap);
    ggml_flash_attn_ext_set_prec(out_, GGML_PREC_F32);
    if (r.sinks) ggml_flash_attn_ext_add_sinks(out_, s);
    graph_ = ggml_new_graph(c);
    ggml_build_forward_expand(graph_, out_);
    for (ggml_tensor* t : {q, k, v, m, s}) ggml_set_input(t);
    memory_ = ggml_backend_alloc_ctx_tensors_from_buft(c, ggml_backend_cpu_buffer_type());
    for (ggml_tensor* t : {q, k, v, s}) {
      std::vector<float> x(size_t(ggml_nelements(t)));
      for (float& y : x) y = normal(random);
      fill(t, x);
    }
    std::vector<float> x;
    for (int i = 0; i < r.len_q; ++i)
      for (int j = 0; j < r.len_k; ++j) x.push_back(mask_at(r, i, j, random));
    ggml_fp32_to_fp16_row(x.data(), static_cast<ggml_fp16_t*>(m->data), int64_t(x.size()));
  }
  ~Operation() {
    ggml_backend_buffer_free(memory_);
    ggml_free(context_);
  }
  Operation(const Operation&) = delete;
  Operation& operator=(const Operation&) = delete;

  bool taken_by(ggml_backend_t backend) const { return ggml_backend_supports_op(backend, out_); }
  double run(ggml_backend_t backend) {  // seconds
    const auto start = std::chrono::steady_clock::now();
    if (ggml_backend_graph_compute(backend, graph_) != GGML_STATUS_SUCCESS) std::exit(1);
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  }
  std::vector<float> out() const {
    const float* x = static_cast<const float*>(out_->data);
    return {x, x + ggml_nelements(out_)};
  }

 private:
  ggml_context* context_;
  ggml_tensor* out_;
  ggml_cgraph* graph_;
  ggml_backend_buffer_t memory_;
};

// Normalised mean squared error, as test-backend-ops has it.
double nmse(const std::vector<float>& x, const std::vector<float>& y) {
  double error = 0, size = 0;
  for (size_t n = 0; n < x.size(); ++n) error += std::pow(double(x[n]) - y[n], 2), size += double(y[n]) * y[n];
  return error / size;
}

double median(std::vector<double> x) {
  std::sort(x.begin(), x.end());
  return x[x.size() / 2];
}

// Prints one line; true if both agree.
bool compare(const Row& r, const Sides& on, double seconds) {
  Operation op(r);
  if (!op.taken_by(on.attune)) {
    std::printf("%-58s refused by attune\n", text(r).c_str());
    return false;
  }
  op.run(on.ggml);
  const std::vector<float> theirs = op.out();
  op.run(on.attune);
  const double error = nmse(op.out(), theirs);
  const bool good = error < 5e-4;
  if (seconds <= 0) {
    std::printf("%-58s nmse %.1e %s\n", text(r).c_str(), error, good ? "ok" : "WRONG");
    return good;
  }
  std::vector<double> ggml, attune, ratio;
  for (double spent = 0; spent < seconds || ggml.size() < 5;) {
    ggml.push_back(op.run(on.ggml));
    attune.push_back(op.run(on.attune));
    ratio.push_back(ggml.back() / attune.back());
    spent += ggml.back() + attune.back();
  }
  std::sort(ratio.begin(), ratio.end());
  const size_t n = ratio.size();
  std::printf("%-58s %10.3f %10.3f %7.2fx  [%.2f, %.2f] %5zu%s\n", text(r).c_str(), median(ggml) * 1e3,
              median(attune) * 1e3, median(ggml) / median(attune), ratio[n / 10], ratio[n - 1 - n / 10], n,
              good ? "" : " WRONG");
  std::fflush(stdout);
  return good;
}

std::vector<Row> rows_of(const std::string& what) {
  std::vector<Row> rows;
  const ggml_type f16 = GGML_TYPE_F16, q8 = GGML_TYPE_Q8_0, q4 = GGML_TYPE_Q4_0;
  if (what == "decode") {
    for (const ggml_type t : {f16, q8, q4})
      for (const int len : {256, 512, 1024, 2048, 4096, 8192, 16384}) rows.push_back({t, t, 128, 32, 8, 1, len});
    for (const ggml_type t : {f16, q8})
      for (const int len : {256, 2048, 8192}) {
        rows.push_back({t, t, 64, 14, 2, 1, len});
        rows.push_back({t, t, 128, 16, 16, 1, len});
        rows.push_back({t, t, 256, 8, 4, 1, len});
        rows.push_back({t, t, 128, 32, 8, 4, len});
        rows.push_back({t, t, 128, 32, 8, 8, len, Pattern::sequences});
      }
  } else if (what == "prefill") {
    for (const ggml_type t : {f16, q8, q4, GGML_TYPE_BF16, GGML_TYPE_F32})
      for (const int len : {512, 2048, 4096, 8192}) rows.push_back({t, t, 128, 32, 8, 512, len});
    for (const int len : {2048, 4096, 8192}) rows.push_back({f16, f16, 128, 8, 2, len, len});
    for (const Pattern pattern : {Pattern::none, Pattern::window, Pattern::sequences, Pattern::numbers})
      rows.push_back({f16, f16, 128, 32, 8, 512, 2048, pattern});
    rows.push_back({f16, f16, 64, 32, 8, 512, 2048});
    rows.push_back({f16, f16, 256, 8, 4, 512, 2048});
    rows.push_back({f16, f16, 128, 32, 8, 512, 2048, Pattern::causal, 0.f, 30.f});
    rows.push_back({f16, f16, 128, 32, 8, 512, 2048, Pattern::causal, 8.f});
  } else {
    for (const ggml_type t : {f16, GGML_TYPE_F32, GGML_TYPE_BF16, q8, q4})
      for (const Pattern pattern :
           {Pattern::none, Pattern::causal, Pattern::window, Pattern::sequences, Pattern::numbers})
        for (const int len_q : {1, 5, 70}) {
          rows.push_back({t, t, 64, 8, 2, len_q, 777, pattern});
          rows.push_back({t, t, 128, 6, 6, len_q, 300, pattern, 0.f, 20.f, true, 2});
          if (pattern != Pattern::none) rows.push_back({t, f16, 96, 12, 1, len_q, 1025, pattern, 8.f, 0.f, true});
        }
  }
  return rows;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 2) {
    std::fprintf(stderr,
                 "ggml_compare PLUGIN [check | decode | prefill] [threads] [seconds per row] [text of the rows]\n");
    return 2;
  }
  const std::string what = argc > 2 ? argv[2] : "check";
  const int threads = argc > 3 ? std::atoi(argv[3]) : 2;
  const double seconds = what == "check" ? 0 : argc > 4 ? std::atof(argv[4]) : 1;
  ggml_backend_load_all_from_path(ATTUNE_GGML_FOLDER);  // ggml's CPU backend; GGML_BACKEND_PATH too
  ggml_backend_reg_t registry = ggml_backend_reg_by_name("attune");
  if (!registry) registry = ggml_backend_load(argv[1]);
  if (!registry) return 1;
  const Sides on{ggml_backend_init_by_type(GGML_BACKEND_DEVICE_TYPE_CPU, nullptr),
                 ggml_backend_dev_init(ggml_backend_reg_dev_get(registry, 0), nullptr)};
  if (!on.ggml || !on.attune) return 1;
  use_threads(on.ggml, threads), use_threads(on.attune, threads);
  if (seconds > 0)
    std::printf("%s, %d threads\n%-58s %10s %10s %8s  %s\n",
                ggml_backend_dev_description(ggml_backend_get_device(on.attune)), threads, what.c_str(), "ggml ms",
                "attune ms", "ratio", "[10 %, 90 %] samples");
  bool good = true;
  const std::string only = argc > 5 ? argv[5] : "";
  for (const Row& r : rows_of(what))
    if (text(r).find(only) != std::string::npos) good &= compare(r, on, seconds);
  ggml_backend_free(on.attune);
  ggml_backend_free(on.ggml);
  return good ? 0 : 1;
}
