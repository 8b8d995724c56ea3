// SPDX-License-Identifier: Apache-2.0
// Prices where a provider does not tell them before a rental: a dated list that ships, and that a file of the same
// format replaces.
#pragma once
#include <string>
#include <vector>

#include "core/status.h"
#include "tool/record/prices.h"

namespace attune {

extern const char* const kShippedPrices;  // a price file; "# date" is the day of its newest line

// From now on this file is used instead; "": the list that ships.
void use_price_list(const std::string& path);
struct PriceList {
  std::vector<Offer> offers{};
  std::string date{}, source{};  // "2026-10-19", "" if the file names none; the file, or "the list that ships"
};
Status price_list(PriceList&);
// Dollars an hour of the offer with this name: "modal L4".
Status listed_price(const std::string& name, double& usd_an_hour);

}  // namespace attune
