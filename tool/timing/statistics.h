// SPDX-License-Identifier: Apache-2.0
// Statistics of timings: pure functions of samples, without clock or I/O. Medians and ranks throughout, because timings
// have a floor and a long tail, and a mean describes neither. No sample is ever dropped; outliers are only counted.
#pragma once
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

namespace attune {

// Below this confidence nothing is claimed. The range of six samples is the smallest that covers a median with it.
inline constexpr double kConfidence = 0.95;
inline constexpr int kFewestSamples = 6;

struct Interval {
  double low = 0, high = 0;
  double confidence = 0;  // actual coverage: few samples cannot reach the requested one
  bool is_sure() const { return confidence >= kConfidence - 1e-9; }
};

double median(std::span<const double>);                  // 0 if empty
double mean(std::span<const double>);                    // 0 if empty
double deviation(std::span<const double>);               // standard deviation, by n - 1; 0 below two samples
double quantile(std::span<const double>, double share);  // linear between ranks

// Interval of the median by ranks, without assumptions about the distribution. With few samples it is the whole range.
Interval median_interval(std::span<const double>, double confidence = 0.95);
// Half the width of an interval relative to the median, to be compared with `precision`.
double half_width(const Interval&, double median);

// median(a) / median(b). The rank intervals of both medians are widened by half a timer grain and combined by the
// squares of their logarithmic widths (MOVER: Zou and Donner 2008), so the samples may have any distribution, another
// one on each side. On the shapes of tests/tool/timing/shapes.h, the 95 % interval of a percentile bootstrap missed the
// ratio in up to 7 % of cases, and in up to 29 % where readings are ticks of the timer; a shift by ranks misses it
// wherever the two distributions differ in shape.
struct Ratio { double value = 1; Interval interval{1, 1, 0}; };
Ratio median_ratio(std::span<const double> a, std::span<const double> b);
// The bootstrap that wrote the ratios in records of version 1 and 2; only `attune verify` repeats it.
Ratio resampled_ratio(std::span<const double> a, std::span<const double> b);

// Tukey's fences: mild beyond 1.5, severe beyond 3 interquartile ranges.
struct Outliers {
  int low_severe = 0, low_mild = 0, high_mild = 0, high_severe = 0;
  int total() const { return low_severe + low_mild + high_mild + high_severe; }
};
Outliers outliers(std::span<const double>);

// Number of peaks of the density (a Gaussian kernel estimate). With 2 or more, one median does not describe the
// samples, as when a clock changes halfway. 1 for fewer than 15 samples.
int modes(std::span<const double>);

// True if a series of warm-up samples has settled: the medians of its last two windows agree.
bool settled(std::span<const double>, double within = 0.02);

enum class Speed { faster, slower, same, unclear };
std::string name(Speed);  // "FASTER"
// Judges ratio = other time / our time, so above 1 is faster. A difference is claimed if it exceeds both `margin` and
// the A/A spread, where one was measured. "Same" means within the larger of the two, but a spread counts only up to
// kMostSpread: a machine with a spread of one half cannot show that two things are equal. An interval below
// `least_confidence` decides nothing; records of version 1 and 2 were written without that limit.
inline constexpr double kMostSpread = 0.05;
Speed verdict(const Ratio&, double margin, std::optional<double> aa_spread = {},
              double least_confidence = kConfidence);
// The largest difference that timing a subject against itself shows.
double spread(const Ratio& against_itself);

// True if a call returned before its work was done: waiting for the rest takes a large part of the whole.
bool enqueue_only(double run_ns, double drain_ns);

}  // namespace attune
