// SPDX-License-Identifier: Apache-2.0
#include "tool/record/sha256.h"

#include <gtest/gtest.h>

#include <sstream>

#include "tests/tool/spawn.h"

namespace attune {
namespace {

// The examples of FIPS 180-4 and neighbouring lengths, as printed by `openssl dgst -sha256 -binary | base64`.
TEST(Sha256, in_base64_is_that_of_openssl) {
  EXPECT_EQ(sha256_base64(""), "47DEQpj8HBSa+/TImW+5JCeuQeRkm5NMpJWZG3hSuFU=");
  EXPECT_EQ(sha256_base64("abc"), "ungWv48Bz+pBQUDeXa4iI7ADYaOWF3qctBD/YfIAFa0=");
  EXPECT_EQ(sha256_base64("abcdbcdecdefdefgefghfghighijhijkijkljklmklmnlmnomnopnopq"),
            "JI1qYdIGOLjlwCaTDD5gOaM85Flk/yFn9uzt1BnbBsE=");
  EXPECT_EQ(sha256_base64(std::string(1000000, 'a')), "zcduXJkU+5KBocfihNc+Z/GAmkiklyAOBG05zMcRLNA=");
}

// The vectors of FIPS 180-4 and of NIST's CAVP (SHA256ShortMsg: its one- and two-byte messages).
TEST(Sha256, in_hex_is_that_of_nist) {
  EXPECT_EQ(sha256_hex(""), "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
  EXPECT_EQ(sha256_hex("abc"), "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
  EXPECT_EQ(sha256_hex("abcdbcdecdefdefgefghfghighijhijkijkljklmklmnlmnomnopnopq"),
            "248d6a61d20638b8e5c026930c3e6039a33ce45964ff2167f6ecedd419db06c1");
  EXPECT_EQ(sha256_hex("abcdefghbcdefghicdefghijdefghijkefghijklfghijklmghijklmnhijklmnoijklmnopjklmnopqklmnopqr"
                       "lmnopqrsmnopqrstnopqrstu"),
            "cf5b16a778af8380036ce59e7b0492370b249b11e8f07a51afac45037afee9d1");
  EXPECT_EQ(sha256_hex("\xd3"), "28969cdfa74a12c82f3bad960b0b000aca2ac329deea5c2328ebc6f2ba9802c1");
  EXPECT_EQ(sha256_hex("\x11\xaf"), "5ca7133fa735326081558ac312c620eeca9970d1e70a4b95533d956f072d1f98");
  EXPECT_EQ(sha256_hex(std::string(1000000, 'a')), "cdc76e5c9914fb9281a1c7e284d73e67f1809a48a497200e046d39ccc7112cd0");
}

// Every length about the edges of a block and of the padding, against sha256sum where it is here.
TEST(Sha256, of_every_length_is_that_of_sha256sum) {
  if (spawn({"sha256sum", "--version"}).code != 0) GTEST_SKIP() << "requires sha256sum; it is not in PATH";
  std::vector<std::string> words = {"sha256sum"};
  for (int length = 0; length < 200; ++length) {
    words.push_back(temporary(std::to_string(length)));
    std::ofstream(words.back()) << std::string(size_t(length), char('a' + length % 26));
  }
  std::istringstream said(spawn(words).out);
  for (int length = 0; length < 200; ++length) {
    std::string digest, path;
    ASSERT_TRUE(said >> digest >> path);
    EXPECT_EQ(sha256_hex(std::string(size_t(length), char('a' + length % 26))), digest) << length;
  }
}

}  // namespace
}  // namespace attune
