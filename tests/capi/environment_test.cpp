// SPDX-License-Identifier: Apache-2.0
// What the environment controls: the backend, the tuned file and its search path, the log. A device cache reads it at
// first use; a number of threads that is new to the process counts as a first use.
#include <gtest/gtest.h>
#include <stdlib.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <string>

#include "attune/attune.h"
#include "machine/host.h"
#include "plan/tuned.h"

namespace attune {
namespace {

namespace fs = std::filesystem;

class Environment : public testing::Test {
 protected:
  fs::path folder_ = fs::path(testing::TempDir()) /
                     ("attune_environment_" + std::to_string(::getpid()) + "_" +
                      testing::UnitTest::GetInstance()->current_test_info()->name());
  attune_problem problem_{};

  void SetUp() override {
    fs::create_directories(folder_ / "config/attune");
    for (const char* name : {"ATTUNE_BACKEND", "ATTUNE_TUNED", "ATTUNE_LOG"}) unsetenv(name);
    setenv("XDG_CONFIG_HOME", (folder_ / "config").c_str(), 1);
    problem_.size = sizeof problem_;
    ASSERT_EQ(attune_problem_parse("forward f32 b1 h1 q4 k4 d8 full", &problem_), 0);
  }
  void TearDown() override {
    fs::remove_all(folder_);
    for (const char* name : {"ATTUNE_BACKEND", "ATTUNE_TUNED", "ATTUNE_LOG", "XDG_CONFIG_HOME"}) unsetenv(name);
  }

