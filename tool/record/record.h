// One row of a measurement, as a line of JSON: self-contained, so that files can be cut, joined and sent. `bench`
// writes them; `report` and every other reader only needs this file. Times are nanoseconds of one call.
#pragma once
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "core/status.h"
#include "tool/timing/statistics.h"

namespace attune {

// 2 added run, row_records, kernels, input_rms, tensor_bytes, scores_bytes, parity.mistake, provenance.clocks and the
// status oom. Records of version 1 are still read.
inline constexpr int kRecordVersion = 2;

// Where and from what a number comes. Never the name of the machine or of its user.
struct Provenance {
  std::string time{};      // UTC, "2026-01-31T12:00:00Z"
  std::string commit{};    // "unknown" outside of a checkout
  bool dirty = false;      // built from changed files
  std::string version{}, compiler{}, flags{};
  std::string cpu{}, features{}, governor{}, kernel{};  // kernel: release of the operating system's
  int cores = 0;           // this process may use
  std::string peers{};     // "torch 2.9.0"
  std::string gpu{}, gpu_uuid{}, gpu_vbios{}, gpu_driver{}, cuda{};  // gpu: empty where none was used
  double gpu_power_limit_w = 0, gpu_most_mhz = 0;
  int gpu_ecc = -1, gpu_mig = -1;  // 1: on, 0: off, -1: not said
  std::string gpu_pcie{};  // "generation 5, 16 lanes"; empty: not said
  std::string binary{};    // 16 hex digits that change with the program's bytes; empty: it could not be read
  std::string clocks{};    // who sets them: "governor performance", "free, up to 1980 MHz"
};

// The check of the very buffers that were timed, on a sample of rows.
struct Checked {
  std::string verdict{};  // PASS, FAIL, or UNCHECKED
  double error = 0;       // the largest over the rows, as a share of what is allowed: above 1 fails
  int rows = 0;
  std::string message{};  // where it failed, or why it was not checked
  std::string mistake{};  // of a FAIL: the usual mistake that explains the result; verify/diagnose/diagnose.h
};

struct Record {
  int version = kRecordVersion;  // of the line it was read from
  // ok | unsupported | oom: it does not fit this machine | failed | interrupted | refused: faster than it can be
  std::string status{"ok"};
  std::string message{};     // the sentence that belongs to it
  std::string run{};         // the call of the command it was measured by: the same in all its records
  int row_records = 0;       // how many records its row has: with fewer of them in a file, the row is unfinished
  std::string problem{};     // its line
  std::string pattern{};     // of its lists of blocks; "" where they were drawn, or there are none
  int64_t active_blocks = 0, shown_blocks = 0;  // of a pattern, or kept: entries of all lists, and what the mask shows
  double density = 0;        // active / shown
  std::string subject{};     // "cpu_forward", "torch:sdpa"
  std::string device{};      // "cpu", "cuda:0"
  std::string mode{"warm"};  // cold: the last-level cache is flushed before every sample; graph: replayed, and cold
  double rest_s = 0, heat_s = 0;  // of rest, or of its own work, before every block of samples
  std::string layout{"bhsd"};
  std::string distribution{"normal"};
  uint64_t seed = 0;
  int threads = 1;           // 0: a GPU
  int sets = 1;              // of inputs and outputs that were gone round through
  double input_rms = 0;      // of the queries that were timed, as they lay there: 1 for normal, 0.58 for uniform values
  uint64_t workspace_bytes = 0;
  double tensor_bytes = 0;   // of inputs and outputs
  double scores_bytes = 0;   // of the matrix of scores in the type of the keys, which only unfused attention stores
  double cache_bytes = 0;    // of keys and values, of every branch and compressed; 0: nobody says
  double taken_bytes = -1;   // measured: what a first call took beside inputs and outputs; below 0: nobody says
  // Of native sparse attention: keys of the compressed, the selected and the window branch that a call read, and how
  // many tokens the last two have together; over all queries and groups of heads.
  std::vector<double> tokens_read{};
  std::vector<std::string> kernels{};  // that a call launches, in order; of a CPU the instruction set of its loops
  std::string why{};         // how the backend was chosen

  std::vector<double> samples_ns{};  // all of them, in the order they were taken; each the mean of `calls` calls
  int calls = 1;
  double median_ns = 0;
  Interval interval{};
  std::string ended_by{};    // precision | time | samples | interrupt
  Outliers outliers{};
  int modes = 1;
  double warm_up_s = 0;
  double floor_ns = 0;       // an empty call, or of a GPU an empty kernel, through the same timer
  bool near_floor = false;   // below five floors: the call or the launch itself is a good part of the time

