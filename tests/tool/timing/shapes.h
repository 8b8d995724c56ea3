// SPDX-License-Identifier: Apache-2.0
// Synthetic samples of two subjects whose true ratio is known, in shapes that timings have. The same on every machine.
#pragma once
#include <cmath>
#include <cstdint>
#include <vector>

namespace attune {

struct Draw {
  uint64_t state;
  uint64_t next() {  // splitmix64
    uint64_t z = state += 0x9E3779B97F4A7C15u;
    z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9u;
    z = (z ^ z >> 27) * 0x94D049BB133111EBu;
    return z ^ z >> 31;
  }
  size_t below(size_t n) { return size_t(next() % n); }
  double uniform() { return (double(next() >> 11) + 0.5) * 0x1p-53; }
  double normal() { return std::sqrt(-2 * std::log(uniform())) * std::cos(2 * M_PI * uniform()); }
};

struct SamplePair { std::vector<double> a{}, b{}; };

// A shape draws `n` samples of each side. The true times are `ratio` and 1 (microseconds); `sigma` is the noise.
struct Shape {
  const char* name;
  SamplePair (*draw)(Draw&, int n, double ratio, double sigma);
};

namespace shapes {

inline double calm(Draw& d, double sigma) { return std::exp(sigma * d.normal()); }
// Every seventh sample met an interrupt. The median moves by the share of samples that the tail takes from the body.
inline double heavy(Draw& d, double sigma) {
  constexpr double kShare = 0.15, kMove = 0.2230;  // kMove: the normal quantile of 0.5 / (1 - kShare)
  const double tail = d.uniform() < kShare ? 5 * sigma / d.uniform() : 0;
  return std::exp(sigma * (d.normal() - kMove)) * std::exp(tail > 0 ? std::log1p(tail) + 8 * sigma : 0);
}
// Two clocks, a fifth apart: nearly half of the samples at the lower one.
inline double two_modes(Draw& d, double sigma) {
  constexpr double kMove = 1.3352;  // the normal quantile of 0.5 / 0.55
  return std::exp(sigma * (d.normal() - kMove)) * (d.uniform() < 0.45 ? 1 + 10 * sigma : 1);
}

template <double (*A)(Draw&, double), double (*B)(Draw&, double)>
SamplePair each(Draw& d, int n, double ratio, double sigma) {
  SamplePair p;
  for (int i = 0; i < n; ++i) p.a.push_back(ratio * A(d, sigma)), p.b.push_back(B(d, sigma));
  return p;
}
inline double wild(Draw& d, double sigma) { return calm(d, 4 * sigma); }

// The machine becomes slower while it measures, by a third or at once; both subjects take turns in mirrored order.
template <double (*State)(double t, double at)>
SamplePair moving(Draw& d, int n, double ratio, double sigma) {
  SamplePair p;
  const double at = d.uniform();
  for (int i = 0; i < n; ++i) {
    const double first = (2 * i + 0.5) / (2 * n), second = (2 * i + 1.5) / (2 * n);
    p.a.push_back(ratio * calm(d, sigma) * State(i % 2 ? second : first, at));
    p.b.push_back(calm(d, sigma) * State(i % 2 ? first : second, at));
  }
  return p;
}
inline double drift(double t, double) { return 1 + t / 3; }
inline double step(double t, double at) { return t < at ? 1 : 1.15; }

// A timer that advances in steps of 1 %: a reading is one of its ticks, at any phase. The noise is a third of a tick.
inline SamplePair ticks(Draw& d, int n, double ratio, double sigma) {
  constexpr double kTick = 0.01;
  SamplePair p;
  const double scale = 1 + kTick * d.uniform();  // where the true times lie between the ticks
  const auto read = [&](double time) { return kTick * std::floor(time / kTick + d.uniform()); };
  for (int i = 0; i < n; ++i)
    p.a.push_back(read(ratio * scale * calm(d, sigma / 3))), p.b.push_back(read(scale * calm(d, sigma / 3)));
  return p;
}

}  // namespace shapes

inline constexpr Shape kShapes[] = {
    {"calm", shapes::each<shapes::calm, shapes::calm>},
    {"heavy tails", shapes::each<shapes::heavy, shapes::heavy>},
    {"two modes", shapes::each<shapes::two_modes, shapes::two_modes>},
    {"calm against wild", shapes::each<shapes::calm, shapes::wild>},
    {"heavy tails against two modes", shapes::each<shapes::heavy, shapes::two_modes>},
    {"drift", shapes::moving<shapes::drift>},
    {"a clock that steps", shapes::moving<shapes::step>},
    {"ticks", shapes::ticks}};

}  // namespace attune
