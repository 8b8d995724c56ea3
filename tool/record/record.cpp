// SPDX-License-Identifier: Apache-2.0
#include "tool/record/record.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cctype>
#include <cerrno>
#include <cmath>
#include <cstring>
#include <limits>
#include <map>
#include <nlohmann/json.hpp>
#include <set>
#include <sstream>
#include <type_traits>
#include <utility>

#include "machine/files.h"
#include "tool/files.h"
#include "tool/record/seal.h"
#include "tool/text.h"

namespace attune {
namespace {

using json = nlohmann::ordered_json;

// A record is flat and has about a hundred names. nlohmann's library takes time quadratic in the names of an object and
// recurses when it prints, so larger inputs are refused before it sees them.
constexpr int kMostDepth = 16, kMostNames = 500;
constexpr size_t kShown = 40;  // letters of a text of theirs in a message
// Sums and products of two such numbers are finite, so a record that was read can be written and read again.
constexpr double kMostNumber = 1e60;

// fields() below serves both directions, so exactly what is written is read.
struct Writer {
  json& j;
  template <class T>
  void operator()(const char* name, const T& value) const { j[name] = value; }
  // JSON has no infinity. A number that a reader takes stands for it, so a line that was read is written as it was.
  void operator()(const char* name, double value) const {
    j[name] = std::isinf(value) ? std::copysign(kMostNumber, value) : value;
  }
  template <class E>
  void operator()(const char* name, const Word<E>& word) const { j[name] = word.text(); }
  template <class T>
  void operator()(const char* name, const std::optional<T>& value) const {
    value ? j[name] = *value : j[name] = nullptr;
  }
};
// Writes only what is known, so that an absent field means unknown.
struct KnownWriter {
  json& j;
  template <class T>
  void operator()(const char* name, T value) const {
    if (value >= 0) j[name] = value;
  }
};

struct WrongField { std::string why; };

// A value in an error message: a number verbatim, anything else by its type, because texts and lists may be long.
std::string text_of(const json& j) {
  if (j.is_number()) return j.dump();
  if (j.is_boolean()) return j.get<bool>() ? "true" : "false";
  return j.is_null() ? "null" : j.is_string() ? "a text" : j.is_array() ? "a list" : "an object";
}

struct Reader {
  const json& j;
  template <class T>
  void operator()(const char* name, T& value) const {
    const auto it = j.find(name);
    if (it != j.end() && !it->is_null()) read(name, *it, value);
  }

