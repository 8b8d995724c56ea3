// SPDX-License-Identifier: Apache-2.0
// The small server: its responses, and that slow or malformed clients do not block it.
#include "tool/serve/http.h"

#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <thread>

#include "tests/tool/records.h"
#include "tests/tool/spawn.h"

namespace attune {
namespace {

int code_of(const std::string& head, HttpRequest* out = nullptr) {
  HttpRequest request;
  const HttpResponse r = read_request(head, request);
  if (out) *out = request;
  EXPECT_EQ(r.code == 200, r.body.empty());
  return r.code;
}

TEST(Http, request_gives_method_path_and_host) {
  HttpRequest r;
  EXPECT_EQ(code_of("GET /rows.csv?x=1 HTTP/1.1\r\nAccept: */*\r\nhOsT:  localhost:80 \r\n", &r), 200);
  EXPECT_EQ(r.method, "GET");
  EXPECT_EQ(r.path, "/rows.csv");
  EXPECT_EQ(r.host, "localhost:80");
  EXPECT_EQ(code_of("HEAD / HTTP/1.0\r\n"), 200);
}

TEST(Http, what_is_no_request_is_refused) {
  for (const char* head : {"\r\n", "GET\r\n", "GET /\r\n", "GET / FTP/1.1\r\n", "GET x HTTP/1.1\r\nHost: a\r\n",
                           "GET / HTTP/1.1\r\n", "GET / HTTP/1.1\r\nHost: a\r\nHost: b\r\n",
                           "GET / HTTP/1.1\r\nHost: a\r\nno colon\r\n", "GET / HTTP/1.1\r\n: a\r\n"})
    EXPECT_EQ(code_of(head), 400) << head;
  EXPECT_EQ(code_of("GET / HTTP/2.0\r\nHost: a\r\n"), 505);
  EXPECT_EQ(code_of("POST / HTTP/1.1\r\nHost: a\r\n"), 405);
  EXPECT_TRUE(has(write_response({.code = 405}, true), "\r\nAllow: GET, HEAD\r\n"));
}

TEST(Http, only_names_of_loopback_are_this_machine) {
  for (const char* host : {"127.0.0.1:8017", "localhost:8017", "LOCALHOST:8017", "[::1]:8017"})
    EXPECT_TRUE(names_loopback(host, 8017)) << host;
  for (const char* host : {"", "evil.example:8017", "127.0.0.1", "127.0.0.1:8018", "127.0.0.1.evil.example:8017"})
    EXPECT_FALSE(names_loopback(host, 8017)) << host;
  EXPECT_TRUE(names_loopback("localhost", 80));
}

TEST(Http, an_address_that_cannot_be_had_is_a_sentence) {
  HttpServer wrong, first, second;
  EXPECT_TRUE(has(wrong.open("localhost.example", 0).message, "address 'localhost.example' is not a numeric one"));
  ASSERT_EQ(first.open("127.0.0.1", 0).message, "");
  EXPECT_TRUE(first.loopback());
  EXPECT_EQ(first.url(), join("http://127.0.0.1:", first.port(), "/"));
  EXPECT_TRUE(has(second.open("127.0.0.1", first.port()).message, "cannot be served: "));
}

TEST(Http, a_server_answers_to_the_address_that_it_prints) {
  for (const char* address : {"127.0.0.1", "127.0.0.2", "127.2"}) {
    HttpServer server;
    ASSERT_EQ(server.open(address, 0).message, "");
    const std::string url = server.url(), host = url.substr(7, url.size() - 8);  // of http://host/
    EXPECT_TRUE(server.answers_to(host)) << host;
    EXPECT_TRUE(server.answers_to(join("localhost:", server.port())));
    for (const std::string& other : {join("evil.example:", server.port()), join("127.0.0.3:", server.port()),
                                     join("127.0.0.2:", server.port() + 1), join(":", server.port())})
      EXPECT_FALSE(server.answers_to(other)) << other;
  }
}

// A server in a thread, and clients in this one.
struct Serving {
  HttpServer server{};
  std::atomic<bool> stop{false};
  std::thread thread{};
  explicit Serving(double patience = 10) {
    EXPECT_EQ(server.open("127.0.0.1", 0).message, "");
    thread = std::thread([this, patience] {
      server.run([](const HttpRequest& r) { return HttpResponse{.body = r.path + std::string(3000000, 'x')}; }, stop,
                 patience);
    });
  }
  ~Serving() { stop = true, thread.join(); }
  int connect() const { return connect(server.port()); }
  static int connect(int port) {
    const int s = socket(AF_INET, SOCK_STREAM, 0);
    sockaddr_in to{};
    to.sin_family = AF_INET, to.sin_port = htons(uint16_t(port)), to.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    EXPECT_EQ(::connect(s, reinterpret_cast<const sockaddr*>(&to), sizeof to), 0);
    return s;
  }
  static void say(int s, std::string_view text) {
    EXPECT_EQ(send(s, text.data(), text.size(), MSG_NOSIGNAL), ssize_t(text.size()));
  }
  static std::string all(int s) {
    std::string text(1 << 16, 0), whole;
    for (ssize_t got; (got = recv(s, text.data(), text.size(), 0)) > 0;) whole.append(text, 0, size_t(got));
    close(s);
    return whole;
  }
};

TEST(Server, answers_whole_even_where_the_request_comes_in_pieces) {
  const Serving serving;
  const int s = serving.connect();
  for (const char* part : {"GET /a", "bc HTTP/1.1\r", "\nHost: x\r\n", "\r\n"}) Serving::say(s, part);
  const std::string answer = Serving::all(s);
  EXPECT_TRUE(answer.starts_with("HTTP/1.1 200 OK\r\n"));
  EXPECT_TRUE(has(answer, "Content-Length: 3000004\r\n"));
  EXPECT_TRUE(has(answer, "\r\n\r\n/abcxxx"));
  EXPECT_EQ(answer.size() - answer.find("\r\n\r\n") - 4, 3000004u);
}

TEST(Server, head_has_no_body) {
  const Serving serving;
  const int s = serving.connect();
  Serving::say(s, "HEAD / HTTP/1.1\r\nHost: x\r\n\r\n");
  EXPECT_TRUE(Serving::all(s).ends_with("\r\n\r\n"));
}

TEST(Server, silent_slow_and_endless_clients_hold_nobody_up) {
  const Serving serving;
  const int silent = serving.connect(), half = serving.connect(), deaf = serving.connect(), endless = serving.connect();
  Serving::say(half, "GET / HT");
  Serving::say(deaf, "GET / HTTP/1.1\r\nHost: x\r\n\r\n");  // never reads the response
  Serving::say(endless, "GET /" + std::string(9000, 'y'));
  EXPECT_TRUE(Serving::all(endless).starts_with("HTTP/1.1 431 "));
  const int s = serving.connect();
  Serving::say(s, "GET / HTTP/1.1\r\nHost: x\r\n\r\n");
  EXPECT_GT(Serving::all(s).size(), 3000000u);
  for (const int other : {silent, half, deaf}) close(other);
}

TEST(Server, a_client_that_says_nothing_is_let_go) {
  const Serving serving(0.1);
  const int silent = serving.connect();
  EXPECT_EQ(Serving::all(silent), "");  // closes without a response
}

TEST(Server, half_requests_of_many_make_room_for_a_whole_one) {
  const Serving serving(1000);  // long enough that no slow client is dropped
  std::vector<int> halves;
  for (int n = 0; n < 200; ++n) Serving::say(halves.emplace_back(serving.connect()), "GET / HT");
  const int s = serving.connect();
  Serving::say(s, "GET / HTTP/1.1\r\nHost: x\r\n\r\n");
  EXPECT_GT(Serving::all(s).size(), 3000000u);
  pollfd first{halves[0], POLLIN, 0};
  EXPECT_EQ(poll(&first, 1, 5000), 1) << "the one that asks longest is let go, so the number of clients has a bound";
  for (const int half : halves) close(half);
}

// A client whose kernel takes as little as possible.
int narrow_client(int port) {
  const int s = socket(AF_INET, SOCK_STREAM, 0), least = 1;
  (void)setsockopt(s, SOL_SOCKET, SO_RCVBUF, &least, sizeof least);
  sockaddr_in to{};
  to.sin_family = AF_INET, to.sin_port = htons(uint16_t(port)), to.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  EXPECT_EQ(::connect(s, reinterpret_cast<const sockaddr*>(&to), sizeof to), 0);
  return s;
}

TEST(Server, readers_of_nothing_make_room) {
  const Serving serving(1000);  // long enough that no slow client is dropped
  std::vector<int> deaf;
  for (int n = 0; n < 64; ++n)
    Serving::say(deaf.emplace_back(narrow_client(serving.server.port())), "GET / HTTP/1.1\r\nHost: x\r\n\r\n");
  const int s = serving.connect();
  const timeval limit{60, 0};
  (void)setsockopt(s, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit);
  Serving::say(s, "GET / HTTP/1.1\r\nHost: x\r\n\r\n");
  EXPECT_GT(Serving::all(s).size(), 3000000u);
  for (const int other : deaf) close(other);
}

TEST(Server, slow_readers_hold_few_versions_of_a_page) {
  HttpServer server;
  ASSERT_EQ(server.open("127.0.0.1", 0).message, "");
  std::atomic<bool> stop{false};
  std::vector<std::weak_ptr<const std::string>> pages;
  ptrdiff_t held = 0;  // when the last page is made
  std::thread thread([&] {
    server.run([&](const HttpRequest&) {
      held = std::count_if(pages.begin(), pages.end(), [](const auto& page) { return !page.expired(); });
      auto page = std::make_shared<const std::string>(3'000'000, 'x');
      pages.push_back(page);
      return HttpResponse{.shared = page};
    }, stop, 1000);
  });
  std::vector<int> deaf;
  for (int n = 0; n < 40; ++n) Serving::say(deaf.emplace_back(narrow_client(server.port())),
                                            "GET / HTTP/1.1\r\nHost: x\r\n\r\n");
  usleep(2'500'000);  // until they are slow
  const int s = Serving::connect(server.port());
  Serving::say(s, "GET / HTTP/1.1\r\nHost: x\r\n\r\n");
  EXPECT_GT(Serving::all(s).size(), 3000000u);
  stop = true, thread.join();
  for (const int other : deaf) close(other);
  EXPECT_EQ(pages.size(), 41u);
  EXPECT_LE(held, 8);
  EXPECT_GE(held, 1) << "there was something to hold";
}

TEST(Server, a_page_is_shared_by_its_readers) {
  const auto page = std::make_shared<const std::string>(3'000'000, 'x');
  EXPECT_TRUE(write_response({.shared = page}, true).ends_with("\r\n\r\n"));  // the head alone
  HttpServer server;
  ASSERT_EQ(server.open("127.0.0.1", 0).message, "");
  std::atomic<bool> stop{false};
  std::thread thread([&] { server.run([&](const HttpRequest&) { return HttpResponse{.shared = page}; }, stop); });
  for (const char* const method : {"GET", "HEAD"}) {
    const int s = Serving::connect(server.port());
    Serving::say(s, join(method, " / HTTP/1.1\r\nHost: x\r\n\r\n"));
    const std::string answer = Serving::all(s);
    EXPECT_TRUE(has(answer, "Content-Length: 3000000\r\n"));
    EXPECT_EQ(answer.size() - answer.find("\r\n\r\n") - 4, method[0] == 'G' ? 3'000'000u : 0u);
  }
  stop = true, thread.join();
  EXPECT_EQ(page.use_count(), 1);
}

TEST(ServeCommand, a_pipe_is_refused) {
  const std::string pipe = temporary("pipe");
  ASSERT_EQ(mkfifo(pipe.c_str(), 0600), 0);
  const Ran ran = spawn({"timeout", "60", ATTUNE_BUILD_DIR "/attune", "serve", pipe, "--port", "0"});
  EXPECT_EQ(ran.code, 1);
  EXPECT_EQ(ran.err, "attune serve: '" + pipe + "' is not a regular file\n");
}

TEST(ServeCommand, wrong_input_is_one_sentence) {
  const Ran folder = attune_says({"serve", temporary("no/such/folder/r.jsonl")});
  EXPECT_EQ(folder.code, 3);
  EXPECT_TRUE(has(folder.err, "is not a file in an existing folder")) << folder.err;
  std::ofstream(temporary("wrong.jsonl")) << "not json\n";
  const Ran wrong = attune_says({"serve", temporary("wrong.jsonl")});
  EXPECT_EQ(wrong.code, 1);
  EXPECT_TRUE(has(wrong.err, "wrong.jsonl:1")) << wrong.err;
  const Ran bind = attune_says({"serve", temporary("new.jsonl"), "--bind", "my.machine"});
  EXPECT_EQ(bind.code, 2);
  EXPECT_TRUE(has(bind.err, "attune serve: address 'my.machine' is not a numeric one")) << bind.err;
  const Ran port = attune_says({"serve", temporary("new.jsonl"), "--port", "70000"});
  EXPECT_EQ(port.code, 2);
  HttpServer taken;
  ASSERT_EQ(taken.open("127.0.0.1", 0).message, "");
  const Ran twice = attune_says({"serve", temporary("new.jsonl"), "--port", std::to_string(taken.port())});
  EXPECT_EQ(twice.code, 3);
  EXPECT_TRUE(has(twice.err, "cannot be served")) << twice.err;
}

// The command, serving a file with one valid record.
struct Live {
  std::string path;
  Background serving;
  int port = 0;
  explicit Live(const std::string& at) : path(at), serving({"serve", written(at), "--port", "0"}) {
    const std::string kUrl = "http://127.0.0.1:";
    EXPECT_TRUE(comes([&] { return has(serving.says(), "until Ctrl-C\n"); })) << serving.says();
    if (has(serving.says(), kUrl)) port = std::atoi(serving.says().c_str() + serving.says().find(kUrl) + kUrl.size());
  }
  static std::string written(const std::string& at) {
    std::filesystem::create_directories(std::filesystem::path(at).parent_path());
    std::ofstream(at) << to_json(record("cpu_forward", 512, 1000)) << "\n";
    return at;
  }
  std::string asked(const char* what) const {
    const int s = Serving::connect(port);
    Serving::say(s, join("GET ", what, " HTTP/1.1\r\nHost: 127.0.0.1:", port, "\r\n\r\n"));
    return Serving::all(s);
  }
};

TEST(Serve, a_file_that_has_gone_is_missed_and_what_was_read_stays) {
  const Live live(temporary("live.jsonl"));
  const std::string rows = live.asked("/rows.csv");
  ASSERT_TRUE(has(rows, "cpu_forward")) << rows;
  std::filesystem::remove(live.path);
  EXPECT_EQ(live.asked("/rows.csv"), rows);
  const std::string now = live.asked("/revision");
  EXPECT_TRUE(now.starts_with("HTTP/1.1 500 ") && has(now, join("records: '", live.path, "' cannot be read: "))) << now;
}

TEST(Serve, goes_on_with_what_it_had_whatever_is_appended) {
  Live live(temporary("appended.jsonl"));
  const std::string rows = live.asked("/rows.csv"), before = text_of(live.path);
  ASSERT_TRUE(has(rows, "cpu_forward")) << rows;
  const std::string deep = std::string(100000, '[') + std::string(100000, ']');
  for (const auto& [line, said] : std::vector<std::pair<std::string, std::string>>{
           {"{\"attune_record\":2,\"rest_s\":1e999}", "record: 1e999 is beyond the range of a double"},
           {"{\"attune_record\":" + deep + "}", "record: lists and objects are nested more than 16 deep"},
           {"nothing", "record: not JSON, near character 2: 'nothing'; records are lines that attune bench --out "
                       "writes"}}) {
    std::ofstream(live.path) << before << line << "\n";
    const std::string now = live.asked("/revision");
    EXPECT_TRUE(now.starts_with("HTTP/1.1 500 ") && has(now, join("\r\n\r\n", live.path, ":2: ", said, "\n"))) << now;
    EXPECT_EQ(live.asked("/rows.csv"), rows);
    EXPECT_TRUE(live.asked("/").starts_with("HTTP/1.1 200 "));
  }
  std::ofstream(live.path) << before << before;  // valid again, and read again
  EXPECT_TRUE(live.asked("/revision").starts_with("HTTP/1.1 200 "));
  EXPECT_NE(live.asked("/rows.csv"), rows);
  EXPECT_EQ(live.serving.ends(SIGTERM), 0) << live.serving.says();
}

TEST(Serve, does_not_wait_for_a_file_that_became_a_pipe) {
  Live live(temporary("pipe.jsonl"));
  const std::string rows = live.asked("/rows.csv");
  std::filesystem::remove(live.path);
  ASSERT_EQ(mkfifo(live.path.c_str(), 0600), 0);
  const std::string now = live.asked("/revision");
  EXPECT_TRUE(now.starts_with("HTTP/1.1 500 ") && has(now, join("'", live.path, "' is not a regular file"))) << now;
  EXPECT_EQ(live.asked("/rows.csv"), rows);
  EXPECT_EQ(live.serving.ends(SIGTERM), 0) << live.serving.says();
}

TEST(Serve, goes_on_where_its_folder_can_no_longer_be_looked_into) {
  namespace fs = std::filesystem;
  Live live(temporary("watched/r.jsonl"));
  const std::string rows = live.asked("/rows.csv");
  fs::rename(temporary("watched"), temporary("away"));
  fs::create_symlink("watched", temporary("watched"));  // a loop: missing permissions do not stop root
  const std::string now = live.asked("/revision");
  EXPECT_TRUE(now.starts_with("HTTP/1.1 500 ") &&
              has(now, join("records: '", live.path, "' cannot be read: Too many levels"))) << now;
  EXPECT_EQ(live.asked("/rows.csv"), rows);
  fs::remove(temporary("watched")), fs::rename(temporary("away"), temporary("watched"));
  EXPECT_TRUE(live.asked("/revision").starts_with("HTTP/1.1 200 "));
  EXPECT_EQ(live.serving.ends(SIGTERM), 0) << live.serving.says();
}

}  // namespace
}  // namespace attune
