// The one rule by which a measurement becomes a choice; pure. A backend is used from the smallest length at which the
// lower bound of its speed-up over the baseline is at least 1 + margin, there and at every longer length, if two
// lengths or more say so, or one at which the baseline has no room; else never. A key that was measured at one length
// alone has no second to ask. Of several that may be used at a length the fastest is, and what was in use stays in use
// until something is faster by more than the A/A spread, or than kMostSpread where that is less.
#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace attune {

// One backend at one length: over all rows of its key there.
struct CurvePoint {
  bool measured = false;  // every row, and right
  // The smallest lower bound of the speed-up over the baseline; infinite where that cannot run, not a number where
  // nobody tried it: such a length says nothing.
  double low = 0;
  double log_time = 0;    // mean over the rows of the logarithm of its median
  double half = 0;        // half the width of the interval of log_time
};

struct Curve {
  std::string backend{};
  std::vector<CurvePoint> points{};  // one for each length
};

struct Curves {
  std::vector<int> lengths{};     // ascending, as measured
  std::vector<int64_t> works{};   // or batch * heads * keys: then there are no lengths
  std::vector<Curve> backends{};  // in the order that decides where nothing was measured
  size_t baseline = 0;            // of backends
  std::vector<double> spread{};   // A/A, at each length
  std::vector<std::string> used{};  // what the rules so far choose at each length; "" where they say nothing
};

struct TuneSettings {
  double margin = 0.2;
  double hysteresis = 0.05;  // a backend in use stays from 1 + margin - hysteresis
};

struct TuneChoice {
  std::vector<std::optional<int>> from{};  // of each backend, the length of its threshold; the baseline has none
  std::vector<size_t> at{};                // the backend at each length
};

std::optional<int> threshold(const Curves&, size_t backend, const TuneSettings&);
TuneChoice choose(const Curves&, const TuneSettings&);
// By work, between backends that may be used at every length: the choice of the least time over all works, where every
// change of backend costs 5 % of one, or the intervals of the two where they are wider. An island of one work so has to
// be worth two changes: it decides for what is beside it as well, which nobody measured. With the A/A spread instead,
// which may be 0.1 %, rules followed differences that were gone between the works that had them.
std::vector<size_t> choose_by_work(const Curves&, const std::vector<bool>& may);
double change_cost();  // in the logarithm of time

}  // namespace attune
