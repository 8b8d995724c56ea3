// SPDX-License-Identifier: Apache-2.0
// Two lists interleaved into one stream.
#include "attention/tile/list_interleave.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <vector>

namespace attune {
namespace {

struct Stream {
  std::vector<int> of[2];   // output of each list, in order
  int loads = 0;
  int longest_wait = 0;     // longest run of key tiles from one list between two of the other
};

Stream merged(const std::vector<int>& first, const std::vector<int>& second, int most) {
  Stream out;
  ListInterleave interleave{.most = most};
  size_t left[2] = {first.size(), second.size()};
  int since[2] = {0, 0};
  while (left[0] || left[1]) {
    const int of_first = left[0] ? first[left[0] - 1] : -1, of_second = left[1] ? second[left[1] - 1] : -1;
    const auto [a, b] = interleave.next(of_first, of_second);
    EXPECT_TRUE(a || b);
    if (!(a || b)) return out;
    EXPECT_TRUE(!(a && b) || of_first == of_second);
    ++out.loads;
    for (int n : {0, 1}) {
      if (!(n ? b : a)) {
        if (left[n]) out.longest_wait = std::max(out.longest_wait, ++since[n]);
        continue;
      }
      out.of[n].push_back(n ? of_second : of_first);
      since[n] = 0, --left[n];
    }
  }
  return out;
}

std::vector<int> reversed(std::vector<int> list) {
  std::reverse(list.begin(), list.end());
  return list;
}

TEST(ListInterleave, each_list_gets_its_key_tiles_once_from_its_end_and_waits_for_no_more_than_the_most) {
  std::mt19937 random(5);
  for (int round = 0; round < 200; ++round) {
    std::vector<int> list[2];
    for (auto& l : list) {
      const int every = 1 + int(random() % 9);
      for (int k = 0; k < 60; ++k)
        if (int(random() % 10) < every) l.push_back(k);
      if (random() % 3 == 0) std::reverse(l.begin(), l.end());
      if (random() % 7 == 0) l.clear();
    }
    for (const int most : {1, 3, 7}) {
      const Stream s = merged(list[0], list[1], most);
      EXPECT_EQ(s.of[0], reversed(list[0]));
      EXPECT_EQ(s.of[1], reversed(list[1]));
      EXPECT_LE(s.longest_wait, most);
      EXPECT_LE(size_t(s.loads), list[0].size() + list[1].size());
    }
  }
}

TEST(ListInterleave, what_both_want_is_loaded_once) {
  EXPECT_EQ(merged({1, 4, 6, 9}, {1, 4, 6, 9}, 3).loads, 4);
  EXPECT_EQ(merged({0, 1, 2, 3}, {1, 3, 5}, 3).loads, 5);
  EXPECT_EQ(merged({}, {1, 3, 5}, 3).loads, 3);
}

}  // namespace
}  // namespace attune
