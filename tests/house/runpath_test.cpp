// Where the loader searches for libraries of the built and the installed files. An empty or relative element of a run
// path means the current folder, from which a foreign library could be loaded.
#include <elf.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "tests/tool/spawn.h"

namespace attune {
namespace {

namespace fs = std::filesystem;

// The run paths of a program or library, verbatim; nullopt for other files.
std::optional<std::vector<std::string>> run_paths(const std::string& file) {
  const auto at = [&]<class T>(T, size_t offset) {
    T value{};
    if (offset <= file.size() && sizeof value <= file.size() - offset)
      std::memcpy(&value, file.data() + offset, sizeof value);
    return value;
  };
  const auto head = at(Elf64_Ehdr{}, 0);
  if (std::memcmp(head.e_ident, ELFMAG, SELFMAG) || head.e_ident[EI_CLASS] != ELFCLASS64 ||
      (head.e_type != ET_DYN && head.e_type != ET_EXEC))
    return {};
  std::vector<Elf64_Phdr> parts;
  for (int n = 0; n < head.e_phnum; ++n) parts.push_back(at(Elf64_Phdr{}, head.e_phoff + size_t(n) * head.e_phentsize));
  std::map<Elf64_Sxword, std::vector<Elf64_Xword>> tags;
  for (const Elf64_Phdr& p : parts)
    for (size_t n = 0; p.p_type == PT_DYNAMIC && n < p.p_filesz / sizeof(Elf64_Dyn); ++n) {
      const auto tag = at(Elf64_Dyn{}, p.p_offset + n * sizeof(Elf64_Dyn));
      tags[tag.d_tag].push_back(tag.d_un.d_val);
    }
  std::vector<std::string> paths;
  for (const Elf64_Phdr& p : parts) {
    const Elf64_Xword names = tags[DT_STRTAB].empty() ? 0 : tags[DT_STRTAB][0];
    if (p.p_type != PT_LOAD || names < p.p_vaddr || names >= p.p_vaddr + p.p_filesz) continue;
    for (const Elf64_Sxword kind : {DT_RPATH, DT_RUNPATH})
      for (const Elf64_Xword name : tags[kind]) paths.push_back(file.c_str() + p.p_offset + (names - p.p_vaddr) + name);
  }
  return paths;
}

// The elements of a path that lead to the current folder, and those that begin with a word of `banned`.
std::string wrong_elements(const std::string& path, const std::vector<std::string>& banned = {}) {
  std::string wrong;
  for (size_t at = 0, end = 0; at <= path.size(); at = end + 1) {
    end = std::min(path.find(':', at), path.size());
    const std::string element = path.substr(at, end - at);
    const bool is_fixed = element.starts_with('/') || element.starts_with("$ORIGIN");
    const bool is_banned = std::any_of(banned.begin(), banned.end(), [&](const std::string& b) {
      return element.starts_with(b);
    });
    if (!is_fixed || is_banned) wrong += "'" + element + "' ";
  }
  return wrong;
}

// The errors in a folder; adds the names of its programs and libraries to `seen`.
std::string wrong_in(const fs::path& folder, std::set<std::string>& seen, const std::vector<std::string>& banned = {}) {
  const std::set<std::string> others = {"CMakeFiles", "tools", "cuda", "python-packages"};  // not made by this build
  std::string wrong;
  for (auto it = fs::recursive_directory_iterator(folder); it != fs::recursive_directory_iterator(); ++it) {
    if (it->is_directory() && others.contains(it->path().filename().string())) it.disable_recursion_pending();
    if (it->is_symlink() || !it->is_regular_file()) continue;
    std::ifstream file(it->path(), std::ios::binary);
    char first[SELFMAG] = {};
    if (!file.read(first, SELFMAG) || std::memcmp(first, ELFMAG, SELFMAG)) continue;
    const auto paths = run_paths(text_of(it->path()));
    if (!paths) continue;
    const std::string name = it->path().filename().string();
    seen.insert(name.substr(0, name.find(".so") == name.npos ? name.size() : name.find(".so") + 3));
    for (const std::string& path : *paths)
      if (const std::string bad = wrong_elements(path, banned); !bad.empty())
        wrong += it->path().string() + ": '" + path + "' has " + bad + "\n";
  }
  return wrong;
}

TEST(RunPath, an_element_is_the_current_folder_or_not) {
  for (const char* const good : {"/usr/lib", "$ORIGIN", "$ORIGIN/../lib:/opt/lib"}) EXPECT_EQ(wrong_elements(good), "");
  EXPECT_EQ(wrong_elements("/a:"), "'' ");
  EXPECT_EQ(wrong_elements("/a::/b"), "'' ");
  EXPECT_EQ(wrong_elements(":/a"), "'' ");
  EXPECT_EQ(wrong_elements("lib:/a:."), "'lib' '.' ");
  EXPECT_EQ(wrong_elements("/home/me/build/x", {"/home/me/build"}), "'/home/me/build/x' ");
}

TEST(RunPath, of_what_is_built_never_leads_to_the_current_folder) {
  std::set<std::string> seen;
  EXPECT_EQ(wrong_in(ATTUNE_BUILD_DIR, seen), "");
  for (const char* const name : {"attune", "libattune.so", "libattune_tool.so", "house_runpath_test"})
    EXPECT_TRUE(seen.contains(name)) << name;
  EXPECT_EQ(seen.contains("libattune_mpi.so"), fs::exists(ATTUNE_BUILD_DIR "/libattune_mpi.so"));
  EXPECT_EQ(seen.contains("_core.abi3.so"), fs::exists(ATTUNE_BUILD_DIR "/python/attune/_core.abi3.so"));
}

TEST(RunPath, of_what_is_installed_leads_neither_there_nor_to_where_it_was_built) {
  const std::string to = temporary("installed");
  const Ran ran = spawn({ATTUNE_CMAKE, "--install", ATTUNE_BUILD_DIR, "--prefix", to});
  ASSERT_EQ(ran.code, 0) << ran.out << ran.err;
  const bool python = fs::exists(ATTUNE_BUILD_DIR "/python/attune/_core.abi3.so");
  if (python) {
    const Ran wheel = spawn({ATTUNE_CMAKE, "--install", ATTUNE_BUILD_DIR, "--prefix", to, "--component", "python"});
    ASSERT_EQ(wheel.code, 0) << wheel.out << wheel.err;
  }
  std::set<std::string> seen;
  EXPECT_EQ(wrong_in(to, seen, {ATTUNE_BUILD_DIR, ATTUNE_SOURCE_DIR}), "");
  for (const char* const name : {"attune", "libattune.so", "libattune_tool.so"})
    EXPECT_TRUE(seen.contains(name)) << name;
  EXPECT_EQ(seen.contains("_core.abi3.so"), python);
}

}  // namespace
}  // namespace attune
