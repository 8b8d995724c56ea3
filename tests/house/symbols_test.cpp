// SPDX-License-Identifier: Apache-2.0
// Code for one instruction set must not leak. If a machine file keeps an inline function as a weak symbol, the linker
// may use that copy everywhere, and a CPU without the instruction set crashes. So objects built with more than the base
// instruction set define nothing weak.
#include <gtest/gtest.h>

#include <cstdio>
#include <filesystem>
#include <string>
#include <vector>

namespace {

namespace fs = std::filesystem;

std::string output_of(const std::string& command) {
  std::string all;
  FILE* pipe = popen(command.c_str(), "r");
  if (!pipe) return all;
  char part[4096];
  for (size_t n; (n = fread(part, 1, sizeof part, pipe)) > 0;) all.append(part, n);
  pclose(pipe);
  return all;
}

// Weak (W, V, w, v with an address) and unique (u) definitions in the output of `nm -P -C`.
std::string weak_definitions(const std::string& symbols) {
  std::string weak;
  for (size_t at = 0; at < symbols.size();) {
    const size_t end = std::min(symbols.find('\n', at), symbols.size());
    const std::string line = symbols.substr(at, end - at);
    at = end + 1;
    for (const char* kind : {" W ", " V ", " u "})
      if (const size_t k = line.rfind(kind); k != std::string::npos && k + 3 < line.size())
        weak += line.substr(0, k) + "\n";
  }
  return weak;
}

TEST(Symbols, weak_definitions_are_seen) {
  EXPECT_EQ(weak_definitions("attune::f(int) T 0 10\nattune::g() W 0 8\nattune::h V 0 4\n_ITM_x w  \nabort U  \n"),
            "attune::g()\nattune::h\n");
}

TEST(Symbols, machine_files_define_nothing_weak) {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__) || !defined(__OPTIMIZE__)
  GTEST_SKIP() << "only an optimised build without sanitizers says what ships";
#endif
  if (output_of("command -v nm").empty()) GTEST_SKIP() << "nm is not here";
  const fs::path objects = fs::path(ATTUNE_BUILD_DIR) / "CMakeFiles/attune_objects.dir/src/machine/cpu";
  ASSERT_TRUE(fs::exists(objects)) << objects;
  int files = 0;
  for (const fs::directory_entry& e : fs::directory_iterator(objects)) {
    const std::string file = e.path().filename();
    const bool special = file.starts_with("avx") || file.starts_with("amx") || file.starts_with("neon_");
    if (!special || !file.ends_with(".o")) continue;
    EXPECT_EQ(weak_definitions(output_of("nm -P -C --defined-only '" + e.path().string() + "'")), "") << file;
    ++files;
  }
  EXPECT_GT(files, 0) << "no object of a special instruction set in " << objects;
}

}  // namespace
