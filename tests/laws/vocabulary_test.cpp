// Do Vocab-1 and Vocab-2 (Yeung et al., arXiv 2411.05288) cost what their authors derive: no
// waiting for the vocabulary's exchanges, two or one microbatches more in memory?
#include <gtest/gtest.h>

#include <map>

#include "models/lower.h"
#include "models/schedule/schedule.h"
#include "models/layers/slots.h"
#include "sim/program/verify.h"
#include "tests/support/pass_prices.h"
#include "tests/support/recording.h"
#include "tests/support/sanitized.h"
#include "tests/support/small_plans.h"

namespace foretrain {
namespace {

using Ps = std::int64_t;
constexpr Ps kUnit = 4'000'000;
constexpr Schedule kSpread[] = {Schedule::kVocabulary1, Schedule::kVocabulary2};

/// F and B of a layer in units; the three products of the output matrix, each so long; every
/// collective, so long.
struct Durations {
  Ps forward = 1, backward = 2;
  Ps output = 0, exchange = 0;
};

class SpreadPrices : public PassPrices {
 public:
  SpreadPrices(Durations d, std::int64_t columns)
      : PassPrices({Time{d.forward * kUnit}, Time{d.backward * kUnit}, Time{}, Time{}}),
        x_durations(d),
        x_columns(columns) {}
  Result<Cost> price(const Work& work, std::span<const PlacementId> places) const override {
    Result<Cost> cost = PassPrices::price(work, places);
    const auto* gemm = std::get_if<Gemm>(&work);
    if (gemm != nullptr && std::max({gemm->m, gemm->n, gemm->k}) == x_columns) {
      cost.value().compute = cost.value().duration = Time{x_durations.output};
    }
    if (std::holds_alternative<Collective>(work)) {
      cost.value().duration = cost.value().latency = Time{x_durations.exchange};
    }
    return cost;
  }

