// SPDX-License-Identifier: Apache-2.0
// What the loader is told by the built and the installed files: where to search for libraries, and what to protect. An
// empty or relative element of a run path means the current folder, from which a foreign library could be loaded.
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

// The headers of a program or library.
struct Elf {
  std::vector<std::string> run_paths{};  // verbatim
  bool relro = false, bind_now = false, stack_runs = true;
};

// nullopt for other files.
std::optional<Elf> elf_of(const std::string& file) {
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
  Elf elf;
  for (const Elf64_Phdr& p : parts) {
    elf.relro = elf.relro || p.p_type == PT_GNU_RELRO;
    if (p.p_type == PT_GNU_STACK) elf.stack_runs = p.p_flags & PF_X;
    for (size_t n = 0; p.p_type == PT_DYNAMIC && n < p.p_filesz / sizeof(Elf64_Dyn); ++n) {
      const auto tag = at(Elf64_Dyn{}, p.p_offset + n * sizeof(Elf64_Dyn));
      tags[tag.d_tag].push_back(tag.d_un.d_val);
      elf.bind_now = elf.bind_now || tag.d_tag == DT_BIND_NOW ||
                     (tag.d_tag == DT_FLAGS && tag.d_un.d_val & DF_BIND_NOW);
    }
  }
  for (const Elf64_Phdr& p : parts) {
    const Elf64_Xword names = tags[DT_STRTAB].empty() ? 0 : tags[DT_STRTAB][0];
    if (p.p_type != PT_LOAD || names < p.p_vaddr || names >= p.p_vaddr + p.p_filesz) continue;
    for (const Elf64_Sxword kind : {DT_RPATH, DT_RUNPATH})
      for (const Elf64_Xword name : tags[kind])
        elf.run_paths.push_back(file.c_str() + p.p_offset + (names - p.p_vaddr) + name);
  }
  return elf;
}

// What a file that is installed lacks. Only some files have a buffer on the stack or copy text.
std::string unprotected(const Elf& elf, const std::string& file, const std::string& name) {
  std::string wrong;
  if (!elf.relro || !elf.bind_now) wrong += " full RELRO (-z relro -z now)";
  if (elf.stack_runs) wrong += " a stack that does not run";
#ifdef NDEBUG  // a release build
  const bool is_large = name == "attune" || name.starts_with("libattune.so") || name.starts_with("libattune_tool.so");
  if (is_large && !has(file, "__stack_chk_fail")) wrong += " -fstack-protector-strong";
  if (is_large && !has(file, "__memcpy_chk") && !has(file, "__read_chk") &&
      !has(file, "__snprintf_chk") && !has(file, "__vsnprintf_chk"))
    wrong += " _FORTIFY_SOURCE";
#else
  (void)file, (void)name;
#endif
  return wrong.empty() ? "" : name + " lacks" + wrong + "\n";
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

// The errors in a folder; adds the names of its programs and libraries to `seen`. Paths into `banned` folders, and a
// lack of protection, count for what is installed.
std::string wrong_in(const fs::path& folder, std::set<std::string>& seen, const std::vector<std::string>& banned = {}) {
  const std::set<std::string> others = {"CMakeFiles", "tools", "cuda", "python-packages"};  // not made by this build
  std::string wrong;
  for (auto it = fs::recursive_directory_iterator(folder); it != fs::recursive_directory_iterator(); ++it) {
    if (it->is_directory() && others.contains(it->path().filename().string())) it.disable_recursion_pending();
    if (it->is_symlink() || !it->is_regular_file()) continue;
    std::ifstream file(it->path(), std::ios::binary);
    char first[SELFMAG] = {};
    if (!file.read(first, SELFMAG) || std::memcmp(first, ELFMAG, SELFMAG)) continue;
    const std::string text = text_of(it->path()), name = it->path().filename().string();
    const auto elf = elf_of(text);
    if (!elf) continue;
    if (!banned.empty()) wrong += unprotected(*elf, text, name);
    seen.insert(name.substr(0, name.find(".so") == name.npos ? name.size() : name.find(".so") + 3));
    for (const std::string& path : elf->run_paths)
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
  for (const char* const text : {"LICENSE", "THIRD_PARTY_NOTICES.md"}) {
    const auto all = fs::recursive_directory_iterator(to);
    EXPECT_TRUE(std::any_of(begin(all), end(all), [&](const auto& e) { return e.path().filename() == text; })) << text;
  }
  std::set<std::string> seen;
  EXPECT_EQ(wrong_in(to, seen, {ATTUNE_BUILD_DIR, ATTUNE_SOURCE_DIR}), "");
  for (const char* const name : {"attune", "libattune.so", "libattune_tool.so"})
    EXPECT_TRUE(seen.contains(name)) << name;
  EXPECT_EQ(seen.contains("_core.abi3.so"), python);
}

}  // namespace
}  // namespace attune
