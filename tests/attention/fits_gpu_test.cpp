// SPDX-License-Identifier: Apache-2.0
// Which arguments the fused GPU kernels refuse, and the text of each refusal. Pure functions: no GPU required.
#include "tests/attention/refusals.h"

namespace attune {
namespace {

constexpr const char* kForward = "forward bf16 b2 h4 q128 k128 d64 causal";
constexpr const char* kBackward = "backward bf16 b2 h4 q128 k128 d64 causal";

class FitsGpu : public WithGpuCode {
 protected:
  // Backends of this build that read rows 16 bytes at a time, each with a problem line that it supports.
  static std::vector<std::pair<const char*, const char*>> in_pieces() {
    std::vector<std::pair<const char*, const char*>> all = {
        {"sm80_forward", kForward}, {"sm80_backward", kBackward}, {"sm90_forward", kForward},
        {"sm90_backward", kBackward}, {"sm80_select", kForward}, {"sm80_selected", kForward},
        {"sm80_selected_backward", kBackward}};
    std::erase_if(all, [](const auto& one) { return !find_backend(one.first); });
    return all;
  }
};

class FitsHopper : public testing::Test {
 protected:
  void SetUp() override {
    if (!find_backend("sm90_backward")) GTEST_SKIP() << "this build has no GPU code for Hopper";
  }
};

TEST_F(FitsGpu, arguments_of_a_plain_call_fit) {
  for (const auto& [who, line] : in_pieces()) EXPECT_EQ(Call(line).said(who), "") << who;
}

TEST_F(FitsGpu, a_row_that_begins_between_16_bytes_is_refused_by_name) {
  for (const auto& [who, line] : in_pieces()) {
    Call call(line);
    call.args[Role::k].data = static_cast<char*>(call.args[Role::k].data) + 2;
    EXPECT_EQ(call.said(who), join(who, ": k is not aligned to 16 bytes"));
  }
}

TEST_F(FitsGpu, a_stride_that_is_no_multiple_of_16_bytes_is_refused_with_its_axis) {
  const struct { int64_t Strides::*axis; const char* name; } axes[] = {
      {&Strides::batch, "batch"}, {&Strides::seq, "seq"}, {&Strides::head, "head"}};
  for (const auto& [who, line] : in_pieces())
    for (const auto& [axis, name] : axes) {
      Call call(line);
      call.args[Role::q].stride.*axis = 68;
      EXPECT_EQ(call.said(who),
                join(who, ": q has a ", name, " stride of 68 elements, not a multiple of 16 bytes"));
    }
}

TEST_F(FitsHopper, a_stride_that_does_not_go_forward_is_refused_as_what_it_is) {
  for (const auto& [who, line] : {std::pair{"sm90_forward", kForward}, {"sm90_backward", kBackward}}) {
    Call rows(line), heads(line), batches(line), one("forward bf16 b1 h1 q1 k128 d64 full");
    rows.args[Role::v].stride.seq = 0;
    heads.args[Role::q].stride.head = -64;
    batches.args[Role::out].stride.batch = 0;
    EXPECT_EQ(rows.said(who), join(who, ": v has a seq stride of 0 over an extent of 128; a tensor map requires a "
                                        "positive stride"));
    EXPECT_EQ(heads.said(who), join(who, ": q has a head stride of -64 over an extent of 4; a tensor map requires a "
                                         "positive stride"));
    EXPECT_EQ(batches.said(who), join(who, ": out has a batch stride of 0 over an extent of 2; a tensor map requires a "
                                           "positive stride"));
    one.args[Role::q].stride = {};
    EXPECT_EQ(one.said("sm90_forward"), "");
  }
}

// Keys and values broadcast over heads or over the batch (stride 0): the tensor map covers the one copy in memory.
TEST_F(FitsHopper, a_forward_takes_keys_and_values_that_repeat_together) {
  for (const auto axis : {&Strides::head, &Strides::batch}) {
    Call call(kForward);
    call.args[Role::k].stride.*axis = 0;
    EXPECT_NE(call.said("sm90_forward").find("k has a"), std::string::npos) << "values do not repeat with the keys";
    call.args[Role::v].stride.*axis = 0;
    EXPECT_EQ(call.said("sm90_forward"), "");
  }
}

TEST_F(FitsHopper, a_backward_says_which_arguments_it_does_not_take) {
  int32_t index[2] = {1, 0}, lengths[2] = {1, 2};
  Call shared(kBackward), empty(kBackward), wide("backward bf16 b2 h4 q128 k128 d192 causal"), longer = wide;
  shared.args[Role::cache_index] = {index, DType::i32, DeviceKind::cuda, 0, {2, 1, 1, 1}, {1, 0, 0}};
  EXPECT_EQ(shared.said("sm90_backward"), "sm90_backward: does not support cache_index: sequences may share keys");
  Call listed("backward bf16 b2 h4 q128 k128 d64 full blocks128x128x8");
  EXPECT_EQ(listed.said("sm90_backward"),
            "sm90_backward: requires the list by key block, but block_begin_k or block_row_k is not given");
  for (const Role r : {Role::block_begin_k, Role::block_row_k})
    listed.args[r] = {index, DType::i32, DeviceKind::cuda, 0, {1, 1, 1, 2}, {}};
  EXPECT_EQ(listed.said("sm90_backward"), "");
  longer.args[Role::k].extent.seq = 129;
  EXPECT_EQ(longer.said("sm90_backward"), "");
  EXPECT_EQ(wide.said("sm90_backward"), "");
  wide.args[Role::used_k] = {lengths, DType::i32, DeviceKind::cuda, 0, {2, 1, 1, 1}, {1, 0, 0}};
  EXPECT_EQ(wide.said("sm90_backward"), "");
  for (const Role r : {Role::k, Role::v, Role::dk, Role::dv}) empty.args[r].extent.seq = 0, empty.args[r].stride = {};
  EXPECT_EQ(empty.said("sm90_backward"), "");
}

TEST_F(FitsHopper, a_reproducible_backward_takes_the_gradient_of_a_bias_that_is_not_broadcast) {
  Call call("backward bf16 b2 h4 q128 k128 d64 causal bias repro=run");
  float none[1] = {};
  for (const Role r : {Role::bias, Role::d_bias})
    call.args[r] = {none, DType::f32, DeviceKind::cuda, 0, {2, 128, 4, 128}, {4 * 128 * 128, 128, 128 * 128}};
  EXPECT_EQ(call.said("sm90_backward"), "");
  for (const Role r : {Role::bias, Role::d_bias}) call.args[r].extent.head = 1, call.args[r].stride.head = 0;
  EXPECT_EQ(call.said("sm90_backward"),
            "sm90_backward: a reproducible d_bias requires a bias that is not broadcast, but this one is "
            "2 x 128 x 1 x 128");
  call.args[Role::d_bias] = {};
  EXPECT_EQ(call.said("sm90_backward"), "");
}

}  // namespace
}  // namespace attune
