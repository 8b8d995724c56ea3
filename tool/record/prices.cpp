// SPDX-License-Identifier: Apache-2.0
#include "tool/record/prices.h"

#include <fmt/format.h>

#include <charconv>
#include <cmath>

#include "tool/files.h"
#include "tool/text.h"

namespace attune {
namespace {

std::vector<std::string_view> fields_of(std::string_view line) {
  std::vector<std::string_view> all;
  for (size_t at = 0;; ) {
    const size_t tab = line.find('\t', at);
    all.push_back(line.substr(at, tab == line.npos ? line.npos : tab - at));
    if (tab == line.npos) return all;
    at = tab + 1;
  }
}

bool number(std::string_view text, double& out) {
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), out);
  return error == std::errc() && end == text.data() + text.size() && std::isfinite(out) && out >= 0 && out < 1e9;
}

// Parses "2.99 an hour" or "0.0006 a second". The words are fixed, so a unit is never guessed.
bool price(std::string_view text, double& usd_an_hour) {
  const size_t space = text.find(' ');
  if (space == text.npos || !number(text.substr(0, space), usd_an_hour)) return false;
  const std::string_view unit = text.substr(space + 1);
  if (unit == "a second") usd_an_hour *= 3600;
  else if (unit == "a minute") usd_an_hour *= 60;
  else if (unit != "an hour") return false;
  return true;
}

bool step(std::string_view text, double& seconds) {
  if (text == "by the second") seconds = 1;
  else if (text == "by the minute") seconds = 60;
  else if (text == "by the hour") seconds = 3600;
  else return false;
  return true;
}

Status read_offer(const std::vector<std::string_view>& f, Offer& o) {
  if (f.size() != 6)
    return Status::no("offer has ", f.size(),
                      " fields, not 6 separated by tabs: offer, name, device, price, billing, minimum");
  o.name = f[1], o.device = f[2];
  if (o.name.empty() || o.device.empty()) return Status::no("offer without a name or device; '*' is any device");
  if (!price(f[3], o.usd_an_hour))
    return Status::no("price '", f[3], "' is not a number of dollars and 'an hour', 'a minute' or 'a second'");
  if (!step(f[4], o.step_s))
    return Status::no("billing '", f[4], "' is not one of 'by the second', 'by the minute', 'by the hour'");
  constexpr std::string_view kMinimum = "minimum ";
  if (!f[5].starts_with(kMinimum) || !number(f[5].substr(kMinimum.size()), o.minimum_usd))
    return Status::no("'", f[5], "' is not 'minimum' and a number of dollars");
  return Status::good();
}

}  // namespace

double Offer::usd(double seconds) const {
  const double billed = std::ceil(std::max(0.0, seconds) / step_s - 1e-9) * step_s;
  return std::max(minimum_usd, billed * usd_a_second());
}

Status read_prices(std::string_view text, std::string_view file, std::vector<Offer>& out) {
  int number = 0;
  std::vector<Offer> all;
  for (size_t at = 0; at < text.size() || number == 0;) {
    const size_t end = std::min(text.find('\n', at), text.size());
    std::string_view line = text.substr(at, end - at);
    at = end + 1, ++number;
    if (line.ends_with('\r')) line.remove_suffix(1);
    const std::string place = join(file, ":", number);
    if (number == 1) {
      if (line != "attune-prices 1") return Status::no(place, ": the first line is not 'attune-prices 1'");
      continue;
    }
    if (line.empty() || line.starts_with('#')) continue;
    const auto fields = fields_of(line);
    if (fields[0] != "offer") return Status::no(place, ": '", fields[0], "' is not 'offer', a comment (#) or empty");
    Offer offer{.source = place};
    if (const Status s = read_offer(fields, offer); !s.ok()) return s.after(place, ": ");
    all.push_back(std::move(offer));
  }
  if (all.empty()) return Status::no(file, ": no offers");
  out = std::move(all);
  return Status::good();
}

Status load_prices(const std::string& path, std::vector<Offer>& out) {
  std::string text;
  if (Status s = read_file(path, text); !s.ok()) return s.after("prices: ");
  return read_prices(text, path, out);
}

std::string usd_text(double usd) {
  return "$" + (usd >= 0.995 && usd < 1e12 ? fmt::format("{:.2f}", usd) : usd > 0 ? digits_text(usd) : "0");
}

}  // namespace attune
