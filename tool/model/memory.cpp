// SPDX-License-Identifier: Apache-2.0
// `attune model --memory`, `--fits` and `--longest`: the bytes of training and of generation by owner, from the graphs
// of the layers. Nothing is allocated, so every model can be asked about.
#include <fmt/format.h>
#include <unistd.h>

#include <cmath>

#include "machine/known_gpus.h"
#include "plan/tuned.h"
#include "tool/machine.h"
#include "tool/model/model.h"
#include "tool/table.h"
#include "tool/text.h"

namespace attune {
namespace {

constexpr double kGib = double(1 << 30);
constexpr int kStep = 512;               // of --longest, in tokens
constexpr int kMostTokens = 1 << 22;

struct Card { std::string name{}; double bytes = 0; };

// What is asked, for one length after the other. Layers are planned for the device, or for this CPU where the build has
// no code for it: activations and cache are the same, workspaces of attention are then the CPU's.
struct Sizes {
  const ModelAsked& asked;
  const models::Config& c;
  DType dtype;
  Device device{};
  bool stands_in = false;
  std::vector<Rule> rules{};

  models::TrainSettings settings(int length) const {
    return {.batch = asked.batch, .len = length, .attention = {asked.attention},
            .checkpointing = asked.checkpointing};
  }
  double weights() const { return double(c.parameters()) * size_of(dtype); }
  Status train(int length, models::TrainBytes& out) const {
    return models::Training::measure(c, dtype, device, rules, settings(length), out);
  }
  // Prompts of users come one by one; those of a batch run as one call.
  Status generate(int sequences, int at_once, int length, models::CacheBytes& out) const {
    const models::CacheShape shape{.sequences = sequences,
                                   .capacity = length,
                                   .prompt = length,
                                   .at_once = at_once,
                                   .attention = {asked.attention}};
    return models::Generation::measure(c, dtype, device, rules, shape, out);
  }
  Status begin(const Device& wanted) {
    device = wanted;
    models::TrainBytes bytes;
    if (wanted.kind == DeviceKind::cpu) {
      Tuned tuned;
      if (Status s = load_tuned(wanted, tuned); !s.ok()) return s;
      rules = std::move(tuned.rules);
    } else if (!train(2, bytes).ok()) {
      device = this_machine().cpu, stands_in = true;
    }
    return train(2, bytes);
  }
};

std::vector<Card> cards_of(const ModelAsked& asked, const Device& device) {
  std::vector<Card> all;
  for (const int gib : asked.fits) all.push_back({fmt::format("{} GiB", gib), gib * kGib});
  if (!all.empty()) return all;
  if (device.kind == DeviceKind::cpu) return {{"this machine", this_machine().memory_bytes}};
  const KnownGpu* const known = known_gpu(device.name);
  return {{device.name, known ? known->bytes() : 0}};
}

// The most tokens, in steps of kStep and up to `most`, for which `bytes` stays within `room`; 0 if not even one step
// does. The sizes of every length grow, so the search halves.
template <class F>
int longest_of(int most, double room, F bytes) {
  const auto tokens = [&](int steps) { return std::min(steps * kStep, most); };
  const auto fits = [&](int steps) { return bytes(tokens(steps)) <= room; };
  int low = 0, high = 1;
  const int end = (most + kStep - 1) / kStep;
  while (high < end && fits(high)) low = high, high = std::min(2 * high, end);
  if (high == end && fits(end)) return most;
  while (high - low > 1) {
    const int middle = (low + high) / 2;
    (fits(middle) ? low : high) = middle;
  }
  return low * kStep;
}

Status print_owners(const Sizes& sizes, Context& context, Json& json) {
  const int length = sizes.asked.length, batch = sizes.asked.batch;
  models::TrainBytes t;
  models::CacheBytes g;
  if (Status s = sizes.train(length, t); !s.ok()) return s;
  if (Status s = sizes.generate(batch, batch, length, g); !s.ok()) return s;
  const double weights = sizes.weights(), all = weights + double(g.cache) + double(g.workspace);
  json["training"] = {{"weights", t.weights}, {"gradients", t.gradients}, {"moments", t.moments},
                      {"activations", t.activations}, {"workspace", t.workspace}, {"together", t.total()}};
  json["generation"] = {{"weights", uint64_t(weights)}, {"cache", g.cache}, {"workspace", g.workspace},
                        {"together", uint64_t(all)}};
  if (context.json) return Status::good();
  fmt::print("memory at {} x {} tokens in {}{}\n", batch, length, name(sizes.dtype),
             sizes.asked.checkpointing ? ", activations computed again" : "");
  TextTable table{.columns = {{"owner"}, {"training", Cells::number}, {"generation", Cells::number}}};
  const auto text = [](double bytes) { return bytes_text(bytes); };
  table.rows = {{"weights", text(double(t.weights)), text(weights)}, {"gradients", text(double(t.gradients)), ""},
                {"moments of AdamW", text(double(t.moments)), ""},
                {"activations", text(double(t.activations)), ""}, {"cache", "", text(double(g.cache))},
                {"workspace", text(double(t.workspace)), text(double(g.workspace))},
                {"together", text(double(t.total())), text(all)}};
  fmt::print("{}", to_text(std::move(table), terminal_width(STDOUT_FILENO)));
  return Status::good();
}

// Rows of cards: whether it trains, how many users it serves, and with --longest the longest contexts.
Status print_cards(const Sizes& sizes, const std::vector<Card>& cards, Context& context, Json& json) {
  const int length = sizes.asked.length;
  models::TrainBytes t;
  models::CacheBytes one, two;
  if (Status s = sizes.train(length, t); !s.ok()) return s;
  if (Status s = sizes.generate(1, 1, length, one); !s.ok()) return s;
  if (Status s = sizes.generate(2, 1, length, two); !s.ok()) return s;
  const double weights = sizes.weights(), base = weights + double(one.cache) + double(one.workspace);
  const double each = double(two.cache) + double(two.workspace) - double(one.cache) - double(one.workspace);
  TextTable table{.columns = {{"card"}, {"trains"}, {"generates"}, {"users", Cells::number},
                              {"longest to train", Cells::number}, {"longest to generate", Cells::number}}};
  Json rows = Json::array();
  const int most = sizes.c.learned_positions ? sizes.c.positions : kMostTokens;
  for (const Card& card : cards) {
    const int64_t users = card.bytes < base ? 0 : 1 + int64_t((card.bytes - base) / each);
    const auto needs = [&](double bytes) {
      return bytes <= card.bytes ? join("yes, ", bytes_text(bytes)) : join("no, needs ", bytes_text(bytes));
    };
    std::vector<std::string> row{card.name, needs(double(t.total())), needs(base), join(users), "", ""};
    Json j{{"card", card.name}, {"bytes", uint64_t(card.bytes)}, {"trains", double(t.total()) <= card.bytes},
           {"generates", base <= card.bytes}, {"users", users}};
    if (sizes.asked.longest) {
      const int trained = longest_of(most, card.bytes, [&](int tokens) {
        models::TrainBytes b;
        return sizes.train(tokens, b).ok() ? double(b.total()) : HUGE_VAL;
      });
      const int generated = longest_of(most, card.bytes, [&](int tokens) {
        models::CacheBytes b;
        const int batch = sizes.asked.batch;
        return sizes.generate(batch, batch, tokens, b).ok() ? weights + double(b.cache) + double(b.workspace)
                                                            : HUGE_VAL;
      });
      row[4] = trained ? join(trained) : "none", row[5] = generated ? join(generated) : "none";
      j["longest_to_train"] = trained, j["longest_to_generate"] = generated;
    }
    table.rows.push_back(std::move(row));
    rows.push_back(std::move(j));
  }
  json["cards"] = rows;
  if (context.json) return Status::good();
  fmt::print("training {} x {} tokens in {}; users of {} tokens each\n", sizes.asked.batch, length, name(sizes.dtype),
             length);
  fmt::print("{}", to_text(std::move(table), terminal_width(STDOUT_FILENO)));
  return Status::good();
}

}  // namespace

Status show_memory(const ModelAsked& asked, const models::Config& c, DType dtype, const Device& device,
                   Context& context) {
  Sizes sizes{.asked = asked, .c = c, .dtype = dtype};
  if (Status s = sizes.begin(device); !s.ok()) return s;
  Json json{{"model", c.name}, {"parameters", c.parameters()}, {"batch", asked.batch}, {"length", asked.length},
            {"dtype", asked.dtype}, {"device", device.name}, {"computed_for", sizes.device.name}};
  if (!context.json) fmt::print("model           {}\n", join(c.name, ", ", about(c)));
  if (asked.memory)
    if (Status s = print_owners(sizes, context, json); !s.ok()) return s;
  if (asked.longest || !asked.fits.empty())
    if (Status s = print_cards(sizes, cards_of(asked, device), context, json); !s.ok()) return s;
  if (context.json) fmt::print("{}\n", json.dump(2));
  else
    fmt::print("computed, not measured{}\n",
               sizes.stands_in ? "; workspaces of attention are those of this CPU: the build has no code for the GPU"
                               : "; a driver's own memory is not included");
  return Status::good();
}

}  // namespace attune
