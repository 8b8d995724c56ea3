// SPDX-License-Identifier: Apache-2.0
// A record: the measurement of one subject in one row, as a line of JSON. Records are self-contained, so files can be
// split, joined and sent. `bench` writes them; every reader needs only this header. Times are nanoseconds of one call.
#pragma once
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "core/status.h"
#include "tool/record/word.h"
#include "tool/timing/load.h"
#include "tool/timing/statistics.h"

namespace attune {

// 2 added run, row_records, kernels, input_rms, tensor_bytes, scores_bytes, parity.mistake, provenance.clocks and the
// status oom. 3 added precision, load and the seal (planned_rows, closes, previous, seal; see seal.h); its ratios are
// those of median_ratio(), a verdict needs 95 % confidence, and aa_spread is null where it was not measured. 4 added
// the mean, deviation and percentiles of the samples, sequences, tokens and queries with their rates, most_samples, and
// in the provenance command, os, gpu_memory_bytes, gpu_sms, gpu_bandwidth_gbs and cudnn, null where there is none.
// Older records are still read, and judged by their own rules; they may lack peer, note and left_out, which from_json()
// then derives.
inline constexpr int kRecordVersion = 4;

// Where a number comes from. Never the name of the machine or of its user.
struct Provenance {
  std::string time{};      // UTC, "2026-01-31T12:00:00Z"
  std::string commit{};    // "unknown" outside a checkout
  bool dirty = false;      // built from uncommitted changes
  std::string version{}, compiler{}, flags{};
  std::string cpu{}, features{}, governor{}, kernel{};  // kernel: release of the operating system
  int cores = 0;           // cores that this process may use
  std::string peers{};     // "torch 2.9.0"
  std::string gpu{}, gpu_uuid{}, gpu_vbios{}, gpu_driver{}, cuda{};  // gpu: empty if none was used
  double gpu_power_limit_w = 0, gpu_most_mhz = 0;
  int gpu_ecc = -1, gpu_mig = -1;  // 1: on, 0: off, -1: unknown
  std::string gpu_pcie{};  // "generation 5, 16 lanes"; empty: unknown
  std::string binary{};    // 16 hex digits, a hash of the program; empty: it could not be read
  std::string clocks{};    // who sets the clocks: "governor performance", "free, up to 1980 MHz"

  // From version 4 on.
  std::optional<std::string> command{};  // "attune bench --len 512": absolute paths without their folder
  std::optional<std::string> os{};       // "Debian GNU/Linux 12 (bookworm)"
  std::optional<double> gpu_memory_bytes{}, gpu_sms{}, gpu_bandwidth_gbs{};  // bandwidth: of memory clock and bus width
  std::optional<std::string> cudnn{};    // "9.15.0", where one can be opened
};

// The check of the buffers that were timed, on sampled rows.
struct Checked {
  Word<CheckVerdict> verdict{};
  double error = 0;       // largest error of a row divided by the tolerance; above 1 fails
  int rows = 0;
  std::string message{};  // where it failed, or why it was not checked
  std::string mistake{};  // for a FAIL, the common mistake that explains it; see verify/diagnose.h
};

struct Record {
  int version = kRecordVersion;  // version of the line it was read from
  Word<RecordStatus> status{};
  std::string message{};     // explains the status
  Word<LeftOut> left_out{};  // of an unsupported row
  std::string run{};         // id of the run of the command, equal in all its records
  int row_records = 0;       // number of records of the row; with fewer in a file, the row is unfinished
  std::string problem{};     // problem line, or pass and line of a module
  std::string pattern{};     // pattern of its block lists; "" if they were drawn at random or there are none
  int64_t active_blocks = 0, shown_blocks = 0;  // entries of all block lists, and blocks visible through the mask
  double density = 0;        // active / shown
  std::string subject{};     // "cpu_forward", "torch:sdpa"
  std::string device{};      // "cpu", "cuda:0"
  std::string mode{"warm"};  // cold: the last-level cache is flushed before every sample; graph: replayed, and cold
  double rest_s = 0, heat_s = 0;  // rest, or own work, before every batch of samples
  std::string layout{"bhsd"};
  std::string distribution{"normal"};
  uint64_t seed = 0;
  int threads = 1;           // 0 on a GPU
  int sets = 1;              // rotating sets of inputs and outputs
  double input_rms = 0;      // root mean square of the timed queries: 1 for normal, 0.58 for uniform values
  uint64_t workspace_bytes = 0;
  double tensor_bytes = 0;   // inputs and outputs
  double scores_bytes = 0;   // score matrix in the dtype of the keys, which only unfused attention stores
  double cache_bytes = 0;    // keys and values, of every branch, compressed ones too; 0: unknown
  double taken_bytes = -1;   // measured: what a first call took besides inputs and outputs; below 0: unknown
  // Native sparse attention: keys read by the compressed, the selected and the window branch, and the distinct tokens
  // of the last two together; summed over all queries and GQA groups.
  std::vector<double> tokens_read{};
  std::vector<std::string> kernels{};  // kernels a call launches, in order; on a CPU the instruction set of its loops
  std::string why{};         // how the backend was chosen
  bool peer = false;         // another library
  std::string note{};        // a remark of a peer: "KV heads are expanded beforehand"