  std::vector<double> samples_mhz{};  // of a GPU: the clock of its multiprocessors at each sample
  double mhz = 0;                     // their median
  double watts = 0, celsius = 0;      // the largest that NVML said meanwhile; 0: it said nothing
  std::string slowed_by{};            // "power cap": why the clock was not higher, if NVML named something
  int late_batches = 0;               // launches of these may be in the time: the host was slower than the gate waits
  double sustained_ns = 0, joules = 0, sustained_watts = 0;  // of one call, back to back; 0: --energy was not asked for

  double flops = 0, bytes = 0;  // of one call, core/work.h
  double gflops = 0, gbs = 0;   // derived: a second
  double ceiling_gflops = 0, copy_gbs = 0;  // measured in the same process; 0: not measured
  std::string ceiling{};        // its instruction

  Checked parity{};
  std::string baseline{};    // subject this one is compared with; empty: none, or it is the baseline
  Ratio ratio{};             // time of the baseline / time of this one, interleaved
  double aa_spread = 0;      // smallest difference that may be claimed
  std::string verdict{};     // FASTER | SLOWER | SAME | UNCLEAR
  Provenance provenance{};
};

std::string to_json(const Record&);  // one line without its end
// Unknown fields are skipped and missing ones keep their default: a newer file can be read. The version must fit. A
// line may be anybody's: one that is too deep, has too many names or a number of no use is refused, and costs nothing.
Status from_json(std::string_view line, Record& out);
size_t first_missing(std::string_view line, std::span<const char* const> fields);  // as many as fields: none
// Every row of a file; a mistake names file and line. Empty lines are skipped. An unfinished last line (an interrupted
// write) is left out, and `unfinished` has a sentence about it. `text`: also the file as it stands; a pipe cannot be
// read again.
Status read_records(const std::string& path, std::vector<Record>& out, std::vector<std::string>* unfinished = nullptr,
                    std::string* text = nullptr);

// Appends whole rows, each with one write that reaches the disk: what was measured survives whatever comes next. One
// process at a time has it. A line that a kill left unfinished at the end is cut off; a file whose last line is
// something else, or a record that cannot be read here, is refused and left alone.
class RecordFile {
 public:
  RecordFile() = default;
  RecordFile(const RecordFile&) = delete;
  RecordFile& operator=(const RecordFile&) = delete;
  ~RecordFile();
  Status open(const std::string& path);
  bool is_open() const { return file_ >= 0; }
  bool was_torn() const { return killed_; }  // its last line was cut off
  bool is_foreign() const { return foreign_; }  // not opened for what is in it, and not by the machine
  Status write(const Record& r) { return write(std::span(&r, 1)); }
  Status write(std::span<const Record> row);
  // What whole rows it has. The last row, and no other, is cut off, to be measured again, where it was interrupted, or
  // where its last line was torn: that is what a kill leaves. A row that lacks records otherwise, or only the end of
  // its last line, was filtered by somebody, and stays. `cut`: how many records that were.
  Status resume(std::vector<Record>& out, size_t* cut = nullptr);

 private:
  int file_ = -1;
  bool killed_ = false;  // its last line was torn
  bool foreign_ = false;
  std::string path_{};
  Status no(std::string_view what) const;
  Status text(std::string& out) const;
  Status cut(size_t bytes) const;
  Status add(std::string_view bytes) const;
};

// What makes two records rows of the same question on the same machine from the same sources: `run` and the subject are
// not of it.
std::string resume_key(const Record&);

// The problem, and behind a bar the pattern of its lists: two patterns may have one problem line.
inline std::string line_text(const Record& r) { return r.pattern.empty() ? r.problem : r.problem + " | " + r.pattern; }

// The name of the CPU or GPU that it ran on, which rules and offers go by. Where it is not known: "cpu", "cuda:0".
inline const std::string& machine_of(const Record& r) { return r.threads ? r.provenance.cpu : r.provenance.gpu; }
inline const std::string& device_of(const Record& r) { return machine_of(r).empty() ? r.device : machine_of(r); }

// How it was timed: "cold", "cold, rested 150 ms", "cold, hot 40 ms".
std::string timing_text(std::string_view mode, double rest_s, double heat_s);
inline std::string timing_text(const Record& r) { return timing_text(r.mode, r.rest_s, r.heat_s); }
// That, on what, and what is not as usual: "cold, cuda:0, bshd", "warm, 2 threads".
std::string setting_text(const Record&);

// The numbers that follow from the samples and from flops and bytes; refuses what is above a ceiling.
void derive(Record&);

}  // namespace attune
