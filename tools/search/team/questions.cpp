#include "tools/search/team/questions.h"

#include <chrono>

#include "sim/base/stop.h"
#include "tools/search/plan_tuner.h"

namespace foretrain {

// What values are made of, for packed.h.
static auto fields(LayerTimes& t) {
  return std::tie(t.layers, t.host_waits, t.first_forward, t.first_backward, t.last_forward,
                  t.last_backward, t.passing, t.weight_bytes, t.gradient_bytes, t.state_bytes,
                  t.kernels, t.pool_layer_s);
}
static auto fields(StageExchange& s) { return std::tie(s.gathers, s.reductions, s.holding); }
static auto fields(ExchangeTimes& t) {
  return std::tie(t.first, t.last, t.uncounted, t.hides_reductions, t.hides_gathers, t.hold,
                  t.sm_count);
}
static auto fields(SampleRequest& r) { return std::tie(r.run, r.ask, r.exchange); }
static auto fields(SampleAnswer& a) { return std::tie(a.layers, a.times, a.kernels); }
/// Without the retries of single Programs, which no search reads.
static auto fields(MemoryReport& m) {
  return std::tie(m.peak_gib, m.capacity_gib, m.fits, m.by_kind_gib, m.communication_gib,
                  m.workspace_gib, m.context_gib, m.allocated_gib, m.reserved_gib,
                  m.allocator_retries, m.allocator, m.least_gib, m.theoretical_gib, m.host_gib,
                  m.storage_gib, m.host_capacity_gib, m.storage_capacity_gib, m.peak_rank,
                  m.peak_at);
}
static auto fields(FoundPlan& p) {
  return std::tie(p.run, p.changes, p.cluster, p.accelerators, p.iteration_time_s, p.tokens_per_s,
                  p.mfu, p.cost, p.energy_kwh, p.objective, p.wins, p.memory);
}
static auto fields(Outcome& o) {
  return std::tie(o.fate, o.least_gib, o.reason, o.found, o.seconds);
}
static auto fields(SampleQuestion& q) { return std::tie(q.of_case, q.sample); }
static auto fields(UnsureQuestion& q) { return std::tie(q.plan); }
static auto fields(TuneQuestion& q) { return std::tie(q.plan, q.tuning, q.seconds); }
static auto fields(TunedPlan& p) { return std::tie(p.best); }

template <typename T>
static std::string bytes_of(const T& value) {
  Packer out;
  out.add(value);
  return std::move(out).take();
}
template <typename T>
static std::optional<T> value_of(const std::string& bytes) {
  T out;
  Unpacker in(bytes);
  in.read(out);
  return in.done() ? std::optional(std::move(out)) : std::nullopt;
}

std::string packed(const Question& question) { return bytes_of(question); }
std::string packed(const Answer& answer) { return bytes_of(answer); }
std::optional<Question> unpacked_question(const std::string& bytes) {
  return value_of<Question>(bytes);
}
std::optional<Answer> unpacked_answer(const std::string& bytes) { return value_of<Answer>(bytes); }

Answer Answerer::answer(const Question& question) const {
  Answer out = std::visit([this](const auto& one) { return answer_to(one); }, question);
  if (stop_asked()) out.emplace<std::monostate>();  // what stopped halfway says nothing
  return out;
}

Result<std::string> Answerer::answer_packed(const std::string& question) const {
  const std::optional<Question> asked = unpacked_question(question);
  if (!asked) return input_error("what another rank of the search asked cannot be read");
  return packed(answer(*asked));
}

Answer Answerer::answer_to(const PlanQuestion& question) const {
  const auto begin = std::chrono::steady_clock::now();
  Outcome out = x_evaluator.look_at(question.of_case, question.plan);
  out.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  return out;
}

Answer Answerer::answer_to(const SampleQuestion& question) const {
  return answer_of(x_cases[question.of_case], question.sample);
}

Answer Answerer::answer_to(const UnsureQuestion& question) const {
  return x_evaluator.unsure(question.plan);
}

Answer Answerer::answer_to(const TuneQuestion& question) const {
  using Clock = std::chrono::steady_clock;
  const auto until = Clock::now() + std::chrono::duration<double>(question.seconds);
  const PlanTuner tuner(x_evaluator, x_options,
                        [until] { return !stop_asked() && Clock::now() < until; });
  if (question.tuning == Tuning::kStages) return TunedPlan{tuner.tuned_plan(question.plan)};
  if (question.tuning == Tuning::kDegrees) {
    return TunedPlan{tuner.with_stage_degrees(question.plan)};
  }
  const std::optional<FoundPlan> start = tuner.with_one_chunk(question.plan);
  return start ? TunedPlan{tuner.tuned_plan(*start)} : TunedPlan();
}

}  // namespace foretrain
