// SPDX-License-Identifier: Apache-2.0
// Keeps records in one SQLite file, for history, trends and baselines. Each record is stored as its line, so nothing is
// lost and a store can be written out again; the other columns only serve searching. SQLite is opened at run time;
// without it every function fails with a message.
#pragma once
#include <span>
#include <string>
#include <vector>

#include "tool/record/record.h"

namespace attune {

// $ATTUNE_STORE, or attune/records.db below $XDG_DATA_HOME or ~/.local/share. Empty if none of them is set.
std::string default_store();

class Store {
 public:
  Store() = default;
  Store(const Store&) = delete;
  Store& operator=(const Store&) = delete;
  ~Store();

  // With `create`, a missing store is created together with its folder. A file of another kind is refused.
  Status open(const std::string& path, bool create);
  // Adds all records or none. A record that is already stored is kept once; `added` counts the new ones.
  Status add(std::span<const Record>, size_t& added);

  struct Filter {
    std::string problem{}, subject{};  // empty: all
  };
  // Returns records by time, then in the order they were added. A record that cannot be read, perhaps from a newer
  // version or another program, is skipped; left_out() has a sentence about it.
  Status find(const Filter&, std::vector<Record>& out);

  // Adds these records and makes them, and no others, the baseline of this name: all or nothing.
  Status set_baseline(const std::string& name, std::span<const Record>, size_t& added);
  Status baseline(const std::string& name, std::vector<Record>& out);  // fails for an unknown name
  struct Named { std::string name{}; int64_t records = 0; };
  Status baselines(std::vector<Named>& out);
  struct Size { int64_t records = 0, runs = 0; std::string first{}, last{}; };
  Status size(Size& out);
  const std::vector<std::string>& left_out() const { return left_out_; }

 private:
  void* db_ = nullptr;
  std::string path_{};
  std::vector<std::string> left_out_{};
  Status no(std::string_view what) const;
  Status run(const char* sql) const;
  Status look(bool& is_made) const;
  using Rows = std::vector<std::vector<std::string>>;
  Status each(const char* sql, const std::vector<std::string>& values, Rows& out) const;
  void read(const Rows& rows, std::vector<Record>& out);  // rows of id and line
  Status add_all(std::span<const Record>, size_t& added, std::string_view baseline) const;
};

// Key of a trend, constant over time: the row, its subject and the machine.
std::string trend_key(const Record&);

}  // namespace attune
