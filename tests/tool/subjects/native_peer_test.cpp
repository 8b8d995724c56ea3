// SPDX-License-Identifier: Apache-2.0
// A function of a shared library as a peer: the example that the documentation shows, and what goes wrong around it.
#include "tool/subjects/native_peer.h"

#include <gtest/gtest.h>

#include "machine/host.h"
#include "tool/bench/row.h"

namespace attune {
namespace {

const std::string kLibrary = ATTUNE_MY_ATTENTION;  // built from examples/my_attention.c

std::vector<Record> measured(const char* line, const std::string& peer = kLibrary + ":attention") {
  std::vector<const attune_peer*> peers;
  EXPECT_EQ(open_peers({peer}, "python3", peers).message, "");
  Bench b{.peers = peers, .device = this_cpu()};
  b.device.units = 1;
  b.timing.max_seconds = 0.05, b.timing.warm_up_seconds = 0.001;
  b.ceilings = Ceilings{}, b.floor_ns = b.peer_floor_ns = 1, b.aa_spread = 0.02;
  Problem p;
  EXPECT_EQ(parse(line, p).message, "");
  return measure_row(p, b);
}

TEST(NativePeer, is_checked_and_timed_like_all_subjects) {
  for (const char* line : {"forward f32 b2 h4/2 q33 k70 d24/16 causal", "forward f32 b1 h2 q5 k9 d8 full"}) {
    const std::vector<Record> records = measured(line);
    ASSERT_EQ(records.size(), 2u);
    EXPECT_EQ(records[0].subject, std::string(peer_name(kLibrary)) + ":attention");
    EXPECT_EQ(records[0].status, RecordStatus::ok) << records[0].message;
    EXPECT_EQ(records[0].parity.verdict, CheckVerdict::pass);
    EXPECT_FALSE(records[0].samples_ns.empty());
    EXPECT_TRUE(records[0].peer);
    EXPECT_EQ(records[1].baseline, records[0].subject);
  }
}

TEST(NativePeer, a_problem_that_it_refuses_is_a_row_with_its_own_sentence) {
  for (const char* line : {"forward f32 b1 h2 q8 k8 d8 window2,0", "backward f32 b1 h2 q8 k8 d8 full",
                           "forward f32 b1 h2 q8 k8 d8 full softcap"}) {
    const std::vector<Record> records = measured(line);
    EXPECT_EQ(records[0].status, RecordStatus::unsupported);
    EXPECT_EQ(records[0].message, records[0].subject +
              ": serves an f32 forward over linear keys, full or causal, without options");
    EXPECT_TRUE(records[0].samples_ns.empty());
    EXPECT_EQ(records[1].status, RecordStatus::ok);
  }
}

TEST(NativePeer, one_that_cannot_be_loaded_is_a_row_that_says_so) {
  const std::vector<Record> none = measured("forward f32 b1 h2 q5 k9 d8 full", "/nowhere/libnone.so:f");
  EXPECT_EQ(none[0].status, RecordStatus::unsupported);
  EXPECT_EQ(none[0].message.find("libnone.so:f: is not available: /nowhere/libnone.so: "), 0u) << none[0].message;
  EXPECT_EQ(none[1].status, RecordStatus::ok);
  const std::vector<Record> symbol = measured("forward f32 b1 h2 q5 k9 d8 full", kLibrary + ":attend");
  EXPECT_EQ(symbol[0].message, join(peer_name(kLibrary), ":attend: is not available: '", kLibrary,
                                    "' has no function 'attend'"));
}

TEST(NativePeer, a_name_without_a_folder_is_a_file_here_and_no_library_of_the_system) {
  const std::vector<Record> records = measured("forward f32 b1 h2 q5 k9 d8 full", "libm.so:sin");
  EXPECT_EQ(records[0].message.find("libm.so:sin: is not available: ./libm.so: "), 0u) << records[0].message;
}

}  // namespace
}  // namespace attune