 private:
  [[noreturn]] static void wrong(const char* name, const json& j, const auto&... wanted) {
    throw WrongField{join(name, ": ", text_of(j), " is not ", wanted...)};
  }
  static void read(const char* name, const json& j, bool& out) {
    j.is_boolean() ? void(out = j.get<bool>()) : wrong(name, j, "true or false");
  }
  static void read(const char* name, const json& j, std::string& out) {
    // Texts are printed within lines: a newline in one would forge another line.
    j.is_string() ? void(out = in_one_line(j.get_ref<const std::string&>())) : wrong(name, j, "a text");
  }
  template <class E>
  static void read(const char* name, const json& j, Word<E>& out) {
    std::string text;
    read(name, j, text);
    out = Word<E>(text);
  }
  static void read(const char* name, const json& j, double& out) {
    if (!j.is_number()) wrong(name, j, "a number");
    out = j.get<double>();
    if (std::abs(out) > kMostNumber) wrong(name, j, "a number from ", -kMostNumber, " to ", kMostNumber);
  }
  template <class T>
  static void read(const char* name, const json& j, std::optional<T>& out) {
    read(name, j, out.emplace());
  }
  template <class T>
    requires std::is_integral_v<T>
  static void read(const char* name, const json& j, T& out) {
    using Limits = std::numeric_limits<T>;
    const bool holds = j.is_number_unsigned() ? std::in_range<T>(j.get<uint64_t>())
                                              : j.is_number_integer() && std::in_range<T>(j.get<int64_t>());
    if (!holds) wrong(name, j, "a whole number from ", Limits::min(), " to ", Limits::max());
    out = j.get<T>();
  }
  template <class T>
  static void read(const char* name, const json& j, std::vector<T>& out) {
    if (!j.is_array()) wrong(name, j, "a list");
    out.resize(j.size());
    for (size_t n = 0; n < out.size(); ++n) read(name, j[n], out[n]);
  }
};

// Checks the limits above by counting brackets and colons outside of strings.
Status is_small(std::string_view line) {
  int depth = 0, names = 0;
  bool in_text = false;
  for (size_t n = 0; n < line.size(); ++n) {
    const char c = line[n];
    if (in_text && c == '\\') ++n;
    else if (c == '"') in_text = !in_text;
    else if (in_text) continue;
    else if ((c == '[' || c == '{') && ++depth > kMostDepth)
      return Status::no("record: lists and objects are nested more than ", kMostDepth, " deep");
    else if (c == ']' || c == '}') --depth;
    else if (c == ':' && ++names > kMostNames) return Status::no("record: more than ", kMostNames, " names");
  }
  return Status::good();
}

// Extracts the number from "[json.exception.out_of_range.406] number overflow parsing '1e999'".
std::string number_in(std::string_view what) {
  const size_t from = what.find('\''), until = what.rfind('\'');
  if (from == what.npos || until == from) return "a number";
  const std::string_view digits = what.substr(from + 1, until - from - 1);
  return digits.size() > kShown ? join(digits.substr(0, kShown), "...") : std::string(digits);
}

template <class Each, class R>
void fields(R& r, const Each& each) {
  each("status", r.status), each("message", r.message), each("problem", r.problem), each("subject", r.subject);
  each("left_out", r.left_out), each("peer", r.peer), each("note", r.note);
  each("run", r.run), each("row_records", r.row_records);
  each("device", r.device), each("mode", r.mode), each("rest_s", r.rest_s), each("heat_s", r.heat_s);
  each("layout", r.layout), each("distribution", r.distribution);
  each("pattern", r.pattern), each("active_blocks", r.active_blocks), each("shown_blocks", r.shown_blocks);
  each("density", r.density);
  each("seed", r.seed), each("threads", r.threads), each("sets", r.sets), each("why", r.why);
  each("workspace_bytes", r.workspace_bytes), each("tensor_bytes", r.tensor_bytes);
  each("taken_bytes", r.taken_bytes);
  each("scores_bytes", r.scores_bytes), each("cache_bytes", r.cache_bytes);
  each("kernels", r.kernels), each("input_rms", r.input_rms);
  each("median_ns", r.median_ns), each("calls", r.calls), each("ended_by", r.ended_by), each("modes", r.modes);
  each("warm_up_s", r.warm_up_s), each("floor_ns", r.floor_ns), each("near_floor", r.near_floor);
  each("mhz", r.mhz), each("watts", r.watts), each("celsius", r.celsius), each("slowed_by", r.slowed_by);
  each("late_batches", r.late_batches), each("sustained_ns", r.sustained_ns), each("joules", r.joules);
  each("sustained_watts", r.sustained_watts);
  each("flops", r.flops), each("bytes", r.bytes), each("gflops", r.gflops), each("gbs", r.gbs);
  each("ceiling", r.ceiling), each("ceiling_gflops", r.ceiling_gflops), each("copy_gbs", r.copy_gbs);
  each("baseline", r.baseline), each("aa_spread", r.aa_spread), each("verdict", r.verdict);
}
template <class Each, class R>
void rate_fields(R& r, const Each& each) {  // from version 4 on
  each("mean_ns", r.mean_ns), each("deviation_ns", r.deviation_ns), each("p95_ns", r.p95_ns);
  each("p99_ns", r.p99_ns), each("most_samples", r.most_samples);
  each("sequences", r.sequences), each("tokens", r.tokens), each("queries", r.queries);
  each("sequences_s", r.sequences_s), each("tokens_s", r.tokens_s), each("queries_s", r.queries_s);
}
template <class Each, class R>
void seal_fields(R& r, const Each& each) {  // from version 3 on; the seal itself ends the line
  each("precision", r.precision), each("planned_rows", r.planned_rows), each("closes", r.closes);
  each("previous", r.previous);
}
template <class Each, class I>
void interval_fields(I& i, const Each& each) {
  each("low", i.low), each("high", i.high), each("confidence", i.confidence);
}
template <class Each, class O>
void outlier_fields(O& o, const Each& each) {
  each("low_severe", o.low_severe), each("low_mild", o.low_mild);
  each("high_mild", o.high_mild), each("high_severe", o.high_severe);
}
template <class Each, class C>
void parity_fields(C& c, const Each& each) {
  each("verdict", c.verdict), each("error", c.error), each("rows", c.rows), each("message", c.message);
  each("mistake", c.mistake);
}
template <class Each, class L>
void load_fields(L& l, const Each& each) {
  each("seconds", l.seconds), each("cpus", l.cpus), each("waited", l.waited), each("used", l.used);
  each("others", l.others), each("steal", l.steal), each("average", l.average), each("runnable", l.runnable);
  each("cpu_mhz", l.cpu_mhz), each("gpu_processes", l.gpu_processes), each("gpu_others", l.gpu_others);
}
template <class Each, class P>
void provenance_fields(P& p, const Each& each) {
  each("time", p.time), each("commit", p.commit), each("dirty", p.dirty), each("version", p.version);
  each("compiler", p.compiler), each("flags", p.flags), each("cpu", p.cpu), each("features", p.features);
  each("governor", p.governor), each("kernel", p.kernel), each("cores", p.cores), each("peers", p.peers);
  each("gpu", p.gpu), each("gpu_uuid", p.gpu_uuid), each("gpu_vbios", p.gpu_vbios), each("gpu_driver", p.gpu_driver);
  each("cuda", p.cuda), each("gpu_power_limit_w", p.gpu_power_limit_w), each("gpu_most_mhz", p.gpu_most_mhz);
  each("gpu_ecc", p.gpu_ecc), each("gpu_mig", p.gpu_mig), each("gpu_pcie", p.gpu_pcie), each("clocks", p.clocks);
  each("binary", p.binary);
}

template <class Each, class P>
void fact_fields(P& p, const Each& each) {  // from version 4 on
  each("command", p.command), each("os", p.os), each("gpu_memory_bytes", p.gpu_memory_bytes);
  each("gpu_sms", p.gpu_sms), each("gpu_bandwidth_gbs", p.gpu_bandwidth_gbs), each("cudnn", p.cudnn);
}

// Rounds to a tenth of a nanosecond, which is finer than any timer; full precision would double the file.
double kept(double ns) { return std::round(ns * 10) / 10; }

// Fields that older records lack, from the texts that held them then. No other code decides by these texts.
void complete(const json& j, Record& r) {
  if (r.version < 3 && r.aa_spread == 0.0) r.aa_spread.reset();  // versions 1 and 2 wrote 0 for a spread not measured
  constexpr std::string_view kPeer = "a peer", kNote = "a peer: ";
  if (!j.contains("peer") && r.why.starts_with(kPeer)) {
    r.peer = true;
    if (r.why.starts_with(kNote)) r.note = r.why.substr(kNote.size());
  }
  if (!j.contains("left_out") && r.status == RecordStatus::unsupported) {
    if (r.message.starts_with("not built: ")) r.left_out = LeftOut::not_built;
    if (r.message.starts_with("not tried: ")) r.left_out = LeftOut::not_tried;
  }
}

// Parses a line. Of two members with one name a reader would take one and a person might see the other.
json parsed(std::string_view line) {
  std::vector<std::set<std::string>> open;
  return json::parse(line, [&](int, json::parse_event_t event, json& value) {
    if (event == json::parse_event_t::object_start) open.emplace_back();
    if (event == json::parse_event_t::object_end) open.pop_back();
    if (event == json::parse_event_t::key)
      if (const auto& name = value.get_ref<const std::string&>(); !open.back().insert(name).second)
        throw WrongField{join("the name ",
                              in_one_line(name.size() > kShown ? name.substr(0, kShown) + "..." : name),
                              " is there twice")};
    return true;
  });
}

const json& part(const json& j, const char* name) {
  static const json nothing = json::object();
  const auto it = j.find(name);
  return it != j.end() && it->is_object() ? *it : nothing;
}

}  // namespace

std::string to_json(const Record& r) {
  json j;
  j["attune_record"] = r.version;
  fields(r, Writer{j});
  if (r.version >= 4) rate_fields(r, Writer{j});
  interval_fields(r.interval, Writer{j["interval_ns"]});
  outlier_fields(r.outliers, Writer{j["outliers"]});
  parity_fields(r.parity, Writer{j["parity"]});
  if (!r.baseline.empty()) {
    j["ratio"]["value"] = r.ratio.value;
    interval_fields(r.ratio.interval, Writer{j["ratio"]});
  }
  if (json load = json::object(); load_fields(r.load, KnownWriter{load}), !load.empty()) j["load"] = std::move(load);
  provenance_fields(r.provenance, Writer{j["provenance"]});
  if (r.version >= 4) fact_fields(r.provenance, Writer{j["provenance"]});
  json& samples = j["samples_ns"] = json::array();
  for (const double s : r.samples_ns) samples.push_back(kept(s));
  if (!r.samples_mhz.empty()) {
    json& clocks = j["samples_mhz"] = json::array();
    for (const double m : r.samples_mhz) clocks.push_back(std::lround(m));
  }
  if (!r.tokens_read.empty()) j["tokens_read"] = r.tokens_read;
  if (r.version >= 3) seal_fields(r, Writer{j});
  // Text that is not UTF-8 (such as a message of the operating system) must not end a run.
  std::string line = j.dump(-1, ' ', false, json::error_handler_t::replace);
  if (r.version >= 3 && !r.seal.empty()) line.pop_back(), line += join(kSealBegin, r.seal, kSealEnd);
  return line;
}

Status from_json(std::string_view line, Record& out, Misread* kind) {
  Misread ignored, &why = kind ? *kind : ignored;
  why = Misread::other;
  if (Status s = is_small(line); !s.ok()) return s;
  try {
    const json j = parsed(line);
    if (!j.is_object() || !j.contains("attune_record")) return Status::no("record: field attune_record is missing");
    Record r;
    Reader{j}("attune_record", r.version);
    if (r.version > kRecordVersion) {
      why = Misread::newer;
      return Status::no("record: written by a newer attune (record version ", r.version, ", this one reads to ",
                        kRecordVersion, "): update");
    }
    if (r.version < 1) return Status::no("record: version ", r.version, " is not one of 1 to ", kRecordVersion);
    fields(r, Reader{j});
    rate_fields(r, Reader{j});
    fact_fields(r.provenance, Reader{part(j, "provenance")});
    interval_fields(r.interval, Reader{part(j, "interval_ns")});
    outlier_fields(r.outliers, Reader{part(j, "outliers")});
    parity_fields(r.parity, Reader{part(j, "parity")});
    Reader{part(j, "ratio")}("value", r.ratio.value);
    interval_fields(r.ratio.interval, Reader{part(j, "ratio")});
    load_fields(r.load, Reader{part(j, "load")});
    provenance_fields(r.provenance, Reader{part(j, "provenance")});
    Reader{j}("samples_ns", r.samples_ns);
    Reader{j}("samples_mhz", r.samples_mhz);
    Reader{j}("tokens_read", r.tokens_read);
    seal_fields(r, Reader{j});
    Reader{j}("seal", r.seal);
    complete(j, r);
    out = std::move(r), why = Misread::none;
    return Status::good();
  } catch (const json::parse_error& e) {
    if (line.find("}{\"attune_record\"") != line.npos)
      return Status::no("record: two records share the line: the newline between them is missing");
    if (line.starts_with('{') && e.byte > line.size()) why = Misread::cut_short;
    // What is there, and for a file of another kind what should be.
    size_t at = std::min(line.size(), std::max<size_t>(e.byte, 1) - 1);
    while (at > 0 && std::isalnum((unsigned char)(line[at - 1]))) --at;  // the whole word
    const std::string_view there = line.substr(at, kShown / 2);
    return Status::no("record: not JSON, near character ", e.byte, ": '", in_one_line(there), "'",
                      line.starts_with('{') ? "" : "; records are lines that attune bench --out writes");
  } catch (const json::exception& e) {  // out of range; parsing throws no other
    return Status::no("record: ", number_in(e.what()), " is beyond the range of a double");
  } catch (const WrongField& field) {
    return Status::no("record: ", field.why);
  }
}

size_t first_missing(std::string_view line, std::span<const char* const> fields) {
  const json j = json::parse(line, nullptr, false);
  const auto lacks = [&](const char* field) {
    const std::string_view name = field;
    const size_t dot = name.find('.');  // "provenance.os"
    return dot == name.npos
               ? !j.contains(field)
               : !part(j, std::string(name.substr(0, dot)).c_str()).contains(std::string(name.substr(dot + 1)));
  };
  return size_t(std::find_if(fields.begin(), fields.end(), lacks) - fields.begin());
}

Status read_records(const std::string& path, std::vector<Record>& out, std::vector<std::string>* unfinished,
                    std::string* text) {
  std::string all;
  if (Status s = read_text(path, all, kMostRecords); !s.ok()) return s.after("records: ");
  std::istringstream file(std::move(all));
  std::string line;
  for (int number = 1; std::getline(file, line); ++number) {
    if (text) text->append(line).append(file.eof() ? "" : "\n");
    if (line.find_first_not_of(" \t\r") == std::string::npos) continue;
    Record r;
    Misread why;
    if (const Status s = from_json(line, r, &why); !s.ok()) {
      if (!file.eof() || why != Misread::cut_short) return s.after(path, ":", number, ": ");
      if (unfinished) unfinished->push_back(join(path, ":", number, ": skipped an incomplete line"));
      break;
    }
    for (const auto& [field, value] : {std::pair("problem", &r.problem), {"subject", &r.subject}})
      if (value->empty()) return Status::no(path, ":", number, ": record: field ", field, " is missing");
    out.push_back(std::move(r));
  }
  return Status::good();
}

RecordFile::~RecordFile() {
  if (file_ >= 0) ::close(file_);
}

Status RecordFile::no(std::string_view what) const {
  return Status::no("records: '", path_, "' ", what, ": ", std::strerror(errno));
}

Status RecordFile::text(std::string& out) const {
  struct stat about{};
  if (fstat(file_, &about) != 0) return no("cannot be read");
  if (!S_ISREG(about.st_mode)) return Status::good();  // a pipe has no earlier content
  out.resize(size_t(about.st_size));
  for (size_t have = 0; have < out.size();) {
    const ssize_t n = ::pread(file_, out.data() + have, out.size() - have, off_t(have));
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return no("cannot be read");
    if (n == 0) out.resize(have);
    have += size_t(n);
  }
  return Status::good();
}

Status RecordFile::cut(size_t bytes) const {
  return ::ftruncate(file_, off_t(bytes)) == 0 ? Status::good() : no("cannot be truncated");
}

Status RecordFile::add(std::string_view bytes) const {
  while (!bytes.empty()) {
    const ssize_t n = ::write(file_, bytes.data(), bytes.size());
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return no("cannot be written");
    bytes.remove_prefix(size_t(n));
  }
  return Status::good();
}

Status RecordFile::open(const std::string& path) {
  path_ = path;
  std::string behind;
  if (Status s = behind_links(path, behind); !s.ok()) return s.after("records: '", path, "' cannot be written: ");
  file_ = ::open(path.c_str(), O_RDWR | O_APPEND | O_CREAT | O_CLOEXEC, 0666);
  if (file_ < 0 && errno == EACCES) file_ = ::open(path.c_str(), O_WRONLY | O_APPEND | O_CLOEXEC);  // a pipe, a device
  if (file_ < 0) return no("cannot be written");
  if (::flock(file_, LOCK_EX | LOCK_NB) != 0 && errno == EWOULDBLOCK)
    return Status::no("records: '", path, "' is being written by another run");
  std::string all;
  if (Status s = text(all); !s.ok()) return s;
  const size_t end = all.find_last_not_of(" \t\r\n");
  if (end == all.npos) return Status::good();
  const size_t before = all.rfind('\n', end), first = before == all.npos ? 0 : before + 1;
  const std::string_view last = std::string_view(all).substr(first, end + 1 - first);
  const bool is_ended = all.back() == '\n';
  constexpr std::string_view kBegin = "{\"attune_record\":";
  if (last.substr(0, kBegin.size()) != kBegin.substr(0, last.size()))
    return foreign_ = true,
           Status::no("records: '", path, "' does not end with a record; the file is left unchanged");
  Record r;
  Misread why;
  const Status read = from_json(last, r, &why);
  if (read.ok()) return tail_ = r.seal, is_ended ? read : add("\n");  // complete: some editors omit the last newline
  if (is_ended || why != Misread::cut_short)
    return foreign_ = true, Status::no(path, ":", 1 + std::count(all.begin(), all.begin() + int64_t(first), '\n'), ": ",
                                       read.message, "; the file is left unchanged");
  killed_ = true;
  return cut(first);
}

Status RecordFile::write(std::span<const Record> row) {
  std::string lines;
  for (const Record& r : row) lines += to_json(r) + "\n";
  if (Status s = add(lines); !s.ok()) return s;
  if (::fsync(file_) != 0 && errno != EINVAL && errno != EROFS) return no("cannot be written");  // a pipe: EINVAL
  return Status::good();
}

Status RecordFile::resume(std::vector<Record>& out, size_t* cut_records) {
  std::string all;
  if (Status s = text(all); !s.ok()) return s;
  struct Placed {
    size_t at;
    Record record;
  };
  std::vector<Placed> lines;
  int number = 0;
  for (size_t at = 0; at < all.size();) {
    const size_t end = all.find('\n', at);
    const std::string_view line = std::string_view(all).substr(at, end - at);
    ++number;
    if (line.find_first_not_of(" \t\r") != line.npos) {
      Placed p{at, {}};
      if (const Status s = from_json(line, p.record); !s.ok()) return s.after(path_, ":", number, ": ");
      lines.push_back(std::move(p));
    }
    at = end + 1;
  }
  std::map<std::string, int> have;
  const auto key = [](const Record& r) { return join(r.run, "|", resume_key(r)); };
  for (const Placed& p : lines) have[key(p.record)] += p.record.status == RecordStatus::interrupted ? -1000 : 1;
  const auto is_whole = [&](const Record& r) { return have[key(r)] >= r.row_records; };
  size_t keep = lines.size();
  if (keep > 0 && have[key(lines.back().record)] < (killed_ ? lines.back().record.row_records : 0))
    while (keep > 0 && key(lines[keep - 1].record) == key(lines.back().record)) --keep;
  if (keep < lines.size())
    if (Status s = cut(lines[keep].at); !s.ok()) return s;
  if (cut_records) *cut_records = lines.size() - keep;
  tail_ = keep > 0 && !lines[keep - 1].record.closes ? lines[keep - 1].record.seal : "";
  for (size_t n = 0; n < keep; ++n)
    if (is_whole(lines[n].record)) out.push_back(std::move(lines[n].record));
  return Status::good();
}

std::string held_up_text(const Record& r) {
  // A name with a colon, or of a package: see kPeers in subjects/peer.cpp.
  const std::string& base = r.baseline;
  const bool other = r.peer || base.find(':') != base.npos || base.starts_with("flash_attn") ||
                     base == "fa3" || base == "xformers" || base == "flashinfer" || base == "jax";
  return other && !base.empty() ? held_up_text(r.load, r.threads == 0) : "";
}

std::string verdict_text(const Record& r) {
  const bool told = r.verdict.empty() || (r.ratio.interval.is_sure() && held_up_text(r).empty());
  return told ? r.verdict : name(Speed::unclear);
}

std::string resume_key(const Record& r) {
  const Provenance& p = r.provenance;
  return join(r.problem, "|", r.pattern, "|", r.device, "|", timing_text(r), "|", r.threads, "|", r.layout, "|",
              r.distribution, "|", r.seed, "|", p.commit, "|", p.cpu, "|", p.gpu_uuid);
}

std::string timing_text(std::string_view mode, double rest_s, double heat_s) {
  std::string text(mode);
  if (rest_s > 0) text += join(", rested ", 1e3 * rest_s, " ms");
  if (heat_s > 0) text += join(", hot ", 1e3 * heat_s, " ms");
  return text;
}

std::string setting_text(const Record& r) {
  std::string s = timing_text(r);
  s += r.threads ? join(", ", r.threads, r.threads == 1 ? " thread" : " threads") : ", " + r.device;
  if (r.layout != "bhsd") s += ", " + r.layout;
  return r.distribution == "normal" ? s : s + ", " + r.distribution;
}

std::string too_fast(const Record& r) {
  constexpr std::string_view kCause = ": the work was not done, or not waited for";
  if (r.samples_ns.empty()) return "";
  if (r.median_ns <= 0) return r.flops > 0 ? join("the call took no time", kCause) : "";
  // Ceilings are measured on a machine that is never fully idle, so a rate 10 % above may still be true. Reading alone
  // is faster than copying, where half of the traffic is writes.
  constexpr double kDoubt = 1.1, kReadDoubt = 1.25;
  const auto above = [&](const char* what, double rate, double ceiling, const char* unit) {
    return join(what, " of ", std::round(rate), " ", unit, " is above the measured ceiling of ", std::round(ceiling),
                " ", unit, kCause);
  };
  if (r.ceiling_gflops > 0 && r.gflops > kDoubt * r.ceiling_gflops)
    return above("a rate", r.gflops, r.ceiling_gflops, "GFLOP/s");
  // Memory bandwidth limits only what comes from memory; when warm, everything may be in a cache.
  if (r.mode != "warm" && r.copy_gbs > 0 && r.gbs > kReadDoubt * r.copy_gbs)
    return above("memory traffic", r.gbs, r.copy_gbs, "GB/s");
  return "";
}

void derive(Record& r) {
  r.median_ns = median(r.samples_ns);
  r.interval = median_interval(r.samples_ns);
  r.outliers = outliers(r.samples_ns);
  std::vector<double> as_kept = r.samples_ns;  // as stored: rounding may change the number of modes that verify finds
  for (double& s : as_kept) s = kept(s);
  r.modes = modes(as_kept);
  r.mean_ns = mean(r.samples_ns), r.deviation_ns = deviation(r.samples_ns);
  r.p95_ns = quantile(r.samples_ns, 0.95), r.p99_ns = quantile(r.samples_ns, 0.99);
  r.mhz = median(r.samples_mhz);
  if (r.median_ns > 0) {
    r.near_floor = r.median_ns < 5 * r.floor_ns;
    r.gflops = r.flops / r.median_ns;
    r.gbs = r.bytes / r.median_ns;
    const double calls_s = 1e9 / r.median_ns;
    r.sequences_s = r.sequences * calls_s, r.tokens_s = r.tokens * calls_s, r.queries_s = r.queries * calls_s;
  }
  const std::string why = too_fast(r);
  if (why.empty()) return;
  r.status = RecordStatus::refused, r.message = join(r.subject, ": ", why);
  if (r.median_ns <= 0) r.near_floor = true;
}

}  // namespace attune
