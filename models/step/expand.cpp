// The schedule of a stage as tasks.
#include <map>

#include "models/schedule/schedule.h"
#include "models/step/passes.h"
#include "sim/base/check.h"

namespace foretrain {
namespace {

/// Writes the passes of one stage, in the order of its schedule.
class Expansion {
 public:
  Expansion(const StageContext& s, StageStep& step) : x_s(s), x_step(step) {}

  void passes() {
    x_step.passes = places();
    x_received.resize(x_step.passes.size());
    x_loaded.resize(static_cast<std::size_t>(x_s.plan.microbatches()));
    for (x_pass = 0; x_pass < static_cast<std::int32_t>(x_step.passes.size()); ++x_pass) {
      if (here().in_pair == 0) hoist_receives();
      if (here().in_pair >= 0) add(TaskKind::kPairBegin);
      switch (here().pass.kind) {
        case PassKind::kForward:
        case PassKind::kForwardOnly:
          forward();
          break;
        case PassKind::kBackward:
        case PassKind::kInputGradients:
          backward();
          break;
        case PassKind::kWeightGradients:
          weights();
          break;
        default:
          vocabulary();
      }
      if (here().in_pair >= 0 && !here().pass.joined) end_pair();
    }
  }

 private:
  const PassPlace& here() const { return x_step.passes[static_cast<std::size_t>(x_pass)]; }
  const Chunk& chunk() const { return x_s.chunk(here().pass.chunk); }

  std::vector<PassPlace> places() const {
    std::vector<PassPlace> out;
    const std::int64_t all = x_s.plan.microbatches() / x_s.plan.directions();
    std::map<std::int32_t, std::int64_t> forwards;
    std::map<std::int32_t, std::int64_t> backwards;
    for (const Pass& pass : passes_of(x_s.plan, x_s.stage)) {
      PassPlace place{pass};
      const bool follows = !out.empty() && out.back().pass.joined;
      if (follows || pass.joined) place.in_pair = follows ? out.back().in_pair + 1 : 0;
      const bool forward = pass.kind == PassKind::kForward || pass.kind == PassKind::kForwardOnly;
      place.first = forward && forwards[pass.chunk]++ == 0;
      const bool gradients =
          pass.kind == PassKind::kBackward || pass.kind == PassKind::kWeightGradients;
      place.last = gradients && ++backwards[pass.chunk] == all;
      if (!place.through_layers()) {
        place.first = pass.microbatch == 0;
        place.last = pass.microbatch + 1 == x_s.plan.microbatches();
      }
      if (!out.empty()) {
        const Pass& before = out.back().pass;
        out.back().same_follows = before.kind == pass.kind && before.chunk == pass.chunk;
      }
      out.push_back(place);
    }
    return out;
  }

  TaskId add(TaskKind kind, Direction direction = Direction::kForward, std::int64_t layer = -1) {
    Task task;
    task.kind = kind;
    task.direction = direction;
    task.chunk = here().pass.chunk;
    task.layer = static_cast<std::int32_t>(layer);
    task.microbatch = here().pass.microbatch;
    task.pass = x_pass;
    task.last = here().last;
    return x_step.append(std::move(task));
  }

  /// The receive of a pass's input, unless there is none.
  void receive(bool gradient, std::int16_t form = 0) {
    const Pass& pass = here().pass;
    if (x_received[static_cast<std::size_t>(x_pass)]) return;
    const bool end = gradient ? chunk().last : chunk().first;
    if (end || stays_on_stage(x_s, pass.chunk, gradient ? 1 : -1)) return;
    x_received[static_cast<std::size_t>(x_pass)] = true;
    x_step[add(TaskKind::kReceive, gradient ? Direction::kBackward : Direction::kForward)].form =
        form;
  }

  /// What passes that run as one begin with must be there before the first of them.
  void hoist_receives() {
    const std::int32_t first = x_pass;
    for (;; ++x_pass) {
      const PassKind kind = here().pass.kind;
      if (kind != PassKind::kWeightGradients) {
        receive(kind != PassKind::kForward, x_pass > first ? kHoisted : std::int16_t{0});
      }
      if (!here().pass.joined) break;
    }
    x_pass = first;
  }

  /// What they send waits for the last of them.
  void end_pair() {
    add(TaskKind::kPairEnd);
    for (Task task : x_held_back) {
      if (x_done.valid()) task.after.push_back({x_done, nullptr, true});
      x_step.append(std::move(task));
    }
    x_held_back.clear();
  }

  void send(bool gradient) {
    Task task;
    task.kind = TaskKind::kSend;
    task.direction = gradient ? Direction::kBackward : Direction::kForward;
    task.chunk = here().pass.chunk;
    task.microbatch = here().pass.microbatch;
    task.pass = x_pass;
    if (here().in_pair >= 0) {
      x_held_back.push_back(std::move(task));
    } else {
      x_step.append(std::move(task));
    }
  }

  /// Tokens where a microbatch's first chunk stands, labels where its last does.
  void load_inputs() {
    const auto microbatch = static_cast<std::size_t>(here().pass.microbatch);
    if (!x_loaded[microbatch]) add(TaskKind::kLoadInputs);
    x_loaded[microbatch] = true;
  }