 private:
  Durations x_durations;
  std::int64_t x_columns;  ///< of the vocabulary on one stage, which no other matrix has
};

constexpr std::int64_t kColumns = 2048;

/// Two layers on every stage.
Model model_of(std::int64_t stages) {
  Model model = pass_model();
  model.layers = 2 * stages;
  model.vocabulary = kColumns * stages;
  return model;
}

Plan plan_of(const Model& model, Schedule schedule, std::int64_t p, std::int64_t m) {
  Plan plan = small_plan(model, {1, p, 1, 1}, m);
  plan.schedule = schedule;
  return plan;
}

Ps step_of(Schedule schedule, std::int64_t p, std::int64_t m, Durations d) {
  const Model model = model_of(p);
  const Workload workload = lower(model, plan_of(model, schedule, p, m));
  const Status status = verify(workload);
  EXPECT_TRUE(status.ok()) << status.error().message;
  SpreadPrices prices(d, kColumns);
  const Result<Replayed> result = replay_all(workload, prices, true);
  EXPECT_TRUE(result.ok()) << result.error().message;
  return result.ok() ? result.value().replay.end.ps : 0;
}

// Where the vocabulary's passes take no time the bubble is that of 1f1b, (p - 1)(F + B).
TEST(SpreadVocabulary, BubbleOf1f1b) {
  for (const Schedule schedule : kSpread) {
    for (const std::int64_t p : {2, 3, 4, 7, 8}) {
      for (const std::int64_t m : {std::int64_t{1}, p + 2, 2 * p, 3 * p + 1}) {
        EXPECT_EQ(step_of(schedule, p, m, {}), (m + p - 1) * 2 * 3 * kUnit) << p << " " << m;
      }
    }
  }
}

// A microbatch more takes F + B + S + T, whatever the vocabulary, and although what is exchanged
// takes time: a tenth of a pass here. Interlaced passes wait for it.
TEST(SpreadVocabulary, NothingWaits) {
  for (const std::int64_t p : {2, 3, 4, 8, 16}) {
    if (kSanitized && p > 8) continue;
    for (const Ps output : {kUnit / 16, kUnit / 4, kUnit / 2}) {
      for (const Ps exchange : {Ps{0}, kUnit / 5}) {
        const Durations d{1, 2, output, exchange};
        const Ps turn = 2 * 3 * kUnit + 3 * output;
        const std::int64_t m = 6 * p;
        for (const Schedule schedule : kSpread) {
          EXPECT_EQ(step_of(schedule, p, m + 2 * p, d) - step_of(schedule, p, m, d), 2 * p * turn)
              << static_cast<int>(schedule) << " " << p << " " << output << " " << exchange;
        }
        if (exchange == 0) continue;
        EXPECT_GT(step_of(Schedule::kSharedVocabulary, p, m + 2 * p, d) -
                      step_of(Schedule::kSharedVocabulary, p, m, d),
                  2 * p * turn);
      }
    }
  }
}

/// Most forward passes of the layers whose backward pass is still to come.
std::int64_t most_kept(const std::vector<Pass>& passes) {
  std::int64_t now = 0;
  std::int64_t most = 0;
  for (const Pass& pass : passes) {
    if (pass.kind == PassKind::kForward) most = std::max(most, ++now);
    if (pass.kind == PassKind::kBackward) --now;
  }
  return most;
}

// Stage s keeps p - s microbatches in 1f1b, two more in Vocab-1, one more in Vocab-2.
TEST(SpreadVocabulary, ActivationsInFlight) {
  for (std::int64_t p = 2; p <= 9; ++p) {
    for (const Schedule schedule : kSpread) {
      const Model model = model_of(p);
      for (const std::int64_t m : {std::int64_t{1}, p, 4 * p}) {
        const Plan plan = plan_of(model, schedule, p, m);
        const auto passes = passes_of(plan);
        const Status status = check_passes(plan, passes);
        ASSERT_TRUE(status.ok()) << p << " " << m << " " << status.error().message;
        for (std::int64_t s = 0; s < p; ++s) {
          const std::int64_t more = schedule == Schedule::kVocabulary1 ? 2 : 1;
          EXPECT_EQ(most_kept(passes[static_cast<std::size_t>(s)]), std::min(m, p - s + more));
        }
      }
    }
  }
}

// S comes after the microbatch's forward pass on the last stage, T a turn later; Vocab-1 comes back
// after it, Vocab-2 before.
TEST(SpreadVocabulary, OrderOnTheLastStage) {
  const auto text = [](Schedule schedule) {
    std::string out;
    const Plan plan = plan_of(model_of(2), schedule, 2, 4);
    for (const Pass& pass : passes_of(plan, 1)) {
      const char* const letters[] = {"F", "B", "", "", "", "E", "", "S", "T", "G"};
      out += letters[static_cast<int>(pass.kind)] + std::to_string(pass.microbatch) + " ";
    }
    return out;
  };
  EXPECT_EQ(text(Schedule::kVocabulary1),
            "E0 E1 E2 E3 F0 S0 F1 S1 T0 F2 S2 T1 B0 F3 S3 T2 B1 T3 B2 G0 B3 G1 G2 G3 ");
  EXPECT_EQ(text(Schedule::kVocabulary2),
            "E0 E1 E2 E3 F0 S0 F1 S1 B0 T0 F2 S2 B1 T1 F3 S3 B2 G0 T2 T3 B3 G1 G2 G3 ");
}

/// Bytes of the whole arrays that a stage's collectives move, by group.
std::map<std::string, Bytes> traffic_of(const Program& program) {
  std::map<std::string, Bytes> out;
  for (const Call& call : program.calls) {
    for (const Op& op : program.segments[call.segment.index()].ops) {
      const auto* c = std::get_if<Collective>(&program.works[op.work.index()]);
      if (c == nullptr) continue;
      out[program.group_slots[c->group.index()]] += bytes_of(c->dtype, c->count);
    }
  }
  return out;
}

// Of a microbatch of T tokens every stage takes hidden states and the gradients of embeddings, T x
// hidden each, gives as many of its parts of embeddings and of gradients of hidden states, and sums
// three fp32 numbers a token: as much as the interlaced passes. Where stages would wait for each
// other in an exchange of all tokens they meet in one of a number before.
TEST(SpreadVocabulary, Volume) {
  for (const Schedule schedule : kSpread) {
    for (const std::int64_t tensor : {1, 2}) {
      const Model model = model_of(4);
      Plan plan = small_plan(model, {tensor, 4, 1, 1}, 6);
      plan.schedule = schedule;
      plan.sequence = tensor > 1;
      const Bytes hidden = 6 * 2 * plan.tokens() * model.hidden;
      for (const Program& program : lower(model, plan).programs) {
        auto traffic = traffic_of(program);
        for (const char* group : {kStagesGroup, kStagesGradientGroup, kStagesEmbeddingGroup,
                                  kStagesEmbeddingGradientGroup}) {
          const bool behind = group == std::string(kStagesGradientGroup) &&
                              schedule == Schedule::kVocabulary2;  // the statistics
          const bool meets = group != std::string(kStagesGroup) && !behind;
          EXPECT_EQ(traffic[group], hidden + (meets ? 6 * 4 : 0)) << group;
        }
        EXPECT_EQ(traffic[kVocabularyGroup], 6 * 3 * 4 * plan.tokens());
      }
    }
  }
}

}  // namespace
}  // namespace foretrain
