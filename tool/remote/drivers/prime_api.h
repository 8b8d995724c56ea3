// SPDX-License-Identifier: Apache-2.0
// Prime Intellect's REST interface: the key, the address, and requests that are repeated where that is safe.
#pragma once
#include <optional>
#include <string>
#include <vector>

#include "tool/json.h"
#include "tool/json_value.h"
#include "tool/remote/driver.h"
#include "tool/remote/http.h"

namespace attune {

class PrimeApi {
 public:
  // Reads PRIME_API_KEY or ~/.prime/config.json, PRIME_API_BASE_URL and PRIME_TEAM_ID.
  Status open();
  const std::string& team() const { return team_; }

  struct Request {
    std::string method{"GET"}, path{};  // "/pods"
    std::optional<Json> body{};
    bool repeatable = true;   // a second request changes nothing: reads, deletions, creations with a key of idempotency
    double limit_s = 60;      // of all attempts together
  };
  // Answers of 429, 408, 5xx, unreadable ones and none at all are repeated. `code` is the last answer's. Statuses: 401
  // and 403 are Code::invalid, 402 is Code::out_of_memory, other refusals of the request are Code::unsupported, the
  // rest is Code::device. 404 is a success for the caller to judge.
  Status call(const Request&, JsonValue& out, int& code, bool* maybe_done = nullptr) const;
  // Pages of an array: `member` of the answers to path&page=1, 2, ...
  Status pages(const std::string& path, const std::string& member, std::vector<JsonValue>& out, double limit_s) const;

 private:
  std::string key_{}, base_{}, team_{};
};

// GPU names: "H200" becomes "H200_141GB". Fails with the known names.
Status prime_gpu(const std::string& word, std::string& out);

}  // namespace attune
