// Do campaigns obey what is known of failures, checkpoints and restarts in closed form?
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <ctime>
#include <limits>
#include <numeric>

#include "sim/base/rng.h"
#include "sim/campaign/campaign.h"
#include "sim/campaign/interval.h"
#include "sim/campaign/redundant_passes.h"
#include "sim/campaign/statistics.h"
#include "sim/campaign/template_mix.h"
#include "tests/support/sanitized.h"

namespace foretrain {
namespace {

constexpr double kInfinite = std::numeric_limits<double>::infinity();

/// 54 days of steps of 10 s on 128 nodes, saved every 30 min in 60 s; nothing fails.
CampaignPlan quiet_campaign() {
  CampaignPlan plan;
  plan.work.phases = {{54 * 8640, 10}};
  plan.saving.every_steps = 180;
  plan.saving.stall_s = 60;
  plan.fleet.nodes = 128;
  plan.fleet.replicas = 16;
  return plan;
}

/// The same with so many failures a day that each take a node, which is back at once.
CampaignPlan failing_campaign(double per_day) {
  CampaignPlan plan = quiet_campaign();
  plan.failures.processes = {{"node", per_day, 1, 0}};
  plan.recovery.start_s = 300;
  return plan;
}

CampaignStatistics many(const CampaignPlan& plan, std::uint64_t count = 300) {
  std::vector<CampaignOutcome> outcomes;
  for (std::uint64_t i = 0; i < count; ++i) outcomes.push_back(simulate_campaign(plan, 1, i));
  return statistics_of(outcomes);
}

double mean_days(const CampaignPlan& plan, std::uint64_t count = 300) {
  return many(plan, count).days.mean;
}

double share(const CampaignStatistics& all, CampaignPart part) {
  return all.parts[static_cast<std::size_t>(part)];
}

double seconds_in(const CampaignOutcome& outcome, CampaignPart part) {
  return seconds_of(outcome.parts[static_cast<std::size_t>(part)]);
}

TEST(Campaign, WithoutFailuresIsStepsTimesStep) {
  CampaignPlan plan = quiet_campaign();
  plan.saving.every_steps = 0;
  const CampaignOutcome outcome = simulate_campaign(plan, 1, 0);
  EXPECT_EQ(outcome.wall(), nanos(54 * kSecondsPerDay));
  EXPECT_EQ(outcome.ettr(), 1);
  plan.work.phases = {{1000, 2}, {500, 3.5}};
  EXPECT_EQ(simulate_campaign(plan, 1, 0).wall(), nanos(1000 * 2 + 500 * 3.5));
}

TEST(Campaign, WithoutFailuresPaysTheStallOfEveryCheckpointButTheLast) {
  const CampaignPlan plan = quiet_campaign();
  const std::int64_t saves = 54 * 8640 / 180 - 1;
  EXPECT_EQ(simulate_campaign(plan, 1, 0).wall(), nanos(54 * kSecondsPerDay) + saves * nanos(60));
}

TEST(Campaign, AgreesWithTheClosedFormOfRscWithinItsAssumptions) {
  for (const double per_day : {0.2, 0.5, 1.0}) {
    for (const std::int64_t steps : {90, 180, 360}) {
      CampaignPlan plan = failing_campaign(per_day);
      plan.saving.every_steps = steps;
      const double closed =
          expected_ettr(per_day / kSecondsPerDay, 300, static_cast<double>(steps) * 10, 60);
      EXPECT_NEAR(many(plan, 500).ettr.mean / closed, 1, 0.01) << per_day << " " << steps;
    }
  }
}

TEST(Campaign, AgreesWithTheExactFormWhereFailuresAreFrequent) {
  for (const double per_day : {2.0, 8.0, 24.0}) {
    const CampaignPlan plan = failing_campaign(per_day);
    const double exact = 54 * expected_wall(per_day / kSecondsPerDay, 300, 1800, 60);
    EXPECT_NEAR(mean_days(plan) / exact, 1, 0.01) << per_day;
  }
}

TEST(Campaign, TheBestIntervalIsYoungsAndDalys) {
  const double per_day = 4;
  const double mttf = kSecondsPerDay / per_day;
  CampaignPlan plan = failing_campaign(per_day);
  const auto days_at = [&plan](double interval_s) {
    plan.saving.every_steps = std::llround(interval_s / 10);
    return mean_days(plan, 600);
  };
  const double young = days_at(young_interval(60, mttf));
  const double daly = days_at(daly_interval(60, mttf));
  for (const double factor : {0.3, 3.0}) {
    EXPECT_GT(days_at(young_interval(60, mttf) * factor), 1.005 * young);
    EXPECT_GT(days_at(daly_interval(60, mttf) * factor), 1.005 * daly);
  }
  EXPECT_NEAR(daly / young, 1, 0.005);
}

TEST(Campaign, PartsAddUpToTheWall) {
  CampaignPlan plan = failing_campaign(6);
  plan.failures.processes.push_back({"software", 2, 0, 0});
  plan.failures.processes.push_back({"switch", 0.1, 8, 7200});
  plan.failures.slow = {{1, 1.3, 3600}};
  plan.work.evaluate_every = 1000;
  plan.work.evaluation_s = 600;
  plan.fleet.spares = 2;
  plan.saving.ready_s = {0, 90, 200};
  plan.saving.interference = 0.05;
  plan.recovery.detect_s = 120;
  plan.recovery.warm_up_steps = 3;
  for (const PolicyKind policy :
       {PolicyKind::kWait, PolicyKind::kSpares, PolicyKind::kShrink, PolicyKind::kDropReplica,
        PolicyKind::kReroute, PolicyKind::kTemplates, PolicyKind::kRedundant}) {
    plan.fleet.policy = policy;
    plan.fleet.pace = {1, 1.08, 1.17, 1.3};
    plan.fleet.pipelines = {16, 15, 15, 15};
    plan.fleet.pause_s = 45;
    CampaignTimeline timeline;
    const CampaignOutcome outcome = simulate_campaign(plan, 3, 5, &timeline);
    EXPECT_TRUE(outcome.ended);
    EXPECT_EQ(outcome.parts[0], nanos(54 * kSecondsPerDay));  // every step counts once
    Nanos at = 0;
    for (const CampaignSpan& span : timeline.spans) {
      ASSERT_EQ(span.start, at);
      ASSERT_GT(span.end, span.start);
      at = span.end;
    }
    EXPECT_EQ(at, outcome.wall());
    const auto counted =
        std::accumulate(outcome.failures.begin(), outcome.failures.end(), std::int64_t{0});
    EXPECT_EQ(static_cast<std::int64_t>(timeline.failures.size()), counted);
    const CampaignStatistics all = many(plan, 20);
    EXPECT_NEAR(std::accumulate(all.parts.begin(), all.parts.end(), 0.0), 1, 1e-12);
  }
}

TEST(Campaign, ATimelineChangesNothing) {
  // Without one, runs and checkpoints that nothing disturbs are taken at once.
  CampaignPlan plan = failing_campaign(3);
  plan.work.evaluate_every = 700;
  plan.work.evaluation_s = 100;
  plan.work.phases = {{100'000, 10}, {200'000, 12}};
  for (const double ready : {0.0, 120.0}) {
    plan.saving.ready_s = {0, ready, ready};
    for (std::uint64_t i = 0; i < 20; ++i) {
      CampaignTimeline timeline;
      EXPECT_EQ(simulate_campaign(plan, 1, i).parts,
                simulate_campaign(plan, 1, i, &timeline).parts);
    }
  }
}

/// Anything that a RUN may ask for, and some that it may not.
CampaignPlan drawn_campaign(Rng& rng) {
  CampaignPlan plan;
  const auto up_to = [&rng](double most) { return most * rng.uniform(); };
  for (std::int64_t i = rng.below(3); i >= 0; --i) {
    plan.work.phases.push_back({1 + rng.below(20000), 0.1 + up_to(10)});
  }
  plan.work.evaluate_every = rng.below(3) > 0 ? 0 : 1 + rng.below(500);
  plan.work.evaluation_s = up_to(100);
  if (rng.below(3) == 0) plan.work.daily = {up_to(23), up_to(23), 1 + up_to(1)};
  plan.saving.every_steps = rng.below(4) > 0 ? 1 + rng.below(300) : 0;
  plan.saving.stall_s = rng.below(3) > 0 ? up_to(60) : 0;
  for (std::size_t loss = 0; loss < kLosses; ++loss) {
    plan.saving.ready_s[loss] = std::array{0.0, 50.0, 2000.0, kInfinite}[rng.next() % 4];
    plan.saving.load_s[loss] = up_to(100);
  }
  plan.saving.reshard_s = rng.below(2) > 0 ? up_to(300) : 0;
  plan.saving.waits_for_writer = rng.below(2) > 0;
  plan.saving.interference = rng.below(2) > 0 ? 0.2 : 0;
  plan.fleet.nodes = 1 + rng.below(64);
  plan.fleet.spares = rng.below(4);
  plan.fleet.replicas = 1 + rng.below(32);
  plan.fleet.policy = static_cast<PolicyKind>(rng.below(7));
  plan.fleet.pause_s = rng.below(2) > 0 ? up_to(200) : 0;
  for (std::int64_t lost = rng.below(6); lost > 0; --lost) {
    plan.fleet.pace.push_back(plan.fleet.pace.back() + 0.1);
    plan.fleet.pipelines.push_back(1 + lost / 2);
  }
  for (std::int64_t i = rng.below(4); i > 0; --i) {
    const auto nodes =
        static_cast<std::int32_t>(rng.below(std::min<std::int64_t>(4, plan.fleet.nodes)));
    plan.failures.processes.push_back({"any", up_to(20), nodes, up_to(4000)});
  }
  if (rng.below(3) == 0) plan.failures.slow = {{up_to(20), 1 + up_to(1), up_to(5000)}};
  plan.failures.wear_in_factor = 1 + up_to(2);
  plan.failures.wear_in_days = rng.below(2) > 0 ? 0.5 : 0;
  plan.failures.traced_components = {"traced"};
  double at_s = 0;
  for (std::int64_t i = rng.below(20); i > 0; --i) {
    at_s += up_to(3000);
    plan.failures.trace.push_back({at_s, 0, static_cast<std::int32_t>(rng.below(2)), up_to(4000)});
  }
  plan.recovery.detect_s = up_to(100);
  plan.recovery.start_s = up_to(300);
  plan.recovery.warm_up_steps = rng.below(5);
  if (rng.below(2) > 0) plan.recovery.queue_s = up_to(2000);
  plan.longest = 50;
  return plan;
}

TEST(Campaign, DrawnOnesKeepTheirBooks) {
  Rng rng(9);
  int ended = 0;
  for (std::uint64_t i = 0; i < 400; ++i) {
    const CampaignPlan plan = drawn_campaign(rng);
    const CampaignOutcome outcome = simulate_campaign(plan, 1, i);
    for (const Nanos part : outcome.parts) ASSERT_GE(part, 0) << i;
    if (!outcome.ended) continue;  // where it is given up depends on what is taken at once
    ++ended;
    ASSERT_EQ(outcome.parts[0], work_of(plan.work)) << i;
    CampaignTimeline timeline;
    ASSERT_EQ(outcome.parts, simulate_campaign(plan, 1, i, &timeline).parts) << i;
  }
  EXPECT_GT(ended, 200);
}

TEST(Campaign, SameSeedSameCampaign) {
  const CampaignPlan plan = failing_campaign(5);
  EXPECT_EQ(simulate_campaign(plan, 7, 3).parts, simulate_campaign(plan, 7, 3).parts);
  EXPECT_NE(simulate_campaign(plan, 7, 3).parts, simulate_campaign(plan, 7, 4).parts);
  EXPECT_NE(simulate_campaign(plan, 7, 3).parts, simulate_campaign(plan, 8, 3).parts);
}

TEST(Campaign, TwiceOfAnythingBadNeverHelps) {
  CampaignPlan plan = failing_campaign(3);
  plan.failures.processes[0].repair_s = 900;
  plan.failures.slow = {{2, 1.2, 1800}};
  plan.recovery.detect_s = 60;
  plan.recovery.diagnose_s = 60;
  plan.recovery.warm_up_steps = 5;
  plan.saving.load_s = {60, 60, 60};
  const double days = mean_days(plan);
  const auto twice = [&](auto change) {
    CampaignPlan other = plan;
    change(other);
    return mean_days(other);
  };
  EXPECT_GT(twice([](auto& p) { p.failures.processes[0].per_day *= 2; }), days);
  EXPECT_GT(twice([](auto& p) { p.failures.processes[0].repair_s *= 2; }), days);
  EXPECT_GT(twice([](auto& p) { p.failures.slow[0].per_day *= 2; }), days);
  EXPECT_GT(twice([](auto& p) { p.failures.slow[0].lasts_s *= 2; }), days);
  EXPECT_GT(twice([](auto& p) { p.saving.stall_s *= 2; }), days);
  EXPECT_GT(twice([](auto& p) { p.saving.load_s = {120, 120, 120}; }), days);
  EXPECT_GT(twice([](auto& p) { p.recovery.detect_s *= 2; }), days);
  EXPECT_GT(twice([](auto& p) { p.recovery.diagnose_s *= 2; }), days);
  EXPECT_GT(twice([](auto& p) { p.recovery.start_s *= 2; }), days);
  EXPECT_GT(twice([](auto& p) { p.recovery.warm_up_steps *= 2; }), days);
  EXPECT_GT(twice([](auto& p) {
              p.failures.wear_in_factor = 5;
              p.failures.wear_in_days = 10;
            }),
            days);
  plan.fleet.policy = PolicyKind::kShrink;
  plan.fleet.pace = {1, 1.1, 1.2};
  plan.saving.reshard_s = 600;
  const double shrunk = mean_days(plan);
  EXPECT_GT(twice([](auto& p) { p.saving.reshard_s *= 2; }), shrunk);
}

TEST(Campaign, MoreSparesNeverHurt) {
  CampaignPlan plan = failing_campaign(4);
  plan.failures.processes[0].repair_s = 86400;
  plan.fleet.policy = PolicyKind::kSpares;
  double before = kInfinite;
  for (const std::int64_t spares : {0, 1, 2, 4, 8, 16}) {
    plan.fleet.spares = spares;
    const double days = mean_days(plan);
    EXPECT_LE(days, before * 1.001) << spares;
    before = days;
  }
  // With as many as can be in repair at once nothing is waited for.
  EXPECT_EQ(share(many(plan), CampaignPart::kWaiting), 0);
}

TEST(Campaign, ASpareIsNotWaitedForAndComesBackRepaired) {
  CampaignPlan plan = quiet_campaign();
  plan.saving.stall_s = 0;
  plan.failures.traced_components = {"gpu"};
  // The second failure finds the spare in repair until 10,000 + 20,000 s.
  plan.failures.trace = {{10000, 0, 1, 20000}, {20000, 0, 1, 20000}, {60000, 0, 1, 20000}};
  plan.fleet.policy = PolicyKind::kSpares;
  plan.fleet.spares = 1;
  const CampaignOutcome outcome = simulate_campaign(plan, 1, 0);
  EXPECT_EQ(outcome.parts[static_cast<std::size_t>(CampaignPart::kWaiting)], nanos(10000));
  EXPECT_EQ(outcome.failures, std::vector<std::int64_t>{3});
  // 10,000 s = 5 intervals of 1,800 s and 1,000 s; 20,000 s is 11,000 s of work on; and so on.
  EXPECT_GT(outcome.parts[static_cast<std::size_t>(CampaignPart::kRepeated)], nanos(1000));
}

TEST(Campaign, AFailureUndoesTheWorkSinceTheCheckpoint) {
  CampaignPlan plan = quiet_campaign();
  plan.failures.traced_components = {"software"};
  plan.failures.trace = {{1860 * 3 + 500, 0, 0, 0}};
  plan.recovery.start_s = 300;
  plan.saving.load_s = {40, 41, 42};
  const CampaignOutcome outcome = simulate_campaign(plan, 1, 0);
  EXPECT_EQ(outcome.parts[static_cast<std::size_t>(CampaignPart::kRepeated)], nanos(500));
  EXPECT_EQ(outcome.parts[static_cast<std::size_t>(CampaignPart::kRecovery)], nanos(340));
}

TEST(Campaign, ACopyThatIsUnderWayIsLost) {
  CampaignPlan plan = quiet_campaign();
  plan.failures.traced_components = {"gpu"};
  plan.saving.load_s = {1, 2, 3};
  // 100 s after the third checkpoint, of which the store has all after 200 s.
  plan.failures.trace = {{1860 * 3 + 100, 0, 1, 0}};
  const auto repeated = [&plan](double host, double store, std::int32_t nodes) {
    plan.saving.ready_s = {host, store, store};
    plan.failures.trace[0].nodes = nodes;
    return seconds_of(
        simulate_campaign(plan, 1, 0).parts[static_cast<std::size_t>(CampaignPart::kRepeated)]);
  };
  EXPECT_EQ(repeated(0, 50, 1), 100);
  EXPECT_EQ(repeated(0, 200, 1), 1900);
  EXPECT_EQ(repeated(0, 200, 0), 100);  // the host's memory survives the process
  EXPECT_EQ(repeated(200, 200, 0), 1900);
  EXPECT_EQ(repeated(0, kInfinite, 1), 1860 * 3 + 100 - 180);  // to the first step
}

TEST(Campaign, PoliciesStandInTheOrderThatTheoryGives) {
  // Repairs of two days; a job that is short of a replica, here a node, keeps 15/16 of its speed.
  CampaignPlan plan = failing_campaign(0.5);
  plan.fleet.nodes = plan.fleet.replicas = 16;
  plan.failures.processes[0].repair_s = 2 * 86400;
  plan.recovery.detect_s = 60;
  plan.recovery.diagnose_s = 300;
  for (int lost = 1; lost <= 8; ++lost) plan.fleet.pace.push_back(16.0 / (16 - lost));
  const auto days_of = [&plan](PolicyKind policy, std::int64_t spares = 0) {
    plan.fleet.policy = policy;
    plan.fleet.spares = spares;
    return mean_days(plan, 100);
  };
  const double wait = days_of(PolicyKind::kWait);
  const double shrink = days_of(PolicyKind::kShrink);
  const double drop = days_of(PolicyKind::kDropReplica);
  const double spares = days_of(PolicyKind::kSpares, 20);
  EXPECT_LT(shrink, 0.8 * wait);  // it works while nodes are repaired
  EXPECT_LT(drop, shrink);        // the same without starts and repeated work
  EXPECT_LT(spares, shrink);      // it keeps all replicas
  EXPECT_LE(days_of(PolicyKind::kReroute), drop);
  EXPECT_EQ(days_of(PolicyKind::kSpares, 0), wait);
}

TEST(Campaign, ASaveThatIsBrokenOffIsWrittenAgain) {
  // A node fails 30 s into the third save, and the others go on; later all processes stop.
  CampaignPlan plan = quiet_campaign();
  plan.work.phases = {{2000, 10}};
  plan.failures.traced_components = {"any"};
  plan.failures.trace = {{1860 * 2 + 1830, 0, 1, 1e6}, {1860 * 3 + 600, 0, 0, 0}};
  plan.fleet.pace = {1, 1};
  plan.fleet.pause_s = 20;
  plan.fleet.policy = PolicyKind::kDropReplica;
  const CampaignOutcome outcome = simulate_campaign(plan, 1, 0);
  // 30 s of the save are lost, 20 s pass, and the save of 60 s follows.
  EXPECT_NEAR(seconds_in(outcome, CampaignPart::kRepeated), 600 - 30 - 20, 1e-6);
  const double saves = 2000 / 180;
  EXPECT_NEAR(seconds_in(outcome, CampaignPart::kCheckpoint), 60 * saves + 30, 1e-6);
  // The same of an evaluation.
  plan.saving.every_steps = 0;
  plan.work.evaluate_every = 500;
  plan.work.evaluation_s = 100;
  plan.failures.trace = {{5040, 0, 1, 1e6}};
  EXPECT_NEAR(seconds_in(simulate_campaign(plan, 1, 0), CampaignPart::kEvaluation), 3 * 100 + 40,
              1e-6);
}

TEST(Campaign, AnotherNumberOfReplicasLoadsWhatTheOthersWrote) {
  CampaignPlan plan = quiet_campaign();
  plan.work.phases = {{2000, 10}};
  plan.saving.load_s = {40, 40, 40};
  plan.saving.reshard_s = 700;
  plan.fleet.pace = {1, 1, 1};
  plan.fleet.policy = PolicyKind::kShrink;
  plan.failures.traced_components = {"any"};
  const auto recovery = [&plan](std::vector<TracedFailure> trace) {
    plan.failures.trace = std::move(trace);
    return seconds_in(simulate_campaign(plan, 1, 0), CampaignPart::kRecovery);
  };
  EXPECT_NEAR(recovery({{3000, 0, 0, 0}}), 40, 1e-6);                            // the same nodes
  EXPECT_NEAR(recovery({{3000, 0, 1, 1e6}}), 700, 1e-6);                         // a replica less
  EXPECT_NEAR(recovery({{3000, 0, 1, 1e6}, {3800, 0, 0, 0}}), 700 + 700, 1e-6);  // not saved since
  EXPECT_NEAR(recovery({{3000, 0, 1, 1e6}, {9000, 0, 0, 0}}), 700 + 40, 1e-6);   // saved since
  // It grows again once the node is back: saves, and loads what fewer wrote.
  EXPECT_NEAR(recovery({{3000, 0, 1, 9000}}), 700 + 60 + 700, 1e-6);
  // What it had then is saved: a failure soon after undoes what follows alone.
  plan.failures.trace = {{3000, 0, 1, 9000}, {12860, 0, 0, 0}};
  EXPECT_NEAR(seconds_in(simulate_campaign(plan, 1, 0), CampaignPart::kRepeated),
              (3000 - 1860) + 100, 1e-6);
}

TEST(Campaign, AJobWithoutAReplicaTakesThatMuchLonger) {
  CampaignPlan plan = quiet_campaign();
  plan.saving.every_steps = 0;
  plan.failures.traced_components = {"gpu"};
  plan.failures.trace = {{1000, 0, 1, 11000}};
  plan.fleet.policy = PolicyKind::kDropReplica;
  plan.fleet.pace = {1, 1.1};
  const CampaignOutcome outcome = simulate_campaign(plan, 1, 0);
  EXPECT_NEAR(seconds_of(outcome.wall()), 54 * kSecondsPerDay + 1000, 1e-6);
  EXPECT_NEAR(seconds_of(outcome.parts[static_cast<std::size_t>(CampaignPart::kSlow)]), 1000, 1e-6);
}

constexpr CampaignPart kRecoveryPart = CampaignPart::kRecovery;

TEST(Campaign, TemplatesGoOnWithoutACheckpoint) {
  CampaignPlan plan = quiet_campaign();
  plan.saving.load_s = {1000, 1000, 1000};
  plan.failures.traced_components = {"gpu"};
  plan.failures.trace = {{1005, 0, 1, 11000}};
  plan.fleet.policy = PolicyKind::kTemplates;
  plan.fleet.pace = {1, 1.1};
  plan.fleet.pipelines = {16, 15};
  plan.fleet.pause_s = 70;
  const CampaignOutcome outcome = simulate_campaign(plan, 1, 0);
  // A pause for the failure and one for the node's return; half a step is done again.
  EXPECT_EQ(seconds_in(outcome, kRecoveryPart), 2 * 70);
  EXPECT_EQ(seconds_in(outcome, CampaignPart::kRepeated), 5);
  EXPECT_GT(seconds_in(outcome, CampaignPart::kSlow), 900);
}

TEST(Campaign, TemplatesLoadACheckpointOnceEveryPipelineIsHit) {
  CampaignPlan plan = quiet_campaign();
  plan.saving.load_s = {1000, 1000, 1000};
  plan.failures.traced_components = {"rack"};
  plan.failures.trace = {{10000, 0, 3, 3600}};
  plan.fleet.policy = PolicyKind::kTemplates;
  plan.fleet.pace = {1, 1.1, 1.2, 1.3, 1.4};
  const auto recovery = [&plan](std::int64_t pipelines) {
    plan.fleet.pipelines.assign(5, pipelines);
    return seconds_in(simulate_campaign(plan, 1, 0), kRecoveryPart);
  };
  EXPECT_EQ(recovery(4), 0);
  EXPECT_GE(recovery(3), 1000);
}

TEST(Campaign, RedundantStagesCostTheirPassesWhereNothingFails) {
  CampaignPlan plan = quiet_campaign();
  plan.saving.every_steps = 0;
  plan.fleet.policy = PolicyKind::kRedundant;
  plan.fleet.pace = {1.25, 2};
  const CampaignOutcome outcome = simulate_campaign(plan, 1, 0);
  EXPECT_EQ(outcome.wall(), nanos(1.25 * 54 * kSecondsPerDay));
  EXPECT_EQ(outcome.ettr(), 0.8);
}

TEST(Campaign, RedundantStagesRepeatNothingUnlessNeighboursFail) {
  CampaignPlan plan = quiet_campaign();
  plan.failures.traced_components = {"gpu"};
  plan.saving.load_s = {1000, 1000, 1000};
  plan.fleet.policy = PolicyKind::kRedundant;
  plan.fleet.pace = {1.25, 2};
  plan.fleet.pause_s = 7;
  plan.failures.trace = {{1003, 0, 1, 600}, {50003, 0, 1, 600}};
  const CampaignOutcome apart = simulate_campaign(plan, 1, 0);
  EXPECT_EQ(seconds_in(apart, CampaignPart::kRepeated), 0);
  EXPECT_EQ(seconds_in(apart, kRecoveryPart), 4 * 7);
  // Both nodes that are left are neighbours of the one that is missing.
  plan.fleet.nodes = 3;
  plan.failures.trace = {{1003, 0, 1, 5000}, {3003, 0, 1, 5000}};
  const CampaignOutcome beside = simulate_campaign(plan, 1, 0);
  EXPECT_GT(seconds_in(beside, CampaignPart::kRepeated), 0);
  EXPECT_GE(seconds_in(beside, kRecoveryPart), 1000);
}

TEST(Campaign, NeighboursOfMissingNodesFailAsOftenAsTheyAreMany) {
  // One of 101 nodes is missing: the next failure hits one of its two neighbours among 100.
  CampaignPlan plan = quiet_campaign();
  plan.work.phases = {{1000, 10}};
  plan.saving.every_steps = 0;
  plan.fleet.nodes = 101;
  plan.fleet.policy = PolicyKind::kRedundant;
  plan.fleet.pace = {1, 1};
  plan.failures.traced_components = {"gpu"};
  plan.failures.trace = {{1000, 0, 1, 1e6}, {2000, 0, 1, 1e6}};
  int fatal = 0;
  constexpr int kDraws = 4000;
  for (std::uint64_t i = 0; i < kDraws; ++i) {
    const CampaignOutcome outcome = simulate_campaign(plan, 1, i);
    fatal += seconds_in(outcome, CampaignPart::kRepeated) > 0 ? 1 : 0;
  }
  EXPECT_NEAR(fatal / static_cast<double>(kDraws), 2.0 / 100, 0.007);
}

TEST(Campaign, WhatGoesOnWithoutACheckpointBeatsWhatLoadsOne) {
  // Replicas of four nodes; the same paces throughout, so that only the way of recovery differs.
  CampaignPlan plan = failing_campaign(2);
  plan.fleet.nodes = 64;
  plan.failures.processes[0].repair_s = 40000;
  plan.recovery.detect_s = 60;
  plan.fleet.pipelines = {16};
  for (int lost = 1; lost <= 32; ++lost) {
    plan.fleet.pace.push_back(64.0 / (64 - lost));
    plan.fleet.pipelines.push_back((64 - lost) / 4);
  }
  const auto days_of = [&plan](PolicyKind policy, double pause_s) {
    CampaignPlan other = plan;
    other.fleet.policy = policy;
    other.fleet.pause_s = pause_s;
    if (policy == PolicyKind::kWait) other.fleet.pace = {1};
    if (policy == PolicyKind::kShrink) {
      other.fleet.pace = {1};
      for (int lost = 1; lost <= 8; ++lost) other.fleet.pace.push_back(16.0 / (16 - lost));
    }
    return mean_days(other, 100);
  };
  const double templates = days_of(PolicyKind::kTemplates, 100);
  EXPECT_LT(templates, days_of(PolicyKind::kShrink, 0));
  EXPECT_LT(templates, days_of(PolicyKind::kWait, 0));
  EXPECT_LT(days_of(PolicyKind::kTemplates, 0), templates);
  // Redundant passes are worth it where failures are many and a node is back soon, and not else.
  plan.fleet.pace = {1.2, 1.9};
  plan.failures.processes[0].repair_s = 300;
  const auto gain = [&](double per_day) {
    plan.failures.processes[0].per_day = per_day;
    return days_of(PolicyKind::kWait, 0) - days_of(PolicyKind::kRedundant, 10);
  };
  EXPECT_LT(gain(0.5), 0);
  EXPECT_GT(gain(60), 0);
}

TEST(Campaign, MoreFailuresNeverHelpPoliciesThatGoOn) {
  CampaignPlan plan = failing_campaign(1);
  plan.failures.processes[0].repair_s = 7200;
  plan.fleet.pause_s = 30;
  for (const PolicyKind policy : {PolicyKind::kTemplates, PolicyKind::kRedundant}) {
    plan.fleet.policy = policy;
    plan.fleet.pace = {1.1, 1.2, 1.3};
    plan.fleet.pipelines = {16, 15, 15};
    double before = 0;
    for (const double per_day : {0.0, 0.5, 1.0, 2.0, 4.0, 8.0, 16.0}) {
      plan.failures.processes[0].per_day = per_day;
      const double days = mean_days(plan, 100);
      EXPECT_GT(days, before) << per_day;
      before = days;
    }
  }
}

TEST(RedundantPasses, OfEqualStagesHaveFewBubblesToHideIn) {
  // How many of a step's redundant passes bubbles hide: the last node's wait for its first input,
  // or fewer where a node before it has less time.
  for (const auto& [stages, hidden] : {std::pair(2, 1), std::pair(3, 2), std::pair(8, 3)}) {
    for (const int microbatches : {8, 32}) {
      const std::vector<NodePasses> equal(static_cast<std::size_t>(stages), {1, 2});
      const double plain = pipeline_step(equal, microbatches, false);
      EXPECT_NEAR(plain, 3.0 * (microbatches + stages - 1), 1e-9);
      EXPECT_NEAR(pipeline_step(equal, microbatches, true), plain + microbatches - hidden, 1e-9)
          << stages << " " << microbatches;
      EXPECT_NEAR(merged_step(equal, microbatches), 3.0 * (2 * microbatches + stages - 2), 1e-9);
    }
  }
}

TEST(RedundantPasses, BubblesOfLightStagesHideThem) {
  // The first stage sets the pace; the others wait as long as a redundant pass takes, or longer.
  const std::vector<NodePasses> light = {{2, 4}, {0.5, 1}, {0.5, 1}};
  const double plain = pipeline_step(light, 24, false);
  EXPECT_NEAR(pipeline_step(light, 24, true) / plain, 1 + 0.5 / 6, 0.02);  // its own, of the next
  // Never shorter than without, never longer than if bubbles hid none.
  Rng rng(6);
  for (int draw = 0; draw < 200; ++draw) {
    std::vector<NodePasses> stages;
    double most = 0;
    for (std::int64_t s = 2 + rng.below(6); s > 0; --s) {
      stages.push_back({0.5 + rng.uniform(), 1 + 2 * rng.uniform()});
      most = std::max(most, stages.back().forward_s);
    }
    const std::int64_t microbatches = 1 + rng.below(30);
    const double without = pipeline_step(stages, microbatches, false);
    const double with = pipeline_step(stages, microbatches, true);
    EXPECT_GE(with, without - 1e-9);
    EXPECT_LE(with, without + most * static_cast<double>(microbatches + 7) + 1e-9);
    EXPECT_GE(merged_step(stages, microbatches), without - 1e-9);
  }
}

TEST(Campaign, TenThousandOf54DaysTakeSecondsOfTwoCores) {
  if (kSanitized) GTEST_SKIP() << "of a release build";
  // 466 failures each, as on Llama 3's 16,384 GPUs.
  CampaignPlan plan = failing_campaign(466 / 54.0);
  plan.failures.processes[0].repair_s = 3600;
  plan.recovery.queue_s = 600;
  plan.fleet.nodes = 2048;
  constexpr std::uint64_t kCampaigns = 500;
  const std::clock_t begin = std::clock();
  double failures = 0;
  for (std::uint64_t i = 0; i < kCampaigns; ++i) {
    failures += static_cast<double>(simulate_campaign(plan, 1, i).failures[0]);
  }
  const double cpu_s = static_cast<double>(std::clock() - begin) / CLOCKS_PER_SEC;
  EXPECT_GT(failures / kCampaigns, 450);
  EXPECT_LT(cpu_s * 10'000 / kCampaigns / 2, 10);  // on two cores
}

TEST(TemplateMix, SharesABatchInProportionOfSpeed) {
  // Pipelines of 2 and of 3 nodes, as fast as they have nodes.
  const std::vector<PipelineTemplate> two = {{2, 1.5}, {3, 1}};
  const std::vector<TemplateMix> mixes = template_mixes(two, 8, 96, 2, 8);
  ASSERT_GE(mixes.size(), 5U);
  // 8 nodes: 96 microbatches at 8/3 a second.
  EXPECT_NEAR(mixes[0].step_s, 36, 1e-9);
  EXPECT_NEAR(mixes[2].step_s, 48, 1e-9);  // 6 nodes
  EXPECT_EQ(mixes[3].count, 2);            // 5 nodes: 2 and 3
  EXPECT_EQ(mixes.size(), 5U);             // 4 nodes are the fewest that hold two pipelines
  EXPECT_EQ(template_mixes(two, 8, 96, 2, 3).size(), 4U);
}

TEST(TemplateMix, FewerNodesAreNeverFasterAndWholeMicrobatchesNeverBeatParts) {
  Rng rng(4);
  for (int draw = 0; draw < 100; ++draw) {
    std::vector<PipelineTemplate> templates;
    const std::int64_t least = 1 + rng.below(4);
    for (std::int64_t n = least; n < 2 * least; ++n) {
      templates.push_back({n, (0.8 + 0.4 * rng.uniform()) / static_cast<double>(n)});
    }
    const std::int64_t nodes = 2 * least + rng.below(30);
    const std::int64_t microbatches = 1 + rng.below(500);
    const auto mixes = template_mixes(templates, nodes, microbatches, 2, nodes);
    ASSERT_EQ(static_cast<std::int64_t>(mixes.size()), nodes - 2 * least + 1);
    double before = 0;
    for (std::size_t missing = 0; missing < mixes.size(); ++missing) {
      double speed = 0;
      std::int64_t used = 0;
      for (std::size_t t = 0; t < templates.size(); ++t) {
        const std::int64_t pipelines = mixes[missing].pipelines[t];
        used += pipelines * templates[t].nodes;
        speed += static_cast<double>(pipelines) / templates[t].microbatch_s;
      }
      EXPECT_LE(used, nodes - static_cast<std::int64_t>(missing));
      EXPECT_GE(mixes[missing].count, 2);
      const double even_s = static_cast<double>(microbatches) / speed;
      EXPECT_GE(mixes[missing].step_s, even_s * (1 - 1e-9));
      EXPECT_GE(even_s, before * (1 - 1e-9));
      before = even_s;
    }
  }
}

TEST(Campaign, ASlowNodeSetsThePace) {
  CampaignPlan plan = quiet_campaign();
  plan.failures.slow = {{1e4, 1.06, 1e9}};  // from the first minutes on
  const CampaignStatistics all = many(plan, 3);
  EXPECT_NEAR(share(all, CampaignPart::kSlow) / share(all, CampaignPart::kProductive), 0.06, 1e-4);
}

// One slow-down a day of nodes that would be slow for weeks. Found after an hour each node is
// replaced: it is slow for that hour, then it counts as a failure. Found later than it is gone it
// is what it is where nobody looks.
TEST(Campaign, ASlowNodeThatIsFoundIsReplaced) {
  CampaignPlan plan = quiet_campaign();
  plan.fleet.spares = 1000;
  plan.fleet.policy = PolicyKind::kSpares;
  plan.failures.slow = {{1, 2, 3e6}};
  const CampaignOutcome never = simulate_campaign(plan, 1, 0);
  plan.failures.processes.push_back({"slow", 0, 1, 3600, 0.0});
  const std::size_t slow = plan.failures.processes.size() - 1;
  plan.failures.slow[0].found_s = 4e6;
  plan.failures.slow[0].taken_as = slow;
  const CampaignOutcome late = simulate_campaign(plan, 1, 0);
  EXPECT_EQ(late.wall(), never.wall());
  EXPECT_EQ(late.failures[slow], 0);
  plan.failures.slow[0].found_s = 3600;
  const CampaignOutcome found = simulate_campaign(plan, 1, 0);
  EXPECT_LT(found.wall(), never.wall());
  ASSERT_GT(found.failures[slow], 0);
  // An hour at half speed adds half an hour for each, no more where two overlap.
  const double slow_s = seconds_in(found, CampaignPart::kSlow);
  EXPECT_LE(slow_s, 1800.0 * static_cast<double>(found.failures[slow] + 1));
  EXPECT_GT(slow_s, 0.5 * 1800.0 * static_cast<double>(found.failures[slow]));
  // Finding sooner never makes a campaign longer by more than what is done again.
  plan.failures.slow[0].found_s = 0;
  EXPECT_EQ(seconds_in(simulate_campaign(plan, 1, 0), CampaignPart::kSlow), 0);
}

// A component whose failures are noticed late costs that much more, each.
TEST(Campaign, ComponentsMayBeDetectedApart) {
  CampaignPlan plan = failing_campaign(5);
  plan.recovery.detect_s = 0;
  const CampaignOutcome soon = simulate_campaign(plan, 1, 0);
  for (FailureProcess& one : plan.failures.processes) one.detect_s = 100;
  const CampaignOutcome late = simulate_campaign(plan, 1, 0);
  plan.recovery.detect_s = 100;
  for (FailureProcess& one : plan.failures.processes) one.detect_s.reset();
  EXPECT_EQ(simulate_campaign(plan, 1, 0).wall(), late.wall());
  EXPECT_GT(late.wall(), soon.wall());
}

TEST(Campaign, SomeHoursOfEveryDayAreSlow) {
  CampaignPlan plan = quiet_campaign();
  plan.saving.every_steps = 0;
  plan.work.phases = {{2 * 18 * 360, 10}};
  // Of 24 hours 12 are half as fast: 18 hours of work. Hours that go over midnight are the same.
  for (const double at_hour : {0.0, 6.0, 12.0, 18.0}) {
    plan.work.daily = {at_hour, 12, 2};
    const CampaignOutcome outcome = simulate_campaign(plan, 1, 0);
    EXPECT_NEAR(seconds_of(outcome.wall()), 2 * kSecondsPerDay, 1e-6) << at_hour;
    EXPECT_NEAR(seconds_in(outcome, CampaignPart::kSlow), 2 * 6 * 3600, 1e-6) << at_hour;
  }
  plan.work.daily = {6, 12, 1};
  EXPECT_EQ(simulate_campaign(plan, 1, 0).wall(), nanos(2 * 18 * 3600));
}

TEST(Campaign, ThatCannotEndIsGivenUp) {
  CampaignPlan plan = failing_campaign(2000);
  plan.longest = 3;
  EXPECT_FALSE(simulate_campaign(plan, 1, 0).ended);
  // Nothing replaces the node.
  plan = quiet_campaign();
  plan.failures.traced_components = {"gpu"};
  plan.failures.trace = {{1000, 0, 1, 1e9}};
  plan.longest = 3;
  EXPECT_FALSE(simulate_campaign(plan, 1, 0).ended);
}

TEST(Campaign, FailuresComeAtTheirRates) {
  CampaignPlan plan = quiet_campaign();
  plan.failures.processes = {{"gpu", 3, 0, 0}, {"software", 1, 0, 0}};
  const CampaignStatistics all = many(plan, 400);
  EXPECT_NEAR(all.failures[0] / all.days.mean, 3, 0.05);
  EXPECT_NEAR(all.failures[1] / all.days.mean, 1, 0.03);
}

}  // namespace
}  // namespace foretrain
