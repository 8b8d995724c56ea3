// SPDX-License-Identifier: Apache-2.0
// `attune model`: opens the model and runs the mode that is asked for.
#include <fmt/format.h>
#include <unistd.h>

#include <filesystem>
#include <memory>

#include "core/dtypes.h"
#include "machine/host.h"
#include "models/checkpoint.h"
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

}  // namespace

void run_model(const ModelAsked& given, Context& context) {
  ModelAsked asked = given;
  const auto bad = [&](const Status& s, Exit code) { fail(context, code, join("attune model: ", s.message)); };
  if (asked.model.empty()) return list_models(context);
  models::Config config;
  if (const Status s = models::find_config(asked.model, config); !s.ok()) return bad(s, kFailed);
  Device device;
  if (const Status s = device_named(asked.device, device); !s.ok()) return bad(s, exit_of_device(asked.device));
  DType dtype = DType::f32;
  if (asked.dtype.empty()) asked.dtype = asked.fits.empty() && device.kind == DeviceKind::cpu ? "f32" : "bf16";
  if (const Status s = parse(asked.dtype, dtype); !s.ok() || !is_f32_or_half(dtype))
    return bad(Status::no("--dtype: '", in_one_line(asked.dtype), "' is not one of f32, bf16, f16"), kUsage);
  const int modes = asked.generate + asked.train + (asked.memory || asked.longest || !asked.fits.empty()) +
                    !asked.check.empty();
  if (modes > 1)
    return bad(Status::no("more than one of --generate, --train, --check and the memory options given"), kUsage);
  if (asked.memory || asked.longest || !asked.fits.empty()) {
    if (const Status s = show_memory(asked, config, dtype, device, context); !s.ok()) bad(s, exit_for(s));
    return;
  }
  if (!modes && asked.save.empty()) return describe(config, context);
  std::unique_ptr<models::Model> model;
  if (const Status s = open_model(asked, config, device, model); !s.ok()) return bad(s, exit_for(s));
  if (!context.json) fmt::print("model           {}\n", join(config.name, ", ", about(config)));
  Status s;
  bool right = true;
  if (asked.generate) s = generate_text(asked, *model, context);
  if (asked.train) s = train_model(asked, *model, context);
  if (!asked.check.empty()) s = check_numbers(asked, *model, context, right);
  if (s.ok() && !asked.save.empty()) s = models::save_checkpoint(*model, asked.save);
  if (!s.ok()) return bad(s, exit_for(s));
  if (!right) fail(context, kFailed, "attune model: numbers differ from those of the file");
}

std::string about(const models::Config& c) {
  return fmt::format("{} parameters: {} layers of width {}, {} heads of {}, feed-forward {}, vocabulary {}, context {}",
                     count_text(double(c.parameters()), ""), c.layers, c.embed,
                     c.heads == c.heads_kv ? join(c.heads) : join(c.heads, "/", c.heads_kv), c.dim, c.ffn, c.vocab,
                     c.positions);
}

Status open_model(const ModelAsked& asked, const models::Config& c, const Device& device,
                  std::unique_ptr<models::Model>& out) {
  namespace fs = std::filesystem;
  DType dtype = DType::f32;
  if (Status s = parse(asked.dtype, dtype); !s.ok()) return s;
  std::error_code error;
  const auto holds = [&](const char* name) { return fs::exists(fs::path(asked.model) / name, error); };
  const bool weights = holds("model.safetensors") || holds("model.safetensors.index.json");
  const double need = double(c.parameters()) * size_of(dtype), free = this_machine().memory_free_bytes;
  if (device.kind == DeviceKind::cpu && free > 0 && need > free)
    return Status::failure(Code::out_of_memory, c.name, " has ", bytes_text(need), " of weights in ", asked.dtype,
                           ", and ", bytes_text(free), " are free; --memory and --fits need no weights");
  if (Status s = models::Model::make(c, dtype, device, weights ? -1 : asked.seed, out); !s.ok()) return s;
  return weights ? models::load_checkpoint(*out, asked.model) : Status::good();
}

}  // namespace attune
