// SPDX-License-Identifier: Apache-2.0
#include "tool/remote/drivers/connect.h"

#include <gtest/gtest.h>

#include "tool/remote/drivers/base64.h"
#include "tool/remote/drivers/prime_api.h"
#include "tool/remote/http.h"

namespace attune {
namespace {

std::string bytes(std::initializer_list<int> all) {
  std::string out;
  for (const int b : all) out += char(b);
  return out;
}

// The bytes that protobuf's own library writes for StartRequest{command{cmd: "/bin/sh", args: ["-c", "ls"]}, stdin:
// false}, behind the five bytes of the envelope.
TEST(Connect, a_request_has_the_bytes_of_protobuf) {
  EXPECT_EQ(start_request({"/bin/sh", "-c", "ls"}),
            bytes({0, 0, 0, 0, 21, 0x0a, 17, 0x0a, 7}) + "/bin/sh" + bytes({0x12, 2}) + "-c" + bytes({0x12, 2}) + "ls" +
                bytes({0x20, 0}));
}

std::string envelope(const std::string& message, int flags = 0) {
  return bytes({flags, 0, 0, int(message.size() >> 8), int(message.size() & 0xFF)}) + message;
}
const std::string kOut = envelope(bytes({0x0a, 6, 0x12, 4, 0x0a, 2}) + "hi");
const std::string kErr = envelope(bytes({0x0a, 6, 0x12, 4, 0x12, 2}) + "no");
const std::string kAlive = envelope(bytes({0x0a, 2, 0x22, 0}));
const std::string kEnd = envelope(bytes({0x0a, 6, 0x1a, 4, 0x08, 6, 0x10, 1}));  // exit code 3, as zigzag

TEST(Connect, a_stream_gives_output_and_exit_code) {
  CommandOutput out;
  bool missing = false;
  ASSERT_TRUE(read_stream(kOut + kErr + kAlive + kOut + kEnd + envelope("{}", 2), out, missing).ok());
  EXPECT_EQ(out.out, "hihi");
  EXPECT_EQ(out.err, "no");
  EXPECT_EQ(out.code, 3);
}

TEST(Connect, a_stream_without_end_or_with_an_error_fails) {
  CommandOutput out;
  bool missing = false;
  EXPECT_EQ(read_stream(kOut, out, missing).message, "the command's output ended without an exit code");
  EXPECT_FALSE(missing);
  EXPECT_EQ(read_stream(envelope(R"({"error":{"code":"not_found","message":"gone"}})", 2), out, missing).message,
            "not_found: gone");
  EXPECT_TRUE(missing);
  // A stream that is cut anywhere, or has changed bytes, fails or gives something, and never reads beyond its end.
  const std::string whole = kOut + kErr + kEnd + envelope("{}", 2);
  for (size_t size = 0; size < whole.size(); ++size) (void)read_stream(whole.substr(0, size), out, missing);
  for (size_t n = 0; n < whole.size(); ++n) {
    std::string changed = whole;
    changed[n] = char(0xFF);
    (void)read_stream(changed, out, missing);
  }
}

TEST(Base64, is_read_and_other_letters_are_refused) {
  std::string out;
  EXPECT_TRUE(from_base64("aGkA/w==", out));
  EXPECT_EQ(out, std::string("hi\0\xff", 4));
  EXPECT_FALSE(from_base64("aG k", out));
}

TEST(Web, a_key_travels_over_https_or_stays_here) {
  for (const char* url : {"https://api.example.com", "http://127.0.0.1:80/x", "http://localhost", "http://[::1]:8/"})
    EXPECT_TRUE(is_safe_for_keys(url).ok()) << url;
  for (const char* url :
       {"http://example.com", "http://127.0.0.1.example.com", "http://127.0.0.1@example.com", "ftp://x"})
    EXPECT_FALSE(is_safe_for_keys(url).ok()) << url;
  EXPECT_EQ(origin_of("https://me:secret@host:8/path?q"), "https://host:8");
  EXPECT_EQ(url_escaped("a b/ä"), "a%20b%2F%C3%A4");
}

TEST(Web, what_cannot_be_reached_was_not_sent) {
  WebReply reply;
  const Status s = web_call({.url = "http://127.0.0.1:1/", .limit_s = 5}, reply);
  EXPECT_EQ(s.code, Code::device);
  EXPECT_TRUE(s.message.starts_with("http://127.0.0.1:1: ")) << s.message;
  EXPECT_FALSE(reply.sent);
}

TEST(Prime, a_gpu_has_the_name_that_the_interface_takes) {
  std::string gpu;
  for (const auto& [word, name] : {std::pair("H200", "H200_141GB"), {"h100", "H100_80GB"}, {"RTX4090", "RTX4090_24GB"},
                                   {"rtx-4090", "RTX4090_24GB"}, {"A100_40GB", "A100_40GB"}, {"L4", "L4_24GB"}}) {
    EXPECT_TRUE(prime_gpu(word, gpu).ok()) << word;
    EXPECT_EQ(gpu, name);
  }
  EXPECT_TRUE(prime_gpu("H9000", gpu).message.starts_with("'H9000' is not one of A10, A100, A30, "));
}

}  // namespace
}  // namespace attune
