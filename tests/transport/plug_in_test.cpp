// SPDX-License-Identifier: Apache-2.0
// Where the MPI plug-in is loaded from: the tree of the program itself, however it is invoked, and never the current
// folder, which may be untrusted.
#include <gtest/gtest.h>

#include <filesystem>

#include "machine/library.h"
#include "tests/tool/spawn.h"

namespace attune {
namespace {

namespace fs = std::filesystem;
const std::string kAttune = ATTUNE_BUILD_DIR "/attune", kPlugIn = "libattune_mpi.so";

void put(const std::string& file, const std::string& at) {
  fs::create_directories(fs::path(at).parent_path());
  fs::copy_file(file, at, fs::copy_options::overwrite_existing);
}

class PlugIn : public testing::Test {
 protected:
  void SetUp() override {
    if (!fs::exists(kAttune)) GTEST_SKIP() << "the command is not built";
    // A working folder, surrounded by everything that a relative name could reach.
    for (const char* const at : {"x/work/", "x/work/lib/", "x/lib/", "x/work/" ATTUNE_LIBDIR "/",
                                 "x/" ATTUNE_LIBDIR "/"})
      put(ATTUNE_SAYS_WHERE, temporary(at + kPlugIn));
    // The libraries that the command and the plug-in link against, or open on request.
    for (const char* const name : {"libgcc_s.so.1", "libstdc++.so.6", "libm.so.6", "libfmt.so.9", "libmpi.so.40",
                                   "libopen-pal.so.40", "libopenblas.so.0", "libsqlite3.so.0", "libcuda.so.1"})
      put(ATTUNE_SAYS_WHERE, temporary(std::string("x/work/") + name));
  }
  // Runs the command in that folder, in an environment that indicates MPI.
  Ran in_work(const std::string& command, const std::string& path = "/usr/bin:/bin",
              const std::string& mpi = "OMPI_COMM_WORLD_SIZE=1") {
    return spawn({"env", "-C", temporary("x/work"), "-u", "LD_LIBRARY_PATH", "PATH=" + path, mpi, command, "parity",
                  "--ring", "--case", "forward f32 b1 h1 q16 k16 d8 full"});
  }
};

TEST_F(PlugIn, none_is_taken_from_the_current_folder) {
  put(kAttune, temporary("alone/attune"));  // without a plug-in next to it
  fs::create_directories(temporary("links"));
  fs::create_symlink(temporary("alone/attune"), temporary("links/attune"));
  for (const char* const mpi : {"OMPI_COMM_WORLD_SIZE=1", "PMI_SIZE=1", "PMIX_RANK=0"})
    for (const auto& [command, path] : std::vector<std::pair<std::string, std::string>>{
             {"attune", temporary("alone")},
             {"attune", temporary("links")},
             {"attune", "../../alone"},
             {"../../alone/attune", "/bin"},
             {temporary("alone/attune"), "/bin"}}) {
      const Ran ran = in_work(command, path, mpi);
      EXPECT_EQ(ran.code, 3) << ran.out << ran.err;
      EXPECT_FALSE(has(ran.err, "opened ")) << mpi << ", " << command << " of " << path << ": " << ran.err;
      EXPECT_TRUE(has(ran.err, "attune parity: MPI: ")) << ran.err;
      EXPECT_TRUE(has(ran.err, join(fs::canonical(temporary("alone")).string(), "/", kPlugIn))) << ran.err;
    }
}

TEST_F(PlugIn, of_the_build_folder_is_found_from_path) {
  for (const std::string& command : {kAttune, std::string("attune")}) {
    const Ran ran = in_work(command, ATTUNE_BUILD_DIR ":/usr/bin:/bin");
    EXPECT_FALSE(has(ran.err, "opened ")) << ran.err;
    if (fs::exists(ATTUNE_BUILD_DIR "/" + kPlugIn)) {
      EXPECT_FALSE(has(ran.err, "cannot be opened")) << ran.err;
    }
  }
}

TEST_F(PlugIn, of_an_installed_tree_is_found_however_the_command_is_called) {
  const std::string own = temporary("tree/" ATTUNE_LIBDIR "/" + kPlugIn);
  put(kAttune, temporary("tree/bin/attune"));
  put(ATTUNE_SAYS_WHERE, own);
  fs::create_directories(temporary("names"));
  fs::create_symlink(temporary("tree/bin/attune"), temporary("names/attune"));
  fs::create_symlink("../tree/bin/attune", temporary("names/other"));
  for (const auto& [command, path] : std::vector<std::pair<std::string, std::string>>{
           {"attune", temporary("tree/bin")},
           {"attune", "../../tree/bin"},
           {"attune", temporary("names")},
           {"other", temporary("names")},
           {temporary("names/other"), "/bin"},
           {temporary("tree/bin/attune"), "/bin"},
           {"../../tree/bin/attune", "/bin"}}) {
    const Ran ran = in_work(command, path);
    EXPECT_EQ(ran.code, 3) << ran.out << ran.err;
    EXPECT_EQ(ran.err, "opened " + fs::canonical(own).string() + "\nattune parity: MPI: this is a stand-in\n")
        << command << " of " << path;
  }
}

TEST(Library, a_path_that_is_relative_to_the_current_folder_is_not_opened) {
  const Library none({"../lib/libattune_mpi.so", "./libc.so.6"}, {});
  EXPECT_FALSE(none.ok());
  EXPECT_EQ(none.missed(), "../lib/libattune_mpi.so is not opened: the path is relative to the current folder; "
                           "./libc.so.6 is not opened: the path is relative to the current folder");
}

TEST(OwnFile, is_this_program_behind_links) {
  EXPECT_EQ(own_file(), fs::read_symlink("/proc/self/exe").string());
}

}  // namespace
}  // namespace attune
