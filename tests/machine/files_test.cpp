// SPDX-License-Identifier: Apache-2.0
#include "machine/files.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <set>
#include <thread>
#include <vector>

namespace attune {
namespace {

namespace fs = std::filesystem;

// A writer removes what dead writers left beside the file. It must not take the file of a living one for such, also if
// the name it read belongs to that writer's next file by the time it removes it.
TEST(Replacement, of_many_threads_at_one_path_all_succeed_and_leave_one_file) {
  const fs::path folder = fs::temp_directory_path() / join("attune_files_", getpid());
  fs::create_directory(folder);
  const std::string path = folder / "a";
  std::vector<std::thread> threads;
  constexpr int kThreads = 6, kTimes = 600;
  for (int n = 0; n < kThreads; ++n)
    threads.emplace_back([&] {
      for (int i = 0; i < kTimes; ++i) {
        Replacement file;
        Status s = file.open(path, {});
        if (s.ok()) s = file.write("whole", 5);
        if (s.ok()) s = file.finish();
        ASSERT_EQ(s.message, "") << "replacement " << i;
      }
    });
  for (std::thread& t : threads) t.join();
  std::set<std::string> names;
  for (const auto& entry : fs::directory_iterator(folder)) names.insert(entry.path().filename());
  EXPECT_EQ(names, std::set<std::string>{"a"});
  std::ifstream in(path);
  EXPECT_EQ(std::string(std::istreambuf_iterator<char>(in), {}), "whole");
  fs::remove_all(folder);
}

}  // namespace
}  // namespace attune
