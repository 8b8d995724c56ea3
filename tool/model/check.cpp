// SPDX-License-Identifier: Apache-2.0
// `attune model --check`: a model's numbers against those of another implementation, from a file.
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>

#include "models/checkpoint.h"
#include "modules/safetensors.h"
#include "tool/model/model.h"
#include "tool/table.h"
#include "tool/text.h"

namespace attune {
namespace {

constexpr double kLimit = 1e-5;  // of a relative error in f32

struct NumbersFile {
  TensorFile file{};
  Status get(const std::string& name, const FileTensor*& t, std::vector<float>& out) const {
    t = file.find(name);
    if (!t) return Status::good();
    size_t count = 1;
    for (const int64_t n : t->shape) count *= size_t(n);
    out.resize(count);
    return file.read(*t, DType::f32, out.data());
  }
};

double error_of(std::span<const float> ours, std::span<const float> theirs) {
  double difference = 0, norm = 0;
  for (size_t n = 0; n < theirs.size(); ++n) {
    const double d = double(ours[n]) - double(theirs[n]);
    difference += d * d, norm += double(theirs[n]) * double(theirs[n]);
  }
  return norm > 0 ? std::sqrt(difference / norm) : std::sqrt(difference);
}

// A gradient in the order of the checkpoint.
std::vector<float> in_file_order(const models::Config& c, const models::ModelParameter& p, std::vector<float> here) {
  std::vector<float> there(here.size());
  models::to_file_order(c, p, sizeof(float), reinterpret_cast<const std::byte*>(here.data()),
                        reinterpret_cast<std::byte*>(there.data()));
  return there;
}

struct Compared {
  std::vector<Deviation>& all;
  double limit;
  void add(const std::string& what, std::span<const float> ours, std::span<const float> theirs) {
    const double error = ours.size() == theirs.size() ? error_of(ours, theirs) : HUGE_VAL;
    all.push_back({what, error, error <= limit});
  }
};

Status to_ids(const std::string& path, const std::vector<float>& from, std::vector<int32_t>& out) {
  constexpr float kMost = 1 << 24;  // an f32 holds every integer up to here
  for (const float x : from)
    if (!(x >= 0 && x <= kMost) || x != std::floor(x))
      return Status::no(path, ": token ", x, " is not an integer of 0 ... 2^24");
  return out.assign(from.begin(), from.end()), Status::good();
}

// Gradients of what the model does not have would be passed over.
Status gradients_are_known(const models::Model& model, const std::string& path, const NumbersFile& numbers) {
  constexpr std::string_view kGradient = "gradient.";
  for (const FileTensor& t : numbers.file.tensors()) {
    if (!t.name.starts_with(kGradient)) continue;
    const auto& all = model.parameters();
    const auto same = [&](const models::ModelParameter& p) { return t.name.substr(kGradient.size()) == p.name; };
    if (std::none_of(all.begin(), all.end(), same))
      return Status::no(path, ": holds '", t.name, "', and the model has no such parameter");
  }
  return Status::good();
}

Status compare_training(models::Model& model, const models::Attention& attention, const std::string& path,
                        const NumbersFile& numbers, Compared& to) {
  const FileTensor* t = nullptr;
  std::vector<float> tokens, theirs, ours;
  if (Status s = numbers.get("tokens", t, tokens); !s.ok() || !t) return s;
  if (t->shape.size() != 2) return Status::no(path, ": tokens is not [batch, len]");
  std::unique_ptr<models::Training> training;
  const models::TrainSettings settings{.batch = int(t->shape[0]), .len = int(t->shape[1]), .attention = attention};
  if (Status s = models::Training::make(model, settings, training); !s.ok()) return s;
  std::vector<int32_t> text;
  if (Status s = to_ids(path, tokens, text); !s.ok()) return s;
  if (Status s = numbers.get("logits", t, theirs); !s.ok()) return s;
  if (t) {
    if (Status s = training->logits(text, ours); !s.ok()) return s;
    to.add("logits", ours, theirs);
  }
  double loss = 0;
  if (Status s = training->gradients(text, loss); !s.ok()) return s;
  if (Status s = numbers.get("loss", t, theirs); !s.ok()) return s;
  if (t) to.add("loss", std::vector<float>{float(loss)}, theirs);
  for (const models::ModelParameter& p : model.parameters()) {
    if (Status s = numbers.get("gradient." + p.name, t, theirs); !s.ok()) return s;
    if (!t) continue;
    ours.resize(size_t(p.count()));
    if (Status s = model.read_gradient(p, ours.data()); !s.ok()) return s;
    to.add("gradient of " + p.name, in_file_order(model.config(), p, ours), theirs);
  }
  return Status::good();
}

Status compare_greedy(models::Model& model, const models::Attention& attention, const std::string& path,
                      const NumbersFile& numbers, Compared& to) {
  const FileTensor *t = nullptr, *from = nullptr;
  std::vector<float> greedy, prompt;
  if (Status s = numbers.get("greedy", t, greedy); !s.ok() || !t) return s;
  if (Status s = numbers.get("prompt", from, prompt); !s.ok()) return s;
  if (!from || t->shape.size() != 2 || from->shape.size() != 2 || t->shape[0] != from->shape[0] || greedy.empty())
    return Status::no(path, ": greedy and prompt are not [batch, len] of one batch");
  const int batch = int(t->shape[0]), count = int(t->shape[1]), len = int(from->shape[1]);
  std::vector<std::vector<int32_t>> prompts(static_cast<size_t>(batch)), out;
  for (int b = 0; b < batch; ++b) {
    const std::vector<float> one(prompt.begin() + ptrdiff_t(b) * len, prompt.begin() + ptrdiff_t(b + 1) * len);
    if (Status s = to_ids(path, one, prompts[size_t(b)]); !s.ok()) return s;
  }
  std::unique_ptr<models::Generation> generation;
  if (Status s = models::Generation::make(model, batch, len + count, attention, generation); !s.ok()) return s;
  if (Status s = models::generate(*generation, prompts, count, {}, out, {}); !s.ok()) return s;
  int equal = 0;
  for (int b = 0; b < batch; ++b)
    for (int n = 0; n < count; ++n)
      equal += out[size_t(b)][size_t(n)] == int32_t(greedy[size_t(b) * size_t(count) + size_t(n)]);
  to.all.push_back({fmt::format("greedy tokens, {} of {} equal", equal, batch * count),
                    1 - double(equal) / (batch * count), equal == batch * count});
  return Status::good();
}

}  // namespace

Status compare_numbers(models::Model& model, const models::Attention& attention, const std::string& path,
                       std::vector<Deviation>& out) {
  out.clear();
  NumbersFile numbers;
  if (Status s = numbers.file.open(path); !s.ok()) return s;
  if (Status s = gradients_are_known(model, path, numbers); !s.ok()) return s;
  Compared to{out, kLimit};
  if (Status s = compare_training(model, attention, path, numbers, to); !s.ok()) return s;
  if (Status s = compare_greedy(model, attention, path, numbers, to); !s.ok()) return s;
  if (out.empty()) return Status::no(path, ": holds neither tokens nor greedy");
  return Status::good();
}

Status check_numbers(const ModelAsked& asked, models::Model& model, Context& context, bool& right) {
  std::vector<Deviation> all;
  if (Status s = compare_numbers(model, {asked.attention}, asked.check, all); !s.ok()) return s;
  right = true;
  Json rows = Json::array();
  TextTable table{.columns = {{"what"}, {"relative error", Cells::number}, {"verdict"}}};
  for (const Deviation& d : all) {
    right = right && d.right;
    table.rows.push_back({d.what, fmt::format("{:.1e}", d.error), d.right ? "PASS" : "FAIL"});
    rows.push_back({{"what", d.what}, {"error", d.error}, {"right", d.right}});
  }
  if (context.json) fmt::print("{}\n", Json{{"check", rows}, {"limit", kLimit}}.dump(2));
  else fmt::print("{}", to_text(std::move(table), terminal_width(STDOUT_FILENO)));
  return Status::good();
}

}  // namespace attune
