// The statistics of timings: pure functions of samples, no clock and no I/O. Medians and ranks throughout, because a
// timing has a floor and a long tail: a mean describes neither. No sample is ever dropped; outliers are only counted.
#pragma once
#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace attune {

struct Interval {
  double low = 0, high = 0;
  double confidence = 0;  // what is really covered: few samples cannot reach what was asked
};

double median(std::span<const double>);                  // of none: 0
double quantile(std::span<const double>, double share);  // linear between ranks

// Of the median, by ranks: no assumption about the distribution. With few samples the whole range and its coverage.
Interval median_interval(std::span<const double>, double confidence = 0.95);
// Half the width of an interval, relative to the median: what `precision` is compared with.
double half_width(const Interval&, double median);

// Of median(a) / median(b), by a bootstrap with a seed of its own: the same samples give the same interval.
struct Ratio { double value = 1; Interval interval{1, 1, 0}; };
Ratio median_ratio(std::span<const double> a, std::span<const double> b, double confidence = 0.95, uint64_t seed = 1);

// Tukey's fences: mild beyond 1.5, severe beyond 3 interquartile ranges.
struct Outliers {
  int low_severe = 0, low_mild = 0, high_mild = 0, high_severe = 0;
  int total() const { return low_severe + low_mild + high_mild + high_severe; }
};
Outliers outliers(std::span<const double>);

// Peaks of the density (a Gaussian kernel estimate): 2 or more means that one median describes nobody, as when a clock
// changes half way. 1 for fewer than 15 samples.
int modes(std::span<const double>);

// Whether a series of warm-up samples has settled: the medians of its last two windows agree.
bool settled(std::span<const double>, double within = 0.02);

enum class Speed { faster, slower, same, unclear };
std::string name(Speed);  // "FASTER"
// Of ratio = other time / our time, so that above 1 is faster. A difference is claimed where it is beyond `margin` and
// the A/A spread. The same is what is within the larger of them, but of a spread only up to kMostSpread: a machine on
// which a thing differs from itself by half cannot show that two things do not differ.
inline constexpr double kMostSpread = 0.05;
Speed verdict(const Ratio&, double margin, double aa_spread = 0);
// The largest difference that timing a thing against itself shows.
double spread(const Ratio& against_itself);

// A call that returns before its work is done shows here: waiting for the rest takes a good part of the whole.
bool enqueue_only(double run_ns, double drain_ns);

}  // namespace attune