  void forward() {
    const bool keeps = here().pass.kind == PassKind::kForward;
    const bool ends = !x_s.plan.shares_vocabulary();  // else they have passes of their own
    const bool head = ends && chunk().last && keeps;
    add(TaskKind::kOpen);
    if ((ends && chunk().first) || head) load_inputs();
    receive(false);
    add(TaskKind::kBegin);
    if (ends && chunk().first && !x_s.model.is_network()) add(TaskKind::kEmbedding);
    for (std::int64_t l = 0; l < chunk().layers; ++l) {
      add(TaskKind::kLayer, Direction::kForward, l);
    }
    if (head) add(TaskKind::kHead);
    const TaskId end = add(TaskKind::kEnd);
    if (!ends) x_done = end;
    const bool goes_on = keeps ? !chunk().last && !stays_on_stage(x_s, here().pass.chunk, 1)
                               : !(chunk().first && chunk().last);
    if (goes_on) send(false);
  }

  void backward() {
    const bool ends = !x_s.plan.shares_vocabulary();
    const Direction back = Direction::kBackward;
    add(TaskKind::kOpen, back);
    receive(true);
    add(TaskKind::kBegin, back);
    if (chunk().last && ends) add(TaskKind::kHead, back);
    for (std::int64_t l = chunk().layers; l-- > 0;) add(TaskKind::kLayer, back, l);
    if (chunk().first && !x_s.model.is_network() && ends) add(TaskKind::kEmbedding, back);
    if (ends) add(TaskKind::kGradientsReady, back);
    x_done = add(TaskKind::kEnd, back);
    if (!chunk().first && !stays_on_stage(x_s, here().pass.chunk, -1)) send(true);
  }

  /// What a backward pass left: gradients of matrices.
  void weights() {
    add(TaskKind::kOpen, Direction::kWeights);
    if (chunk().last && !x_s.plan.shares_vocabulary() && !x_s.plan.defers_head()) {
      add(TaskKind::kHead, Direction::kWeights);
    }
    for (std::int64_t l = chunk().layers; l-- > 0;) {
      add(TaskKind::kLayer, Direction::kWeights, l);
    }
    add(TaskKind::kGradientsReady, Direction::kWeights);
    x_done = add(TaskKind::kEnd, Direction::kWeights);
  }

  /// Passes over a vocabulary that lies on all stages: models/step/passes/spread_vocabulary.cpp.
  void vocabulary() {
    const PassKind kind = here().pass.kind;
    const bool back = kind == PassKind::kEmbeddingGradients;
    const Direction direction = back ? Direction::kBackward : Direction::kForward;
    const bool of_head = kind == PassKind::kHead || kind == PassKind::kHeadBackward;
    add(TaskKind::kOpen, direction);
    if (kind == PassKind::kEmbedding) {
      load_inputs();
      if (chunk().first) receive(false);
    }
    if (kind == PassKind::kHead && chunk().last) receive(true);
    add(TaskKind::kBegin, direction);
    if (kind == PassKind::kEmbedding) add(TaskKind::kEmbedding);
    if (kind == PassKind::kHead || kind == PassKind::kHeadForward) add(TaskKind::kHead);
    if (of_head) add(TaskKind::kHead, Direction::kBackward);
    if (back) {
      add(TaskKind::kEmbedding, Direction::kBackward);
      add(TaskKind::kGradientsReady, Direction::kBackward);
    }
    const TaskId end = add(TaskKind::kEnd, direction);
    if (of_head || back) x_done = end;
  }

  const StageContext& x_s;
  StageStep& x_step;
  std::int32_t x_pass = 0;
  std::vector<bool> x_received;   ///< by pass: its input has been asked for
  std::vector<bool> x_loaded;     ///< by microbatch: its inputs
  std::vector<Task> x_held_back;  ///< messages of passes that run as one
  TaskId x_done;                  ///< end of the last pass that joined messages wait for
};

/// The step's first kernels, and last step's update where that is the host's.
void begin_step(const StageContext& s, StageStep& step) {
  const auto add = [&step](TaskKind kind, std::int64_t chunk = -1) {
    Task task;
    task.kind = kind;
    task.chunk = static_cast<std::int32_t>(chunk);
    step.append(std::move(task));
  };
  if (s.plan.loader_time.ps > 0) add(TaskKind::kLoadAhead);
  if (s.plan.by_units()) {
    add(TaskKind::kZero);
  } else {
    for (std::size_t c = 0; c < s.chunks.size(); ++c) {
      if (c == 0 || !s.plan.contiguous_passes()) {
        add(TaskKind::kZero, static_cast<std::int64_t>(c));
      }
    }
  }
  if (s.plan.offload.delayed_update) add(TaskKind::kHostUpdate);
}

void end_step(const StageContext& s, StageStep& step) {
  const auto add = [&step](TaskKind kind) {
    Task task;
    task.kind = kind;
    task.last = true;
    step.append(std::move(task));
  };
  if (s.plan.updates_on_host()) {
    if (!s.plan.offload.delayed_update) {
      add(TaskKind::kHostUpdate);
      add(TaskKind::kDeviceUpdate);
    }
    add(TaskKind::kLoadWeights);
  } else {
    add(TaskKind::kUpdate);
  }
  add(TaskKind::kReduceLoss);
}

}  // namespace

StageStep expand(const StageContext& s) {
  StageStep step;
  begin_step(s, step);
  Expansion(s, step).passes();
  end_step(s, step);
  return step;
}

}  // namespace foretrain
