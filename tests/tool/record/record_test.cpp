// SPDX-License-Identifier: Apache-2.0
#include "tool/record/record.h"

#include <gtest/gtest.h>

#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>

#include "tests/tool/spawn.h"
#include "tool/record/provenance.h"

namespace attune {
namespace {

Record example() {
  Record r;
  r.message = "a sentence";
  r.problem = "forward f32 b1 h8 q512 k512 d64 causal";
  r.subject = "cpu_forward", r.device = "cpu", r.mode = "cold", r.layout = "bshd", r.distribution = "uniform";
  r.seed = 18446744073709551615u, r.threads = 2, r.workspace_bytes = uint64_t(1) << 40, r.why = "rules.tsv:3";
  r.samples_ns = {100, 110.5, 90, 120}, r.calls = 3, r.ended_by = "precision", r.warm_up_s = 0.25;
  r.floor_ns = 21, r.flops = 1000, r.bytes = 400, r.ceiling_gflops = 50, r.copy_gbs = 12, r.ceiling = "fmla";
  r.parity = {CheckVerdict::pass, 0.25, 64, "none", "swapped-layout"};
  r.run = "20260131T120000Z-1f", r.row_records = 3, r.kernels = {"one", "two"}, r.input_rms = 0.99;
  r.tensor_bytes = 4096, r.scores_bytes = 8192, r.cache_bytes = 512, r.taken_bytes = 12345;
  r.tokens_read = {1, 2, 3, 4};
  r.baseline = "torch:sdpa", r.ratio = {1.5, {1.4, 1.6, 0.95}}, r.aa_spread = 0.01, r.verdict = "FASTER";
  r.provenance = {"2026-01-31T12:00:00Z", "abc",   true, "0.1.0",  "GNU 12", "-O3", "Some CPU", "neon",
                  "performance",          "Linux", 2,    "torch 2"};
  r.rest_s = 0.15, r.heat_s = 0.04;
  r.sets = 5, r.watts = 350.5, r.celsius = 61, r.slowed_by = "power cap", r.late_batches = 2;
  r.sustained_ns = 123.5, r.joules = 0.04, r.sustained_watts = 333;
  r.samples_mhz = {1980, 1965, 1980, 1950};
  r.provenance.gpu = "Some GPU", r.provenance.gpu_uuid = "GPU-1", r.provenance.gpu_vbios = "96.0";
  r.provenance.gpu_driver = "580.1", r.provenance.cuda = "13.0", r.provenance.gpu_power_limit_w = 700;
  r.provenance.gpu_most_mhz = 1980, r.provenance.gpu_ecc = 1, r.provenance.gpu_mig = 0;
  r.provenance.gpu_pcie = "generation 5, 16 lanes", r.provenance.binary = "0123456789abcdef";
  r.precision = 0.02, r.planned_rows = 7, r.closes = true, r.previous = "a seal";
  r.load = {.seconds = 1.5, .cpus = 2, .waited = 0.25, .used = 0.5, .others = 0.375, .steal = 0, .average = 3.5,
            .runnable = 4, .cpu_mhz = 2500.5, .gpu_processes = 0, .gpu_others = 0.125};
  derive(r);
  return r;
}

struct File {
  std::string path = (std::filesystem::temp_directory_path() / "attune_record_test_XXXXXX").string();
  File() { ::close(::mkstemp(path.data())); }
  ~File() { std::filesystem::remove(path); }
  void append(const std::string& text) { std::ofstream(path, std::ios::app) << text; }
};

TEST(Record, is_one_line_and_reads_back_whole) {
  const std::string line = to_json(example());
  EXPECT_EQ(line.find('\n'), std::string::npos);
  EXPECT_EQ(line.rfind("{\"attune_record\":4,", 0), 0u);
  Record again;
  ASSERT_EQ(from_json(line, again).message, "");
  EXPECT_EQ(to_json(again), line);
  EXPECT_EQ(again.seed, 18446744073709551615u);
  EXPECT_EQ(again.samples_ns, example().samples_ns);
  EXPECT_EQ(again.provenance.peers, "torch 2");
  EXPECT_EQ(again.ratio.interval.low, 1.4);
  EXPECT_EQ(again.outliers.total(), example().outliers.total());
  EXPECT_EQ(again.parity.rows, 64);
  EXPECT_EQ(again.samples_mhz, example().samples_mhz);
  EXPECT_EQ(again.mhz, 1972.5);
  EXPECT_EQ(again.slowed_by, "power cap");
  EXPECT_EQ(again.rest_s, 0.15);
  EXPECT_EQ(again.heat_s, 0.04);
  EXPECT_EQ(again.joules, 0.04);
  EXPECT_EQ(again.sets, 5);
  EXPECT_EQ(again.provenance.gpu_uuid, "GPU-1");
  EXPECT_EQ(again.provenance.gpu_ecc, 1);
  EXPECT_EQ(again.provenance.gpu_mig, 0);
  EXPECT_EQ(again.provenance.gpu_pcie, "generation 5, 16 lanes");
  EXPECT_EQ(again.provenance.binary, "0123456789abcdef");
  EXPECT_EQ(again.kernels, example().kernels);
  EXPECT_EQ(again.taken_bytes, 12345);
  EXPECT_EQ(again.tokens_read, (std::vector<double>{1, 2, 3, 4}));
  EXPECT_EQ(again.parity.mistake, "swapped-layout");
  EXPECT_EQ(again.row_records, 3);
  EXPECT_EQ(again.precision, 0.02);
  EXPECT_EQ(again.planned_rows, 7);
  EXPECT_TRUE(again.closes);
  EXPECT_EQ(again.previous, "a seal");
}

TEST(Record, with_an_infinite_number_is_written_as_it_was_read) {
  Record r = example(), again;
  r.parity.error = INFINITY;
  const std::string line = to_json(r);
  ASSERT_EQ(from_json(line, again).message, "");
  EXPECT_EQ(again.parity.error, 1e60);
  EXPECT_EQ(to_json(again), line);
}

TEST(Record, a_word_of_another_version_is_kept) {
  Record r, again;
  ASSERT_TRUE(from_json(R"({"attune_record":2,"status":"paused","parity":{"verdict":"MAYBE"}})", r).ok());
  EXPECT_EQ(r.status, RecordStatus::other);
  EXPECT_EQ(r.status.text(), "paused");
  EXPECT_FALSE(passed(r.parity.verdict));
  ASSERT_TRUE(from_json(to_json(r), again).ok());
  EXPECT_EQ(again.status.text(), "paused");
  EXPECT_EQ(again.parity.verdict.text(), "MAYBE");
  for (const RecordStatus s : {RecordStatus::ok, RecordStatus::oom, RecordStatus::refused})
    EXPECT_EQ(Word<RecordStatus>(name(s)), s);
}

TEST(Record, what_is_unknown_of_the_load_is_absent_and_never_0) {
  Record again;
  ASSERT_EQ(from_json(to_json(example()), again).message, "");
  EXPECT_EQ(again.load.waited, 0.25);
  EXPECT_EQ(again.load.steal, 0);  // known
  EXPECT_EQ(again.load.gpu_others, 0.125);
  Record r = example();
  r.load = {.seconds = 2, .cpus = 3};
  const std::string line = to_json(r);
  EXPECT_TRUE(has(line, "\"load\":{\"seconds\":2.0,\"cpus\":3}")) << line;
  ASSERT_EQ(from_json(line, again).message, "");
  EXPECT_LT(again.load.waited, 0);
  EXPECT_LT(again.load.runnable, 0);
  r.load = {};
  EXPECT_FALSE(has(to_json(r), "\"load\"")) << to_json(r);
  ASSERT_EQ(from_json(R"({"attune_record":2})", again).message, "");  // written before there was a load
  EXPECT_LT(again.load.others, 0);
  EXPECT_LT(again.load.cpus, 0);
}

// Written before the fields peer, note and left_out existed.
TEST(Record, fields_that_an_older_record_lacks_follow_from_its_texts) {
  Record peer, plain, not_built, not_tried, newer;
  ASSERT_TRUE(from_json(R"({"attune_record":2,"subject":"fa3","why":"a peer: expanded"})", peer).ok());
  EXPECT_TRUE(peer.peer);
  EXPECT_EQ(peer.note, "expanded");
  ASSERT_TRUE(from_json(R"({"attune_record":1,"subject":"fa3","why":"a peer"})", plain).ok());
  EXPECT_TRUE(plain.peer && plain.note.empty());
  const auto unsupported = [](const char* message) {
    return join(R"({"attune_record":2,"status":"unsupported","message":")", message, "\"}");
  };
  ASSERT_TRUE(from_json(unsupported("not built: yet"), not_built).ok());
  EXPECT_EQ(not_built.left_out, LeftOut::not_built);
  ASSERT_TRUE(from_json(unsupported("not tried: too slow"), not_tried).ok());
  EXPECT_EQ(not_tried.left_out, LeftOut::not_tried);
  ASSERT_TRUE(from_json(R"({"attune_record":2,"why":"a peer: of us","peer":false})", newer).ok());
  EXPECT_FALSE(newer.peer) << "a field that is there counts";
}

TEST(Record, a_spread_that_was_not_measured_is_null_and_never_0) {
  Record r, back;
  EXPECT_NE(to_json(r).find("\"aa_spread\":null"), std::string::npos);
  r.aa_spread = 0.0;
  ASSERT_TRUE(from_json(to_json(r), back).ok());
  EXPECT_EQ(back.aa_spread, 0.0);
  ASSERT_TRUE(from_json(to_json(Record{}), back).ok());
  EXPECT_FALSE(back.aa_spread);
  ASSERT_TRUE(from_json(R"({"attune_record":2,"aa_spread":0.0})", back).ok());  // how version 2 wrote it
  EXPECT_FALSE(back.aa_spread);
  ASSERT_TRUE(from_json(R"({"attune_record":2,"aa_spread":0.02})", back).ok());
  EXPECT_EQ(back.aa_spread, 0.02);
}

TEST(Record, derives_from_samples) {
  Record r = example();
  EXPECT_EQ(r.median_ns, (100 + 110.5) / 2);
  EXPECT_EQ(r.gflops, 1000 / r.median_ns);
  EXPECT_EQ(r.gbs, 400 / r.median_ns);
  EXPECT_EQ(r.interval.low, 90);
  EXPECT_EQ(r.interval.high, 120);
  EXPECT_FALSE(r.near_floor);
  r.floor_ns = 22;
  derive(r);
  EXPECT_TRUE(r.near_floor);
}

TEST(Record, refuses_what_the_machine_cannot_do) {
  Record r = example();
  EXPECT_EQ(r.status, RecordStatus::ok);
  r.ceiling_gflops = r.gflops / 1.05;  // within the tolerance of a ceiling
  derive(r);
  EXPECT_EQ(r.status, RecordStatus::ok);
  r.ceiling_gflops = r.gflops / 1.2;
  derive(r);
  EXPECT_EQ(r.status, RecordStatus::refused);
  EXPECT_NE(r.message.find("cpu_forward: a rate of"), std::string::npos) << r.message;
}

TEST(Record, refuses_traffic_beyond_memory_only_when_cold) {
  Record r = example();
  r.mode = "graph", r.copy_gbs = r.gbs / 1.2;  // reading is faster than copying
  derive(r);
  EXPECT_EQ(r.status, RecordStatus::ok);
  r.copy_gbs = r.gbs / 2;
  r.mode = "warm";
  derive(r);
  EXPECT_EQ(r.status, RecordStatus::ok);
  r.mode = "cold";
  derive(r);
  EXPECT_EQ(r.status, RecordStatus::refused);
  EXPECT_NE(r.message.find("memory traffic of"), std::string::npos) << r.message;
}

TEST(Record, without_samples_derives_nothing) {
  Record r;
  r.status = RecordStatus::unsupported;
  r.ceiling_gflops = 1;
  derive(r);
  EXPECT_EQ(r.status, RecordStatus::unsupported);
  EXPECT_EQ(r.gflops, 0);
}

TEST(Record, a_command_line_is_kept_without_folders_of_a_user) {
  EXPECT_EQ(command_text({"/home/alice/build/attune", "bench", "--len", "512-8192*2", "--out", "/home/alice/a.jsonl"}),
            "attune bench --len '512-8192*2' --out a.jsonl");
  EXPECT_EQ(command_text({"attune", "bench", "forward f32 b1 h8/2 q1 k1 d64 full", "--peer=~/x.py:f,torch:sdpa"}),
            "attune bench 'forward f32 b1 h8/2 q1 k1 d64 full' --peer=x.py:f,torch:sdpa");
  EXPECT_EQ(command_text({"attune", "bench", "it's", "", "rel/a.toml"}), "attune bench 'it'\\''s' '' rel/a.toml");
}

TEST(Record, facts_that_are_not_there_are_null_and_stay_so) {
  Record r, again;
  r.provenance.os = "An OS", r.provenance.gpu_sms = 132;
  const std::string line = to_json(r);
  for (const char* part : {"\"cudnn\":null", "\"gpu_memory_bytes\":null", "\"os\":\"An OS\"", "\"gpu_sms\":132.0"})
    EXPECT_NE(line.find(part), line.npos) << part << " in " << line;
  ASSERT_TRUE(from_json(line, again).ok());
  EXPECT_EQ(to_json(again), line);
  r.version = 3;
  EXPECT_EQ(to_json(r).find("gpu_sms"), std::string::npos) << "as version 3 wrote it";
}

TEST(Record, says_what_is_wrong_with_a_line) {
  Record r;
  EXPECT_EQ(from_json("{}", r).message, "record: field attune_record is missing");
  EXPECT_EQ(from_json("{\"attune_record\":5}", r).message,
            "record: written by a newer attune (record version 5, this one reads to 4): update");
  EXPECT_EQ(from_json("{\"attune_record\":0}", r).message, "record: version 0 is not one of 1 to 4");
  EXPECT_EQ(from_json("{\"attune_record\":1,\"threads\":\"two\"}", r).message,
            "record: threads: a text is not a whole number from -2147483648 to 2147483647");
  for (const char* const number : {"4294967298", "1.5", "1e30", "true"}) {
    const std::string line = join("{\"attune_record\":1,\"threads\":", number, "}");
    EXPECT_EQ(from_json(line, r).message.find("record: threads: "), 0u) << number;
  }
  EXPECT_EQ(from_json("{\"attune_record\":2.9}", r).message,
            "record: attune_record: 2.9 is not a whole number from -2147483648 to 2147483647");
  EXPECT_EQ(from_json("{\"attune_record\":1,\"median_ns\":\"long\"}", r).message,
            "record: median_ns: a text is not a number");
  EXPECT_EQ(from_json("{\"attune_record\":1, not json", r).message, "record: not JSON, near character 22: 'not json'");
  EXPECT_TRUE(from_json("{\"attune_record\":1,\"from_a_later_version\":[1]}", r).ok());
}

TEST(Record, of_version_1_reads_and_writes_as_such) {
  Record r;
  ASSERT_EQ(from_json("{\"attune_record\":1,\"problem\":\"a line\"}", r).message, "");
  EXPECT_EQ(r.version, 1);
  EXPECT_EQ(to_json(r).rfind("{\"attune_record\":1,", 0), 0u);
  r.precision = 0.01, r.previous = r.seal = "none of it existed";
  for (const char* const field : {"precision", "planned_rows", "closes", "previous", "seal"})
    EXPECT_EQ(to_json(r).find(join("\"", field, "\"")), std::string::npos) << field;
}

TEST(Record, writes_text_that_is_not_utf8) {
  Record r = example();
  r.message = "bad \xff byte";
  Record again;
  EXPECT_TRUE(from_json(to_json(r), again).ok());
}

TEST(RecordFile, appends_and_is_on_disk_after_every_row) {
  File file;
  for (int round = 0; round < 2; ++round) {
    RecordFile out;
    ASSERT_EQ(out.open(file.path).message, "");
    ASSERT_EQ(out.write(example()).message, "");
    std::vector<Record> seen;  // while the file is still open
    ASSERT_EQ(read_records(file.path, seen).message, "");
    EXPECT_EQ(seen.size(), size_t(round + 1));
  }
}

TEST(RecordFile, reading_names_file_and_line_and_forgives_an_unfinished_end) {
  File file;
  file.append(to_json(example()) + "\n\n" + to_json(example()) + "\n{\"attune_rec");
  std::vector<Record> seen;
  std::vector<std::string> unfinished;
  EXPECT_EQ(read_records(file.path, seen, &unfinished).message, "");
  EXPECT_EQ(seen.size(), 2u);
  EXPECT_EQ(unfinished, std::vector{file.path + ":4: skipped an incomplete line"});
  file.append("\n");
  const std::string message = read_records(file.path, seen).message;
  EXPECT_EQ(message.rfind(file.path + ":4: record: ", 0), 0u) << message;
}

TEST(RecordFile, only_a_beginning_of_a_record_is_cut_off) {
  File file;
  const std::string line = to_json(example());
  for (size_t n = 1; n < line.size(); ++n) {
    Record r;
    Misread why;
    EXPECT_FALSE(from_json(line.substr(0, n), r, &why).ok());
    ASSERT_EQ(int(why), int(Misread::cut_short)) << line.substr(0, n);
  }
  const std::string joined = "record: two records share the line: the newline between them is missing";
  for (const auto& [end, said] : std::vector<std::pair<std::string, std::string>>{
           {line + line, joined},
           {line + line.substr(0, line.size() / 2), joined},
           {line + "x", join("record: not JSON, near character ", line.size() + 1, ": 'x'")},
           {"{\"attune_record\":x", "record: not JSON, near character 18: 'x'"}}) {
    std::filesystem::remove(file.path);
    file.append(line + "\n" + end);
    RecordFile out;
    EXPECT_EQ(out.open(file.path).message, join(file.path, ":2: ", said, "; the file is left unchanged"));
    EXPECT_FALSE(out.was_torn());
    std::vector<Record> seen;
    EXPECT_EQ(read_records(file.path, seen).message, join(file.path, ":2: ", said));
    EXPECT_EQ(text_of(file.path), line + "\n" + end);
  }
}

TEST(RecordFile, a_whole_line_that_cannot_be_read_is_no_unfinished_one) {
  File file;
  File bare;
  bare.append("{\"attune_record\":4}\n");
  std::vector<Record> none;
  EXPECT_EQ(read_records(bare.path, none).message, bare.path + ":1: record: field problem is missing");
  const std::string newer = "{\"attune_record\":5}";
  const std::string said = "record: written by a newer attune (record version 5, this one reads to 4): update";
  file.append(to_json(example()) + "\n" + newer);
  std::vector<Record> seen;
  EXPECT_EQ(read_records(file.path, seen).message, join(file.path, ":2: ", said));
  for (const char* const end : {"", "\n", "\n\n"}) {
    file.append(end);
    const std::string before = text_of(file.path);
    EXPECT_EQ(RecordFile().open(file.path).message,
              join(file.path, ":2: ", said, "; the file is left unchanged"));
    EXPECT_EQ(text_of(file.path), before);
  }
}

TEST(RecordFile, says_what_cannot_be_opened) {
  RecordFile out;
  EXPECT_NE(out.open("/nowhere/at/all.jsonl").message.find("records: '/nowhere/at/all.jsonl' cannot be written"),
            std::string::npos);
  std::vector<Record> seen;
  EXPECT_NE(read_records("/nowhere/at/all.jsonl", seen).message.find("cannot be read"), std::string::npos);
  EXPECT_EQ(read_records("/", seen).message, "records: '/' cannot be read: Is a directory");
}

TEST(Record, of_work_that_takes_no_time_is_refused) {
  Record r = example();
  r.samples_ns.assign(4, 0);
  derive(r);
  EXPECT_EQ(r.status, RecordStatus::refused);
  EXPECT_NE(r.message.find("the call took no time"), std::string::npos) << r.message;
}

TEST(Provenance, knows_where_it_was_built_and_not_whose_machine_it_is) {
  const Provenance p = provenance();
  EXPECT_EQ(p.binary.size(), 16u);
  EXPECT_EQ(p.binary.find_first_not_of("0123456789abcdef"), std::string::npos) << p.binary;
  EXPECT_EQ(p.time.size(), 20u);
  EXPECT_FALSE(p.commit.empty());
  EXPECT_FALSE(p.compiler.empty());
  EXPECT_FALSE(p.kernel.empty());
  EXPECT_GE(p.cores, 1);
  char host[256] = {};
  gethostname(host, sizeof host - 1);
  Record r;
  r.provenance = p;
  if (std::string_view(host).size() > 6) {
    EXPECT_EQ(to_json(r).find(host), std::string::npos);
  }
}

}  // namespace
}  // namespace attune
