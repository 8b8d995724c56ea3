// SPDX-License-Identifier: Apache-2.0
// The journal of a run: what is written is read, and what a killed process left of a line is not.
#include "tool/remote/journal.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

#include "tests/tool/spawn.h"

namespace attune {
namespace {

std::string new_folder(const std::string& name) {
  const std::string folder = temporary(name);
  std::filesystem::create_directories(folder);
  return folder;
}

TEST(Journal, what_is_written_is_read_and_says_the_state) {
  const std::string folder = new_folder("journal");
  Journal j;
  ASSERT_TRUE(j.open(folder).ok());
  ASSERT_TRUE(j.add({.target = 1, .event = Event::intent, .text = "attune-x-1"}).ok());
  std::vector<JournalLine> lines;
  ASSERT_TRUE(Journal::read(folder, lines).ok());
  EXPECT_TRUE(state_of(lines, 1).may_exist());
  EXPECT_FALSE(state_of(lines, 0).may_exist());
  EXPECT_FALSE(state_of(lines, 1).acquired);
  ASSERT_TRUE(j.add({.target = 1, .event = Event::acquired, .id = "7 \"\n", .where = "there", .value = 2.5}).ok());
  ASSERT_TRUE(j.add({.target = 1, .event = Event::row, .value = 3}).ok());
  ASSERT_TRUE(j.add({.target = 1, .event = Event::failed, .text = "a: b", .value = 4}).ok());
  ASSERT_TRUE(j.add({.target = 1, .event = Event::failed, .text = "later", .value = 3}).ok());
  ASSERT_TRUE(Journal::read(folder, lines).ok());
  TargetState s = state_of(lines, 1);
  EXPECT_EQ(s.lease.id, "7 \"\n");
  EXPECT_EQ(s.lease.usd_an_hour, 2.5);
  EXPECT_EQ(s.rows, 3);
  EXPECT_EQ(s.failure, "a: b");
  EXPECT_EQ(s.failure_code, 4);
  ASSERT_TRUE(j.add({.target = 1, .event = Event::verified_gone}).ok());
  ASSERT_TRUE(Journal::read(folder, lines).ok());
  EXPECT_FALSE(state_of(lines, 1).may_exist());
}

TEST(Journal, half_a_line_is_not_read_and_does_not_spoil_the_next) {
  const std::string folder = new_folder("torn");
  {
    Journal j;
    ASSERT_TRUE(j.open(folder).ok());
    ASSERT_TRUE(j.add({.event = Event::intent, .text = "attune-x-0"}).ok());
  }
  std::ofstream(folder + "/journal.jsonl", std::ios::app) << R"({"time":1,"target":0,"event":"verified_)";
  std::vector<JournalLine> lines;
  ASSERT_TRUE(Journal::read(folder, lines).ok());
  EXPECT_EQ(lines.size(), 1u);
  Journal j;
  ASSERT_TRUE(j.open(folder).ok());
  ASSERT_TRUE(j.add({.event = Event::acquired, .id = "7"}).ok());
  ASSERT_TRUE(Journal::read(folder, lines).ok());
  EXPECT_EQ(lines.size(), 2u);
  EXPECT_TRUE(state_of(lines, 0).acquired);
}

TEST(Journal, ids_sort_by_time_and_differ) {
  const std::string a = new_run_id(), b = new_run_id();
  EXPECT_NE(a, b);
  EXPECT_EQ(a.size(), 22u);
}

}  // namespace
}  // namespace attune
