// What a search asks about plans, and answers: here, or in another process of the same search.
#pragma once

#include <optional>
#include <string>
#include <tuple>
#include <variant>
#include <vector>

#include "tools/search/bounds/case_bounds.h"
#include "tools/search/evaluator.h"
#include "tools/search/team/packed.h"

namespace foretrain {

/// Does the plan fit, and what does its step take?
struct PlanQuestion {
  std::uint32_t of_case = 0, plan = 0;
};
/// What does a sample take, of which bounds are made?
struct SampleQuestion {
  std::uint32_t of_case = 0;
  SampleRequest sample;
};
/// What do the deviations of prices add?
struct UnsureQuestion {
  FoundPlan plan;
};
/// What is tuned: a plan's stages, those that it has with one chunk each, or their tensor degrees.
enum class Tuning : std::uint8_t { kStages, kOneChunk, kDegrees };
/// What is the best of the plan's stages?
struct TuneQuestion {
  FoundPlan plan;
  Tuning tuning = Tuning::kStages;
  double seconds = 0;  ///< there are for it
};
struct TunedPlan {
  std::optional<FoundPlan> best;  ///< nothing where the plan itself is as good
};
using Question = std::variant<PlanQuestion, SampleQuestion, UnsureQuestion, TuneQuestion>;

/// Nothing where who was asked was told to stop.
using Answer = std::variant<std::monostate, Outcome, SampleAnswer, UnsurePlan, TunedPlan>;

/// Answers questions in this process. Thread-safe. All that it is made of must outlive it.
class Answerer {
 public:
  Answerer(const std::vector<SearchCase>& cases, const Evaluator& evaluator,
           const SpaceOptions& options)
      : x_cases(cases), x_evaluator(evaluator), x_options(options) {}

  Answer answer(const Question& question) const;
  /// Of packed ones. Fails where the bytes are no question.
  Result<std::string> answer_packed(const std::string& question) const;

 private:
  Answer answer_to(const PlanQuestion& question) const;
  Answer answer_to(const SampleQuestion& question) const;
  Answer answer_to(const UnsureQuestion& question) const;
  Answer answer_to(const TuneQuestion& question) const;

  const std::vector<SearchCase>& x_cases;
  const Evaluator& x_evaluator;
  const SpaceOptions& x_options;
};

/// As bytes, for another process of the same build; nothing where bytes are none.
std::string packed(const Question& question);
std::string packed(const Answer& answer);
std::optional<Question> unpacked_question(const std::string& bytes);
std::optional<Answer> unpacked_answer(const std::string& bytes);

}  // namespace foretrain
