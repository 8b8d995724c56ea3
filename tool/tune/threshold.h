// SPDX-License-Identifier: Apache-2.0
// The rule that turns a measurement into a choice; pure. A backend is used from the smallest length at which the lower
// bound of its speed-up over the baseline is at least 1 + margin, there and at every longer length; else never. At
// least two lengths must agree, or one at which the baseline does not fit into memory, or the only length measured.
// The fastest of the backends allowed at a length is used. A backend in use stays until another is faster by more than
// the A/A spread, or than kMostSpread if that is less.
#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace attune {

// One backend at one length, over all rows of its key there.
struct CurvePoint {
  bool measured = false;  // all rows were measured and correct
  // Smallest lower bound of the speed-up over the baseline. Infinite if the baseline cannot run; NaN if the baseline
  // was not tried, so the length shows nothing.
  double low = 0;
  double log_time = 0;    // mean logarithm of the medians of the rows
  double half = 0;        // half the width of the interval of log_time
};

struct Curve {
  std::string backend{};
  std::vector<CurvePoint> points{};  // one per length
};

struct Curves {
  std::vector<int> lengths{};       // measured lengths, ascending
  std::vector<int64_t> works{};     // or batch * heads * keys; `lengths` is then empty
  std::vector<Curve> backends{};    // in the list order that decides without measurements
  size_t baseline = 0;              // index into backends
  std::vector<double> spread{};     // A/A spread at each length
  std::vector<std::string> used{};  // choice of the existing rules at each length; "" if none
};

struct TuneSettings {
  double margin = 0.2;
  double hysteresis = 0.05;  // a backend in use needs only 1 + margin - hysteresis
};

struct TuneChoice {
  std::vector<std::optional<int>> from{};  // threshold length of each backend; the baseline has none
  std::vector<size_t> at{};                // chosen backend at each length
};

std::optional<int> threshold(const Curves&, size_t backend, const TuneSettings&);
TuneChoice choose(const Curves&, const TuneSettings&);
// Chooses by work between backends that may be used at every length: the least total time over all works, where every
// change of backend costs 5 % of one work, or the intervals of the two if they are wider. An island of one work must
// thus be worth two changes, because it also decides for unmeasured works beside it. With the A/A spread as cost, which
// may be 0.1 %, rules followed differences that did not hold between the measured works.
std::vector<size_t> choose_by_work(const Curves&, const std::vector<bool>& may);
double change_cost();  // in logarithms of time

}  // namespace attune
