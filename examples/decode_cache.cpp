// SPDX-License-Identifier: Apache-2.0
// A decode loop over a cache object. Prompts of different lengths go in, then one token per step for all of them, with
// rotary applied to keys and queries. A sequence ends, its pages serve the next one, and a draft is rejected. A call
// that does not fit is refused before anything is written.
#include <attune/attune.hpp>
#include <cmath>
#include <cstdio>
#include <string>
#include <vector>

namespace {

constexpr int kSlots = 3, kHeads = 4, kHeadsKv = 2, kDim = 64, kPositions = 64;

// Synthetic tokens.
std::vector<float> numbers(int seed, int count) {
  std::vector<float> x(static_cast<size_t>(count));
  for (int n = 0; n < count; ++n) x[size_t(n)] = std::sin(float(seed * 131 + n) * 0.37f);
  return x;
}

}  // namespace

int main() try {
  attune_cache_options options{};
  options.dtype = ATTUNE_F32, options.heads = kHeadsKv, options.dim_qk = kDim;
  options.sequences = kSlots, options.capacity = kPositions, options.page = 4, options.pages = 28;
  attune::Cache cache(options);

  std::vector<float> cos(kPositions * kDim / 2), sin(cos.size());
  for (int position = 0; position < kPositions; ++position)
    for (int pair = 0; pair < kDim / 2; ++pair) {
      const double angle = position * std::pow(10000., -2. * pair / kDim);
      cos[size_t(position * kDim / 2 + pair)] = float(std::cos(angle));
      sin[size_t(position * kDim / 2 + pair)] = float(std::sin(angle));
    }

  // Adds `count` new tokens to each of these sequences; returns the first number of the output.
  const auto step = [&](const std::vector<int32_t>& sequences, int count, int seed) {
    const int batch = int(sequences.size());
    attune::Problem problem("forward f32 b" + std::to_string(batch) + " h4/2 q" + std::to_string(count) +
                            " k64 d64 causal append rotary_half");
    std::vector<float> q = numbers(seed, batch * count * kHeads * kDim), out(q.size());
    const std::vector<float> k = numbers(seed + 1, batch * count * kHeadsKv * kDim);
    const std::vector<float> v = numbers(seed + 2, int(k.size()));
    attune::Args args;
    args.set(ATTUNE_Q, {q.data(), "bshd", {batch, count, kHeads, kDim}})
        .set(ATTUNE_K_NEW, {k.data(), "bshd", {batch, count, kHeadsKv, kDim}})
        .set(ATTUNE_V_NEW, {v.data(), "bshd", {batch, count, kHeadsKv, kDim}})
        .set(ATTUNE_ROTARY_COS, {cos.data(), "sd", {kPositions, kDim / 2}})
        .set(ATTUNE_ROTARY_SIN, {sin.data(), "sd", {kPositions, kDim / 2}})
        .set(ATTUNE_OUT, {out.data(), "bshd", {batch, count, kHeads, kDim}});
    cache.attend(problem, args, sequences);
    return out[0];
  };

  for (int s = 0; s < kSlots; ++s) step({s}, 5 + 7 * s, s);          // the prompts
  for (int n = 0; n < 20; ++n) step({0, 1, 2}, 1, 100 + n);          // one token each
  std::printf("lengths %d, %d, %d; %d of 28 pages free\n", cache.length(0), cache.length(1), cache.length(2),
              cache.free_pages());

  const int before = cache.length(1);
  const float plain = step({1}, 3, 500);  // three drafted tokens, checked in one step
  cache.resize(1, before);                // and rejected
  if (step({1}, 3, 500) != plain) return std::puts("a step after a rewind differs"), 1;
  cache.resize(1, before);

  cache.free(2);
  step({2}, 9, 700);  // the next prompt takes its place
  std::printf("lengths %d, %d, %d; %d of 28 pages free\n", cache.length(0), cache.length(1), cache.length(2),
              cache.free_pages());

  try {
    step({0, 1}, 40, 900);
    return std::puts("what does not fit was not refused"), 1;
  } catch (const attune::Error& e) {
    std::printf("refused, as it should be: %s\n", e.what());
  }
  return cache.length(0) == 25 && cache.length(2) == 9 ? 0 : 1;
} catch (const attune::Error& e) {
  return std::puts(e.what()), 1;
}
