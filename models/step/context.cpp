#include "models/step/context.h"

namespace foretrain {

bool tied_across(const Model& model, const Plan& plan) {
  return model.tied_embeddings && !plan.shares_vocabulary() &&
         plan.stage_of(0) != plan.stage_of(plan.chunks() - 1);
}

bool recomputes(const Plan& plan, std::int64_t layer_of_stage) {
  const Recompute& r = plan.recompute;
  if (!r.any() || r.in_blocks()) return false;
  if (r.layers >= 0 && layer_of_stage >= r.layers) return false;
  return layer_of_stage % r.layer_period == 0;
}

bool stays_on_stage(const Plan& plan, std::int64_t stage, std::int32_t chunk, std::int64_t step) {
  if (plan.placement() != ChunkPlacement::kV) return false;
  return plan.stage_of(plan.chunk_at(stage, chunk) + step) == stage;
}

std::vector<ElementRange> partial_gradients(const Model& model, const Plan& plan,
                                            const std::vector<const LayerLayouts*>& layers,
                                            std::int64_t shared, std::int64_t before) {
  if (plan.tensor == 1 || shared == 0 || plan.in_grid()) return {};
  if (plan.sequence) return {{0, shared}};
  std::vector<ElementRange> out;
  if (!model.qk_norm && !model.has_mixer(Mixer::kDelta)) return out;
  std::int64_t begin = before;
  for (const LayerLayouts* layer : layers) {
    for (const Buffer& buffer : layer->parameter_gradients.shared.buffers) {
      const std::int64_t end = begin + buffer.count;
      if (is_head_norm(buffer.name)) {
        const bool continues = !out.empty() && out.back().second == begin;
        continues ? void(out.back().second = end) : void(out.emplace_back(begin, end));
      }
      begin = end;
    }
  }
  return out;
}

void wait_for_gradients(const StageContext& s, const std::vector<After>& done,
                        const std::vector<After>& summed, Task& task) {
  if (task.kind == TaskKind::kUpdate) {
    task.after.insert(task.after.end(), summed.begin(), summed.end());
  }
  if (task.kind == TaskKind::kLoadWeights && s.plan.offload.delayed_update) {
    for (const After& after : done) {
      if (after.task.valid()) task.after.push_back({after.task, kIn, after.end});
    }
  }
  if (task.kind == TaskKind::kReduceLoss && s.plan.updates_on_host()) {
    for (std::size_t c = 0; c < s.chunks.size(); ++c) {
      if (!s.chunks[c].has_head) continue;
      if (done[c].task.valid()) task.after.push_back(done[c]);
      break;
    }
  }
}

std::int64_t scaled_linears(const StageContext& s, std::int32_t chunk) {
  constexpr std::int64_t kOfAttention = 2;
  constexpr std::int64_t kOfMlp = 2;
  std::int64_t out = 0;
  for (std::int64_t l = 0; l < s.chunk(chunk).layers; ++l) {
    const LayerKind kind = s.kind(chunk, l).kind;
    if (kind.mixer != Mixer::kNone) out += kOfAttention;
    if (kind.feed_forward == FeedForward::kNone) continue;
    if (!kind.sparse()) {
      out += kOfMlp;
      continue;
    }
    out += kOfMlp * (s.model.experts.count / s.plan.experts.expert);
    if (s.model.experts.shared_width > 0) out += kOfMlp;
  }
  return out;
}

Task beside(const Task& at, TaskKind kind, Direction direction) {
  Task out = at;
  out.kind = kind;
  out.direction = direction;
  out.form = 0;
  out.of = TaskId();
  out.after.clear();
  return out;
}

}  // namespace foretrain
