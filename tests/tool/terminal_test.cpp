// SPDX-License-Identifier: Apache-2.0
// Text from elsewhere never controls the terminal, whichever command prints it.
#include "tool/terminal.h"

#include <gtest/gtest.h>

#include "tests/tool/records.h"
#include "tests/tool/spawn.h"

namespace attune {
namespace {

TEST(Shown, control_characters_are_their_code_and_text_stays) {
  EXPECT_EQ(shown("a\tb\n\xc3\xa9 \xe2\x96\x88 \xf0\x9f\x98\x80"), "a\tb\n\xc3\xa9 \xe2\x96\x88 \xf0\x9f\x98\x80");
  EXPECT_EQ(shown("\x1b]0;title\x07 \r\x7f"), "\\u001b]0;title\\u0007 \\u000d\\u007f");
  EXPECT_EQ(shown(std::string_view("\0", 1)), "\\u0000");
  EXPECT_EQ(shown("\xc2\x9b" "31m"), "\\u009b31m");    // a control sequence in one character
  EXPECT_EQ(shown("\xe2\x80\xae"), "\\u202e");         // text from right to left
  EXPECT_EQ(shown("\x9b" "31m \xe9"), "\\u009b31m \xe9");  // of a terminal with 8 bits; a letter of Latin-1 stays
  EXPECT_EQ(shown("\xe2\x80"), "\xe2\x80");
  EXPECT_EQ(shown("\xe2\x1b"), "\xe2\\u001b");
}

TEST(Shown, marks_are_colour_on_a_terminal_and_nothing_elsewhere) {
  const std::string text = std::string("a ") + std::string(kGreen) + "FASTER" + std::string(kPlain) + "\xfe" "x";
  EXPECT_EQ(shown(text), "a FASTERx");
  EXPECT_EQ(Shown(true).next(text), "a \x1b[32mFASTER\x1b[0mx");
  EXPECT_EQ(Shown(true).next(kErase), "\r\x1b[K");
}

TEST(Shown, nothing_is_a_command_of_a_job_on_github_but_what_is_marked) {
  EXPECT_EQ(shown("::error::a\n \t::warning::b ::notice"), ":\\u003aerror::a\n \t:\\u003awarning::b ::notice");
  EXPECT_EQ(shown("a: b::c ##[error]d #[e] ###[f"), "a: b::c ##\\u005berror]d #[e] ###\\u005bf");
  EXPECT_EQ(shown(std::string(kCommand) + "error title=a::b\n::error"), "::error title=a::b\n:\\u003aerror");
  EXPECT_EQ(shown(": :: a"), ": :: a");
}

TEST(Shown, pieces_give_what_the_whole_gives) {
  const std::string text = "\x1b \xc2\x9b \xe2\x80\xae \xe2\x96\x88 \xf0\x9f\x98\x80 \xfe" "g\n::a ##[b \xfe" "c \xc3";
  for (size_t cut = 0; cut <= text.size(); ++cut) {
    Shown pieces(false);
    std::string all = pieces.next(text.substr(0, cut));
    all += pieces.next(text.substr(cut));
    all += pieces.rest();
    EXPECT_EQ(all, shown(text)) << cut;
  }
}

// The first control character that is not part of a line end or a table; "" if there is none.
std::string control_in(const std::string& text) {
  for (size_t n = 0; n < text.size(); ++n) {
    const auto c = (unsigned char)(text[n]);
    const bool line_end = c == '\n' || c == '\t' || (c == '\r' && n + 1 < text.size() && text[n + 1] == '\n');
    const bool c1 = c == 0xC2 && n + 1 < text.size() && (unsigned char)(text[n + 1]) < 0xA0;
    if ((c < 0x20 && !line_end) || c == 0x7F || c1) return text.substr(n < 30 ? 0 : n - 30, 60);
  }
  return "";
}

// A record whose every text could take over a terminal.
Record hostile(Record r) {
  const std::string bad = " \x1b]0;owned\x07\x1b[2J\xc2\x9b" "31m\x7f";
  Provenance& p = r.provenance;
  for (std::string* text : {&r.subject, &r.message, &r.run, &r.pattern, &r.mode, &r.layout, &r.distribution, &r.why,
                            &r.note, &r.ended_by, &r.slowed_by, &r.ceiling, &r.baseline, &r.verdict,
                            &r.parity.message, &r.parity.mistake, &p.time, &p.commit, &p.version, &p.compiler, &p.flags,
                            &p.cpu, &p.features, &p.governor, &p.kernel, &p.peers, &p.binary, &p.clocks})
    *text += bad;
  r.kernels.push_back(bad);
  return r;
}

TEST(ShownOutput, no_command_passes_on_what_a_record_says_to_the_terminal) {
  const std::string path = temporary("hostile.jsonl"), good = temporary("good.jsonl"), db = temporary("h.db");
  const std::string prices = temporary("prices.tsv"), csv = temporary("rows.csv"), md = temporary("rows.md");
  {
    std::ofstream bad(path), other(good);
    for (const int length : {256, 512, 1024})
      for (const char* const backend : {"cpu_forward", "cpu_standard"}) {
        const Record r = record(backend, length, 1000);
        other << to_json(r) << "\n";
        bad << to_json(hostile(r)) << "\n";
        Record half = r;  // known to the readers that match rows, with a text that is free
        half.parity.message = half.note = half.message = hostile(r).message;
        bad << to_json(half) << "\n";
      }
    Record failed = hostile(record("cpu_forward", 2048, 1000));
    failed.status = RecordStatus::failed, failed.problem += " \x1b[2J";
    bad << to_json(failed) << "\n";
  }
  std::ofstream(prices) << "attune-prices 1\noffer\ta cloud\tTest CPU\t1\t0.5\tUSD\t2026-01-01\n";
  bool any = false;
  for (const std::vector<std::string>& words : std::vector<std::vector<std::string>>{
           {"verify", path}, {"verify", path, "--json"}, {"compare", path, path}, {"compare", good, path},
           {"compare", path, good}, {"compare", good, path, "--markdown", md, "--junit", md + ".xml"},
           {"store", path, "--db", db, "--baseline", "\x1b[2Jname"}, {"store", "--db", db}, {"history", "--db", db},
           {"history", "--db", db, "--records"}, {"history", "--db", db, "--baseline", "\x1b[1m"}, {"report", path},
           {"report", path, "--csv", csv, "--out", temporary("page.html")}, {"tune", path, "--out", temporary("t.tsv")},
           {"scaling", path}, {"cost", path, "--prices", prices}, {"verify", temporary("\x1b[2Jnone")},
           {"bench", "forward f32 b1 h1 q16 k16 d8 full", "--out", path, "--resume", "--max-seconds", "0.01"}}) {
    const Ran ran = attune_says(words);
    EXPECT_EQ(control_in(ran.out), "") << words[0];
    EXPECT_EQ(control_in(ran.err), "") << words[0];
    any = any || has(ran.out + ran.err, "\\u001b]0;owned\\u0007");
  }
  EXPECT_TRUE(any);
  for (const std::string& file : {csv, md, md + ".xml"}) {
    EXPECT_EQ(control_in(text_of(file)), "") << file;
    EXPECT_NE(text_of(file), "") << file;
  }
}

}  // namespace
}  // namespace attune
