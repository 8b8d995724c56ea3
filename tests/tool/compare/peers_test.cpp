// SPDX-License-Identifier: Apache-2.0
// Rows of peers in a comparison: told apart, and without a say unless nothing else was compared.
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "tests/tool/records.h"
#include "tests/tool/spawn.h"
#include "tool/compare/write.h"

namespace attune {
namespace {

Record steady(double ns, int length = 512) {
  Record r = record("cpu_forward", length, ns);
  r.samples_ns.clear(), r.aa_spread.reset();
  for (int n = 0; n < 40; ++n) r.samples_ns.push_back(ns * (1 + 0.0005 * (n % 5 - 2)));
  return r;
}
std::string written(const char* name, const std::vector<Record>& records) {
  std::ofstream file(temporary(name));
  for (const Record& r : records) file << to_json(r) << "\n";
  return temporary(name);
}
Record of_peer(double ns, int length = 512) {
  Record r = steady(ns, length);
  r.subject = "torch:sdpa", r.peer = true;
  return r;
}

TEST(ComparePeers, a_change_of_a_peer_is_told_and_decides_nothing) {
  const std::vector<Record> before = {steady(1000), of_peer(1000)};
  for (const auto& [peer, change] : {std::pair(of_peer(1500), Change::slower), {of_peer(500), Change::faster}}) {
    const Changes c = compare(before, {steady(1000), peer}, {});
    ASSERT_EQ(c.rows.size(), 2u);
    EXPECT_EQ(c.rows[1].change, change);
    EXPECT_TRUE(c.rows[1].peer && !c.counts(c.rows[1]) && c.counts(c.rows[0]));
    EXPECT_EQ(c.regressions({.strict = true}), 0);
    EXPECT_FALSE(c.regressed({}));
    EXPECT_EQ(c.overall.rows, 1);
    EXPECT_EQ(c.overall.change, Change::same);
    EXPECT_EQ(c.count(change), 0);
    EXPECT_EQ(c.apart(change), 1);
    EXPECT_EQ(summary(c), join("1 SAME; peers, which decide nothing: 1 ", name(change)));
    EXPECT_EQ(to_annotations(c, {}), "");
    EXPECT_FALSE(has(to_junit(c, {}), "<failure")) << to_junit(c, {});
  }
  Record broken = of_peer(1000);
  broken.status = RecordStatus::failed;
  EXPECT_FALSE(compare(before, {steady(1000), broken}, {}).regressed({}));
  EXPECT_FALSE(compare(before, {steady(1000)}, {}).regressed({})) << "a peer may be missing";
  EXPECT_TRUE(compare(before, {steady(1500), of_peer(500)}, {}).regressed({}));
  EXPECT_TRUE(compare(before, {of_peer(1000)}, {}).regressed({})) << "our row is missing";
}

TEST(ComparePeers, only_peers_decide_for_themselves) {
  const Changes c = compare({of_peer(1000), of_peer(1000, 64)}, {of_peer(1500), of_peer(1500, 64)}, {});
  EXPECT_EQ(c.regressions({}), 2);
  EXPECT_EQ(c.overall.rows, 2);
  EXPECT_EQ(c.overall.change, Change::slower);
  EXPECT_EQ(summary(c), "2 SLOWER");
}

TEST(ComparePeersCommand, a_slower_peer_is_listed_last_and_the_code_is_that_of_ours) {
  const std::string a = written("a.jsonl", {of_peer(1000), steady(1000)});
  const std::string b = written("b.jsonl", {of_peer(1500), steady(1000)});
  const Ran r = attune_says({"compare", a, b, "--all"});
  EXPECT_EQ(r.code, 0) << r.err;
  const size_t ours = r.out.find("cpu_forward"), theirs = r.out.find("torch:sdpa");
  EXPECT_TRUE(ours < theirs && theirs != r.out.npos) << r.out;
  EXPECT_TRUE(has(r.out, "\nSLOWER (peer)  ")) << r.out;
  const nlohmann::json j = nlohmann::json::parse(attune_says({"compare", a, b, "--json"}).out);
  EXPECT_EQ(j["regressions"], 0);
  EXPECT_EQ(j["rows"][0]["verdict"], "SLOWER");
  EXPECT_EQ(j["rows"][0]["counts"], false);
  EXPECT_EQ(attune_says({"compare", written("c.jsonl", {of_peer(1000)}), b}).code, 1) << "only peers were compared";
}

}  // namespace
}  // namespace attune
