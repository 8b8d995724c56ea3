// SPDX-License-Identifier: Apache-2.0
// Whether a bundle runs on a machine is decided by what the machine says, in one sentence.
#include "tool/remote/run/bundle.h"

#include <gtest/gtest.h>

#include "tests/tool/spawn.h"
#include "tool/files.h"
#include "tool/remote/process.h"
#include "tool/remote/run/lease.h"

namespace attune {
namespace {

const Bundle kBundle{.architecture = "x86_64", .glibc_minor = 34, .gpus = ""};
std::string why(const std::string& probe, bool wants_gpu = false, const Bundle& b = kBundle) {
  return fits(b, probe, wants_gpu).message;
}

TEST(Bundle, a_machine_that_lacks_something_is_a_sentence) {
  EXPECT_EQ(why("machine x86_64\nglibc 2.34\n"), "");
  EXPECT_EQ(why("machine x86_64\nglibc 2.100\n"), "");
  EXPECT_EQ(why("machine aarch64\nglibc 2.36\n"), "the machine is aarch64, and the bundle is for x86_64; give one of "
                                                  "that build with --bundle");
  EXPECT_EQ(why("machine x86_64\nglibc 2.31\n"), "the machine has glibc 2.31; the bundle needs 2.34");
  EXPECT_EQ(why("machine x86_64\nglibc \n"), "the machine has glibc of no known version; the bundle needs 2.34");
  EXPECT_EQ(why("machine x86_64\nglibc 2.36\nlacks tar\n"), "the machine lacks the program 'tar'");
  EXPECT_EQ(why("machine \x1b]0;x\a\n"), "the machine is \\u001b]0;x\\u0007, and the bundle is for x86_64; give one "
                                         "of that build with --bundle");
  EXPECT_EQ(why("machine x86_64\nglibc 2.36\n", true), "the machine has no GPU that nvidia-smi shows");
  EXPECT_EQ(why("machine x86_64\nglibc 2.36\ngpu NVIDIA L4\n", true),
            "the bundle has no GPU code: it was left out of this build");
  EXPECT_EQ(why("machine x86_64\nglibc 2.36\ngpu NVIDIA L4\n", true,
                {.architecture = "x86_64", .glibc_minor = 34, .gpus = "sm_89"}), "");
  const Bundle some{.architecture = "x86_64", .glibc_minor = 34, .gpus = "sm_75, sm_80 and PTX of sm_80"};
  for (const char* gpu : {"Tesla T4", "NVIDIA A100-SXM4-80GB", "NVIDIA L4", "L4_24GB", "H200_141GB", "No known GPU"})
    EXPECT_EQ(why(join("gpu ", gpu, "\n"), true, some), "") << gpu;
  EXPECT_EQ(why("gpu T4\n", true, {.gpus = "sm_80 and PTX of sm_80"}),
            "the GPU T4 is sm_75, and the bundle has code for sm_80 and PTX of sm_80; ATTUNE_CUDA_ARCHS selects what "
            "is built");
  EXPECT_EQ(why("gpu H200_141GB\n", true, {.gpus = "sm_89"}),
            "the GPU H200_141GB is sm_90, and the bundle has code for sm_89; ATTUNE_CUDA_ARCHS selects what is built");
}

TEST(Bundle, another_file_is_not_a_bundle) {
  const std::string path = temporary("no_bundle");
  ASSERT_TRUE(write_file(path, "x").ok());
  Bundle b;
  EXPECT_EQ(read_bundle(path, b).message, "--bundle: '" + path + "' is not a bundle of attune");
}

TEST(Process, a_program_has_a_limit_and_its_streams_are_apart) {
  ProgramResult r;
  EXPECT_EQ(run_program({.words = {"sh", "-c", "cat; echo e >&2; exit 3"}, .input = "in"}, r).message, "");
  EXPECT_EQ(r.out + r.err + std::to_string(r.code), "ine\n3");
  EXPECT_EQ(run_program({.words = {"sleep", "100"}, .limit_s = 1}, r).message, "'sleep' did not end within 1 s");
  EXPECT_EQ(run_program({.words = {"no_such_program"}}, r).message, "the program 'no_such_program' is not here");
  EXPECT_EQ(run_program({.words = {"sh", "-c", "kill -9 $$"}}, r).message, "");
  EXPECT_EQ(r.code, 128 + 9);
  EXPECT_EQ(run_program({.words = {"sh", "-c", "sleep 100 & echo now"}, .limit_s = 20}, r).message, "");
  EXPECT_EQ(r.out, "now\n");
}

TEST(RunLock, one_process_holds_it_and_its_end_lets_it_go) {
  const std::string path = temporary("lock");
  EXPECT_FALSE(is_held(path));
  {
    RunLock one, two;
    EXPECT_TRUE(one.take(path));
    EXPECT_FALSE(two.take(path));
    EXPECT_TRUE(is_held(path));
    one.note_owner();
    EXPECT_EQ(owner_of(path), getpid());
    ASSERT_TRUE(detach(one, temporary("log"), [] { return usleep(300'000), 0; }).ok());
  }
  EXPECT_TRUE(is_held(path)) << "the child has it";
  EXPECT_TRUE(comes([&] { return !is_held(path); }));
}

}  // namespace
}  // namespace attune
