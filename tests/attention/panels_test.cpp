// SPDX-License-Identifier: Apache-2.0
// How rows are divided into panels of two sizes.
#include <gtest/gtest.h>

#include "attention/cpu/query_rows.h"
#include "machine/host.h"

namespace attune::cpu {
namespace {

std::vector<const CpuKernels*> machines() {
  std::vector<const CpuKernels*> all;
  for (const DType t : {DType::f32, DType::f16, DType::bf16})
    for (const uint32_t features : {0u, this_cpu().features}) all.push_back(best_kernels(t, features));
  return all;
}

TEST(Panels, hold_every_row_once_and_never_more_than_large_ones_would) {
  for (const CpuKernels* m : machines())
    for (const bool mixed : {false, true})
      for (int rows = 1; rows <= 300; ++rows) {
        const Panels panels(*m, rows, mixed);
        int next = 0;
        for (int n = 0; n < panels.count(); ++n) {
          ASSERT_EQ(panels.first(n), next) << rows;
          ASSERT_TRUE(panels[n].rows == m->rows || (mixed && &panels[n] == smaller_panels(*m)));
          next += panels[n].rows;
        }
        ASSERT_LE(panels.count(), kMaxPanels) << rows;
        ASSERT_EQ(panels.rows(), next);
        ASSERT_GE(next, rows);
        ASSERT_LE(next, round_up(rows, m->rows));
        ASSERT_LT(panels.first(panels.count() - 1), rows) << "an empty panel";
      }
}

TEST(Panels, small_ones_fill_what_large_ones_would_leave_empty) {
  const CpuKernels& m = *best_kernels(DType::f32, this_cpu().features);
  const CpuKernels* small = smaller_panels(m);
  if (!small) GTEST_SKIP() << "requires f32 kernels with panels of two sizes, but those of this CPU have one";
  ASSERT_EQ(small->rows, 8);
  for (const int rows : {8, 16, 32, 64, 128, 256}) EXPECT_EQ(Panels(m, rows).rows(), rows);
  EXPECT_EQ(Panels(m, 64).count(), 6);
  EXPECT_EQ(Panels(m, 96).count(), 8) << "what large ones fill is theirs";
}

TEST(Panels, steps_begin_with_a_panel_and_with_a_step_of_keys) {
  for (const CpuKernels* m : machines())
    for (int rows = m->keys; rows <= 200; rows += m->keys) {
      const Panels panels(*m, rows);
      std::vector<bool> begins(size_t(rows) + 1);
      for (int n = 0; n < panels.count(); ++n) begins[size_t(panels.first(n))] = panels.first(n) % m->keys == 0;
      for (int row = 0; row < rows; ++row) {
        const int before = panels.step_before(row), behind = panels.step_behind(row);
        ASSERT_TRUE(before <= row && row <= behind && begins[size_t(before)]) << row << " of " << rows;
        if (behind < rows) {
          ASSERT_TRUE(begins[size_t(behind)]) << row << " of " << rows;
        }
        ASSERT_EQ(before == row, behind == row);
      }
    }
}

}  // namespace
}  // namespace attune::cpu
