// SPDX-License-Identifier: Apache-2.0
// A small HTTP/1.1 server for a few readers: GET and HEAD, one response per connection, one thread. A client that is
// slow, silent or malformed is answered or dropped after a while and does not block others: when there are too many,
// the one makes room that has been asking longest, or reading slowly. Long bodies are shared, and slow readers hold few
// versions of them.
#pragma once
#include <atomic>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "core/status.h"

namespace attune {

struct HttpRequest {
  std::string method{}, path{};  // path without the query
  std::string host{};
};
struct HttpResponse {
  int code = 200;
  std::string type{"text/plain; charset=utf-8"}, body{};
  std::shared_ptr<const std::string> shared{};  // instead of `body`: a long text that many clients read at once
};
using HttpHandler = std::function<HttpResponse(const HttpRequest&)>;

// Parses a complete head, up to its empty line. An error is returned as a response; code 200 means success.
HttpResponse read_request(std::string_view head, HttpRequest& out);
std::string write_response(const HttpResponse&, bool with_body);  // without the text that is shared

// True if a Host header names loopback with this port. This rejects pages of other sites whose names resolve to this
// machine (DNS rebinding).
bool names_loopback(std::string_view host, int port);

class HttpServer {
 public:
  HttpServer() = default;
  HttpServer(const HttpServer&) = delete;
  HttpServer& operator=(const HttpServer&) = delete;
  ~HttpServer();
  // A numeric address, else Code::invalid; port 0 takes a free one. An address that cannot be served: Code::device.
  Status open(const std::string& address, int port);
  int port() const { return port_; }
  bool loopback() const { return loopback_; }
  // True if a request with this Host is for this server: on loopback only its own address and the loopback names.
  bool answers_to(std::string_view host) const;
  std::string url() const;
  // Serves until `stop` is set, which is noticed within a fifth of a second.
  void run(const HttpHandler&, const std::atomic<bool>& stop, double seconds_a_client = 10);

 private:
  int socket_ = -1, port_ = 0;
  bool loopback_ = false;
  std::string address_{};
};

}  // namespace attune
