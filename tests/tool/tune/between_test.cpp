// SPDX-License-Identifier: Apache-2.0
// From which length on one subject is faster than another, whichever they are, and into whose configuration that goes.
#include "tool/tune/between.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "tests/tool/records.h"
#include "tests/tool/spawn.h"

namespace attune {
namespace {

using nlohmann::json;

// Two peers on a GPU that this build need not know. The first is faster from windows of 256 keys and from 512
// compressed keys on.
std::vector<Record> peers() {
  std::vector<Record> all;
  const auto add = [&](const std::string& problem, bool is_faster) {
    for (const auto& [subject, ns] : {std::pair{"flash_attn", is_faster ? 1e3 : 2e3}, {"torch:sdpa", 1.5e3}}) {
      Record r = record(subject, 64, ns);
      r.problem = problem, r.peer = true, r.threads = 0, r.mode = "cold", r.device = "cuda:0";
      r.provenance.cpu = "", r.provenance.gpu = "NVIDIA Card of Tomorrow";
      all.push_back(r);
    }
  };
  for (const int window : {64, 128, 256, 512, 1024})
    add(join("forward bf16 b1 h8 q4096 k4096 d64 window", window - 1, ",0"), window >= 256);
  for (const int keys : {128, 256, 512, 1024})
    add(join("forward bf16 b1 h8 q", 16 * keys, " k", keys, " d64 causal@absolute/16+31"), keys >= 512);
  return all;
}
std::string written(const std::string& name, const std::vector<Record>& records) {
  std::ofstream file(temporary(name));
  for (const Record& r : records) file << to_json(r) << "\n";
  return temporary(name);
}

TEST(Between, two_peers_have_thresholds_by_window_and_by_compressed_length) {
  const Between b = between(peers(), "flash_attn", "torch:sdpa", {}, {});
  ASSERT_EQ(b.devices.size(), 1u);
  EXPECT_EQ(b.devices[0].device, "NVIDIA Card of Tomorrow");
  ASSERT_EQ(b.devices[0].thresholds.size(), 2u);
  for (const Threshold& t : b.devices[0].thresholds) {
    EXPECT_EQ(t.why_not, "");
    EXPECT_EQ(t.from, t.key.apart ? 512 : 256);
    EXPECT_EQ(t.by_window, !t.key.apart);
    EXPECT_NEAR(t.ratios.front(), 0.75, 0.01);
    EXPECT_NEAR(t.ratios.back(), 1.5, 0.01);
  }
  const Between other_way = between(peers(), "torch:sdpa", "flash_attn", {}, {});
  for (const Threshold& t : other_way.devices[0].thresholds) EXPECT_FALSE(t.from) << "slower at the longest length";
}

TEST(Between, sequences_of_one_window_are_compared_by_their_keys) {
  std::vector<Record> all = peers();
  for (size_t n = 0; n < 10; ++n)
    all[n].problem = join("forward bf16 b1 h8 q", 512 << n / 2, " k", 512 << n / 2, " d64 window127,0");
  all.resize(10);
  const Threshold t = between(all, "flash_attn", "torch:sdpa", {}, {}).devices[0].thresholds[0];
  EXPECT_FALSE(t.by_window);
  EXPECT_EQ(t.from, 2048);
  EXPECT_EQ(text_of(t), "forward bf16 d64 window heads 1-16: from 2048 on (512: 0.750x, 1024: 0.750x, 2048: 1.50x, "
                        "4096: 1.50x, 8192: 1.50x)");
}

TEST(Between, one_that_was_not_measured_is_named_and_others_are_left_out) {
  std::vector<Record> all = peers();
  for (Record& r : all)
    if (has(r.problem, "window") && r.subject == "torch:sdpa") r.subject = "torch:math";
  const Between b = between(all, "flash_attn", "torch:sdpa", {}, {});
  for (const Threshold& t : b.devices[0].thresholds)
    EXPECT_EQ(t.why_not, t.key.apart ? "" : "torch:sdpa was not measured");
  EXPECT_EQ(b.left_out.at("another subject: torch:math"), 5);
}

TEST(Between, a_wrong_or_unclear_result_decides_nothing) {
  std::vector<Record> all = peers();
  for (Record& r : all)
    if (r.subject == "flash_attn" && has(r.problem, "window1023")) r.parity.verdict = CheckVerdict::fail;
  const Between b = between(all, "flash_attn", "torch:sdpa", {}, {});
  for (const Threshold& t : b.devices[0].thresholds)
    EXPECT_EQ(t.from.has_value(), t.key.apart) << "at the longest window nothing shows that it is faster";
}

TEST(Between, one_length_or_a_wrong_result_everywhere_decides_nothing) {
  std::vector<Record> all = peers();
  all.resize(2);
  EXPECT_EQ(between(all, "flash_attn", "torch:sdpa", {}, {}).devices[0].thresholds[0].why_not,
            "only 4096 was measured; a threshold needs two");
  all = peers();
  for (Record& r : all)
    if (r.subject == "torch:sdpa") r.parity.verdict = CheckVerdict::fail;
  const Between wrong = between(all, "flash_attn", "torch:sdpa", {}, {});
  for (const Threshold& t : wrong.devices[0].thresholds)
    EXPECT_TRUE(has(t.why_not, "its result was wrong")) << t.why_not;
  EXPECT_FALSE(value_of({"x", "window"}, wrong.devices[0].thresholds).has_value());
}

TEST(Between, a_threshold_by_keys_is_none_of_windows) {
  std::vector<Record> all = peers();
  all.resize(10);
  for (size_t n = 0; n < 10; ++n)
    all[n].problem = join("forward bf16 b1 h8 q", 512 << n / 2, " k", 512 << n / 2, " d64 window127,0");
  const auto thresholds = between(all, "flash_attn", "torch:sdpa", {}, {}).devices[0].thresholds;
  EXPECT_FALSE(value_of({"x", "window"}, thresholds).has_value());
  EXPECT_FALSE(value_of({"x", "all"}, thresholds).has_value());
  EXPECT_EQ(has_one_unit({"x", "all"}, thresholds).message, "") << "these lengths are not windows";
  Threshold lengths{.from = 1024}, windows{.by_window = true, .from = 128};
  lengths.key.mask = MaskKind::causal, windows.key.mask = MaskKind::window;
  EXPECT_EQ(has_one_unit({"x", "all"}, {lengths, windows}).message,
            "--key: x=all mixes lengths (causal) with keys of a window (window); accepted is a key for each, such as "
            "x=causal");
  for (const char* what : {"causal", "window", "full"})
    EXPECT_EQ(has_one_unit({"x", what}, {lengths, windows}).message, "") << what;
  EXPECT_EQ(has_one_unit({"x", "all"}, {lengths, lengths}).message, "");
  EXPECT_EQ(has_one_unit({"x", "all"}, {windows, windows}).message, "");
}

TEST(YamlKeys, say_what_they_are_thresholds_of) {
  YamlKey k;
  EXPECT_TRUE(read_yaml_key("a.b=causal", k).ok());
  EXPECT_TRUE(k.path == "a.b" && k.what == "causal");
  EXPECT_TRUE(read_yaml_key("x.fa2_min_len_cmp", k).ok());
  EXPECT_EQ(k.what, "compressed");
  EXPECT_EQ(read_yaml_key("a=windows", k).message,
            "--key: 'a=windows' is not <path.to.key>=full|causal|window|compressed|all");
  EXPECT_FALSE(read_yaml_key(".a", k).ok());
}

const std::string kConfig = text_of(ATTUNE_SOURCE_DIR "/tests/tool/tune/base.yaml");

TEST(TuneBetween, both_thresholds_go_into_a_commented_file_and_every_other_byte_stays) {
  const std::string records = written("peers.jsonl", peers()), yaml = temporary("base.yaml");
  std::ofstream(yaml) << kConfig;
  const Ran r = attune_says({"tune", records, "--between", "flash_attn,torch:sdpa", "--yaml", yaml});
  EXPECT_EQ(r.code, 0) << r.err;
  EXPECT_TRUE(has(r.out, "NVIDIA Card of Tomorrow: flash_attn against torch:sdpa, margin 20 %\n")) << r.out;
  EXPECT_TRUE(has(r.out, "window heads 1-16: from 256 keys of the window on (64: 0.750x, ")) << r.out;
  EXPECT_TRUE(has(r.out, "causal compressed heads 1-16: from 512 on (")) << r.out;
  EXPECT_TRUE(has(r.out, "-     fa2_min_len_win:   4096     # windows\n+     fa2_min_len_win:   256     # windows\n"));
  std::string expected = kConfig;
  expected.replace(expected.find("4096     #"), 4, "256");
  expected.replace(expected.find("-1         #"), 2, "512");
  EXPECT_EQ(text_of(yaml), expected);
  EXPECT_TRUE(has(attune_says({"tune", records, "--between", "flash_attn,torch:sdpa", "--yaml", yaml}).out,
                  "nothing changes in " + yaml));
}

TEST(TuneBetween, a_key_by_its_path_and_a_dry_run) {
  const std::string records = written("peers2.jsonl", peers()), yaml = temporary("dry.yaml");
  std::ofstream(yaml) << kConfig;
  const Ran r = attune_says({"tune", records, "--between", "flash_attn,torch:sdpa", "--yaml", yaml, "--key",
                             "attention.min_window=window,attention.compressed.from=compressed", "--dry-run"});
  EXPECT_EQ(r.code, 0) << r.err;
  EXPECT_TRUE(has(r.out, "+     from: 512\n") && has(r.out, "+   min_window: 256\n")) << r.out;
  EXPECT_EQ(text_of(yaml), kConfig);
}

TEST(TuneBetween, mistakes_are_named_and_the_file_stays) {
  const std::string records = written("peers3.jsonl", peers()), yaml = temporary("kept.yaml");
  std::ofstream(yaml) << kConfig;
  const auto says = [&](std::vector<std::string> more) {
    more.insert(more.begin(), {"tune", records});
    return attune_says(more).err;
  };
  EXPECT_TRUE(has(says({"--between", "flash_attn"}), "--between: 1 name given; accepted are two that differ"));
  EXPECT_TRUE(has(says({"--between", "fa3,flash"}), "no record is of fa3; they are of flash_attn, torch:sdpa"));
  EXPECT_TRUE(has(says({"--between", "flash_attn,torch:sdap"}), "no record is of torch:sdap; they are of "));
  EXPECT_TRUE(has(says({"--yaml", "/nowhere/base.yaml", "--between", "flash_attn,torch:sdpa"}),
                  "'/nowhere/base.yaml': there is no folder '/nowhere'"));
  EXPECT_TRUE(has(says({"--between", "flash_attn,torch:sdpa", "--yaml", yaml, "--key", "fa2_min_len_wni=window"}),
                  "fa2_min_len_wni: is not in the file; a new key is named with its parent"));
  EXPECT_TRUE(has(says({"--between", "flash_attn,torch:sdpa", "--yaml", yaml, "--key", "a.b=full"}),
                  "a.b: the file has no 'a' to add it to")) << "also if no such row was measured";
  EXPECT_TRUE(has(says({"--between", "flash_attn,torch:sdpa", "--yaml", yaml, "--key", "model.name=window"}),
                  "model.name: its value 'base' is not a number"));
  EXPECT_TRUE(has(says({"--key", "a=window"}), "--key: given without --yaml"));
  EXPECT_TRUE(has(says({"--between", "flash_attn,torch:sdpa", "--yaml", yaml, "--key", "model.dims=window"}),
                  "model.dims: its value is not a plain one"));
  EXPECT_TRUE(has(says({"--between", "flash_attn,torch:sdpa", "--yaml", yaml, "--key", "a.b=window"}),
                  "a.b: the file has no 'a' to add it to"));
  EXPECT_EQ(text_of(yaml), kConfig);
}

}  // namespace
}  // namespace attune
