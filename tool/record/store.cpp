// SPDX-License-Identifier: Apache-2.0
#include "tool/record/store.h"

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <iterator>

#include "machine/files.h"
#include "machine/library.h"
#include "tool/text.h"

namespace attune {
namespace {

constexpr int kRow = 100, kDone = 101;           // SQLITE_ROW, SQLITE_DONE
constexpr int kReadWrite = 2, kCreate = 4;       // SQLITE_OPEN_*
constexpr int64_t kId = 0x6174746e;              // "attn": application_id that identifies a store
const auto kCopy = reinterpret_cast<void (*)(void*)>(intptr_t(-1));  // SQLITE_TRANSIENT

// The functions of SQLite in use.
struct Sqlite {
  int (*open)(const char*, void**, int, const char*) = nullptr;
  int (*close)(void*) = nullptr;
  int (*exec)(void*, const char*, int (*)(void*, int, char**, char**), void*, char**) = nullptr;
  int (*prepare)(void*, const char*, int, void**, const char**) = nullptr;
  int (*bind)(void*, int, const char*, int, void (*)(void*)) = nullptr;
  int (*step)(void*) = nullptr;
  int (*finish)(void*) = nullptr;
  int (*columns)(void*) = nullptr;
  const unsigned char* (*text)(void*, int) = nullptr;
  int (*changes)(void*) = nullptr;
  const char* (*message)(void*) = nullptr;
  int (*wait)(void*, int) = nullptr;
  int (*config)(void*, int, ...) = nullptr;
  std::string missed{};
};

const Sqlite& sqlite() {
  static const Sqlite all = [] {
    const Library l({"libsqlite3.so.0", "libsqlite3.so"},
                    {"sqlite3_open_v2", "sqlite3_close_v2", "sqlite3_exec", "sqlite3_prepare_v2", "sqlite3_bind_text",
                     "sqlite3_step", "sqlite3_finalize", "sqlite3_column_count", "sqlite3_column_text",
                     "sqlite3_changes", "sqlite3_errmsg", "sqlite3_busy_timeout", "sqlite3_db_config"});
    Sqlite s;
    const auto take = [&](auto& to, const char* name) { to = reinterpret_cast<decltype(+to)>(l.symbol(name)); };
    if (!l.ok()) return s.missed = l.missed(), s;
    take(s.open, "sqlite3_open_v2"), take(s.close, "sqlite3_close_v2"), take(s.exec, "sqlite3_exec");
    take(s.prepare, "sqlite3_prepare_v2"), take(s.bind, "sqlite3_bind_text"), take(s.step, "sqlite3_step");
    take(s.finish, "sqlite3_finalize"), take(s.columns, "sqlite3_column_count"), take(s.text, "sqlite3_column_text");
    take(s.changes, "sqlite3_changes"), take(s.message, "sqlite3_errmsg"), take(s.wait, "sqlite3_busy_timeout");
    take(s.config, "sqlite3_db_config");
    return s;
  }();
  return all;
}

constexpr const char* kSchema[] = {
    "create table records (id integer primary key, line text unique not null, time text not null, run text not null,"
    " problem text not null, subject text not null)",
    "create index by_problem on records (problem, subject, time)",
    "create table baselines (name text not null, record integer not null references records (id),"
    " primary key (name, record))"};
constexpr int kVersion = 1;  // user_version

// A store may come from anyone: what its schema could run is switched off. A SQLite that lacks a switch says so, and
// Store::look() refuses such a schema in any case.
constexpr struct { int option, value; } kSafe[] = {
    {1010, 1},  // SQLITE_DBCONFIG_DEFENSIVE
    {1017, 0},  // SQLITE_DBCONFIG_TRUSTED_SCHEMA
    {1003, 0},  // SQLITE_DBCONFIG_ENABLE_TRIGGER
    {1015, 0},  // SQLITE_DBCONFIG_ENABLE_VIEW
};

}  // namespace

std::string default_store() {
  const auto said = [](const char* name) {
    const char* value = std::getenv(name);
    return std::string(value ? value : "");
  };
  if (std::string path = said("ATTUNE_STORE"); !path.empty()) return path;
  // A relative path is not valid there, by the XDG specification: it would mean the current folder.
  if (const std::string data = said("XDG_DATA_HOME"); data.starts_with('/')) return data + "/attune/records.db";
  const std::string home = said("HOME");
  return home.starts_with('/') ? home + "/.local/share/attune/records.db" : "";
}

Store::~Store() {
  if (db_) sqlite().close(db_);
}

Status Store::no(std::string_view what) const {
  return Status::no("store: '", path_, "' ", what, ": ", db_ ? sqlite().message(db_) : "not enough memory");
}

Status Store::run(const char* sql) const {
  return sqlite().exec(db_, sql, nullptr, nullptr, nullptr) == 0 ? Status::good() : no("cannot be used");
}

Status Store::each(const char* sql, const std::vector<std::string>& values, Rows& out) const {
  const Sqlite& s = sqlite();
  void* query = nullptr;
  if (s.prepare(db_, sql, -1, &query, nullptr) != 0) return no("cannot be read");
  for (size_t n = 0; n < values.size(); ++n)
    (void)s.bind(query, int(n) + 1, values[n].data(), int(values[n].size()), kCopy);
  int code;
  while ((code = s.step(query)) == kRow) {
    std::vector<std::string>& row = out.emplace_back();
    for (int c = 0; c < s.columns(query); ++c) {
      const unsigned char* text = s.text(query, c);
      row.push_back(in_one_line(text ? reinterpret_cast<const char*>(text) : ""));  // lines of records have no breaks
    }
  }
  const Status status = code == kDone ? Status::good() : no("cannot be used");
  (void)s.finish(query);
  return status;
}

Status Store::open(const std::string& path, bool create) {
  path_ = path;
  if (path.empty()) return Status::no("store: no path; give --db, or set ATTUNE_STORE or HOME");
  const Sqlite& s = sqlite();
  if (!s.missed.empty()) return Status::no("store: SQLite is not installed: ", s.missed);
  std::error_code error;
  const bool is_new = !std::filesystem::exists(path, error);
  if (is_new && !create) return Status::no("store: '", path, "' does not exist; attune store FILE creates it");
  std::string behind;
  if (Status s = behind_links(path, behind); !s.ok()) return s.after("store: '", path, "' cannot be opened: ");
  if (const auto folder = std::filesystem::path(path).parent_path(); is_new && !folder.empty()) {
    std::filesystem::create_directories(folder, error);
    if (error) return Status::no("store: '", folder.string(), "' cannot be created: ", error.message());
  }
  // Every path is one of a file: SQLite forgets what it stores in ":memory:", and reads options in "file:...".
  const std::string file = path.starts_with('/') ? path : "./" + path;
  if (s.open(file.c_str(), &db_, kReadWrite | (create ? kCreate : 0), nullptr) != 0) return no("cannot be opened");
  constexpr int kPatience = 10000;  // ms to wait for another process that writes
  (void)s.wait(db_, kPatience);
  for (const auto& [option, value] : kSafe) (void)s.config(db_, option, value, static_cast<int*>(nullptr));
  bool is_made = false;
  // One transaction: another process may create the store between the queries of look().
  if (Status bad = run("begin"); !bad.ok()) return bad;
  const Status seen = look(is_made);
  if (Status bad = run("commit"); !seen.ok() || is_made) return seen.ok() ? bad : seen;
  if (Status bad = run("begin immediate"); !bad.ok()) return bad;
  Status made = look(is_made);  // another process may have created it meanwhile
  if (made.ok() && !is_made) {
    for (const char* const statement : kSchema)
      if (made.ok()) made = run(statement);
    if (made.ok()) made = run(join("pragma application_id = ", kId, "; pragma user_version = ", kVersion).c_str());
  }
  return made.ok() ? run("commit") : ((void)run("rollback"), made);
}

// The schema must be the one of open(): a view, a trigger or a generated column could run without end.
Status Store::look(bool& is_made) const {
  Rows id, version, schema;
  if (Status bad = each("select lower(sql) from sqlite_master where sql is not null order by rowid", {}, schema);
      !bad.ok())
    return bad;
  if (Status bad = each("pragma application_id", {}, id); !bad.ok()) return bad;
  if (Status bad = each("pragma user_version", {}, version); !bad.ok()) return bad;
  is_made = id[0][0] == join(kId);
  if (!is_made && schema.empty()) return Status::good();
  if (!is_made) return Status::no("store: '", path_, "' is a database of another program; it is left unchanged");
  if (version[0][0] != join(kVersion))
    return Status::no("store: '", path_, "' is of version ", version[0][0], "; this program reads version ", kVersion);
  const bool ours = std::equal(schema.begin(), schema.end(), std::begin(kSchema), std::end(kSchema),
                               [](const auto& row, const char* statement) { return row[0] == statement; });
  if (ours) return Status::good();
  return Status::no("store: '", path_, "' has tables, views or triggers of another program; it is left unchanged");
}

Status Store::add_all(std::span<const Record> records, size_t& added, std::string_view baseline) const {
  added = 0;
  Rows nothing;
  for (const Record& r : records) {
    const std::string line = to_json(r);
    if (Status s = each("insert or ignore into records (line, time, run, problem, subject) values (?, ?, ?, ?, ?)",
                        {line, r.provenance.time, r.run, r.problem, r.subject}, nothing);
        !s.ok())
      return s;
    added += size_t(sqlite().changes(db_));
    if (baseline.empty()) continue;
    if (Status s = each("insert or ignore into baselines select ?, id from records where line = ?",
                        {std::string(baseline), line}, nothing);
        !s.ok())
      return s;
  }
  return Status::good();
}

Status Store::add(std::span<const Record> records, size_t& added) {
  if (Status s = run("begin immediate"); !s.ok()) return s;
  if (Status s = add_all(records, added, {}); !s.ok()) return (void)run("rollback"), s;
  return run("commit");
}

Status Store::set_baseline(const std::string& name, std::span<const Record> records, size_t& added) {
  if (name.empty()) return Status::no("store: a baseline needs a name");
  if (records.empty()) return Status::no("store: no records given for the baseline");
  if (Status s = run("begin immediate"); !s.ok()) return s;
  Rows nothing;
  Status s = each("delete from baselines where name = ?", {name}, nothing);
  if (s.ok()) s = add_all(records, added, name);
  return s.ok() ? run("commit") : ((void)run("rollback"), s);
}

void Store::read(const Rows& rows, std::vector<Record>& out) {
  for (const auto& row : rows) {
    Record r;
    if (const Status s = from_json(row[1], r); s.ok()) out.push_back(std::move(r));
    else left_out_.push_back(join(path_, ": skipped record ", row[0], ": ", s.message));
  }
}

Status Store::find(const Filter& f, std::vector<Record>& out) {
  Rows rows;
  if (Status s = each("select id, line from records where (?1 = '' or problem = ?1) and (?2 = '' or subject = ?2)"
                      " order by time, id", {f.problem, f.subject}, rows);
      !s.ok())
    return s;
  return read(rows, out), Status::good();
}

Status Store::baseline(const std::string& name, std::vector<Record>& out) {
  Rows rows;
  constexpr const char* kQuery =
      "select id, line from records join baselines on record = id where name = ? order by id";
  if (Status s = each(kQuery, {name}, rows); !s.ok()) return s;
  if (rows.empty()) {
    std::vector<Named> all;
    if (Status s = baselines(all); !s.ok()) return s;
    std::string names;
    for (const Named& n : all) names += join(names.empty() ? "" : ", ", n.name);
    return Status::no("store: no baseline '", name, "'; ", names.empty() ? "the store has none" : "it has ", names);
  }
  return read(rows, out), Status::good();
}

Status Store::baselines(std::vector<Named>& out) {
  Rows rows;
  if (Status s = each("select name, count(*) from baselines group by name order by name", {}, rows); !s.ok()) return s;
  for (const auto& row : rows) out.push_back({row[0], std::atoll(row[1].c_str())});
  return Status::good();
}

Status Store::size(Size& out) {
  Rows rows;
  if (Status s = each("select count(*), count(distinct run), min(time), max(time) from records", {}, rows); !s.ok())
    return s;
  out = {std::atoll(rows[0][0].c_str()), std::atoll(rows[0][1].c_str()), rows[0][2], rows[0][3]};
  return Status::good();
}

std::string trend_key(const Record& r) {
  const Provenance& p = r.provenance;
  return join(r.problem, "|", r.pattern, "|", r.subject, "|", r.device, "|", timing_text(r), "|", r.threads, "|",
              r.layout, "|", r.distribution, "|", p.gpu_uuid.empty() ? p.cpu : p.gpu_uuid);
}

}  // namespace attune
