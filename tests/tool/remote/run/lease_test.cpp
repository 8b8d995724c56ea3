// SPDX-License-Identifier: Apache-2.0
// The release of a lease, with a driver whose answers are given: it ends when nothing is left, and no sooner.
#include "tool/remote/run/lease.h"

#include <gtest/gtest.h>
#include <sys/resource.h>

#include <csignal>
#include <filesystem>

#include "tests/tool/spawn.h"
#include "tool/remote/run/plan.h"

namespace attune {
namespace {

// A provider with one machine, which is listed from a time on.
class Cloud final : public Driver {
 public:
  double listed_from = 0, settle = 1;
  bool there = true;
  int deletions = 0;
  Status check() override { return Status::good(); }
  Status offers(const Wanted&, std::vector<RemoteOffer>&) override { return Status::good(); }
  Status acquire(const Wanted&, const RemoteOffer&, Lease&) override { return Status::good(); }
  Status life(const Lease&, Life& life, std::string&) override {
    life = is_listed() ? Life::ready : Life::gone;
    return Status::good();
  }
  Status find(std::string_view prefix, std::vector<Lease>& all) override {
    all.clear();
    if (is_listed()) all.push_back({.name = std::string(prefix), .id = "7"});
    return Status::good();
  }
  Status push(const Lease&, const std::string&, const std::string&) override { return Status::good(); }
  Status run(const Lease&, const std::string&, int, std::string&, int&) override { return Status::good(); }
  Status read(const Lease&, const std::string&, std::uint64_t, std::string&) override { return Status::good(); }
  Status release(const Lease&) override {
    if (is_listed()) there = false, ++deletions;
    return Status::good();
  }
  Status bill(const Lease&, std::optional<double>&) override { return Status::good(); }
  double settle_s() const override { return settle; }

 private:
  bool is_listed() const { return there && now_s() >= listed_from; }
};

std::string new_folder(const std::string& name) {
  const std::string folder = temporary(name);
  std::filesystem::create_directories(folder);
  return folder;
}

TargetState asked_for(double ago) {
  TargetState s;
  s.intent = true, s.lease.name = "attune-20261119-130501-3fa2c1-0", s.intent_at = now_s() - ago;
  return s;
}

struct Released {
  Cloud cloud{};
  Journal journal{};
  std::string folder;
  Status status{};
  Released(const std::string& name, const TargetState& state, double listed_in_s) : folder(new_folder(name)) {
    cloud.listed_from = now_s() + listed_in_s;
    status = journal.open(folder);
    if (status.ok()) status = Release{cloud, journal}.until_gone(state);
  }
};

// The last of several requests may have been made long after the intent.
TEST(Release, waits_for_a_request_whose_reply_was_lost) {
  const Released r("late_request", asked_for(3600), 0.5);
  EXPECT_EQ(r.status.message, "");
  EXPECT_EQ(r.cloud.deletions, 1);
}

// SkyPilot accepts a launch, and lists the cluster later.
TEST(Release, waits_for_what_was_accepted_and_is_not_listed_yet) {
  TargetState state = asked_for(1);
  state.acquired = true, state.acquired_at = now_s(), state.lease.id = "7";
  const Released r("late_list", state, 0.5);
  EXPECT_EQ(r.status.message, "");
  EXPECT_EQ(r.cloud.deletions, 1);
}

TEST(Release, does_not_wait_for_what_was_ready) {
  TargetState state = asked_for(1);
  state.acquired = true, state.acquired_at = state.ready_at = now_s(), state.lease.id = "7";
  const double begin = now_s();
  const Released r("was_ready", state, -1);
  EXPECT_EQ(r.status.message, "");
  EXPECT_EQ(r.cloud.deletions, 1);
  EXPECT_LT(now_s() - begin, 0.9);
}

// A disk without room: what is paid for goes all the same, and the journal tells it as soon as there is room.
TEST(Release, does_not_need_a_journal_that_can_be_written) {
  const std::string folder = new_folder("full");
  Journal journal;
  ASSERT_TRUE(journal.open(folder).ok());
  ASSERT_TRUE(journal.add({.event = Event::intent, .text = "attune-20261119-130501-3fa2c1-0"}).ok());
  TargetState state = asked_for(1);
  state.acquired = true, state.acquired_at = state.ready_at = now_s(), state.lease.id = "7";
  rlimit old{};
  ASSERT_EQ(getrlimit(RLIMIT_FSIZE, &old), 0);
  const auto handler = std::signal(SIGXFSZ, SIG_IGN);
  const rlimit full{std::filesystem::file_size(folder + "/journal.jsonl") + 10, old.rlim_max};
  ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &full), 0);
  Cloud cloud;
  const Status s = Release{cloud, journal}.until_gone(state);
  ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &old), 0);
  std::signal(SIGXFSZ, handler);
  EXPECT_EQ(cloud.deletions, 1);
  EXPECT_TRUE(has(s.message, "journal.jsonl: cannot be written")) << s.message;
  // The half line of the full disk does not spoil the next one.
  EXPECT_TRUE(Release({cloud, journal}).until_gone(state).ok());
  std::vector<JournalLine> lines;
  ASSERT_TRUE(Journal::read(folder, lines).ok());
  EXPECT_FALSE(state_of(lines, 0).may_exist());
}

TEST(LeaseName, is_ours_only_in_its_whole_shape) {
  const auto of = parse_lease_name("attune-20261119-130501-3fa2c1-12");
  ASSERT_TRUE(of.has_value());
  EXPECT_EQ(of->run, "20261119-130501-3fa2c1");
  EXPECT_EQ(of->target, 12);
  RemotePlan plan;
  plan.id = new_run_id();
  EXPECT_EQ(parse_lease_name(lease_name(plan, 3))->run, plan.id);
  for (const char* other :
       {"", "attune", "attune-", "attune-train", "attune-dev-0", "attune-20261119-130501-3fa2c1",
        "attune-20261119-130501-3fa2c1-", "attune-20261119-130501-3fa2c1-0x", "attune-20261119-130501-3fa2c1--1",
        "attune-20261119-130501-3fa2cg-0", "attune-20261119_130501-3fa2c1-0", "attune-20261119-130501-3fa2c1-0/../..",
        "attune-20261119-130501-3fa2c1-99999999999", "Attune-20261119-130501-3fa2c1-0"})
    EXPECT_FALSE(parse_lease_name(other).has_value()) << other;
}

}  // namespace
}  // namespace attune
