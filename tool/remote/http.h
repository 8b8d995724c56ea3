// SPDX-License-Identifier: Apache-2.0
// Requests to a provider, through libcurl, which is opened at run time. No redirect is followed, because the header
// with the key would follow too, and a key travels over https or to this machine only.
#pragma once
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "core/status.h"

namespace attune {

struct WebCall {
  std::string method{"GET"}, url{};
  std::vector<std::string> headers{};  // "Authorization: Bearer ..."; never part of a message
  std::string body{};
  std::string file{}, after{};         // the bytes of this file follow `body`, and `after` follows them
  double limit_s = 20;                 // for the whole exchange, however slowly the answer arrives
  size_t most_bytes = size_t(64) << 20;
};
struct WebReply {
  int code = 0;         // 200; 0: no answer
  std::string body{};
  bool sent = false;    // the request may have reached the server, also where its answer was lost
};

// An answer with any code is a success. Code::device: no connection, no answer in time, an answer that is too long.
Status web_call(const WebCall&, WebReply&);

// Whether a key may be sent there: https, or http to a loopback address.
Status is_safe_for_keys(std::string_view url);
std::string url_escaped(std::string_view text);
// "https://api.example.com": scheme, host and port, for messages.
std::string origin_of(std::string_view url);

}  // namespace attune
