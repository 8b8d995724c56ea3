// SPDX-License-Identifier: Apache-2.0
// The MPI plug-in with real processes: their exchanges, and that a killed or silent rank gives an error on the others
// within the time limit.
#include <gtest/gtest.h>

#include <filesystem>

#include "tests/tool/spawn.h"

namespace attune {
namespace {

bool has_mpi() {
  return std::filesystem::exists(ATTUNE_BUILD_DIR "/libattune_mpi.so") && spawn({"mpirun", "--version"}).code == 0;
}

Ran mpirun(int ranks, std::vector<std::string> words) {
  // Recovery: without it, mpirun ends all processes when one is killed, and none could report an error.
  std::vector<std::string> all{"mpirun", "--oversubscribe", "--enable-recovery", "-n", std::to_string(ranks)};
  all.insert(all.end(), words.begin(), words.end());
  return spawn(all, {"OMPI_ALLOW_RUN_AS_ROOT=1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1"});
}

int count(const std::string& text, const std::string& part) {
  int n = 0;
  for (size_t at = 0; (at = text.find(part, at)) != text.npos; at += part.size()) ++n;
  return n;
}

class Mpi : public testing::Test {
 protected:
  void SetUp() override {
    if (!has_mpi()) GTEST_SKIP() << "MPI is not here";
  }
  const std::string rank = ATTUNE_BUILD_DIR "/tests/mpi_rank";
};

TEST_F(Mpi, processes_exchange_with_each_other) {
  const Ran ran = mpirun(4, {rank, "exchange", "20"});
  EXPECT_EQ(ran.code, 0) << ran.err;
  EXPECT_EQ(count(ran.out, "good\n"), 4) << ran.out << ran.err;
}

TEST_F(Mpi, what_was_started_before_the_group_was_there_goes_first) {
  const Ran ran = mpirun(2, {rank, "ordered", "20"});
  EXPECT_EQ(count(ran.out, "good\n"), 2) << ran.out << ran.err;
}

TEST_F(Mpi, a_message_of_another_size_is_an_error) {
  const Ran ran = mpirun(2, {rank, "sizes", "1"});
  EXPECT_EQ(count(ran.out, "rank 1 of 2: a transfer did not finish: rank 0 sent 4 bytes, but 8 were expected"), 1)
      << ran.out << ran.err;
}

TEST_F(Mpi, a_rank_that_never_asks_for_the_group_is_a_sentence_on_the_others) {
  const Ran ran = mpirun(3, {rank, "absent", "0.5"});
  EXPECT_EQ(count(ran.out, "a transfer did not finish: not all ranks joined within 0.5 s"), 2)
      << ran.out << ran.err;
}

TEST_F(Mpi, a_rank_that_is_silent_is_a_sentence_on_the_others) {
  const Ran ran = mpirun(3, {rank, "silent", "0.5"});
  EXPECT_EQ(count(ran.out, "a transfer did not finish: rank 2 sent nothing within 0.5 s"), 2) << ran.out << ran.err;
}

TEST_F(Mpi, a_rank_that_is_killed_is_a_sentence_on_the_others) {
  const Ran ran = mpirun(3, {rank, "killed", "0.5"});
  EXPECT_EQ(count(ran.out, "a transfer did not finish: "), 2) << ran.out << ran.err;
}

TEST_F(Mpi, attention_over_four_processes_is_the_golden_attention) {
  if (!std::filesystem::exists(ATTUNE_BUILD_DIR "/attune")) GTEST_SKIP() << "the command is not built";
  const Ran ran = mpirun(4, {ATTUNE_BUILD_DIR "/attune", "parity", "--ring"});
  EXPECT_EQ(ran.code, 0) << ran.out << ran.err;
  EXPECT_NE(ran.out.find(" passed, 0 failed"), std::string::npos) << ran.out << ran.err;
  EXPECT_EQ(count(ran.out, "zigzag "), 1) << ran.out;  // only rank 0 prints
}

}  // namespace
}  // namespace attune
