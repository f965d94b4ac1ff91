// When buckets of gradients are reduced (all but sharded units, and contiguous buckets of sharded
// gradients: models/step/passes/copy_contiguous.cpp).
//
// Backward passes finish the end of a chunk's parameters first. With `overlap.gradient_reduce` a
// bucket goes as soon as the last pass that adds to it has run; without, when the step's passes are
// over. What ranks of a small group computed in parts (norms under sequence parallelism, a grid's
// vectors) is summed over that group first, and the buckets that hold it wait; so does a table that
// is tied to another stage's, at the very end, so that the wait does not hold up the buckets of
// other chunks. With `no_sync` false every microbatch's gradients are reduced and then added up.
#include <algorithm>

#include "models/step/passes.h"

namespace foretrain {
namespace {

/// One walk over the tasks of a step.
class Reductions {
 public:
  Reductions(const StageContext& s, StageStep& step) : x_s(s), x_step(step) {
    for (const Chunk& chunk : s.chunks) {
      x_issued.emplace_back(chunk.buckets.size(), false);
      x_done.push_back({TaskId(), nullptr, true});
    }
  }

  void run() {
    bool over = false;
    for (const TaskId id : x_step.order()) {
      const Task& at = x_step[id];
      const bool ends = at.kind == TaskKind::kUpdate || at.kind == TaskKind::kHostUpdate ||
                        at.kind == TaskKind::kLoadWeights;
      if (ends && at.last && !over) {
        rest();
        over = true;
      }
      if (at.last && at.pass < 0) wait_for_gradients(x_s, x_done, x_before_update, x_step[id]);
      x_order.push_back(id);
      if (at.kind == TaskKind::kHead) behind_head(id, at);
      if (at.kind == TaskKind::kLayer) behind_layer(id, at);
      if (at.kind == TaskKind::kGradientsReady) finish_pass(id, at);
    }
    x_step.place(std::move(x_order));
  }

 private:
  Task task(TaskKind kind, std::int32_t chunk, std::int32_t index = -1) const {
    Task out;
    out.kind = kind;
    out.direction = Direction::kBackward;
    out.chunk = chunk;
    out.index = index;
    return out;
  }

  TaskId add(Task task, After after) {
    if (after.task.valid()) task.after.push_back(after);
    x_order.push_back(x_step.make(std::move(task)));
    return x_order.back();
  }

  /// Whether the gradients that a task writes are reduced when it has run.
  bool reduces(const Task& at) const {
    if (x_s.plan.contiguous_passes()) return false;
    const bool weights = at.direction == Direction::kWeights;
    if (at.direction != Direction::kBackward && !weights) return false;
    return at.last || (!weights && x_s.plan.reduces_each_pass());
  }

  void reduce(std::int32_t c, std::size_t bucket, After after) {
    const Bucket& b = x_s.chunk(c).buckets[bucket];
    std::vector<bool>& issued = x_issued[static_cast<std::size_t>(c)];
    if (issued[bucket]) return;
    issued[bucket] = true;
    if (b.begin == b.end) return;
    after.stream = nullptr;
    add(task(TaskKind::kReduceBucket, c, static_cast<std::int32_t>(bucket)), after);
  }

  void reduce_all(std::int32_t c) {
    for (std::size_t b = 0; b < x_s.chunk(c).buckets.size(); ++b) {
      reduce(c, b, x_done[static_cast<std::size_t>(c)]);
    }
  }

  /// Everything from element `reached` on is final.
  void ready(std::int32_t c, std::int64_t reached, After after) {
    const Plan& plan = x_s.plan;
    const Chunk& chunk = x_s.chunk(c);
    if (!plan.overlap.gradient_reduce) return;
    if (plan.sums_after_pass && reached > 0) return;
    for (std::size_t b = 0; b < chunk.buckets.size(); ++b) {
      const Bucket& bucket = chunk.buckets[b];
      const bool of_head = bucket.begin < chunk.head.cut_end && chunk.head.cut_begin < bucket.end;
      if (of_head && chunk.last && plan.defers_head()) continue;  // its gradients are to come
      if (bucket.begin >= reached && !bucket.last) reduce(c, b, after);
    }
  }

  void behind_head(TaskId id, const Task& at) {
    const Chunk& chunk = x_s.chunk(at.chunk);
    if (!reduces(at) || x_s.plan.defers_head()) return;
    if (x_s.plan.shares_vocabulary() ? x_s.model.tied_embeddings
                                     : x_s.model.tied_embeddings && chunk.has_embedding) {
      return;  // the embedding adds to the table
    }
    const bool whole = at.direction == Direction::kWeights || x_s.plan.shares_vocabulary();
    ready(at.chunk, chunk.head.cut_begin, {id, nullptr, whole});
  }

