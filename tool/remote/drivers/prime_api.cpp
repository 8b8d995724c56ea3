// SPDX-License-Identifier: Apache-2.0
#include "tool/remote/drivers/prime_api.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <random>
#include <thread>

#include "tool/remote/secret.h"
#include "tool/text.h"

namespace attune {
namespace {

using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

// 0.25 s, then twice as long each time, with a random part so that several workers do not return together.
void pause_before_attempt(int attempt, double most_s) {
  static thread_local std::mt19937 random(std::random_device{}());
  const double wait = std::min(0.25 * double(1 << std::min(attempt, 6)), 8.0);
  const double part = std::uniform_real_distribution(0.75, 1.25)(random);
  std::this_thread::sleep_for(std::chrono::duration<double>(std::clamp(wait * part, 0.0, std::max(0.0, most_s))));
}

std::string environment(const char* name) {
  const char* const value = std::getenv(name);
  return value ? value : "";
}

// What the server says of a refusal: {"detail": "..."} or a list of objects with "msg".
std::string detail_of(const std::string& body) {
  constexpr size_t kMost = 200;
  JsonValue json;
  if (!JsonValue::parse(body, json).ok()) return "";
  const JsonValue& detail = json["detail"];
  std::string text = detail.text();
  for (const JsonValue& one : detail.items())
    if (const std::string part = one["msg"].text(); !part.empty()) text += (text.empty() ? "" : "; ") + part;
  if (text.empty()) text = json["message"].text();
  if (text.size() > kMost) text = text.substr(0, kMost) + "...";
  return text.empty() ? "" : ": " + in_one_line(text);
}

bool is_passing(int code) { return code == 0 || code == 408 || code == 425 || code == 429 || code >= 500; }

Status refused(int code, const std::string& origin, const WebReply& reply) {
  const std::string detail = detail_of(reply.body);
  if (code == 401) return Status::no(origin, " does not accept the key of PRIME_API_KEY (401)", detail);
  if (code == 403) return Status::no(origin, ": the key of PRIME_API_KEY lacks a permission (403)", detail);
  if (code == 402)
    return Status::failure(Code::out_of_memory, origin, " asks for payment (402): the account's balance does not ",
                           "cover this", detail);
  if (code == 429) return Status::failure(Code::device, origin, " allows no more requests now (429)", detail);
  if (code >= 300 && code < 400)
    return Status::failure(Code::device, origin, " redirects elsewhere (", code, "), where no key is sent");
  if (is_passing(code)) return Status::failure(Code::device, origin, " answered ", code, detail);
  return Status::unsupported(origin, " refused the request (", code, ")", detail);
}

// The types that the interface accepts.
constexpr std::string_view kTypes[] = {
    "A10_24GB", "A100_80GB", "A100_40GB", "A30_24GB", "A40_48GB", "B200_180GB", "B300_262GB", "RTX3070_8GB",
    "RTX3080_10GB", "RTX3080Ti_12GB", "RTX3090_24GB", "RTX3090Ti_24GB", "RTX4070Ti_12GB", "RTX4080_16GB",
    "RTX4080Ti_16GB", "RTX4090_24GB", "RTX5090_32GB", "H100_80GB", "H200_141GB", "H200_96GB", "GH200_96GB",
    "GH200_480GB", "GH200_624GB", "L4_24GB", "L40_48GB", "L40S_48GB", "RTX4000_8GB", "RTX5000_16GB", "RTX6000_24GB",
    "RTX8000_48GB", "RTX2000Ada_16GB", "RTX4000Ada_20GB", "RTX5000Ada_32GB", "RTX6000Ada_48GB", "A2000_6GB",
    "A4000_16GB", "A4500_20GB", "A5000_24GB", "A6000_48GB", "V100_32GB", "V100_16GB", "P100_16GB", "T4_16GB",
    "P4_8GB", "P40_24GB", "RTX_PRO_6000B_96GB"};

std::string plain(std::string_view word) {
  std::string out;
  for (const unsigned char c : word)
    if (std::isalnum(c)) out += char(std::tolower(c));
  return out;
}

}  // namespace

Status prime_gpu(const std::string& word, std::string& out) {
  std::string all, last;
  for (const std::string_view type : kTypes) {
    const std::string_view family = type.substr(0, type.rfind('_'));
    if (plain(type) == plain(word) || plain(family) == plain(word)) return out = type, Status::good();
    if (family != last) all += join(all.empty() ? "" : ", ", family);
    last = family;
  }
  return Status::no("'", in_one_line(word), "' is not one of ", all);
}

Status PrimeApi::open() {
  const std::string home = environment("HOME");
  const std::string file = home.empty() ? "" : home + "/.prime/config.json";
  if (Status s = read_secret("PRIME_API_KEY", file, "api_key", key_); !s.ok()) return s;
  if (key_.empty())
    return Status::no("PRIME_API_KEY: not set, and ", file.empty() ? "HOME is not set" : file + " has no key",
                      "; accepted is a key in the environment or in that file");
  base_ = environment("PRIME_API_BASE_URL");
  if (base_.empty()) base_ = "https://api.primeintellect.ai";
  while (base_.ends_with('/')) base_.pop_back();
  if (base_.ends_with("/api/v1")) base_.resize(base_.size() - 7);
  team_ = environment("PRIME_TEAM_ID");
  return is_safe_for_keys(base_).after("PRIME_API_BASE_URL: ");
}

Status PrimeApi::call(const Request& request, JsonValue& out, int& code, bool* maybe_done) const {
  const Clock::time_point start = Clock::now();
  WebCall web{.method = request.method, .url = base_ + "/api/v1" + request.path,
              .headers = {"Authorization: Bearer " + key_, "Accept: application/json"}};
  if (request.body) web.body = request.body->dump(), web.headers.push_back("Content-Type: application/json");
  const std::string origin = origin_of(base_);
  if (maybe_done) *maybe_done = false;
  for (int attempt = 0;; ++attempt) {
    const double left = request.limit_s - seconds_since(start);
    web.limit_s = std::clamp(left, 0.1, 20.0);
    WebReply reply;
    Status s = web_call(web, reply);
    code = reply.code;
    if (s.ok() && code == 404) return out = {}, s;
    if (s.ok() && code >= 200 && code < 300) {
      out = {};
      if (reply.body.empty() || (s = JsonValue::parse(reply.body, out)).ok()) return Status::good();
      s = Status::failure(Code::device, origin, ": the answer ", s.message);
      if (maybe_done) *maybe_done = true;
    } else if (s.ok()) {
      s = refused(code, origin, reply);
      if (maybe_done && code >= 500) *maybe_done = true;
      if (!is_passing(code)) return s;
    } else {
      if (maybe_done && reply.sent) *maybe_done = true;
      if (s.code != Code::device) return s;
    }
    // A request that changes something once more is repeated only if the server certainly did not do it.
    const bool again = request.repeatable || code == 429 || !reply.sent;
    const int most_attempts = reply.code || reply.sent ? 6 : 3;  // a host that is not there
    if (!again || attempt + 1 >= most_attempts || request.limit_s - seconds_since(start) < 0.5) return s;
    pause_before_attempt(attempt, request.limit_s - seconds_since(start) - 0.3);
  }
}

Status PrimeApi::pages(const std::string& path, const std::string& member, std::vector<JsonValue>& out,
                       double limit_s) const {
  const Clock::time_point start = Clock::now();
  constexpr int kMostPages = 100, kPage = 100;
  for (int page = 1; page <= kMostPages; ++page) {
    const char joined = path.find('?') == path.npos ? '?' : '&';
    JsonValue json;
    int code = 0;
    const std::string where = fmt::format("{}{}page={}&per_page={}&page_size={}", path, joined, page, kPage, kPage);
    const double left = limit_s - seconds_since(start);
    if (left < 0.2) return Status::failure(Code::device, origin_of(base_), ": no complete list within ", limit_s, " s");
    if (Status s = call({.path = where, .limit_s = left}, json, code); !s.ok()) return s;
    const JsonValue& items = json[member];
    if (code == 404 || !items.is_array())
      return Status::failure(Code::device, origin_of(base_), ": the answer has no list '", member, "'");
    out.insert(out.end(), items.items().begin(), items.items().end());
    const auto total = json["totalCount"].number();
    const bool more = json["hasNext"].truth() || (total && double(out.size()) < *total);
    if (!more || items.items().empty()) return Status::good();
  }
  return Status::failure(Code::device, origin_of(base_), ": the list has more than ", kMostPages, " pages");
}

}  // namespace attune
