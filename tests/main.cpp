// SPDX-License-Identifier: Apache-2.0
// The main function of a program with the tests of many files.
//   core_files --file core/mask_test.cpp   runs the tests of this file; its report is named core_mask_test
//   core_files --gtest_filter=...          runs those of all files, in one process
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <string>

namespace {

// "Suite.name:..." of the tests of a file below tests/.
std::string tests_of(const std::string& file) {
  const std::string path = ATTUNE_SOURCE_DIR "/tests/" + file;
  const testing::UnitTest& all = *testing::UnitTest::GetInstance();
  std::string names;
  for (int s = 0; s < all.total_test_suite_count(); ++s) {
    const testing::TestSuite& suite = *all.GetTestSuite(s);
    for (int t = 0; t < suite.total_test_count(); ++t) {
      const testing::TestInfo& test = *suite.GetTestInfo(t);
      if (test.file() == path) names += std::string(suite.name()) + "." + test.name() + ":";
    }
  }
  return names;
}

}  // namespace

int main(int argc, char** argv) {
  std::string file;
  if (argc > 2 && std::strcmp(argv[1], "--file") == 0) {
    file = argv[2];
    argv += 2, argc -= 2;
  }
  std::string name = file.substr(0, file.rfind(".cpp"));
  std::replace(name.begin(), name.end(), '/', '_');
  if (!name.empty()) argv[0] = name.data();  // GoogleTest names its report after it
  testing::InitGoogleTest(&argc, argv);
  if (argc > 1) return std::fprintf(stderr, "%s: not an argument; --file FILE comes first\n", argv[1]), 2;
  if (!file.empty()) {
    const std::string names = tests_of(file);
    if (names.empty()) return std::fprintf(stderr, "%s has no test in this program\n", file.c_str()), 2;
    GTEST_FLAG_SET(filter, names);
  }
  return RUN_ALL_TESTS();
}
