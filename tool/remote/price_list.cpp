// SPDX-License-Identifier: Apache-2.0
#include "tool/remote/price_list.h"

#include <algorithm>

#include "tool/files.h"
#include "tool/text.h"

namespace attune {
namespace {

std::string& path_in_use() {
  static std::string path;
  return path;
}

std::string date_of(std::string_view text) {
  constexpr std::string_view kMark = "# date ";
  const size_t at = text.find(kMark);
  if (at == text.npos) return "";
  const size_t begin = at + kMark.size();
  return in_one_line(text.substr(begin, std::min(text.find('\n', begin), text.size()) - begin));
}

}  // namespace

// List prices, copied by hand from the providers' public pages on the days that are named. The second word of an
// offer's name is the GPU. "modal host" is the most that 4 cores and 16 GiB of a Modal sandbox cost.
const char* const kShippedPrices =
    "attune-prices 1\n"
    "# date 2026-10-19\n"
    "# modal.com/pricing, 2026-05-07; GPU alone, the host is charged beside it\n"
    "offer\tmodal T4\tTesla T4\t0.000164 a second\tby the second\tminimum 0\n"
    "offer\tmodal L4\tNVIDIA L4\t0.000222 a second\tby the second\tminimum 0\n"
    "offer\tmodal A10\tNVIDIA A10\t0.000306 a second\tby the second\tminimum 0\n"
    "offer\tmodal A10G\tNVIDIA A10G\t0.000306 a second\tby the second\tminimum 0\n"
    "offer\tmodal L40S\tNVIDIA L40S\t0.000542 a second\tby the second\tminimum 0\n"
    "offer\tmodal A100\tNVIDIA A100-SXM4-40GB\t0.000583 a second\tby the second\tminimum 0\n"
    "offer\tmodal A100-40GB\tNVIDIA A100-SXM4-40GB\t0.000583 a second\tby the second\tminimum 0\n"
    "offer\tmodal A100-80GB\tNVIDIA A100-SXM4-80GB\t0.000694 a second\tby the second\tminimum 0\n"
    "offer\tmodal RTX-PRO-6000\tNVIDIA RTX PRO 6000 Blackwell Server Edition\t0.000842 a second\tby the second\t"
    "minimum 0\n"
    "offer\tmodal H100\tNVIDIA H100 80GB HBM3\t0.001097 a second\tby the second\tminimum 0\n"
    "offer\tmodal H100!\tNVIDIA H100 80GB HBM3\t0.001097 a second\tby the second\tminimum 0\n"
    "offer\tmodal H200\tNVIDIA H200\t0.001261 a second\tby the second\tminimum 0\n"
    "offer\tmodal B200\tNVIDIA B200\t0.001736 a second\tby the second\tminimum 0\n"
    "offer\tmodal host\tno GPU\t0.000266 a second\tby the second\tminimum 0\n"
    "# hyperstack.cloud/gpu-pricing, 2026-08-26\n"
    "offer\thyperstack H100 SXM\tNVIDIA H100 80GB HBM3\t3.20 an hour\tby the minute\tminimum 0\n"
    "offer\thyperstack H200 SXM\tNVIDIA H200\t3.99 an hour\tby the minute\tminimum 0\n"
    "# lambda.ai/pricing, 2026-09-25\n"
    "offer\tlambda H100 SXM\tNVIDIA H100 80GB HBM3\t4.29 an hour\tby the minute\tminimum 0\n"
    "offer\tlambda H100 PCIe\tNVIDIA H100 PCIe\t3.29 an hour\tby the minute\tminimum 0\n"
    "# runpod.io, secure cloud, 2026-10-19\n"
    "offer\trunpod H100 SXM\tNVIDIA H100 80GB HBM3\t3.99 an hour\tby the second\tminimum 0\n"
    "offer\trunpod H100 PCIe\tNVIDIA H100 PCIe\t2.89 an hour\tby the second\tminimum 0\n"
    "offer\trunpod A100 SXM\tNVIDIA A100-SXM4-80GB\t1.79 an hour\tby the second\tminimum 0\n";

void use_price_list(const std::string& path) { path_in_use() = path; }

Status price_list(PriceList& out) {
  std::string text = kShippedPrices;
  const std::string& path = path_in_use();
  if (!path.empty())
    if (Status s = read_file(path, text); !s.ok()) return s.after("prices: ");
  out = {.date = date_of(text), .source = path.empty() ? "the list that ships" : path};
  return read_prices(text, path.empty() ? "shipped prices" : path, out.offers);
}

Status listed_price(const std::string& name, double& usd_an_hour) {
  PriceList list;
  if (Status s = price_list(list); !s.ok()) return s;
  const auto it = std::find_if(list.offers.begin(), list.offers.end(), [&](const Offer& o) { return o.name == name; });
  if (it == list.offers.end())
    return Status::no("the price of '", name, "' is not in ", list.source, "; add a line, or set usd_an_hour");
  return usd_an_hour = it->usd_an_hour, Status::good();
}

}  // namespace attune
