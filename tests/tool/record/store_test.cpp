// SPDX-License-Identifier: Apache-2.0
// The store: nothing is lost or stored twice, a baseline is exactly what it was set to, and other files are left alone.
#include "tool/record/store.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "tests/tool/spawn.h"

namespace attune {
namespace {

using nlohmann::json;

Record at(const std::string& time, double ns, const std::string& commit = "abc") {
  Record r;
  r.run = time, r.row_records = 1, r.problem = "forward f32 b1 h8 q512 k512 d64 causal", r.subject = "cpu_forward";
  r.device = "cpu", r.threads = 2, r.provenance.time = time, r.provenance.commit = commit, r.provenance.cpu = "cpu";
  for (int n = 0; n < 30; ++n) r.samples_ns.push_back(ns * (1 + 1e-4 * n));
  derive(r);
  return r;
}
const std::vector<Record>& three() {
  static const std::vector<Record> all = {at("2026-01-01T00:00:00Z", 1000), at("2026-01-02T00:00:00Z", 1001),
                                          at("2026-01-03T00:00:00Z", 1500, "def")};
  return all;
}

class StoreTest : public testing::Test {
 protected:
  std::string path = temporary(join(testing::UnitTest::GetInstance()->current_test_info()->name(), ".db"));
  Store db{};
  void SetUp() override {
    if (const Status s = db.open(path, true); !s.ok()) {
      ASSERT_TRUE(has(s.message, "SQLite is not installed")) << s.message;
      GTEST_SKIP() << s.message;
    }
  }
};

TEST_F(StoreTest, keeps_every_record_once_and_as_it_was) {
  size_t added = 0;
  ASSERT_EQ(db.add(three(), added).message, "");
  EXPECT_EQ(added, 3u);
  ASSERT_EQ(db.add(three(), added).message, "");
  EXPECT_EQ(added, 0u);
  std::vector<Record> out;
  ASSERT_EQ(db.find({}, out).message, "");
  ASSERT_EQ(out.size(), 3u);
  for (size_t n = 0; n < 3; ++n) EXPECT_EQ(to_json(out[n]), to_json(three()[n]));
  Store::Size size;
  ASSERT_EQ(db.size(size).message, "");
  EXPECT_EQ(size.records, 3);
  EXPECT_EQ(size.runs, 3);
  EXPECT_EQ(size.last, "2026-01-03T00:00:00Z");
}

TEST_F(StoreTest, finds_by_problem_and_subject_whatever_is_in_their_text) {
  Record odd = at("2026-01-04T00:00:00Z", 10);
  odd.subject = "it's; drop table records; --";
  size_t added = 0;
  ASSERT_EQ(db.add(std::vector{odd, three()[0]}, added).message, "");
  std::vector<Record> out;
  ASSERT_EQ(db.find({.problem = "", .subject = odd.subject}, out).message, "");
  ASSERT_EQ(out.size(), 1u);
  EXPECT_EQ(out[0].subject, odd.subject);
  out.clear();
  ASSERT_EQ(db.find({.problem = "another", .subject = ""}, out).message, "");
  EXPECT_TRUE(out.empty());
}

TEST_F(StoreTest, a_baseline_is_what_it_was_last_set_to) {
  size_t added = 0;
  ASSERT_EQ(db.set_baseline("main", std::span(three()).first(2), added).message, "");
  EXPECT_EQ(added, 2u);
  ASSERT_EQ(db.set_baseline("main", std::span(three()).last(1), added).message, "");
  std::vector<Record> out;
  ASSERT_EQ(db.baseline("main", out).message, "");
  ASSERT_EQ(out.size(), 1u);
  EXPECT_EQ(out[0].provenance.commit, "def");
  EXPECT_EQ(db.baseline("mian", out).message, "store: no baseline 'mian'; it has main");
  EXPECT_EQ(db.set_baseline("empty", {}, added).message, "store: no records given for the baseline");
}

TEST_F(StoreTest, what_is_not_a_store_is_left_alone) {
  const std::string other = temporary("notes.db");
  std::ofstream(other) << "my notes, which are no database at all";
  Store s;
  EXPECT_NE(s.open(other, true).message, "");
  EXPECT_EQ(text_of(other), "my notes, which are no database at all");
  Store none;
  EXPECT_TRUE(has(none.open(temporary("none.db"), false).message, "does not exist; attune store FILE creates it"));
}

TEST_F(StoreTest, every_path_is_one_of_a_file) {
  const std::string folder = temporary("paths"), line = temporary("one.jsonl");
  std::filesystem::create_directory(folder);
  std::ofstream(line) << to_json(at("2026-02-01T00:00:00Z", 5)) << "\n";
  for (const std::string name : {":memory:", "file:one.db?mode=memory", "plain.db"}) {
    const std::string store = join("cd '", folder, "' && ", ATTUNE_BUILD_DIR, "/attune store --db '", name, "'");
    ASSERT_EQ(spawn({"sh", "-c", join(store, " '", line, "'")}).code, 0) << name;
    EXPECT_TRUE(std::filesystem::is_regular_file(join(folder, "/", name))) << name;
    const Ran kept = spawn({"sh", "-c", store});
    EXPECT_EQ(kept.code, 0) << kept.err;
    EXPECT_TRUE(kept.out.starts_with(name + ": 1 record of 1 run")) << kept.out;
  }
}

// Runs SQL on a file: in Python, whose sqlite3 is the same library.
bool sql(const std::string& file, const std::string& statements) {
  return spawn({"python3", "-c", "import sqlite3, sys\nd = sqlite3.connect(sys.argv[1])\nd.executescript(sys.argv[2])",
                file, statements}).code == 0;
}

TEST_F(StoreTest, a_schema_that_could_run_something_is_refused) {
  size_t added = 0;
  ASSERT_EQ(db.add(three(), added).message, "");
  const std::string endless =
      "with recursive n(x) as (select 1 union all select x + 1 from n) select count(*) from n";
  const std::string hostile[] = {
      "create trigger t after insert on records begin " + endless + "; end",
      "alter table records rename to r; create view records as select * from r where (" + endless + ") > 0",
      "alter table records add column more text as (printf('%.*c', 1000000000, 'x'))",
      "create table other (x)"};
  for (const std::string& statements : hostile) {
    const std::string file = temporary("hostile.db"), line = temporary("one.jsonl");
    std::filesystem::copy_file(path, file, std::filesystem::copy_options::overwrite_existing);
    if (!sql(file, statements)) GTEST_SKIP() << "no sqlite3 in python3";
    std::ofstream(line) << to_json(at("2026-02-01T00:00:00Z", 5)) << "\n";
    for (const std::vector<std::string>& words : std::vector<std::vector<std::string>>{
             {"history", "--db", file}, {"store", line, "--db", file}, {"store", "--db", file}}) {
      std::vector<std::string> all = {"timeout", "60", ATTUNE_BUILD_DIR "/attune"};
      all.insert(all.end(), words.begin(), words.end());
      const Ran ran = spawn(all);
      EXPECT_EQ(ran.code, 3) << statements << ran.out;
      EXPECT_EQ(ran.err, join("attune ", words[0], ": store: '", file, "' has tables, views or triggers of another "
                              "program; it is left unchanged\n"));
    }
  }
  ASSERT_TRUE(sql(path, "pragma user_version = 2"));
  Store newer;
  EXPECT_EQ(newer.open(path, true).message, "store: '" + path + "' is of version 2; this program reads version 1");
}

// How many transactions wrote to the file: the file change counter of SQLite's header.
unsigned writes_to(const std::string& file) {
  unsigned count = 0;
  for (const char c : text_of(file).substr(24, 4)) count = count << 8 | (unsigned char)(c);
  return count;
}

TEST_F(StoreTest, the_records_of_a_baseline_and_its_name_come_in_one_transaction) {
  const std::string file = temporary("both.jsonl");
  std::ofstream(file) << to_json(three()[0]) << "\n";
  const unsigned before = writes_to(path);
  const Ran named = attune_says({"store", file, "--db", path, "--baseline", "main"});
  EXPECT_EQ(named.code, 0) << named.err;
  EXPECT_TRUE(has(named.out, "1 added, 0 already stored\n")) << named.out;
  EXPECT_TRUE(has(named.out, "baseline main: 1 record\n")) << named.out;
  EXPECT_EQ(writes_to(path), before + 1);
}

TEST_F(StoreTest, many_processes_may_make_it_at_once) {
  constexpr int kProcesses = 6, kRounds = 12;
  for (int round = 0; round < kRounds; ++round) {
    const std::string together = temporary(join("together", round, ".db"));
    int gate[2];
    ASSERT_EQ(pipe(gate), 0);
    std::vector<pid_t> children;
    for (int n = 0; n < kProcesses; ++n)
      if (children.push_back(fork()); children.back() == 0) {
        char byte;
        close(gate[1]);
        (void)!read(gate[0], &byte, 1);  // waits until all have arrived
        Store s;
        const Status made = s.open(together, true);
        if (!made.ok()) (void)!write(STDERR_FILENO, made.message.data(), made.message.size());
        _exit(made.ok() ? 0 : 1);
      }
    close(gate[0]), close(gate[1]);
    for (const pid_t child : children) {
      int status = 0;
      waitpid(child, &status, 0);
      EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0) << "in round " << round;
    }
  }
}

TEST_F(StoreTest, the_commands_add_name_and_show_each_step) {
  const std::string file = temporary("three.jsonl"), store = temporary("folder/commands.db");
  {
    std::ofstream out(file);
    for (const Record& r : three()) out << to_json(r) << "\n";
  }
  const Ran added = attune_says({"store", file, "--db", store, "--baseline", "main"});
  EXPECT_EQ(added.code, 0) << added.err;
  EXPECT_TRUE(has(added.out, "3 added, 0 already stored\n")) << added.out;
  EXPECT_TRUE(has(added.out, "baseline main: 3 records\n")) << added.out;
  const Ran shown = attune_says({"history", three()[0].problem, "--db", store});
  EXPECT_EQ(shown.code, 0) << shown.err;
  EXPECT_TRUE(has(shown.out, "SAME\n")) << shown.out;
  EXPECT_TRUE(has(shown.out, "SLOWER\n")) << shown.out;
  EXPECT_TRUE(has(shown.out, "▁▁█  since the first: 0.667x SLOWER")) << shown.out;
  const json trend = json::parse(attune_says({"history", "--db", store, "--json"}).out);
  ASSERT_EQ(trend.size(), 1u);
  EXPECT_EQ(trend[0]["points"][2]["verdict"], "SLOWER");
  const Ran records = attune_says({"history", "--baseline", "main", "--records", "--db", store});
  EXPECT_EQ(records.out, text_of(file));
}

TEST_F(StoreTest, history_tells_series_apart_and_finds_the_line_that_bench_takes) {
  std::vector<Record> all(4, three()[0]);
  all[1].provenance.cpu = "another", all[2].layout = "bshd", all[3].threads = 16;
  Record listed = three()[0], failed = three()[0];
  listed.problem = "forward f32 b1 h1 q256 k256 d64 full blocks64x64x5", listed.pattern = "random density=0.3 seed=1";
  failed.problem = "forward f32 b1 h1 q1 k1 d8 full", failed.status = RecordStatus::failed, failed.samples_ns.clear();
  all.push_back(listed), all.push_back(failed);
  size_t added = 0;
  ASSERT_EQ(db.add(all, added).message, "");
  const Ran four = attune_says({"history", all[0].problem, "--db", path});
  for (const char* const end : {"cpu | warm, 2 threads", "another | warm, 2 threads", "cpu | warm, 2 threads, bshd",
                                "cpu | warm, 16 threads"})
    EXPECT_TRUE(has(four.out, join(all[0].problem, " | cpu_forward | ", end, "\n"))) << four.out;
  const Ran by_bound = attune_says({"history", listed.problem, "--db", path});
  EXPECT_EQ(by_bound.code, 0) << by_bound.err;
  const Ran untimed = attune_says({"history", failed.problem, "--db", path});
  EXPECT_EQ(untimed.code, 1);
  EXPECT_EQ(untimed.err, "attune history: none of 1 matching records has a time; --records prints them\n");
}

TEST_F(StoreTest, history_says_once_what_all_series_share) {
  std::vector<Record> all(2, three()[0]);
  all[1].problem = "forward f32 b1 h1 q256 k256 d64 full";
  size_t added = 0;
  ASSERT_EQ(db.add(all, added).message, "");
  const Ran shown = attune_says({"history", "--db", path});
  EXPECT_TRUE(shown.out.starts_with("cpu_forward | ")) << shown.out;
  EXPECT_EQ(shown.out.find(" | warm, 2 threads\n"), shown.out.rfind(" | warm, 2 threads\n")) << shown.out;
  for (const Record& r : all) EXPECT_TRUE(has(shown.out, "\n" + r.problem + "\n")) << shown.out;
}

TEST_F(StoreTest, history_tells_a_changed_machine_from_changed_code) {
  std::vector<Record> all = {at("2026-01-01T00:00:00Z", 1000), at("2026-01-02T00:00:00Z", 6000),
                             at("2026-01-03T00:00:00Z", 1000)};
  for (Record& r : all) r.provenance.binary = "0123456789abcdef", r.load = {.seconds = 1, .cpus = 2, .others = 0.01};
  all[1].load.others = 0.48, all[2].provenance.binary = "another";
  size_t added = 0;
  ASSERT_EQ(db.add(all, added).message, "");
  const Ran shown = attune_says({"history", "--db", path});
  constexpr const char* kChanged = "the machine changed, not the code: both sides are the same program";
  EXPECT_TRUE(has(shown.out, "SLOWER  busy: other processes took 48 % of 2 CPUs; the machine changed")) << shown.out;
  EXPECT_TRUE(has(shown.out, kChanged)) << shown.out;
  EXPECT_EQ(shown.out.find(kChanged), shown.out.rfind(kChanged)) << "the last step is of another program";
  EXPECT_TRUE(has(shown.out, "the machine was busy before: in 1 of 1 record ")) << shown.out;
  const json points = json::parse(attune_says({"history", "--db", path, "--json"}).out)[0]["points"];
  EXPECT_EQ(points[0]["busy"], "");
  EXPECT_EQ(points[1]["busy"], "other processes took 48 % of 2 CPUs");
  EXPECT_EQ(points[1]["machine_changes"].size(), 2u);
  EXPECT_EQ(points[2]["binary"], "another");
}

TEST_F(StoreTest, a_name_with_a_byte_that_is_no_text_is_still_one_document) {
  const std::string file = temporary("byte.jsonl"), store = temporary("byte\xff.db");
  std::ofstream(file) << to_json(three()[0]) << "\n";
  const Ran added = attune_says({"store", file, "--db", store, "--json"});
  EXPECT_EQ(added.code, 0) << added.err;
  ASSERT_TRUE(json::accept(added.out)) << added.out;
  EXPECT_EQ(json::parse(added.out)["records"], 1);
}

TEST_F(StoreTest, one_record_that_cannot_be_read_keeps_nobody_from_the_others) {
  size_t added = 0;
  ASSERT_EQ(db.add(three(), added).message, "");
  Record bad = at("2026-01-04T00:00:00Z", 1000);
  bad.samples_ns[7] = 1e308;  // finite, but ten times it is not
  ASSERT_EQ(db.set_baseline("bad", std::vector{three()[0], bad}, added).message, "");
  const std::string said = path + ": skipped record 4: record: samples_ns: null is not a number";
  std::vector<Record> out;
  ASSERT_EQ(db.find({}, out).message, "");
  EXPECT_EQ(out.size(), 3u);
  EXPECT_EQ(db.left_out(), std::vector{said});
  const Ran all = attune_says({"history", "--db", path});
  const Ran named = attune_says({"history", "--baseline", "bad", "--db", path});
  EXPECT_EQ(all.code, 0) << all.err;
  EXPECT_EQ(all.err, "attune history: " + said + "\n");
  EXPECT_EQ(named.err, all.err);
  std::ofstream(temporary("after.jsonl")) << to_json(three()[2]) << "\n";
  const Ran compared =
      attune_says({"compare", temporary("after.jsonl"), "--baseline", "bad"}, {"ATTUNE_STORE=" + path});
  EXPECT_TRUE(has(compared.err, said)) << compared.out << compared.err;
  // Nor can one enter through a file.
  std::string line = to_json(three()[0]);
  line.replace(line.find("\"samples_ns\":["), 14, "\"samples_ns\":[1e308,");
  std::ofstream(temporary("poison.jsonl")) << line << "\n";
  for (const char* const command : {"store", "verify"}) {
    const Ran no = attune_says({command, temporary("poison.jsonl")}, {"ATTUNE_STORE=" + path});
    EXPECT_EQ(no.code, 1) << no.out << no.err;
    EXPECT_TRUE(has(no.out + no.err, "samples_ns: 1e+308 is not a number from -1e+60 to 1e+60")) << no.out << no.err;
  }
}

TEST_F(StoreTest, the_commands_say_what_is_wrong) {
  const Ran none = attune_says({"history", "--db", temporary("nothing.db")});
  EXPECT_EQ(none.code, 3);
  EXPECT_TRUE(has(none.err, "does not exist")) << none.err;
  const Ran no_file = attune_says({"store", "--baseline", "main", "--db", path});
  EXPECT_EQ(no_file.code, 2);
  EXPECT_TRUE(has(no_file.err, "--baseline: given without a file")) << no_file.err;
  const Ran folder = attune_says({"store", "/", "--db", path});
  EXPECT_EQ(folder.code, 3);
  EXPECT_EQ(folder.err, "attune store: records: '/' cannot be read: Is a directory\n");
  const Ran unknown = attune_says({"history", "no such line", "--db", path});
  EXPECT_EQ(unknown.code, 2);
  EXPECT_EQ(unknown.err,
            "attune history: problem line: 'no' is not a pass, with which a line begins; accepted are forward and "
            "backward\n  no such line\n  ^~\n");
  const Ran none_of_it = attune_says({"history", "forward f32 b1 h8 q1 k1 d64 full", "--db", path});
  EXPECT_EQ(none_of_it.code, 1);
  EXPECT_EQ(none_of_it.err, "attune history: no stored record matches\n");
  std::ofstream(temporary("torn.jsonl")) << to_json(three()[0]).substr(0, 40);
  const Ran torn = attune_says({"store", temporary("torn.jsonl"), "--db", path});
  EXPECT_EQ(torn.code, 1);
  EXPECT_EQ(torn.err, join("attune store: ", temporary("torn.jsonl"), ":1: skipped an incomplete line\n",
                           "attune store: the files hold no records; attune bench --json writes them\n"));
}

TEST(DefaultStore, is_where_the_user_keeps_data) {
  const Ran r = attune_says({"store"}, {"XDG_DATA_HOME=/nowhere/data"});
  EXPECT_TRUE(has(r.err, "'/nowhere/data/attune/records.db' does not exist") || has(r.err, "SQLite is not installed"))
      << r.err;
  const Ran relative = attune_says({"store"}, {"XDG_DATA_HOME=here", "HOME=there"});
  EXPECT_TRUE(has(relative.err, "no path; give --db") || has(relative.err, "SQLite is not")) << relative.err;
  const Ran said = attune_says({"store"}, {"ATTUNE_STORE=/nowhere/s.db"});
  EXPECT_TRUE(has(said.err, "'/nowhere/s.db'") || has(said.err, "SQLite is not installed")) << said.err;
}

}  // namespace
}  // namespace attune