  std::vector<double> samples_ns{};  // all samples in the order taken; each is the mean of `calls` calls
  int calls = 1;
  double median_ns = 0;
  Interval interval{};
  std::string ended_by{};    // precision | time | samples | interrupt
  Outliers outliers{};
  int modes = 1;
  double warm_up_s = 0;
  double floor_ns = 0;       // an empty call, or on a GPU an empty kernel, through the same timer
  bool near_floor = false;   // below five floors: the call or the launch is a large part of the time

  std::vector<double> samples_mhz{};  // on a GPU, the SM clock at each sample
  double mhz = 0;                     // their median
  double watts = 0, celsius = 0;      // largest readings of NVML meanwhile; 0: none
  std::string slowed_by{};            // "power cap": why the clock was not higher, if NVML gave a reason
  Load load{};                        // how busy the machine was; what is unknown is absent from the line
  int late_batches = 0;               // batches whose time may include launches: the host was slower than the gate
  double sustained_ns = 0, joules = 0, sustained_watts = 0;  // per call, back to back; 0 without --energy

  double flops = 0, bytes = 0;  // per call, see core/work.h
  double gflops = 0, gbs = 0;   // derived rates
  // From version 4 on, per call: sequences of the batch, their queries without heads, and queries of all heads; and
  // how many of each per second of the median.
  double sequences = 0, tokens = 0, queries = 0;
  double sequences_s = 0, tokens_s = 0, queries_s = 0;
  double mean_ns = 0, deviation_ns = 0, p95_ns = 0, p99_ns = 0;  // of the samples; see statistics.h
  int most_samples = 0;         // where sampling ends in any case; 0: not timed
  double ceiling_gflops = 0, copy_gbs = 0;  // measured in the same process; 0: not measured
  std::string ceiling{};        // instruction of the ceiling

  Checked parity{};
  std::string baseline{};    // subject this one is compared with; empty: none, or this is the baseline
  Ratio ratio{};             // time of the baseline / time of this one, interleaved
  std::optional<double> aa_spread{};  // smallest difference that may be claimed; nothing: it was not measured
  std::string verdict{};     // FASTER | SLOWER | SAME | UNCLEAR, as it was written; see verdict_text()
  Provenance provenance{};

