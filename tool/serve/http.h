// A small HTTP/1.1 server for one reader or a few: GET and HEAD, one answer a connection, one thread. A client that is
// slow, silent or wrong is answered or dropped after a while and holds nobody up.
#pragma once
#include <atomic>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "core/status.h"

namespace attune {

struct HttpRequest {
  std::string method{}, path{};  // the path without its query
  std::string host{};
};
struct HttpResponse {
  int code = 200;
  std::string type{"text/plain; charset=utf-8"}, body{};
};
using HttpHandler = std::function<HttpResponse(const HttpRequest&)>;

// Of a whole head, up to its empty line. What is wrong is a response.
HttpResponse read_request(std::string_view head, HttpRequest& out);  // 200: it was read
std::string write_response(const HttpResponse&, bool with_body);

// Whether a Host header names this machine's loopback, with that port: a page of another site that makes its own name
// point here does not.
bool names_loopback(std::string_view host, int port);

class HttpServer {
 public:
  HttpServer() = default;
  HttpServer(const HttpServer&) = delete;
  HttpServer& operator=(const HttpServer&) = delete;
  ~HttpServer();
  // A numeric address; port 0 takes a free one.
  Status open(const std::string& address, int port);
  int port() const { return port_; }
  bool loopback() const { return loopback_; }
  // Whether a request with that Host is for this server: on loopback only its own address and the names of loopback.
  bool answers_to(std::string_view host) const;
  std::string url() const;
  // Until `stop` is set, which is seen within a fifth of a second.
  void run(const HttpHandler&, const std::atomic<bool>& stop, double seconds_a_client = 10);

 private:
  int socket_ = -1, port_ = 0;
  bool loopback_ = false;
  std::string address_{};
};

}  // namespace attune
