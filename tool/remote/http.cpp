// SPDX-License-Identifier: Apache-2.0
#include "tool/remote/http.h"

#include <fmt/format.h>
#include <sys/stat.h>

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <memory>
#include <mutex>

#include "machine/library.h"

namespace attune {
namespace {

// The part of libcurl's interface that is used. Its numbers have been stable since 7.x: the kind of an option's value
// is 0 for long, 10000 for a pointer, 20000 for a function, 30000 for a 64-bit size.
namespace curl {
using Handle = void;
struct List;
enum Option : int {
  kWriteData = 10001, kUrl = 10002, kReadData = 10009, kError = 10010, kUserAgent = 10018, kHeaders = 10023,
  kMethod = 10036, kNoBody = 44, kPost = 47, kFollow = 52, kNoSignal = 99, kTimeout_ms = 155, kConnect_ms = 156,
  kProtocols = 181, kWrite = 20011, kRead = 20012, kPostSize = 30120
};
constexpr int kOk = 0, kNoProxy = 5, kNoHost = 6, kNoConnection = 7, kWriteFailed = 23, kTooSlow = 28;
constexpr int kCodeInfo = 0x200000 + 2, kSentInfo = 0x200000 + 12;
constexpr long kHttp = 1, kHttps = 2;  // bits of kProtocols

struct Functions {
  int (*global_init)(long);
  Handle* (*init)();
  int (*set)(Handle*, int, ...);
  int (*perform)(Handle*);
  int (*info)(Handle*, int, ...);
  void (*cleanup)(Handle*);
  const char* (*text_of)(int);
  List* (*append)(List*, const char*);
  void (*free_list)(List*);
};
}  // namespace curl

// Null where libcurl is missing; `missed` then tells why.
const curl::Functions* functions(std::string& missed) {
  static std::string why;
  static const curl::Functions* const all = []() -> const curl::Functions* {
    static const Library library({"libcurl.so.4", "libcurl-gnutls.so.4", "libcurl.so"},
                                 {"curl_global_init", "curl_easy_init", "curl_easy_setopt", "curl_easy_perform",
                                  "curl_easy_getinfo", "curl_easy_cleanup", "curl_easy_strerror", "curl_slist_append",
                                  "curl_slist_free_all"});
    why = library.missed();
    if (!library.ok()) return nullptr;
    static curl::Functions f{};
    f.global_init = library.function<int(long)>("curl_global_init");
    f.init = library.function<curl::Handle*()>("curl_easy_init");
    f.set = library.function<int(curl::Handle*, int, ...)>("curl_easy_setopt");
    f.perform = library.function<int(curl::Handle*)>("curl_easy_perform");
    f.info = library.function<int(curl::Handle*, int, ...)>("curl_easy_getinfo");
    f.cleanup = library.function<void(curl::Handle*)>("curl_easy_cleanup");
    f.text_of = library.function<const char*(int)>("curl_easy_strerror");
    f.append = library.function<curl::List*(curl::List*, const char*)>("curl_slist_append");
    f.free_list = library.function<void(curl::List*)>("curl_slist_free_all");
    if (f.global_init(3) != curl::kOk) return why = "curl_global_init failed", nullptr;
    return &f;
  }();
  missed = why;
  return all;
}

struct Received {
  std::string* body;
  size_t most;
  bool too_long = false;
};
size_t receive(char* data, size_t size, size_t count, void* into) {
  Received& r = *static_cast<Received*>(into);
  if (r.body->size() + size * count > r.most) return r.too_long = true, 0;
  r.body->append(data, size * count);
  return size * count;
}

// The body, the file and what follows it, one after the other.
struct Sent {
  std::string_view left[2];
  FILE* file = nullptr;
  ~Sent() {
    if (file) std::fclose(file);
  }
};
size_t send(char* data, size_t size, size_t count, void* from) {
  Sent& s = *static_cast<Sent*>(from);
  const size_t room = size * count;
  const auto copy = [&](std::string_view& text) {
    const size_t n = std::min(room, text.size());
    std::memcpy(data, text.data(), n);
    text.remove_prefix(n);
    return n;
  };
  if (!s.left[0].empty()) return copy(s.left[0]);
  if (s.file)
    if (const size_t n = std::fread(data, 1, room, s.file)) return n;
  return copy(s.left[1]);
}

Status open_sent(const WebCall& call, Sent& sent, int64_t& bytes) {
  sent.left[0] = call.body, sent.left[1] = call.after;
  bytes = int64_t(call.body.size() + call.after.size());
  if (call.file.empty()) return Status::good();
  struct stat s{};
  sent.file = std::fopen(call.file.c_str(), "rb");
  if (!sent.file || fstat(fileno(sent.file), &s) || !S_ISREG(s.st_mode))
    return Status::no("'", call.file, "' cannot be read");
  bytes += s.st_size;
  return Status::good();
}

std::string why_not(int result, const WebCall& call, const Received& received, const char* detail,
                    const curl::Functions& f) {
  if (received.too_long) return fmt::format("an answer of more than {} bytes", call.most_bytes);
  if (result == curl::kNoHost) return "the host is not known";
  if (result == curl::kTooSlow) return fmt::format("no complete answer within {:g} s", call.limit_s);
  return *detail ? detail : f.text_of(result);
}

}  // namespace

std::string origin_of(std::string_view url) {
  const size_t scheme = url.find("://");
  if (scheme == url.npos) return std::string(url.substr(0, url.find('/')));
  const size_t end = std::min(url.find_first_of("/?#", scheme + 3), url.size());
  const size_t user = url.substr(0, end).rfind('@');
  return join(url.substr(0, scheme + 3), user == url.npos ? url.substr(scheme + 3, end - scheme - 3)
                                                          : url.substr(user + 1, end - user - 1));
}

Status is_safe_for_keys(std::string_view url) {
  if (url.starts_with("https://")) return Status::good();
  const std::string origin = origin_of(url);
  for (const std::string_view loopback : {"http://127.0.0.1", "http://localhost", "http://[::1]"})
    if (origin == loopback || origin.starts_with(join(loopback, ":"))) return Status::good();
  return Status::no("'", origin, "' is not safe for a key; accepted are https:// and http:// on a loopback address");
}

std::string url_escaped(std::string_view text) {
  std::string out;
  for (const unsigned char c : text)
    if (std::isalnum(c) || std::strchr("-_.~", c)) out += char(c);
    else out += fmt::format("%{:02X}", unsigned(c));
  return out;
}

Status web_call(const WebCall& call, WebReply& reply) {
  static std::mutex once;  // libcurl's start is not safe in several threads
  std::string missed;
  const curl::Functions* f;
  {
    const std::lock_guard lock(once);
    f = functions(missed);
  }
  if (!f)
    return Status::failure(Code::device, "libcurl.so.4 is not here, and a provider is reached through it (Debian: "
                           "apt install libcurl4): ", missed);
  reply = {};
  Received received{&reply.body, call.most_bytes};
  Sent sent;
  int64_t bytes = 0;
  if (Status s = open_sent(call, sent, bytes); !s.ok()) return s;
  const std::unique_ptr<curl::Handle, void (*)(curl::Handle*)> handle(f->init(), f->cleanup);
  if (!handle) return Status::failure(Code::out_of_memory, "not enough memory on this machine");
  curl::List* list = nullptr;
  for (const std::string& header : call.headers) list = f->append(list, header.c_str());
  list = f->append(list, "Expect:");  // no wait for permission to send a body
  const std::unique_ptr<curl::List, void (*)(curl::List*)> headers(list, f->free_list);
  char detail[256] = "";
  curl::Handle* const h = handle.get();
  const long limit_ms = std::max(1L, long(call.limit_s * 1000));
  f->set(h, curl::kUrl, call.url.c_str());
  f->set(h, curl::kProtocols, curl::kHttp | curl::kHttps);
  f->set(h, curl::kFollow, 0L);
  f->set(h, curl::kNoSignal, 1L);
  f->set(h, curl::kTimeout_ms, limit_ms);
  f->set(h, curl::kConnect_ms, std::min(limit_ms, 10000L));
  f->set(h, curl::kUserAgent, "attune");
  f->set(h, curl::kHeaders, list);
  f->set(h, curl::kError, detail);
  f->set(h, curl::kWrite, receive);
  f->set(h, curl::kWriteData, &received);
  if (bytes > 0 || call.method == "POST") {
    f->set(h, curl::kPost, 1L);
    f->set(h, curl::kRead, send);
    f->set(h, curl::kReadData, &sent);
    f->set(h, curl::kPostSize, bytes);
  }
  f->set(h, curl::kMethod, call.method.c_str());
  const int result = f->perform(h);
  long code = 0, sent_bytes = 0;
  f->info(h, curl::kCodeInfo, &code);
  f->info(h, curl::kSentInfo, &sent_bytes);
  reply.code = int(code);
  reply.sent = sent_bytes > 0;
  if (result == curl::kOk) return Status::good();
  return Status::failure(Code::device, origin_of(call.url), ": ", why_not(result, call, received, detail, *f));
}

}  // namespace attune