  // A tuned file with one rule, for this CPU unless another device is given.
  void write(const fs::path& file, const std::string& backend, const std::string& device = this_cpu().name) {
    Tuned tuned{.device = device, .measured = "by this test"};
    tuned.rules.push_back({.dtype = DType::f32, .dim_qk = 8, .dim_v = 8, .decode = true, .backend = backend});
    std::ofstream(file) << write_tuned(tuned);
  }
  std::string why() {
    attune_plan* plan = nullptr;
    if (attune_plan_create(&problem_, nullptr, nullptr, &plan)) return attune_last_error();
    const std::string why = attune_plan_why(plan);
    attune_plan_destroy(plan);
    return why;
  }
  std::string call() {
    static float q[32], out[32];
    const int64_t shape[] = {1, 4, 1, 8};
    attune_tensor t[4]{};
    attune_args args{};
    args.size = sizeof args;
    for (int r = ATTUNE_Q; r <= ATTUNE_OUT; ++r) {
      t[r].data = r == ATTUNE_OUT ? out : q, t[r].device.type = 1, t[r].ndim = 4, t[r].shape = shape;
      t[r].dtype.code = 2, t[r].dtype.bits = 32, t[r].dtype.lanes = 1, t[r].axes = "bshd";
      args.role[r] = &t[r];
    }
    attune_call(&problem_, &args, nullptr);
    return attune_last_error();
  }
};

TEST_F(Environment, a_forced_backend_is_taken_or_is_an_error) {
  setenv("ATTUNE_BACKEND", "reference", 1);
  EXPECT_EQ(why(), "reference: selected by name");
  setenv("ATTUNE_BACKEND", "cpu_backward", 1);
  EXPECT_TRUE(why().starts_with("backend 'cpu_backward' does not support: forward f32 b1 h1 q4 k4 d8 full")) << why();
  EXPECT_EQ(attune_last_code(), ATTUNE_UNSUPPORTED);
  setenv("ATTUNE_BACKEND", "nobody", 1);
  EXPECT_TRUE(why().starts_with("backend 'nobody' is not one of ")) << why();
  EXPECT_EQ(attune_last_code(), ATTUNE_INVALID);
  ASSERT_EQ(attune_set_threads(101), 0);
  EXPECT_TRUE(call().starts_with("backend 'nobody' is not one of ")) << call();
  attune_set_threads(0);
}

TEST_F(Environment, a_tuned_file_decides_and_is_named) {
  const fs::path file = folder_ / "mine.tsv";
  write(file, "cpu_standard");
  setenv("ATTUNE_TUNED", file.c_str(), 1);
  const std::string reason = why();
  // Without a BLAS, cpu_standard refuses, and the reason contains the refusal.
  const bool chosen = reason.starts_with("cpu_standard: " + file.string() + ":");
  EXPECT_TRUE(chosen || reason.find("\n  cpu_standard: ") != reason.npos) << reason;
}

TEST_F(Environment, a_broken_tuned_file_names_file_and_line) {
  const fs::path file = folder_ / "broken.tsv";
  write(file, "cpu_forward");
  std::ofstream(file, std::ios::app) << "rule\tsideways\n";
  setenv("ATTUNE_TUNED", file.c_str(), 1);
  EXPECT_NE(why().find(file.string() + ":"), std::string::npos) << why();
  ASSERT_EQ(attune_set_threads(102), 0);
  EXPECT_NE(call().find(file.string() + ":"), std::string::npos) << call();
  attune_set_threads(0);
  setenv("ATTUNE_TUNED", (folder_ / "nowhere.tsv").c_str(), 1);
  EXPECT_EQ(why(), (folder_ / "nowhere.tsv").string() + ": cannot be read: No such file or directory");
  for (const std::string device : {"/dev/null", "/dev/zero"}) {  // /dev/zero never ends
    setenv("ATTUNE_TUNED", device.c_str(), 1);
    ASSERT_EQ(why(), device + ": is not a regular file");
  }
  write(file, "cpu_forward", "NVIDIA H200");
  setenv("ATTUNE_TUNED", file.c_str(), 1);
  EXPECT_EQ(why(), file.string() + ": was measured on 'NVIDIA H200', but this device is '" + this_cpu().name + "'");
}

TEST_F(Environment, tuned_files_are_looked_for_in_order) {
  const Device cpu = this_cpu();
  const std::string file = file_word(cpu) + ".tsv";
  EXPECT_EQ(tuned_path(cpu), "");
  write(folder_ / "config/attune" / file, "cpu_forward");
  EXPECT_EQ(tuned_path(cpu), (folder_ / "config/attune" / file).string());
  const fs::path here = fs::current_path();
  fs::create_directories(folder_ / "project/.attune");
  write(folder_ / "project/.attune" / file, "cpu_forward");
  fs::current_path(folder_ / "project");
  EXPECT_EQ(tuned_path(cpu), (folder_ / "config/attune" / file).string());  // the current folder is not searched
  setenv("ATTUNE_TUNED", ".attune", 1);
  EXPECT_EQ(tuned_path(cpu), ".attune/" + file);  // but may be named
  unsetenv("ATTUNE_TUNED");
  setenv("XDG_CONFIG_HOME", ".", 1);  // not valid if it is relative
  setenv("HOME", ".", 1);
  EXPECT_EQ(tuned_path(cpu), "");
  fs::current_path(here);
  setenv("ATTUNE_TUNED", folder_.c_str(), 1);  // a folder without a file for this device: no search elsewhere
  EXPECT_EQ(tuned_path(cpu), "");
  write(folder_ / file, "cpu_forward");
  EXPECT_EQ(tuned_path(cpu), (folder_ / file).string());
  unsetenv("ATTUNE_TUNED");
  unsetenv("XDG_CONFIG_HOME");
  setenv("HOME", folder_.c_str(), 1);
  fs::create_directories(folder_ / ".config/attune");
  write(folder_ / ".config/attune" / file, "cpu_forward");
  EXPECT_EQ(tuned_path(cpu), (folder_ / ".config/attune" / file).string());
  unsetenv("HOME");
  EXPECT_EQ(tuned_path(cpu), "");
}

TEST_F(Environment, a_file_that_is_found_is_the_users_and_of_a_sensible_size) {
  const Device cpu = this_cpu();
  const fs::path file = folder_ / "config/attune" / (file_word(cpu) + ".tsv");
  write(file, "cpu_forward");
  EXPECT_TRUE(why().starts_with("cpu_forward: " + file.string())) << why();
  fs::permissions(file, fs::perms::others_write, fs::perm_options::add);
  EXPECT_EQ(why(), file.string() + ": everyone may write to it");
  fs::permissions(file, fs::perms::others_write, fs::perm_options::remove);
  fs::resize_file(file, uintmax_t(2) << 30);  // sparse; read to its end, it would take a minute
  EXPECT_EQ(why(), file.string() + ": has more than 4194304 bytes");
  write(file, "cpu_forward");
  if (chown(file.c_str(), 65534, gid_t(-1))) GTEST_SKIP() << "requires root";
  EXPECT_EQ(why(), file.string() + ": belongs to user 65534, neither to this user nor to root");
  setenv("ATTUNE_TUNED", file.c_str(), 1);  // a file that is named may belong to anyone
  EXPECT_TRUE(why().starts_with("cpu_forward: " + file.string())) << why();
}

TEST_F(Environment, devices_have_file_names) {
  const auto word = [](const char* name) { return file_word({.name = name}); };
  EXPECT_EQ(word("NVIDIA H200"), "h200");
  EXPECT_EQ(word("Neoverse-V1"), "neoverse-v1");
  EXPECT_EQ(word("Intel(R) Xeon(R) Gold 6448Y"), "intel-r-xeon-r-gold-6448y");
  EXPECT_EQ(word("../../etc/x)"), "etc-x");
  EXPECT_EQ(word("!"), "device");
}

TEST_F(Environment, the_log_has_a_line_for_every_new_plan) {
  setenv("ATTUNE_LOG", "1", 1);
  ASSERT_EQ(attune_set_threads(103), 0);
  testing::internal::CaptureStderr();
  EXPECT_EQ(call(), "");
  EXPECT_EQ(call(), "");
  const std::string log = testing::internal::GetCapturedStderr();
  EXPECT_TRUE(log.starts_with("attune: forward f32 b1 h1 q4 k4 d8 full -> ")) << log;
  EXPECT_EQ(std::count(log.begin(), log.end(), '\n'), 1) << log;
  setenv("ATTUNE_LOG", "0", 1);
  ASSERT_EQ(attune_set_threads(104), 0);
  testing::internal::CaptureStderr();
  EXPECT_EQ(call(), "");
  EXPECT_EQ(testing::internal::GetCapturedStderr(), "");
  attune_set_threads(0);
}

}  // namespace
}  // namespace attune
