// Gathers of what an update of sharded states has made, of parameters that every rank keeps whole:
// all of them under ZeRO-1 and ZeRO-2, the persistent ones under ZeRO-3.
//
// At the end of the step, or with `overlap.parameter_gather` of the step before beside this one's
// first forward passes: a framework's collectives wait for what its compute stream was given
// before, and compute waits for a gather where it first reads of it. First goes what the forward
// pass needs first: the end of the list of buckets, the ends of a chunk before its layers.
#include <map>

#include "models/step/passes.h"

namespace foretrain {
namespace {

Task gather(std::int32_t c, std::size_t index, TaskId after) {
  Task task;
  task.kind = TaskKind::kGatherUpdated;
  task.chunk = c;
  task.index = static_cast<std::int32_t>(index);
  if (after.valid()) task.after.push_back({after, nullptr, true});
  return task;
}

/// All of them, in order; `ahead`: of the step before.
std::vector<Task> gathers(const StageContext& s, TaskId after, bool ahead) {
  std::vector<Task> out;
  for (std::size_t c = 0; c < s.chunks.size(); ++c) {
    const Chunk& chunk = s.chunks[c];
    const auto at = static_cast<std::int32_t>(c);
    const std::int32_t root = s.chunk(at).root;
    const bool root_first = ahead || !s.plan.updates_on_host();
    if (root >= 0 && root_first) out.push_back(gather(at, static_cast<std::size_t>(root), after));
    for (std::size_t u = 0; u < chunk.units.size(); ++u) {
      const bool first = static_cast<std::int32_t>(u) == root && root_first;
      if (!first) out.push_back(gather(at, u, after));
    }
    if (s.plan.by_units() || chunk.holders.shards == 1) continue;
    const std::size_t buckets = chunk.buckets.size();
    for (std::size_t b = 0; b < buckets; ++b) {
      out.push_back(gather(at, ahead ? buckets - 1 - b : b, after));
    }
  }
  const auto idle = [&s](const Task& task) {
    const Chunk& chunk = s.chunk(task.chunk);
    const auto i = static_cast<std::size_t>(task.index);
    if (!s.plan.by_units()) return chunk.buckets[i].begin == chunk.buckets[i].end;
    const ShardLayout& shape = s.shape(chunk.units[i]);
    return !stays_whole(s.plan, shape) || !shape.gather.all.valid();
  };
  std::erase_if(out, idle);
  for (Task& task : out) task.last = !ahead;
  return out;
}

/// The part of a chunk's parameters that a task of its first forward pass reads.
const PartFrames* part_of(const Chunk& chunk, const Task& at) {
  if (at.direction != Direction::kForward) return nullptr;
  switch (at.kind) {
    case TaskKind::kEmbedding:
    case TaskKind::kEmbeddingInner:
      return &chunk.embedding;
    case TaskKind::kHead:
      return &chunk.head;
    case TaskKind::kLayer:
    case TaskKind::kQuantize:
      return &chunk.parts[static_cast<std::size_t>(at.layer)];
    default:
      return nullptr;
  }
}

}  // namespace

void gather_updated(const StageContext& s, StageStep& step) {
  const bool ahead = s.plan.overlap.parameter_gather;
  TaskId behind;  // the last of these tasks
  for (const TaskId id : step.order()) {
    const TaskKind kind = step[id].kind;
    const bool begins = kind == TaskKind::kZero ||
                        (kind == TaskKind::kHostUpdate && !step[id].last && !s.plan.by_units());
    const bool ends = kind == TaskKind::kUpdate || kind == TaskKind::kLoadWeights;
    if (ahead ? begins : ends) behind = id;
  }
  TaskId zeroed;
  for (const TaskId id : step.order()) {
    if (step[id].kind == TaskKind::kZero) zeroed = id;
  }
  std::map<std::pair<std::int32_t, std::int32_t>, TaskId> known;
  std::vector<TaskId> order;
  for (const TaskId id : step.order()) {
    order.push_back(id);
    if (!(id == behind)) continue;
    for (Task& task : gathers(s, ahead ? zeroed : id, ahead)) {
      const TaskId made = step.make(std::move(task));
      order.push_back(made);
      known[{step[made].chunk, step[made].index}] = made;
    }
  }
  step.place(std::move(order));
  if (!ahead || s.plan.by_units()) return;
  const auto wait = [&](Task& task, std::int32_t c, const PartFrames& part) {
    const Chunk& chunk = s.chunk(c);
    for (std::size_t b = 0; b < chunk.buckets.size(); ++b) {
      const Bucket& bucket = chunk.buckets[b];
      const bool cut = bucket.begin < part.cut_end && part.cut_begin < bucket.end;
      const bool shared = bucket.begin < chunk.shared_elements;
      const auto found = known.find({c, static_cast<std::int32_t>(b)});
      if ((cut || shared) && found != known.end()) {
        task.after.push_back({found->second, kComputeStream, true});
      }
    }
  };
  for (const TaskId id : step.order()) {
    Task& task = step[id];
    if (task.pass < 0) continue;
    const PassPlace& place = step.place_of(task);
    const bool of_head = task.kind == TaskKind::kHead && place.pass.round > 0;
    if (of_head ? place.pass.microbatch != 0 : !place.first) continue;
    const PartFrames* part = part_of(s.chunk(task.chunk), task);
    if (part == nullptr) continue;
    wait(task, task.chunk, *part);
    const std::int32_t experts = s.chunk(task.chunk).experts;
    if (task.layer >= 0 && experts >= 0 && s.kind(task.chunk, task.layer).kind.sparse()) {
      wait(task, experts, s.chunk(experts).parts[static_cast<std::size_t>(task.layer)]);
    }
  }
}

}  // namespace foretrain
