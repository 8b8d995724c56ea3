// SPDX-License-Identifier: Apache-2.0
// Exceptions of std::filesystem carry text for programmers and abort the operation in progress. So no call in the
// library or the command may throw: each takes a std::error_code, and its caller reports what failed.
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <iterator>
#include <regex>
#include <string>

namespace {

namespace fs = std::filesystem;

// Calls in a text without an error code as last argument, one per line.
std::string throwing(const std::string& text) {
  static const std::regex call(
      R"(\b(?:fs|filesystem)::(exists|is_[a-z_]+|equivalent|(?:weakly_)?canonical|absolute|relative|read_symlink|)"
      R"(temp_directory_path|create_[a-z_]+|copy[a-z_]*|rename|remove|remove_all|file_size|last_write_time|)"
      R"(current_path|status|symlink_status|permissions|resize_file|space|hard_link_count|)"
      R"((?:recursive_)?directory_iterator)(?: [a-z_]+)?\()");
  static const std::regex good(R"(^\s*$|(?:^|,\s*)(?:error|none|ignored)\s*$)");
  std::string wrong;
  for (std::sregex_iterator it(text.begin(), text.end(), call), end; it != end; ++it) {
    const size_t from = size_t(it->position() + it->length());
    size_t at = from;
    for (int depth = 1; at < text.size() && depth; ++at) depth += text[at] == '(' ? 1 : text[at] == ')' ? -1 : 0;
    const std::string arguments = text.substr(from, at - from - 1);
    const bool needs_some = (*it)[1] == "temp_directory_path" || (*it)[1] == "current_path";
    if (!std::regex_search(arguments, good) || (needs_some && arguments.empty()))
      wrong += it->str() + arguments + ")\n";
  }
  return wrong;
}

TEST(Throws, a_call_without_an_error_code_is_seen) {
  EXPECT_EQ(throwing("if (fs::exists(path)) f();"), "fs::exists(path)\n");
  EXPECT_EQ(throwing("std::filesystem::is_directory(a / name(b))"), "filesystem::is_directory(a / name(b))\n");
  EXPECT_EQ(throwing("fs::temp_directory_path()"), "fs::temp_directory_path()\n");
  EXPECT_EQ(throwing("for (const auto& e : fs::directory_iterator(folder))"), "fs::directory_iterator(folder)\n");
  EXPECT_EQ(throwing("fs::exists(a, error) || fs::temp_directory_path(error); fs::directory_iterator e(x, error)"), "");
  EXPECT_EQ(throwing("e != fs::directory_iterator(); fs::path(a).filename()"), "");
}

TEST(Throws, no_call_of_the_library_or_the_command_does) {
  int files = 0;
  for (const char* const folder : {"src", "tool", "verify", "plugins"})
    for (const fs::directory_entry& e : fs::recursive_directory_iterator(fs::path(ATTUNE_SOURCE_DIR) / folder)) {
      if (e.path().extension() != ".cpp" && e.path().extension() != ".h") continue;
      std::ifstream in(e.path(), std::ios::binary);
      EXPECT_EQ(throwing({std::istreambuf_iterator<char>(in), {}}), "") << e.path();
      ++files;
    }
  EXPECT_GT(files, 100);
}

}  // namespace
