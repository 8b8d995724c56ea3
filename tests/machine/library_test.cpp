// SPDX-License-Identifier: Apache-2.0
#include "machine/library.h"

#include <gtest/gtest.h>

#include <cstdio>

#include "tests/tool/spawn.h"

namespace attune {
namespace {

constexpr const char* kPip = "libattune_of_pip.so.9";  // a name that no system has

TEST(Library, takes_the_first_name_that_has_everything) {
  const Library c({"libattune_no_such.so.9", "libc.so.6"}, {"strlen"});
  ASSERT_TRUE(c.ok()) << c.missed();
  EXPECT_EQ(c.name(), "libc.so.6");
  EXPECT_EQ(c.missed(), "");
  ASSERT_NE(c.function<size_t(const char*)>("strlen"), nullptr);
  EXPECT_EQ(c.function<size_t(const char*)>("strlen")("four"), 4u);
  EXPECT_EQ(c.symbol("attune_no_such_symbol"), nullptr);
}

TEST(Library, says_of_each_name_what_it_missed) {
  const Library none({"libattune_no_such.so.9", "libc.so.6"}, {"strlen", "attune_no_such_symbol"});
  EXPECT_FALSE(none.ok());
  EXPECT_EQ(none.name(), "");
  EXPECT_EQ(none.symbol("strlen"), nullptr);
  EXPECT_EQ(none.missed().find("libattune_no_such.so.9 cannot be opened: "), 0u) << none.missed();
  EXPECT_NE(none.missed().find("; libc.so.6 lacks attune_no_such_symbol"), std::string::npos) << none.missed();
}

// Runs in a copy of this program, made by the test below.
TEST(Library, DISABLED_opens_what_pip_installed) {
  const Library found({kPip}, {"cos"});
  std::puts(found.ok() ? found.name().c_str() : found.missed().c_str());
}

TEST(Library, finds_what_pip_installed_beside_the_folder_of_this_code_and_nowhere_else) {
  namespace fs = std::filesystem;
  const Library c({"libm.so.6"}, {"cos"});
  ASSERT_TRUE(c.ok()) << c.missed();
  for (const std::string packages : {"site-packages", "dist-packages", "lib"}) {
    const bool is_found = packages != "lib";
    const fs::path root = temporary(packages);
    for (const char* const package : {"attune", "nvidia/cu12/lib", "nvidia/cu13/lib", "nvidia/other"})
      fs::create_directories(root / package);
    fs::copy_file(own_file(), root / "attune/program");
    fs::path real;  // of libm
    std::ifstream maps("/proc/self/maps");
    for (std::string line; std::getline(maps, line);)
      if (line.find("/libm.so.6") != line.npos) real = line.substr(line.find('/'));
    for (const char* const package : {"nvidia/cu12/lib", "nvidia/cu13/lib"})
      fs::create_symlink(real, root / package / kPip);
    const Ran ran = spawn({root / "attune/program", "--gtest_filter=*DISABLED_opens_what_pip*",
                           "--gtest_also_run_disabled_tests"});
    EXPECT_EQ(ran.code, 0) << ran.out << ran.err;
    EXPECT_EQ(ran.out.find((root / "nvidia/cu13/lib" / kPip).string()) != ran.out.npos, is_found) << ran.out;
    EXPECT_EQ(ran.out.find("cannot be opened: ") == ran.out.npos, is_found) << ran.out;
  }
}

TEST(Library, blas_multiplies_or_says_why_not) {
  std::string missed;
  const Blas* b = blas(&missed);
  ASSERT_EQ(b == nullptr, !missed.empty());
  if (!b) GTEST_SKIP() << missed;
  const float a[] = {1, 2, 3, 4}, identity[] = {1, 0, 0, 1};
  float c[4] = {};
  b->sgemm(101, 112, 111, 2, 2, 2, 1.f, a, 2, identity, 2, 0.f, c, 2);
  EXPECT_EQ(c[1], 3.f);
  EXPECT_EQ(c[2], 2.f);
}

TEST(Library, the_last_user_gives_blas_its_threads_back) {
  const Blas* b = blas();
  if (!b || !b->get_threads || !b->set_threads) GTEST_SKIP() << "no BLAS with a process-wide number of threads";
  b->set_threads(2);
  const int before = b->get_threads();
  {
    const BlasOneThread outer(*b);
    EXPECT_EQ(b->get_threads(), 1);
    { const BlasOneThread inner(*b); }
    EXPECT_EQ(b->get_threads(), 1);
  }
  EXPECT_EQ(b->get_threads(), before);
}

}  // namespace
}  // namespace attune