  void behind_layer(TaskId id, const Task& at) {
    if (!reduces(at)) return;
    const Chunk& chunk = x_s.chunk(at.chunk);
    const After after{id, nullptr, at.direction == Direction::kWeights};
    const auto l = static_cast<std::size_t>(at.layer);
    ready(at.chunk, chunk.parts[l].cut_begin, after);
    if (chunk.experts < 0) return;
    if (l == 0) return finish_chunk(chunk.experts, after);
    ready(chunk.experts, x_s.chunk(chunk.experts).parts[l].cut_begin, after);
  }

  TaskId reduce_parts(std::int32_t c, std::int16_t form) {
    After& done = x_done[static_cast<std::size_t>(c)];
    Task parts = task(TaskKind::kReduceParts, c);
    parts.form = form;
    done = {add(std::move(parts), {done.task, nullptr, done.end}), nullptr, true};
    x_before_update.push_back({done.task, kComputeStream, true});
    return done.task;
  }

  bool waits_for_table(const Chunk& chunk) const {
    return tied_across(x_s.model, x_s.plan) && (chunk.has_embedding || chunk.has_head);
  }

  /// After the last backward pass of a chunk.
  void finish_chunk(std::int32_t c, After after) {
    const Chunk& chunk = x_s.chunk(c);
    ready(c, 0, after);
    x_done[static_cast<std::size_t>(c)] = after;
    const std::int64_t before = chunk.has_embedding ? x_s.embedding.parameters.shared_elements : 0;
    const bool parts =
        !partial_gradients(x_s.model, x_s.plan, x_s.kinds[static_cast<std::size_t>(c)],
                           chunk.shared_elements, before)
             .empty();
    if (parts) reduce_parts(c, kOverTensor);
    for (std::size_t g = 0; g < chunk.grid_groups.size(); ++g) {
      reduce_parts(c, static_cast<std::int16_t>(kOverGrid + static_cast<int>(g)));
    }
    if (waits_for_table(chunk) || !x_s.plan.overlap.gradient_reduce) return;
    reduce_all(c);
  }

  /// A microbatch's gradients of a chunk are complete.
  void finish_pass(TaskId id, const Task& at) {
    if (x_s.plan.contiguous_passes()) {
      x_done[static_cast<std::size_t>(at.chunk)] = {id, nullptr, true};
      return;
    }
    After done{id, nullptr, true};
    if (x_s.plan.sums_after_pass && x_s.chunk(at.chunk).elements > 0) {
      done.task = add(task(TaskKind::kAddPass, at.chunk), {});
    }
    if (!at.last && !x_s.plan.reduces_each_pass()) return;
    finish_chunk(at.chunk, done);
    if (!x_s.chunk(at.chunk).summed.valid()) return;
    reduce_all(at.chunk);
    add(task(TaskKind::kCopyBack, at.chunk), {});
    Task collect = task(TaskKind::kCollect, at.chunk);
    collect.last = at.last;
    add(std::move(collect), {});
    if (!at.last)
      x_issued[static_cast<std::size_t>(at.chunk)].assign(
          x_issued[static_cast<std::size_t>(at.chunk)].size(), false);
  }

  /// When all passes are over.
  void rest() {
    const auto chunks = static_cast<std::int32_t>(x_s.chunks.size());
    std::vector<std::int32_t> order;
    for (std::int32_t c = 0; c < chunks; ++c) {
      if (waits_for_table(x_s.chunk(c))) reduce_parts(c, kOverTied);
      order.push_back(c);
    }
    // Where two stages hold the same two chunks, both must begin with the same one.
    if (x_s.plan.directions() == 2) {
      std::stable_sort(order.begin(), order.end(), [this](std::int32_t a, std::int32_t b) {
        return x_s.chunk(a).first_layer < x_s.chunk(b).first_layer;
      });
    }
    for (const std::int32_t c : order) {
      if (!x_s.plan.contiguous_passes()) reduce_all(c);
    }
    for (std::int32_t c = 0; c < chunks; ++c) {
      if (!x_s.chunk(c).summed.valid()) add(task(TaskKind::kCopyBack, c), {});
    }
  }

  const StageContext& x_s;
  StageStep& x_step;
  std::vector<TaskId> x_order;
  std::vector<std::vector<bool>> x_issued;  ///< by chunk and bucket
  std::vector<After> x_done;                ///< by chunk: its gradients are final
  std::vector<After> x_before_update;       ///< gradients that are not reduced over data
};

}  // namespace

void reduce_buckets(const StageContext& s, StageStep& step) { Reductions(s, step).run(); }

}  // namespace foretrain
