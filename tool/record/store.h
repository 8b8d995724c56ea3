// Records of all times in one SQLite file: history, trends, baselines. The record itself is kept as the line it was, so
// nothing is lost and a store can be turned into a file again; the columns beside it are only there to be searched.
// SQLite is opened at run time, and without it all of this refuses with a sentence.
#pragma once
#include <span>
#include <string>
#include <vector>

#include "tool/record/record.h"

namespace attune {

// $ATTUNE_STORE, or attune/records.db below $XDG_DATA_HOME or ~/.local/share. Empty: nothing says where.
std::string default_store();

class Store {
 public:
  Store() = default;
  Store(const Store&) = delete;
  Store& operator=(const Store&) = delete;
  ~Store();

  // Made, with its folder, where it is not there and `create` says so. A file that is something else is refused.
  Status open(const std::string& path, bool create);
  // All of them or none; a record that is there already stays once. `added`: how many are new.
  Status add(std::span<const Record>, size_t& added);

  struct Filter {
    std::string problem{}, subject{};  // empty: all
  };
  // By time, then in the order they were added. One that cannot be read, which a newer version or another program may
  // have added, keeps nobody from the others: left_out() has a sentence about it.
  Status find(const Filter&, std::vector<Record>& out);

  // Under this name from now on: these, which are added, and no others.
  Status set_baseline(const std::string& name, std::span<const Record>);
  Status baseline(const std::string& name, std::vector<Record>& out);  // a name that is not there is refused
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
  void read(const Rows& rows, std::vector<Record>& out);  // of id and line
  Status add_all(std::span<const Record>, size_t& added, std::string_view baseline) const;
};

// What stays the same while time goes by: the row, its subject, the machine. A trend is along one of these.
std::string trend_key(const Record&);

}  // namespace attune
