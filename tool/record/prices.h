// SPDX-License-Identifier: Apache-2.0
// Reads price files: text with one offer per line and tabs between fields, written by hand. docs/measuring.md shows
// one.
#pragma once
#include <string>
#include <string_view>
#include <vector>

#include "core/status.h"

namespace attune {

struct Offer {
  std::string name{};       // "prime H200", free text
  std::string device{};     // as records name it: "NVIDIA H200"; "*" is any
  double usd_an_hour = 0;
  double step_s = 1;        // billed in whole steps: 1, 60 or 3600 seconds
  double minimum_usd = 0;   // minimum charge
  std::string source{};     // file:line

  bool fits(std::string_view device_name) const { return device == "*" || device == device_name; }
  double usd(double seconds) const;       // cost of a run of this length, as billed
  double usd_a_second() const { return usd_an_hour / 3600; }
};

// Errors name file and line.
Status read_prices(std::string_view text, std::string_view file, std::vector<Offer>& out);
Status load_prices(const std::string& path, std::vector<Offer>& out);

std::string usd_text(double usd);  // "$0.0123": three significant digits, at least cents

}  // namespace attune
