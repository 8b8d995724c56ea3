// SPDX-License-Identifier: Apache-2.0
#include "tool/bench/axes.h"

#include <algorithm>
#include <charconv>
#include <sstream>
#include <tuple>

#include "core/variant/pattern.h"
#include "machine/host.h"
#include "tool/files.h"
#include "tool/subjects/module_run.h"
#include "tool/subjects/ring_run.h"
#include "tool/text.h"

namespace attune {
namespace {

constexpr size_t kMost = 100000;  // rows; more is assumed to be a typo

std::vector<std::string> split(std::string_view text, char at) {
  std::vector<std::string> parts;
  for (;;) {
    const size_t end = text.find(at);
    parts.emplace_back(text.substr(0, end));
    if (end == std::string_view::npos) return parts;
    text.remove_prefix(end + 1);
  }
}

// Takes a number of at least 1 from the front of `text`.
bool take(std::string_view& text, int32_t& out) {
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), out);
  if (error != std::errc{} || out < 1) return false;
  text.remove_prefix(size_t(end - text.data()));
  return true;
}

Status range_of(std::string_view what, std::string_view text, std::vector<int32_t>& out) {
  const auto no = [&, whole = text] {
    return Status::no("--", what, ": '", whole,
                      "' is not a number, a range a-b*factor or a range a-b+step, all from 1 to 2147483647");
  };
  int32_t first = 0, last = 0, step = 0;
  if (!take(text, first)) return no();
  if (text.empty()) return out.push_back(first), Status::good();
  if (text[0] != '-') return no();
  text.remove_prefix(1);
  if (!take(text, last) || text.size() < 2 || (text[0] != '*' && text[0] != '+')) return no();
  const bool multiply = text[0] == '*';
  text.remove_prefix(1);
  if (!take(text, step) || !text.empty() || (multiply && step == 1) || last < first) return no();
  for (int64_t n = first; n <= last; n = multiply ? n * step : n + step) {
    if (out.size() >= kMost) return Status::no("--", what, ": more than ", kMost, " values");
    out.push_back(int32_t(n));
  }
  return Status::good();
}

}  // namespace

Status numbers_of(std::string_view what, std::string_view text, std::vector<int32_t>& out) {
  for (const std::string& part : split(text, ','))
    if (Status s = range_of(what, part, out); !s.ok()) return s;
  return Status::good();
}

Status thread_counts(std::string_view asked, const Device& device, int32_t cpus, std::vector<int32_t>& out) {
  if (asked.empty()) return out.push_back(device.units), Status::good();
  std::vector<int32_t> given;
  if (Status s = numbers_of("threads", asked, given); !s.ok()) return s;
  const int32_t most = std::min(kMostThreads, cpus);
  for (const int32_t n : given) {
    if (n > most)
      return Status::no("--threads: ", n, " is not from 1 to ", most, ", the CPUs that this process may use");
    if (std::find(out.begin(), out.end(), n) == out.end()) out.push_back(n);
  }
  return Status::good();
}

std::vector<std::string> masks_of(std::string_view text) {
  std::vector<std::string> masks;
  bool half = false;  // the last mask is a window whose right side follows
  for (const std::string& part : split(text, ',')) {
    if (half) masks.back() += "," + part, half = false;
    else masks.push_back(part), half = part.starts_with("window") && part != "window";
  }
  return masks;
}

Status bound_by(std::string_view pattern, Problem& p) {
  const Problem whole = whole_problem(p);
  Pattern read;
  if (Status s = parse(pattern, whole, read); !s.ok()) return s;
  const int64_t most = bound(read, whole, p.batch, p.heads_q, true);
  if (most > INT32_MAX) return Status::no("pattern '", pattern, "': ", most, " entries; at most 2^31 - 1");
  p.mask.blocks.bound = int32_t(most > 0 ? most : 1);
  return Status::good();
}

Status parse_row(std::string_view text, BenchRow& out) {
  if (is_module_row(text)) return parse_module_row(text, out);
  constexpr std::string_view kBar = " | ";
  const size_t bar = text.find(kBar);
  out = {};
  if (Status s = parse(text.substr(0, bar), out.problem); !s.ok()) return s;
  if (bar == std::string_view::npos) return Status::good();
  out.pattern = text.substr(bar + kBar.size());
  return bound_by(out.pattern, out.problem);
}

constexpr std::string_view kTrain = "train ";

bool train_problem(std::string_view line, Problem& out) {
  return line.starts_with(kTrain) && parse(join("backward ", line.substr(kTrain.size())), out).ok();
}

Status parse_bench_row(std::string_view text, BenchRow& out) {
  if (!text.starts_with(kTrain)) return parse_row(text, out);
  const std::string backward = join("backward ", text.substr(kTrain.size()));
  if (is_module_row(backward)) return Status::no("'", text, "': a module's backward contains its forward");
  if (Status s = parse_row(backward, out); !s.ok()) return s;
  const std::string line = name(out.problem);
  out.train = true, out.label = join(kTrain, line.substr(line.find(' ') + 1));
  return Status::good();
}

