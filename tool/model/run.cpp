// SPDX-License-Identifier: Apache-2.0
// `attune model`: opens the model and runs the mode that is asked for.
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <memory>

#include "core/dtypes.h"
#include "core/problem_line.h"
#include "machine/host.h"
#include "models/checkpoint.h"
#include "plan/plan.h"
#include "tool/machine.h"
#include "tool/model/model.h"
#include "tool/table.h"
#include "tool/text.h"

namespace attune {
namespace {

void list_models(Context& context) {
  TextTable t{.columns = {{"model"}, {"parameters", Cells::number}, {"layers", Cells::number},
                          {"width", Cells::number}, {"heads", Cells::number}, {"context", Cells::number}}};
  Json rows = Json::array();
  for (const models::Config& c : models::all_known()) {
    t.rows.push_back({c.name, count_text(double(c.parameters()), ""), join(c.layers), join(c.embed),
                      c.heads == c.heads_kv ? join(c.heads) : join(c.heads, "/", c.heads_kv), join(c.positions)});
    rows.push_back({{"model", c.name}, {"family", c.family}, {"parameters", c.parameters()}, {"layers", c.layers},
                    {"width", c.embed}, {"heads", c.heads}, {"heads_kv", c.heads_kv}, {"context", c.positions}});
  }
  if (context.json) fmt::print("{}\n", rows.dump(2));
  else fmt::print("{}", to_text(std::move(t), terminal_width(STDOUT_FILENO)));
}

void describe(const models::Config& c, Context& context) {
  if (context.json)
    return fmt::print("{}\n", Json{{"model", c.name}, {"family", c.family}, {"parameters", c.parameters()},
                                   {"layers", c.layers}, {"width", c.embed}, {"heads", c.heads},
                                   {"heads_kv", c.heads_kv}, {"head_dim", c.dim}, {"ffn", c.ffn},
                                   {"vocabulary", c.vocab}, {"context", c.positions}}.dump(2));
  fmt::print("{}\n", wrapped(join(c.name, ": ", about(c)), terminal_width(STDOUT_FILENO)));
}

Exit exit_for(const Status& s) {
  return s.code == Code::out_of_memory || s.code == Code::device ? kMachine : kFailed;
}

bool asks_memory(const ModelAsked& a) { return a.memory || a.longest || !a.fits.empty(); }
bool runs(const ModelAsked& a) { return a.generate || a.train || !a.check.empty() || !a.save.empty(); }

bool is_there(const std::string& path) {
  std::error_code error;
  return std::filesystem::exists(path, error);
}

Status is_known(const ModelAsked& asked) {
  if (asked.model.empty()) return Status::no("which model? accepted are ", models::known_models());
  if (is_there(asked.model) || asked.model.find_first_of("/.") != asked.model.npos) return Status::good();
  const std::vector<models::Config> known = models::all_known();
  std::vector<std::string_view> names;
  for (const models::Config& c : known) names.push_back(c.name);
  if (std::find(names.begin(), names.end(), asked.model) != names.end()) return Status::good();
  const std::string_view near = closest_word(asked.model, names);
  return Status::no("'", in_one_line(asked.model), "' is not one of ", models::known_models(),
                    ", a config.json or a folder with one", near.empty() ? "" : join("; did you mean '", near, "'?"));
}

// What the words say wrongly, before weights are made.
Status words_fit(const ModelAsked& asked) {
  if (asked.generate + asked.train + asks_memory(asked) + !asked.check.empty() > 1)
    return Status::no("more than one of --generate, --train, --check and the memory options given");
  if (asks_memory(asked) && !asked.save.empty())
    return Status::no("--save given with a memory option, which makes no model to save");
  if (asked.checkpointing && !asked.train && !asks_memory(asked))
    return Status::no("--checkpointing given without --train or a memory option, which it is for");
  if (asked.attention != "auto" && asked.attention != "standard" && !find_backend(asked.attention))
    return Status::no("--attention: '", in_one_line(asked.attention), "' is not auto, standard or one of ",
                      backend_names());
  if (asked.generate && asked.batch != 1 && asked.prompt.size() > 1 && int(asked.prompt.size()) != asked.batch)
    return Status::no("--prompt has ", asked.prompt.size(), " lengths for a batch of ", asked.batch);
  return Status::good();
}

// The bytes that a run takes, before any are taken.
Status bytes_of_run(const ModelAsked& asked, const models::Config& c, DType dtype, const Device& device, double& out) {
  out = double(c.parameters()) * size_of(dtype);
  if (asked.train) {
    models::TrainBytes bytes;
    const models::TrainSettings settings{.batch = asked.batch,
                                         .len = asked.length,
                                         .attention = {asked.attention},
                                         .checkpointing = asked.checkpointing};
    const Status s = models::Training::measure(c, dtype, device, {}, settings, bytes);
    return out = double(bytes.total()), s;
  }
  if (!asked.generate) return Status::good();
  const std::vector<int> lengths = prompt_lengths(asked);
  const auto [least, most] = std::minmax_element(lengths.begin(), lengths.end());
  const int batch = int(lengths.size());
  models::CacheBytes bytes;
  const models::CacheShape shape{.sequences = batch,
                                 .capacity = *most + asked.tokens,
                                 .prompt = *most,
                                 .at_once = *least == *most ? batch : 1,
                                 .attention = {asked.attention}};
  const Status s = models::Generation::measure(c, dtype, device, {}, shape, bytes);
  return out += double(bytes.cache) + double(bytes.workspace), s;
}

// Where the weights are from.
std::string origin(const ModelAsked& asked) {
  bool weights = false;
  const bool read = !models::is_known_model(asked.model) && models::has_weights(asked.model, weights).ok() && weights;
  return read ? join("those of ", in_one_line(asked.model)) : join("random, by seed ", asked.seed);
}

Status save_model(const ModelAsked& asked, const models::Model& model, Context& context) {
  if (Status s = models::save_checkpoint(model, asked.save); !s.ok()) return s;
  if (!context.json)
    fmt::print("saved           {}\n", in_one_line(asked.save));
  else if (!asked.generate && !asked.train && asked.check.empty())
    fmt::print("{}\n", Json{{"model", model.config().name}, {"saved", asked.save}}.dump(2));
  return Status::good();
}

// What is missing on this machine.
Status files_are_there(const ModelAsked& asked, const Device& device) {
  for (const std::string& path : {asked.model.find_first_of("/.") == asked.model.npos ? "" : asked.model, asked.check,
                                  asked.text})
    if (!path.empty() && !is_there(path)) return Status::no(in_one_line(path), ": there is no such file or folder");
  if (runs(asked) && device.kind != DeviceKind::cpu)
    return Status::no("--device: ", device.name, " runs no model: embedding, loss and AdamW have no GPU kernels yet; "
                      "cpu does, and --memory, --fits and --longest answer for GPUs");
  return Status::good();
}

}  // namespace

void run_model(const ModelAsked& given, Context& context) {
  ModelAsked asked = given;
  const auto bad = [&](const Status& s, Exit code) {
    fail(context, code, join("attune model: ", in_one_line(s.message)));
  };
  if (asked.model.empty() && !runs(asked) && !asks_memory(asked)) return list_models(context);
  if (const Status s = is_known(asked); !s.ok()) return bad(s, kUsage);
  if (const Status s = words_fit(asked); !s.ok()) return bad(s, kUsage);
  models::Config config;
  Device device;
  if (const Status s = device_named(asked.device, device); !s.ok()) return bad(s, exit_of_device(asked.device));
  if (const Status s = files_are_there(asked, device); !s.ok()) return bad(s, kMachine);
  if (const Status s = models::find_config(asked.model, config); !s.ok()) return bad(s, kFailed);
  DType dtype = DType::f32;
  if (asked.dtype.empty()) asked.dtype = asked.fits.empty() && device.kind == DeviceKind::cpu ? "f32" : "bf16";
  if (const Status s = parse(asked.dtype, dtype); !s.ok() || !is_f32_or_half(dtype))
    return bad(Status::no("--dtype: '", in_one_line(asked.dtype), "' is not one of f32, bf16, f16"), kUsage);
  if (asks_memory(asked)) {
    if (const Status s = show_memory(asked, config, dtype, device, context); !s.ok()) bad(s, exit_for(s));
    return;
  }
  if (!runs(asked)) return describe(config, context);
  if (!asked.save.empty())
    if (const Status s = models::can_save(asked.save); !s.ok()) return bad(s, kFailed);
  std::unique_ptr<models::Model> model;
  if (const Status s = open_model(asked, config, device, model); !s.ok()) return bad(s, exit_for(s));
  if (!context.json)
    fmt::print("model           {}\nweights         {}\n", join(config.name, ", ", about(config)), origin(asked));
  Status s;
  bool right = true;
  if (asked.generate) s = generate_text(asked, *model, context);
  if (asked.train) s = train_model(asked, *model, context);
  if (!asked.check.empty()) s = check_numbers(asked, *model, context, right);
  if (s.ok() && !asked.save.empty()) s = save_model(asked, *model, context);
  if (!s.ok()) return bad(s, exit_for(s));
  if (!right) fail(context, kFailed, "attune model: numbers differ from those of the file");
}

std::string about(const models::Config& c) {
  return fmt::format("{} parameters: {} layers of width {}, {} heads of {}, feed-forward {}, vocabulary {}, context {}",
                     count_text(double(c.parameters()), ""), c.layers, c.embed,
                     c.heads == c.heads_kv ? join(c.heads) : join(c.heads, "/", c.heads_kv), c.dim, c.ffn, c.vocab,
                     c.positions);
}

std::vector<int> prompt_lengths(const ModelAsked& asked) {
  std::vector<int> lengths = asked.prompt.empty() ? std::vector<int>{64} : asked.prompt;
  if (lengths.size() == 1) lengths.resize(size_t(asked.batch), lengths[0]);
  return lengths;
}

Status open_model(const ModelAsked& asked, const models::Config& c, const Device& device,
                  std::unique_ptr<models::Model>& out) {
  DType dtype = DType::f32;
  if (Status s = parse(asked.dtype, dtype); !s.ok()) return s;
  bool weights = false;
  if (!models::is_known_model(asked.model))  // a known name wins over a folder of that name
    if (Status s = models::has_weights(asked.model, weights); !s.ok()) return s;
  double need = 0;
  if (Status s = bytes_of_run(asked, c, dtype, device, need); !s.ok()) return s;
  const double free = this_machine().memory_free_bytes;
  if (device.kind == DeviceKind::cpu && free > 0 && need > free)
    return Status::failure(Code::out_of_memory, c.name, " needs ", bytes_text(need), " in ", asked.dtype, ", and ",
                           bytes_text(free), " are free; --memory and --fits need no weights");
  if (Status s = models::Model::make(c, dtype, device, weights ? -1 : asked.seed, out); !s.ok()) return s;
  return weights ? models::load_checkpoint(*out, asked.model) : Status::good();
}

}  // namespace attune