  // From version 3 on.
  double precision = 0;      // half the interval of the median at which sampling may end; 0: not timed
  int planned_rows = 0;      // in the first record of a run: the rows that it is to measure
  bool closes = false;       // the last record of a run that measured all of them
  std::string previous{};    // seal of the record before it
  std::string seal{};        // of its own text; empty: not sealed
};

std::string to_json(const Record&);  // one line without a newline
// Unknown fields are skipped and missing fields keep their default, so a newer file can be read; the version must fit.
// Lines are untrusted: one that is too deep, has too many names, a name twice or an unusable number, is refused.
enum class Misread { none, cut_short, newer, other };  // cut_short: the text ends before its JSON does
Status from_json(std::string_view line, Record& out, Misread* kind = nullptr);
size_t first_missing(std::string_view line, std::span<const char* const> fields);  // index; fields.size() if none
// Reads every record of a file; errors name file and line. Empty lines are skipped. An incomplete last line (an
// interrupted write) is skipped, with a sentence in `unfinished`. `text` receives the content of the file, because a
// pipe cannot be read again.
Status read_records(const std::string& path, std::vector<Record>& out, std::vector<std::string>* unfinished = nullptr,
                    std::string* text = nullptr);

// Appends whole rows, each with one write that reaches the disk, so a measurement survives whatever comes next. Only
// one process at a time can open the file. An incomplete last line, left by a killed run, is cut off. A file whose last
// line is something else, or a record that cannot be read here, is refused and left unchanged.
class RecordFile {
 public:
  RecordFile() = default;
  RecordFile(const RecordFile&) = delete;
  RecordFile& operator=(const RecordFile&) = delete;
  ~RecordFile();
  Status open(const std::string& path);
  bool is_open() const { return file_ >= 0; }
  bool was_torn() const { return killed_; }     // the last line was cut off
  bool is_foreign() const { return foreign_; }  // refused because of its content, not because of the machine
  Status write(const Record& r) { return write(std::span(&r, 1)); }
  Status write(std::span<const Record> row);
  // Returns the complete rows. The last row, and no other, is cut off to be measured again if it was interrupted or its
  // last line was torn, which is what a killed run leaves. A row that lacks records for any other reason was filtered
  // by the user and stays. `cut` is the number of records cut off.
  Status resume(std::vector<Record>& out, size_t* cut = nullptr);
  // The seal of the last record, which a resumed run continues; "" after resume() if that record closed its run.
  const std::string& tail() const { return tail_; }

 private:
  int file_ = -1;
  bool killed_ = false;  // the last line was torn
  bool foreign_ = false;
  std::string path_{}, tail_{};
  Status no(std::string_view what) const;
  Status text(std::string& out) const;
  Status cut(size_t bytes) const;
  Status add(std::string_view bytes) const;
};

// Equal for records of the same row on the same machine from the same sources; without `run` and the subject.
std::string resume_key(const Record&);

// Why this record is not judged against a peer, or the peer against it: "threads waited for a CPU 40 % of the time".
// Libraries lose different shares of their speed to a busy machine: threads of OpenMP that wait for each other may lose
// nearly all of it. "" if it may be judged.
std::string held_up_text(const Record&);
// The verdict to show: UNCLEAR where the interval of the ratio has less than 95 % confidence, and against a peer under
// load. Older records may claim more.
std::string verdict_text(const Record&);

// The problem and, after a bar, the pattern of its block lists: two patterns may have the same problem line.
inline std::string line_text(const Record& r) { return r.pattern.empty() ? r.problem : r.problem + " | " + r.pattern; }

// Name of the CPU or GPU, which rules and offers refer to. device_of() falls back to "cpu" or "cuda:0" if unknown.
inline const std::string& machine_of(const Record& r) { return r.threads ? r.provenance.cpu : r.provenance.gpu; }
inline const std::string& device_of(const Record& r) { return machine_of(r).empty() ? r.device : machine_of(r); }

// The timing mode: "cold", "cold, rested 150 ms", "cold, hot 40 ms".
std::string timing_text(std::string_view mode, double rest_s, double heat_s);
inline std::string timing_text(const Record& r) { return timing_text(r.mode, r.rest_s, r.heat_s); }
// The timing mode, the device, and settings other than the default: "cold, cuda:0, bshd", "warm, 2 threads".
std::string setting_text(const Record&);

// Computes everything that follows from the samples, flops and bytes. A rate above a ceiling is refused.
void derive(Record&);
std::string too_fast(const Record&);  // why the rates that were derived are impossible; "" if they are possible

// Whether a user set the clocks of the GPU, and how provenance.clocks says it.
inline constexpr std::string_view kClocksSet = "set by a user, ", kClocksFree = "free, ";
inline bool clocks_are_set(const Provenance& p) { return p.clocks.starts_with(kClocksSet); }

}  // namespace attune