Status problems_of(const Axes& a, std::vector<BenchRow>& out) {
  std::vector<int32_t> batches, lengths, queries, dims;
  if (Status s = numbers_of("batch", a.batch, batches); !s.ok()) return s;
  if (Status s = numbers_of("len", a.len, lengths); !s.ok()) return s;
  if (!a.len_q.empty())
    if (Status s = numbers_of("len-q", a.len_q, queries); !s.ok()) return s;
  if (queries.empty()) queries.push_back(0);  // as many as keys
  std::vector<std::string> dim_words;         // "64" or "192/128"
  for (const std::string& word : split(a.dim, ',')) {
    if (word.find('/') != std::string::npos) { dim_words.push_back(word); continue; }
    dims.clear();
    if (Status s = numbers_of("dim", word, dims); !s.ok()) return s;
    for (const int32_t d : dims) dim_words.push_back(join(d));
  }
  // Every combination goes through the parser of problem lines, so an axis value means what it means in a line.
  for (const std::string& pass : split(a.pass, ','))
    for (const std::string& dtype : split(a.dtype, ','))
      for (const std::string& mask : masks_of(a.mask))
        for (const std::string& dim : dim_words)
          for (const int32_t batch : batches)
            for (const std::string& heads : split(a.heads, ','))
              for (const int32_t len_q : queries)
                for (const int32_t len : lengths) {
                  const std::string line =
                      join(pass, " ", dtype, " b", batch, " h", heads, " q", len_q ? len_q : len, " k", len, " d", dim,
                           " ", mask, a.options.empty() ? "" : " ", a.options);
                  BenchRow row;
                  if (Status s = parse_bench_row(line, row); !s.ok()) return s.after("'", line, "': ");
                  if (out.size() >= kMost) return Status::no("axes: more than ", kMost, " rows");
                  out.push_back(row);
                }
  return Status::good();
}

namespace {

// What --mask says of rows: a kind, "window" for any window; "compressed" for keys with steps; "blocks" for lists; or a
// whole mask as in a line.
constexpr std::string_view kMaskWords[] = {"full", "causal", "window", "compressed", "blocks"};

Status is_mask_word(const std::string& word) {
  for (const std::string_view known : kMaskWords)
    if (word == known) return Status::good();
  Problem p;
  if (parse(join("forward f32 b1 h1 q1 k1 d8 ", word), p).ok()) return Status::good();
  return Status::no("--mask: '", word, "' is not one of full, causal, window, compressed, blocks, or a mask such as "
                    "window127,0");
}

bool has_mask(const Problem& p, const std::string& word) {
  const bool compressed = p.mask.k_step != 1 || p.mask.k_phase != 0, blocks = p.mask.blocks.q != 0;
  if (word == "compressed") return compressed;
  if (word == "blocks") return blocks;
  if (word == "window") return p.mask.kind == MaskKind::window && !compressed;
  Problem asked;  // was accepted
  (void)parse(join("forward f32 b1 h1 q1 k1 d8 ", word), asked);
  const auto facts = [](const Mask& m) {
    return std::tuple(m.kind, m.align, m.left, m.right, m.k_step, m.k_phase);
  };
  return facts(p.mask) == facts(asked.mask);
}

}  // namespace

Status keep_rows(const Axes& a, const std::vector<std::string>& given, std::vector<BenchRow>& rows) {
  std::vector<std::string> passes;
  std::vector<int32_t> lengths;
  std::vector<std::string> masks;
  for (const std::string& axis : given) {
    if (axis == "--mask") {
      masks = masks_of(a.mask);
      for (const std::string& word : masks)
        if (Status s = is_mask_word(word); !s.ok()) return s;
    } else if (axis == "--len") {
      if (Status s = numbers_of("len", a.len, lengths); !s.ok()) return s;
    } else if (axis == "--pass") {
      for (const std::string& word : split(a.pass, ',')) {
        if (word != "forward" && word != "backward" && word != "train")
          return Status::no("--pass: ", not_one_of(word, "forward, backward, train"));
        passes.push_back(word);
      }
    } else {
      return Status::no(axis, ": given with a suite, a file or problem lines; only --pass, --len and --mask can "
                              "select among their rows");
    }
  }
  const auto has = [](const auto& all, const auto& one) {
    return all.empty() || std::find(all.begin(), all.end(), one) != all.end();
  };
  std::erase_if(rows, [&](const BenchRow& row) {
    const auto masked = [&](const std::string& word) { return has_mask(row.problem, word); };
    return !has(passes, row.train ? std::string("train") : std::string(name(row.problem.pass))) ||
           !has(lengths, whole_problem(row.problem).len_k) ||
           (!masks.empty() && std::none_of(masks.begin(), masks.end(), masked));
  });
  return rows.empty() ? Status::no("--pass, --len and --mask: no row matches") : Status::good();
}

std::string name(const BenchRow& row) {
  if (!row.label.empty()) return row.pattern.empty() || !row.train ? row.label : join(row.label, " | ", row.pattern);
  return row.pattern.empty() ? name(row.problem) : join(name(row.problem), " | ", row.pattern);
}

Status problems_in(const std::string& path, std::vector<BenchRow>& out) {
  std::string text;
  if (Status s = read_file(path, text); !s.ok()) return s.after("--lines: ");
  std::istringstream file(text);
  const size_t before = out.size();
  std::string line;
  for (int number = 1; std::getline(file, line); ++number) {
    while (!line.empty() && (line.back() == ' ' || line.back() == '\r')) line.pop_back();
    if (line.empty() || line[0] == '#') continue;
    BenchRow row;
    if (Status s = parse_bench_row(line, row); !s.ok()) return s.after(path, ":", number, ": ");
    out.push_back(row);
  }
  return out.size() > before ? Status::good() : Status::no("--lines: '", path, "' has no problem lines");
}

}  // namespace attune
