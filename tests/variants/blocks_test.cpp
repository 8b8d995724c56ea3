// SPDX-License-Identifier: Apache-2.0
// Lists compared with the definitions of the patterns, restated here token by token without the library's index
// arithmetic. For GPU lists see tests/cuda/variants/blocks_test.cpp.
#include "variants/blocks/blocks.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstdlib>
#include <functional>
#include <set>

#include "tests/asked.h"
#include "tests/variants/lists.h"

namespace attune {
namespace {

using Meaning = std::function<bool(int head, int i, int j, int blocks)>;

struct Named {
  const char* text;
  Meaning active;  // of blocks of 64 tokens
};

const std::vector<Named>& all_patterns() {
  static const std::vector<Named> all = {
      {"dense", [](int, int, int, int) { return true; }},
      {"local_window window=320", [](int, int i, int j, int) { return j >= i - 2 && j <= i + 2; }},
      {"dilated_rates rates=2,5,7",
       [](int, int i, int j, int) { return std::set<int>{i, i - 2, i + 2, i - 5, i + 5, i - 7, i + 7}.count(j) > 0; }},
      {"dilated_offsets ratio=0.3 rates=1,2,4,8",
       [](int head, int i, int j, int blocks) {
         const int rates[] = {1, 2, 4, 8}, k = blocks * 3 / 20;
         for (int o = -k; o <= k; ++o)
           if (i + o * rates[head % 4] == j) return true;
         return false;
       }},
      {"dilated_multiples strides=4,6",
       [](int, int i, int j, int) { return std::abs(i - j) <= 1 || (i % 4 + j % 4 == 0) || (i % 6 + j % 6 == 0); }},
      {"global_local global=100 window=256", [](int, int i, int j, int) { return j <= 1 || std::abs(i - j) <= 2; }},
      {"global_local global=64 window=128 rows=1",
       [](int, int i, int j, int) { return i == 0 || j == 0 || std::abs(i - j) <= 1; }},
      {"strided stride=3", [](int, int i, int j, int) { return j % 3 == 0 || std::abs(i - j) <= 1; }},
      {"hierarchical strides=64,256,512 windows=192,640,0",
       [](int, int i, int j, int) {
         return std::abs(i - j) <= 1 || (i % 4 == 0 && std::abs(i - j) <= 5) || i % 8 == 0;
       }},
      {"streaming sink=70 local=200", [](int, int i, int j, int) { return j < 2 || std::abs(i - j) <= 3; }},
      {"local_window window=64 kinds=sparse,dense,streaming,streaming sink=64 local=64",
       [](int head, int i, int j, int) {
         return head == 0 ? i == j : head == 1 ? true : j == 0 || i == j;
       }},
  };
  return all;
}

// Whether the band shows any pair of the two blocks, token by token.
bool any_visible(const Problem& p, int len_q, int len_k, int i, int j) {
  const Band band = band_of(p.mask, len_q, len_k, 0, 0);
  for (int a = i * p.mask.blocks.q; a < std::min(len_q, (i + 1) * p.mask.blocks.q); ++a)
    for (int b = j * p.mask.blocks.k; b < std::min(len_k, (j + 1) * p.mask.blocks.k); ++b)
      if (band.visible(a, b)) return true;
  return false;
}

void expect_pattern(const Named& named, const Problem& asked) {
  SCOPED_TRACE(join(named.text, " in ", name(asked)));
  Lists lists(asked, named.text);
  ASSERT_EQ(lists.build().message, "");
  const Problem& p = lists.problem;
  const int offset = p.mask.align == Align::top_left ? 0 : p.len_k - p.len_q;
  const int blocks = int(ceil_div(p.len_k, 64));
  int64_t active = 0, shown = 0, longest = 0;
  for (int list = 0; list < lists.count(); ++list)
    for (int i = 0; i < lists.rows(); ++i) {
      std::vector<int> want;
      for (int j = 0; j < lists.columns(); ++j) {
        if (!any_visible(p, p.len_q, p.len_k, i, j)) continue;
        ++shown;
        bool in = false;  // for any token of the block, by the block at its position
        for (int t = i * p.mask.blocks.q; t < std::min(p.len_q, (i + 1) * p.mask.blocks.q); ++t) {
          const int at = std::min(std::max(t + offset, 0), p.len_k - 1);
          in |= named.active(list % p.heads_q, at / 64, j, blocks);
        }
        if (in) want.push_back(j);
      }
      EXPECT_EQ(lists.row(list, i), want) << "list " << list << " row " << i;
      active += int64_t(want.size());
      longest = std::max(longest, int64_t(want.size()));
    }
  EXPECT_EQ(lists.counts(), (std::vector<int64_t>{active, shown, longest, 0}));
  EXPECT_LE(active, p.mask.blocks.bound);
}

TEST(Blocks, every_pattern_is_what_it_is_said_to_be) {
  for (const Named& named : all_patterns())
    for (const char* line : {"forward f32 b1 h4 q1280 k1280 d64 full blocks64x64x1",
                             "forward f32 b1 h4 q1280 k1280 d64 causal blocks64x64x1",
                             "forward f32 b1 h4 q1000 k1250 d64 full blocks64x64x1"})
      expect_pattern(named, problem(line));
}

TEST(Blocks, causal_is_by_absolute_position_where_queries_are_fewer) {
  for (const Named& named : all_patterns())
    for (const char* line : {"forward f32 b1 h4 q300 k1210 d64 causal blocks64x64x1",
                             "forward f32 b1 h4 q640 k1280 d64 causal blocks64x64x1",
                             "forward f32 b1 h4 q640 k320 d64 causal blocks64x64x1",
                             "forward f32 b1 h4 q500 k900 d64 causal@top_left blocks64x64x1",
                             "forward f32 b1 h4 q512 k1024 d64 window300,100 blocks64x64x1"})
      expect_pattern(named, problem(line));
}

TEST(Blocks, query_blocks_may_be_larger_or_smaller_than_key_blocks) {
  for (const Named& named : all_patterns())
    for (const char* line : {"forward f32 b1 h4 q1280 k1280 d64 causal blocks128x64x1",
                             "forward f32 b1 h4 q700 k1280 d64 causal blocks32x64x1"})
      expect_pattern(named, problem(line));
}

TEST(Blocks, the_list_by_key_block_is_the_transpose) {
  for (const Named& named : all_patterns()) {
    Lists lists(problem("forward f32 b2 h4 q900 k1100 d64 causal blocks64x64x1"), named.text);
    ASSERT_EQ(lists.build().message, "");
    for (int list = 0; list < lists.count(); ++list)
      for (int j = 0; j < lists.columns(); ++j) {
        std::vector<int> want;
        for (int i = 0; i < lists.rows(); ++i)
          for (const int column : lists.row(list, i))
            if (column == j) want.push_back(i);
        EXPECT_EQ(lists.row_k(list, j), want) << named.text << " list " << list << " key block " << j;
      }
  }
}

TEST(Blocks, a_random_pattern_has_exactly_the_density_that_was_asked_for) {
  for (const char* line : {"forward f32 b2 h4 q4096 k4096 d64 full blocks64x64x1",
                           "forward f32 b1 h3 q4096 k4096 d64 causal blocks64x64x1"}) {
    int64_t before = -1;
    for (const double density : {0., 0.05, 0.1, 0.25, 0.5, 0.9, 1.}) {
      Lists lists(problem(line), join("random density=", density, " seed=3"));
      ASSERT_EQ(lists.build().message, "");
      const int64_t active = lists.counts()[0], shown = lists.counts()[1];
      EXPECT_EQ(active, lists.count() * std::llround(density * double(shown / lists.count()))) << density;
      EXPECT_EQ(lists.problem.mask.blocks.bound, std::max<int64_t>(active, 1)) << density;
      EXPECT_GT(active, before);  // depends on the density
      before = active;
    }
  }
}

TEST(Blocks, the_rows_of_a_random_pattern_are_balanced) {
  Lists lists(problem("forward f32 b1 h2 q4096 k4096 d64 full blocks64x64x1"), "random density=0.3 seed=1");
  ASSERT_EQ(lists.build().message, "");
  for (int list = 0; list < 2; ++list)
    for (int i = 0; i < lists.rows(); ++i) {
      const auto row = lists.row(list, i);
      EXPECT_TRUE(row.size() == 19 || row.size() == 20) << row.size();  // 19.2 of 64
      EXPECT_TRUE(std::is_sorted(row.begin(), row.end()));
    }
}

TEST(Blocks, a_seed_repeats_and_another_differs) {
  const auto columns = [](const char* text) {
    Lists lists(problem("forward f32 b1 h2 q4096 k4096 d64 causal blocks64x64x1"), text);
    EXPECT_EQ(lists.build().message, "");
    EXPECT_NE(lists.row(0, 60), lists.row(1, 60));  // heads draw independently
    return lists.column;
  };
  EXPECT_EQ(columns("random density=0.3 seed=5"), columns("random density=0.3 seed=5"));
  EXPECT_NE(columns("random density=0.3 seed=5"), columns("random density=0.3 seed=6"));
}

TEST(Blocks, a_mask_gives_its_blocks_less_what_the_band_hides) {
  for (const bool shared : {false, true}) {
    Lists lists(problem("forward f32 b2 h3 q700 k900 d64 causal blocks64x64x1"), "dense");
    const int rows = lists.rows(), columns = lists.columns();
    std::vector<uint8_t> mask(size_t(2 * 3 * rows * columns));
    for (size_t n = 0; n < mask.size(); ++n) mask[n] = uint8_t(n * n % 3 == 1 ? 200 : 0);
    const int64_t list = int64_t(rows) * columns;
    lists.source = {.origin = BlockOrigin::mask,
                    .mask = {mask.data(), shared ? 0 : 3 * list, shared ? 0 : list, columns}};
    ASSERT_EQ(lists.build().message, "");
    for (int l = 0; l < 6; ++l)
      for (int i = 0; i < rows; ++i) {
        std::vector<int> want;
        for (int j = 0; j < columns; ++j)
          if (mask[size_t((shared ? 0 : l) * list + i * columns + j)] && any_visible(lists.problem, 700, 900, i, j))
            want.push_back(j);
        EXPECT_EQ(lists.row(l, i), want) << l << " " << i;
      }
  }
}

TEST(Blocks, what_the_bound_has_no_room_for_is_dropped_and_counted) {
  Lists lists(problem("forward f32 b1 h2 q640 k640 d64 full blocks64x64x1"), "dense");
  lists.problem.mask.blocks.bound = 150;  // of 200
  ASSERT_EQ(lists.build().message, "");
  EXPECT_EQ(lists.counts(), (std::vector<int64_t>{150, 200, 10, 50}));
  EXPECT_EQ(lists.begin.back(), 150);
  EXPECT_EQ(lists.row(1, 4).size(), 10u);
  EXPECT_EQ(lists.row(1, 5).size(), 0u);
}

TEST(Blocks, lists_of_the_caller_are_turned_round_in_any_order) {
  Lists lists(problem("forward f32 b1 h1 q256 k256 d64 full blocks64x64x1"), "dense");
  lists.begin = {0, 3, 3, 5, 6}, lists.column = {2, 0, 3, 3, 0, 1};
  lists.problem.mask.blocks.bound = 6;
  lists.source.origin = BlockOrigin::lists;
  lists.row_of_key.assign(6, -1);
  ASSERT_EQ(lists.build().message, "");
  EXPECT_EQ(lists.begin_k, (std::vector<int32_t>{0, 2, 3, 4, 6}));
  EXPECT_EQ(lists.row_of_key, (std::vector<int32_t>{0, 2, 3, 0, 0, 2}));
}

// Hidden blocks do not count towards the density; neither do invalid entries.
TEST(Blocks, of_lists_of_the_caller_the_blocks_that_are_shown_are_counted) {
  Lists lists(problem("forward f32 b1 h2 q256 k256 d64 causal blocks64x64x1"), "dense");
  lists.begin = {0, 1, 3, 3, 6, /* the second */ 6, 7, 7, 7, 9}, lists.column = {0, 1, 3, 3, 0, 99, -1, 2, 2};
  lists.problem.mask.blocks.bound = 8;  // of 9
  lists.source.origin = BlockOrigin::lists;
  lists.place();
  lists.args[Role::block_begin_k] = lists.args[Role::block_row_k] = {};
  ASSERT_EQ(build_blocks(lists.problem, lists.args, lists.source, nullptr).message, "");
  EXPECT_EQ(lists.counts(), (std::vector<int64_t>{1 + 1 + 2 + 1, 2 * 10, 3, 1}));
}

TEST(Blocks, sequences_of_other_lengths_have_other_lists) {
  // Two sequences of 700 and 130 queries over 1000 and 500 keys; bottom-right aligned each.
  const Problem asked = problem("forward f32 b2 h1 q700 k1000 d64 causal blocks64x64x1");
  std::vector<int32_t> used_q = {700, 130}, used_k = {1000, 500};
  Lists lists(asked, "local_window window=192", false);
  const auto lengths = [](std::vector<int32_t>& v) {
    return Tensor{.data = v.data(), .dtype = DType::i32, .extent = {2, 1, 1, 1}, .stride = {1, 0, 0}};
  };
  lists.args[Role::used_q] = lengths(used_q), lists.args[Role::used_k] = lengths(used_k);
  ASSERT_EQ(lists.build().message, "");
  for (int b = 0; b < 2; ++b)
    for (int i = 0; i < lists.rows(); ++i) {
      std::vector<int> want;
      for (int j = 0; j < lists.columns(); ++j) {
        bool in = false;
        for (int t = i * 64; t < std::min(used_q[size_t(b)], (i + 1) * 64); ++t)
          in |= std::abs((t + used_k[size_t(b)] - used_q[size_t(b)]) / 64 - j) <= 1;
        if (in && any_visible(lists.problem, used_q[size_t(b)], used_k[size_t(b)], i, j)) want.push_back(j);
      }
      EXPECT_EQ(lists.row(b, i), want) << b << " " << i;
    }
  EXPECT_EQ(lists.counts()[3], 0);
}

TEST(Blocks, bounds_hold_whatever_the_lengths_are) {
  for (const Named& named : all_patterns()) {
    Lists lists(problem("forward f32 b1 h4 q640 k1280 d64 causal blocks128x64x1"), named.text, false);
    std::vector<int32_t> used_q(1), used_k(1);
    const auto length = [](std::vector<int32_t>& v) {
      return Tensor{.data = v.data(), .dtype = DType::i32, .extent = {1, 1, 1, 1}};
    };
    lists.args[Role::used_q] = length(used_q), lists.args[Role::used_k] = length(used_k);
    for (used_q[0] = 1; used_q[0] <= 640; used_q[0] += 71)
      for (used_k[0] = 1; used_k[0] <= 1280; used_k[0] += 103) {
        ASSERT_EQ(lists.build().message, "");
        ASSERT_EQ(lists.counts()[3], 0) << named.text << " " << used_q[0] << " " << used_k[0];
      }
  }
}

// A single row that straddles two key blocks: no other row leaves space for it.
TEST(Blocks, a_bound_counts_blocks_astride) {
  Lists lists(problem("forward f32 b1 h1 q64 k640 d64 causal blocks64x64x1"), "local_window window=0", false);
  std::vector<int32_t> used_k = {100};
  lists.args[Role::used_k] = {.data = used_k.data(), .dtype = DType::i32, .extent = {1, 1, 1, 1}};
  ASSERT_EQ(lists.build().message, "");
  EXPECT_EQ(lists.row(0, 0), (std::vector<int>{0, 1}));
  EXPECT_EQ(lists.counts()[3], 0);
}

TEST(Blocks, what_does_not_fit_is_refused_in_words) {
  Lists one(problem("forward f32 b1 h4 q640 k640 d64 full blocks64x64x1"), "dense");
  EXPECT_EQ(one.build().message, "");
  Lists random(problem("forward f32 b1 h4 q640 k640 d64 full blocks64x64x1"), "random density=0.5");
  random.args[Role::block_begin].extent.head = 1;
  EXPECT_EQ(build_blocks(random.problem, random.args, random.source, nullptr).message,
            "blocks: the list by query block has no tensor for its rows");
  random.place();
  random.args[Role::block_begin].extent.head = random.args[Role::block_begin_k].extent.head = 1;
  EXPECT_EQ(build_blocks(random.problem, random.args, random.source, nullptr).message,
            "blocks: random differs by head; it requires a list for each of the 4 heads");
  random.place();
  random.args[Role::block_column].extent.dim -= 1;
  EXPECT_NE(build_blocks(random.problem, random.args, random.source, nullptr).message.find("the bound is 200"),
            std::string::npos);
  random.place();
  random.args[Role::block_begin].extent.dim = 10;
  EXPECT_NE(build_blocks(random.problem, random.args, random.source, nullptr).message.find("at least 11"),
            std::string::npos);
  random.place();
  random.args[Role::block_row_k].dtype = DType::i64;
  EXPECT_EQ(build_blocks(random.problem, random.args, random.source, nullptr).message,
            "blocks: the list by key block is not i32");
  random.place();
  random.args[Role::block_row_k] = random.args[Role::block_begin_k] = {};
  random.source.origin = BlockOrigin::lists, random.source.counts = nullptr;
  EXPECT_EQ(build_blocks(random.problem, random.args, random.source, nullptr).message,
            "blocks: a list by query block given, but neither a list by key block nor counts");
}

}  // namespace
}  // namespace attune
