// SPDX-License-Identifier: Apache-2.0
// `attune model --train`: steps of AdamW on one batch, which the model learns by heart: random tokens, or the bytes of
// a text.
#include <fmt/format.h>
#include <unistd.h>

#include "tool/files.h"
#include "tool/model/model.h"
#include "tool/text.h"
#include "tool/timing/clock.h"
#include "tool/timing/statistics.h"

namespace attune {
namespace {

Status batch_of(const ModelAsked& asked, const models::Config& c, std::vector<int32_t>& out) {
  const size_t count = size_t(asked.batch) * size_t(asked.length);
  if (asked.text.empty()) {
    for (int b = 0; b < asked.batch; ++b) {
      const std::vector<int32_t> one = models::random_tokens(c.vocab, asked.length, asked.seed, b);
      out.insert(out.end(), one.begin(), one.end());
    }
    return Status::good();
  }
  std::string text;
  if (Status s = read_file(asked.text, text); !s.ok()) return s;
  if (text.size() < count)
    return Status::no(asked.text, ": has ", text.size(), " bytes, and a batch needs ", count);
  for (size_t n = 0; n < count; ++n) {
    out.push_back(uint8_t(text[n]));
    if (out.back() >= c.vocab)
      return Status::no(asked.text, ": byte ", n, " is ", out.back(), ", and the model has ", c.vocab, " tokens");
  }
  return Status::good();
}

}  // namespace

Status train_model(const ModelAsked& asked, models::Model& model, Context& context) {
  const models::Config& c = model.config();
  std::vector<int32_t> tokens;
  if (Status s = batch_of(asked, c, tokens); !s.ok()) return s;
  std::unique_ptr<models::Training> training;
  const models::TrainSettings settings{.batch = asked.batch, .len = asked.length, .attention = {asked.attention},
                                       .checkpointing = asked.checkpointing};
  if (Status s = models::Training::make(model, settings, training); !s.ok()) return s;
  const models::AdamWSettings adamw{.rate = float(asked.rate)};
  const Clock clock = host_clock();
  std::vector<double> seconds, losses;
  if (!context.json)
    fmt::print("train           {} x {} tokens, AdamW at {}{}\nattention       {}\n", asked.batch, asked.length,
               asked.rate, asked.checkpointing ? ", activations computed again" : "",
               training->why().substr(0, training->why().find('\n')));
  for (int n = 0; n < asked.steps; ++n) {
    const int64_t begin = clock.now();
    double loss = 0;
    if (Status s = training->gradients(tokens, loss); !s.ok()) return s;
    if (Status s = training->update(adamw); !s.ok()) return s;
    seconds.push_back(double(clock.now() - begin) * 1e-9), losses.push_back(loss);
    if (!context.json) fmt::print("step {:<10} loss {:.4f}, {}\n", n + 1, loss, seconds_text(seconds.back()));
  }
  // The first step also touches memory for the first time.
  const double each = seconds.size() > 1 ? median(std::span(seconds).subspan(1)) : seconds[0];
  const models::TrainBytes& bytes = training->bytes();
  const double samples = asked.batch / each, rate = samples * asked.length;
  if (context.json) {
    fmt::print("{}\n", Json{{"model", c.name}, {"batch", asked.batch}, {"length", asked.length}, {"losses", losses},
                            {"seconds", seconds}, {"samples_a_second", samples}, {"tokens_a_second", rate},
                            {"bytes", bytes.total()}, {"attention", training->why()}}.dump(2));
    return Status::good();
  }
  fmt::print("a step          {}, {} samples/s, {} tokens/s\n", seconds_text(each), digits_text(samples),
             digits_text(rate));
  fmt::print("memory          {}\n", bytes_text(double(bytes.total())));
  return Status::good();
}

}  // namespace attune
