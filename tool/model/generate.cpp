// SPDX-License-Identifier: Apache-2.0
// `attune model --generate`: prompts of random tokens, timed to the first new token and per further token.
#include <fmt/format.h>
#include <unistd.h>

#include "tool/model/model.h"
#include "tool/table.h"
#include "tool/text.h"
#include "tool/timing/clock.h"
#include "tool/timing/statistics.h"

namespace attune {

Status generate_text(const ModelAsked& asked, models::Model& model, Context& context) {
  const models::Config& c = model.config();
  const std::vector<int> lengths = prompt_lengths(asked);
  const int batch = int(lengths.size());
  if (asked.batch != 1 && asked.batch != batch)
    return Status::no("--prompt has ", batch, " lengths for a batch of ", asked.batch);
  int longest = 0;
  std::vector<std::vector<int32_t>> prompts, out;
  for (int b = 0; b < batch; ++b) {
    longest = std::max(longest, lengths[size_t(b)]);
    prompts.push_back(models::random_tokens(c.vocab, lengths[size_t(b)], asked.seed, b));
  }
  std::unique_ptr<models::Generation> generation;
  if (Status s = models::Generation::make(model, batch, longest + asked.tokens, {asked.attention}, generation); !s.ok())
    return s;
  const models::Sampling sampling{.temperature = asked.temperature, .top = asked.top, .seed = asked.seed};
  const Clock clock = host_clock();
  std::vector<double> at{double(clock.now())};
  if (Status s = models::generate(*generation, prompts, asked.tokens, sampling, out,
                                  [&](int) { at.push_back(double(clock.now())); });
      !s.ok())
    return s;
  std::vector<double> steps;
  for (size_t n = 2; n < at.size(); ++n) steps.push_back((at[n] - at[n - 1]) * 1e-9);
  const double first = (at[1] - at[0]) * 1e-9, each = median(steps), whole = (at.back() - at[0]) * 1e-9;
  const models::CacheBytes bytes = generation->bytes();
  if (context.json) {
    Json texts = Json::array();
    for (const auto& text : out) texts.push_back(Json(text));
    fmt::print("{}\n", Json{{"model", c.name}, {"batch", batch}, {"prompt", lengths}, {"tokens", asked.tokens},
                            {"seconds_to_first_token", first}, {"seconds_a_token", each},
                            {"tokens_a_second", steps.empty() ? 0 : batch / each},
                            {"seconds", whole}, {"cache_bytes", bytes.cache}, {"attention", generation->why()},
                            {"texts", texts}}.dump(2));
    return Status::good();
  }
  fmt::print("generate        {} after {}, {}\n", counted(asked.tokens, "token"),
             batch == 1 ? counted(lengths[0], "token") : counted(batch, "prompt"),
             asked.temperature > 0 ? fmt::format("sampled at {} by seed {}", asked.temperature, asked.seed) : "greedy");
  fmt::print("attention       {}\n", generation->why().substr(0, generation->why().find('\n')));
  fmt::print("first token     {}\n", seconds_text(first));
  if (!steps.empty())
    fmt::print("further tokens  {} each, {} tokens/s\n", seconds_text(each), digits_text(batch / each));
  fmt::print("cache           {}\n", bytes_text(double(bytes.cache)));
  for (int b = 0; b < batch; ++b) fmt::print("text {:<10} {}\n", b, fmt::join(out[size_t(b)], " "));
  return Status::good();
}

}  // namespace attune
