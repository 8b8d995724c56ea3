// SPDX-License-Identifier: Apache-2.0
#include "tool/serve/http.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <netdb.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <utility>

namespace attune {
namespace {

using Clock = std::chrono::steady_clock;
constexpr size_t kMostHead = 8192, kMostClients = 64, kMostPages = 8;
constexpr int kSendBuffer = 1 << 16;  // small, so that a client that does not read is noticed
constexpr std::chrono::seconds kStill{1}, kLong{10};  // who reads nothing, or reads so long, makes room for others

struct Client {
  int socket = -1;
  std::string in{}, out{};  // out: the response, without a shared body
  std::shared_ptr<const std::string> body{};
  size_t sent = 0;
  Clock::time_point until{}, answered{}, moved{};

  bool is_asking() const { return out.empty(); }
  bool is_slow(Clock::time_point now) const { return !is_asking() && (now - moved > kStill || now - answered > kLong); }
  std::string_view unsent() const {
    if (sent < out.size()) return std::string_view(out).substr(sent);
    return body ? std::string_view(*body).substr(sent - out.size()) : std::string_view();
  }
};

std::string_view reason(int code) {
  switch (code) {
    case 200: return "OK";
    case 400: return "Bad Request";
    case 403: return "Forbidden";
    case 404: return "Not Found";
    case 405: return "Method Not Allowed";
    case 431: return "Request Header Fields Too Large";
    case 505: return "HTTP Version Not Supported";
    default: return "Internal Server Error";
  }
}

bool equals_ignoring_case(std::string_view a, std::string_view b) {
  return std::equal(a.begin(), a.end(), b.begin(), b.end(), [](char x, char y) {
    return (x >= 'A' && x <= 'Z' ? x + 32 : x) == (y >= 'A' && y <= 'Z' ? y + 32 : y);
  });
}

std::string_view trimmed(std::string_view s) {
  while (!s.empty() && (s.front() == ' ' || s.front() == '\t')) s.remove_prefix(1);
  while (!s.empty() && (s.back() == ' ' || s.back() == '\t' || s.back() == '\r')) s.remove_suffix(1);
  return s;
}

void set_nonblocking(int socket) { fcntl(socket, F_SETFL, fcntl(socket, F_GETFL) | O_NONBLOCK); }

// Sets the response once the head is complete or too long; does nothing if more data is needed.
void answer(Client& c, const HttpHandler& handler) {
  const size_t end = c.in.find("\r\n\r\n");
  if (end == c.in.npos) {
    if (c.in.size() > kMostHead)
      c.out = write_response({.code = 431, .body = "the request is too long\n"}, true);
    return;
  }
  HttpRequest request;
  HttpResponse response = read_request(std::string_view(c.in).substr(0, end + 2), request);
  if (response.code == 200) response = handler(request);
  const bool with_body = request.method != "HEAD";
  c.out = write_response(response, with_body);
  if (with_body) c.body = response.shared;
}

bool may_go(const Client& c, Clock::time_point now) { return c.is_asking() || c.is_slow(now); }

// Lets a client go for the last one, if there are too many: the one that has been asking longest, else the one that has
// been reading slowly for longest. Others are being answered; if all are, there is one client more for a while.
void make_room(std::vector<Client>& clients, Clock::time_point now) {
  if (clients.size() <= kMostClients) return;
  const auto longest = std::min_element(clients.begin(), clients.end() - 1, [&](const Client& a, const Client& b) {
    const bool goes_a = may_go(a, now), goes_b = may_go(b, now);
    if (goes_a != goes_b) return goes_a;
    if (a.is_asking() != b.is_asking()) return a.is_asking();
    return a.is_asking() ? a.until < b.until : a.answered < b.answered;
  });
  if (!may_go(*longest, now)) return;
  close(longest->socket);
  clients.erase(longest);
}

// Slow readers may hold only so many versions of a growing page: those of the oldest are let go.
void forget_pages(std::vector<Client>& clients, Clock::time_point now) {
  std::vector<const void*> pages;  // the newest first
  std::vector<Client*> by_time;
  for (Client& c : clients)
    if (c.body) by_time.push_back(&c);
  std::sort(by_time.begin(), by_time.end(), [](const Client* a, const Client* b) { return a->answered > b->answered; });
  for (Client* const c : by_time) {
    if (std::find(pages.begin(), pages.end(), c->body.get()) == pages.end()) pages.push_back(c->body.get());
    if (pages.size() > kMostPages && c->is_slow(now)) close(std::exchange(c->socket, -1));
  }
  std::erase_if(clients, [](const Client& c) { return c.socket < 0; });
}

}  // namespace

HttpResponse read_request(std::string_view head, HttpRequest& out) {
  const auto bad = [](int code, std::string sentence) { return HttpResponse{.code = code, .body = sentence + "\n"}; };
  const size_t line_end = head.find("\r\n");
  const std::string_view line = head.substr(0, line_end);
  const size_t first = line.find(' '), last = line.rfind(' ');
  if (line_end == head.npos || first == line.npos || first == last) return bad(400, "not an HTTP request");
  const std::string_view version = line.substr(last + 1), target = line.substr(first + 1, last - first - 1);
  if (!version.starts_with("HTTP/")) return bad(400, "not an HTTP request");
  if (!version.starts_with("HTTP/1.")) return bad(505, "only HTTP/1.x is supported");
  if (!target.starts_with('/')) return bad(400, "the path does not begin with /");
  out.method = line.substr(0, first);
  out.path = target.substr(0, target.find_first_of("?#"));
  int hosts = 0;
  for (size_t at = line_end + 2; at < head.size();) {
    const size_t end = std::min(head.find("\r\n", at), head.size());
    const std::string_view field = head.substr(at, end - at);
    at = end + 2;
    const size_t colon = field.find(':');
    if (colon == field.npos || colon == 0) return bad(400, "a header has no name");
    if (equals_ignoring_case(field.substr(0, colon), "host")) out.host = trimmed(field.substr(colon + 1)), ++hosts;
  }
  if (version == "HTTP/1.1" && hosts != 1) return bad(400, "the request needs exactly one Host header");
  if (out.method != "GET" && out.method != "HEAD") return bad(405, "only GET and HEAD are supported");
  return {};
}

std::string write_response(const HttpResponse& r, bool with_body) {
  return join("HTTP/1.1 ", r.code, " ", reason(r.code), "\r\nContent-Type: ", r.type, "\r\nContent-Length: ",
              r.shared ? r.shared->size() : r.body.size(),
              "\r\nConnection: close\r\nCache-Control: no-store\r\nX-Content-Type-Options: nosniff\r\n"
              "Referrer-Policy: no-referrer\r\nContent-Security-Policy: frame-ancestors 'none'\r\n",
              r.code == 405 ? "Allow: GET, HEAD\r\n" : "", "\r\n", with_body ? r.body : "");
}

bool names_loopback(std::string_view host, int port) {
  const std::string end = join(":", port);
  if (host.ends_with(end)) host.remove_suffix(end.size());
  else if (port != 80) return false;
  return host == "127.0.0.1" || host == "[::1]" || equals_ignoring_case(host, "localhost");
}

HttpServer::~HttpServer() {
  if (socket_ >= 0) close(socket_);
}

Status HttpServer::open(const std::string& address, int port) {
  addrinfo hints{}, *found = nullptr;
  hints.ai_flags = AI_NUMERICHOST | AI_PASSIVE;
  hints.ai_socktype = SOCK_STREAM;
  if (getaddrinfo(address.c_str(), std::to_string(port).c_str(), &hints, &found) || !found)
    return Status::no("address '", address, "' is not a numeric one: 127.0.0.1, ::1, 0.0.0.0, ...");
  const int family = found->ai_family;
  socket_ = socket(family, SOCK_STREAM | SOCK_CLOEXEC, 0);
  const int on = 1;
  bool good = socket_ >= 0 && !setsockopt(socket_, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on) &&
              !bind(socket_, found->ai_addr, found->ai_addrlen) && !listen(socket_, 64);
  const int error = errno;
  freeaddrinfo(found);
  sockaddr_storage bound{};
  socklen_t size = sizeof bound;
  good = good && !getsockname(socket_, reinterpret_cast<sockaddr*>(&bound), &size);
  if (!good)
    return Status::failure(Code::device, address, ", port ", port, " cannot be served: ", std::strerror(error));
  set_nonblocking(socket_);
  address_ = address;
  if (family == AF_INET6) {
    const auto& a = reinterpret_cast<const sockaddr_in6&>(bound);
    port_ = ntohs(a.sin6_port), loopback_ = IN6_IS_ADDR_LOOPBACK(&a.sin6_addr);
  } else {
    const auto& a = reinterpret_cast<const sockaddr_in&>(bound);
    port_ = ntohs(a.sin_port), loopback_ = ntohl(a.sin_addr.s_addr) >> 24 == 127;
    char whole[INET_ADDRSTRLEN] = "";  // 127.2 as 127.0.0.2, the form that a browser sends
    if (inet_ntop(AF_INET, &a.sin_addr, whole, sizeof whole)) address_ = whole;
  }
  return Status::good();
}

bool HttpServer::answers_to(std::string_view host) const {
  return !loopback_ || host.empty() || names_loopback(host, port_) || host == join(address_, ":", port_) ||
         (port_ == 80 && host == address_);
}

std::string HttpServer::url() const {
  return address_.find(':') == address_.npos ? join("http://", address_, ":", port_, "/")
                                             : join("http://[", address_, "]:", port_, "/");
}

void HttpServer::run(const HttpHandler& handler, const std::atomic<bool>& stop, double seconds_a_client) {
  std::vector<Client> clients;
  const auto patience = std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(seconds_a_client));
  while (!stop) {
    const Clock::time_point start = Clock::now();
    forget_pages(clients, start);
    const auto goes = [&](const Client& c) { return may_go(c, start); };
    const bool has_room = clients.size() < kMostClients || std::any_of(clients.begin(), clients.end(), goes);
    std::vector<pollfd> waits = {{socket_, short(has_room ? POLLIN : 0), 0}};
    for (const Client& c : clients) waits.push_back({c.socket, short(c.is_asking() ? POLLIN : POLLOUT), 0});
    if (poll(waits.data(), nfds_t(waits.size()), 200) < 0 && errno != EINTR) return;
    const Clock::time_point now = Clock::now();
    for (size_t n = 0; n < clients.size(); ++n) {
      Client& c = clients[n];
      const short ready = waits[n + 1].revents;
      bool over = now > c.until && (c.is_asking() || !ready);
      if (ready && c.is_asking()) {
        char part[4096];
        const ssize_t got = recv(c.socket, part, sizeof part, 0);
        if (got <= 0) over = over || got == 0 || (errno != EAGAIN && errno != EINTR);
        else c.in.append(part, size_t(got)), answer(c, handler);
        if (!c.is_asking()) c.answered = c.moved = Clock::now(), c.until = c.moved + patience;  // a page takes a while
      } else if (ready) {
        const ssize_t put = send(c.socket, c.unsent().data(), c.unsent().size(), MSG_NOSIGNAL);
        if (put > 0) c.sent += size_t(put), c.moved = now, c.until = now + patience;
        else over = over || (errno != EAGAIN && errno != EINTR);
        over = over || c.unsent().empty();
      }
      if (!over) continue;
      // Unread data from the client would reset the connection before the response arrives.
      shutdown(c.socket, SHUT_WR);
      char rest[4096];
      for (int tries = 0; tries < 16 && recv(c.socket, rest, sizeof rest, 0) > 0; ++tries) {}
      close(c.socket);
      c.socket = -1;
    }
    std::erase_if(clients, [](const Client& c) { return c.socket < 0; });
    if (!(waits[0].revents & POLLIN)) continue;
    const int socket = accept4(socket_, nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK);
    if (socket < 0) continue;
    (void)setsockopt(socket, SOL_SOCKET, SO_SNDBUF, &kSendBuffer, sizeof kSendBuffer);
    clients.push_back({.socket = socket, .until = now + patience}), make_room(clients, now);
  }
  for (const Client& c : clients) close(c.socket);
}

}  // namespace attune
