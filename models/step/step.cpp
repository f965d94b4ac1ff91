#include <algorithm>
#include <map>

#include "models/step/passes.h"
#include "sim/base/check.h"

namespace foretrain {
namespace {

bool always(const StageContext&) { return true; }

}  // namespace

const std::vector<StagePass>& stage_passes() {
  using C = const StageContext&;
  static const std::vector<StagePass> passes = {
      {"recycle outputs", [](C s) { return s.plan.forwards > 1; }, recycle_outputs},
      {"spread vocabulary", [](C s) { return s.plan.shares_vocabulary(); }, spread_vocabulary},
      {"offload activations", [](C s) { return s.plan.offload.activation_layers > 0; },
       offload_activations},
      {"recompute blocks", [](C s) { return s.plan.recompute.in_blocks(); }, recompute_blocks},
      {"quantize weights", [](C s) { return s.plan.precision.low() && !s.plan.by_units(); },
       quantize_weights},
      {"defer head", [](C s) { return s.plan.defers_head(); }, defer_head},
      {"scatter messages", [](C s) { return s.plan.scatters_messages(); }, scatter_messages},
      {"release casts", [](C s) { return s.plan.precision.autocast; }, release_casts},
      {"retain outputs", [](C s) { return s.plan.retain_outputs; }, retain_outputs},
      {"host time",
       [](C s) { return s.plan.host_waits != HostWaits::kNone || s.plan.pass_time.ps > 0; },
       host_time},
      {"share scales",
       [](C s) {
         const Precision& p = s.plan.precision;
         const bool tensor = p.scales == ScaleSharing::kTensor;
         return p.delayed() && p.scales != ScaleSharing::kNone &&
                s.plan.tensor * (tensor ? 1 : s.plan.data) > 1;
       },
       share_scales},
      {"copy contiguous", [](C s) { return s.plan.contiguous_passes(); }, copy_contiguous},
      {"reduce buckets", [](C s) { return !s.plan.by_units(); }, reduce_buckets},
      {"reduce units", [](C s) { return s.plan.by_units(); }, reduce_units},
      {"gather units", [](C s) { return s.plan.shards_parameters(); }, gather_units},
      {"gather updated", [](C s) { return s.plan.sharding != Sharding::kNone; }, gather_updated},
      {"post-validate", [](C s) { return s.plan.validates_later(); }, post_validate},
      {"slice microbatch", [](C s) { return s.plan.overlap.tensor_slices > 1; }, slice_microbatch},
      {"order messages", always, order_messages},
  };
  return passes;
}

StageStep lowered_step(const StageContext& s, const std::string& until, bool verified) {
  StageStep step = expand(s);
  for (const StagePass& pass : stage_passes()) {
    if (pass.wanted(s)) {
      pass.run(s, step);
      step.rewritten_by += (step.rewritten_by.empty() ? "" : ", ") + std::string(pass.name);
    }
    if (verified) {
      const std::string fault = fault_of(step);
      FT_CHECK(fault.empty(), fault.c_str());
    }
    if (until == pass.name) break;
  }
  return step;
}

std::string fault_of(const StageStep& step) {
  std::vector<bool> placed(step.made(), false);
  std::map<std::array<std::int32_t, 3>, int> forwards;
  std::size_t line = 0;
  for (const TaskId id : step.order()) {
    const Task& task = step[id];
    const std::string where =
        "task " + std::to_string(++line) + " (" + std::string(name_of(task.kind)) + ") ";
    if (placed[id.index()]) return where + "stands twice";
    for (const After& after : task.after) {
      if (!after.task.valid()) return where + "comes after no task";
      if (!placed[after.task.index()]) return where + "comes after a task that stands later";
    }
    if (task.of.valid() && !placed[task.of.index()]) {
      return where + "is about a task that stands later";
    }
    placed[id.index()] = true;
    if (task.kind != TaskKind::kLayer) continue;
    int& forward = forwards[{task.chunk, task.layer, task.microbatch}];
    if (task.direction == Direction::kForward) forward = 1;
    if (task.direction == Direction::kBackward && forward == 0) {
      return where + "goes back before it went forward";
    }
  }
  return "";
}

std::string_view name_of(TaskKind kind) {
  static constexpr std::string_view kNames[] = {"open",
                                                "begin",
                                                "end",
                                                "gradients ready",
                                                "pair begin",
                                                "pair end",
                                                "load ahead",
                                                "zero",
                                                "load inputs",
                                                "host wait",
                                                "host time",
                                                "embedding",
                                                "embedding, inner part",
                                                "add returned",
                                                "quantize weights",
                                                "layer",
                                                "slice tails",
                                                "head",
                                                "head, inner part",
                                                "checkpoint",
                                                "share scales",
                                                "receive",
                                                "send",
                                                "gather message",
                                                "keep part",
                                                "gather output",
                                                "release output",
                                                "release casts",
                                                "gather",
                                                "release",
                                                "gather updated",
                                                "add pass",
                                                "reduce bucket",
                                                "reduce unit",
                                                "reduce parts",
                                                "copy gradients",
                                                "finish contiguous",
                                                "copy back",
                                                "collect",
                                                "move out",
                                                "release moved",
                                                "read back",
                                                "move back",
                                                "validate",
                                                "update",
                                                "host update",
                                                "device update",
                                                "load weights",
                                                "reduce loss"};
  static_assert(std::size(kNames) == static_cast<std::size_t>(TaskKind::kReduceLoss) + 1);
  return kNames[static_cast<std::size_t>(kind)];
}

std::string_view name_of(Direction direction) {
  static constexpr std::string_view kNames[] = {"forward", "backward", "recompute", "weights"};
  return kNames[static_cast<std::size_t>(direction)];
}

namespace {

/// What the form of a task says, in words.
std::string form_text(const Task& task) {
  switch (task.kind) {
    case TaskKind::kReceive:
      return task.form == kHoisted    ? "  posted for passes that run as one"
             : task.form == kReturned ? "  returned output"
                                      : "";
    case TaskKind::kEmbedding:
      return task.form == kReturned ? "  to be added to a returned output" : "";
    case TaskKind::kReduceParts:
      return task.form == kOverTensor ? "  over tensor ranks"
             : task.form == kOverTied ? "  of a tied table"
                                      : "  over the grid";
    case TaskKind::kGather:
      return task.form == 0 ? "" : "  up to call " + std::to_string(task.form);
    case TaskKind::kLayer: {
      std::string out;
      if ((task.form & kBlockFirst) != 0) out += "  first of a block";
      if ((task.form & kBlockLast) != 0) out += "  last of a block";
      if ((task.form & kSliceHeads) != 0) out += "  first blocks of slices";
      if ((task.form & kSliceBody) != 0) out += "  middle blocks of slices";
      return out;
    }
    default:
      return "";
  }
}

std::string index_text(const Task& task) {
  if (task.index < 0) return "";
  const std::string number = std::to_string(task.index);
  switch (task.kind) {
    case TaskKind::kReduceBucket:
      return "  bucket " + number;
    case TaskKind::kGather:
    case TaskKind::kRelease:
    case TaskKind::kReduceUnit:
    case TaskKind::kReduceParts:
      return "  unit " + number;
    case TaskKind::kShareScales:
      return "  " + number + " values";
    default:
      return "  number " + number;
  }
}

}  // namespace

std::string text_of(const StageStep& step) {
  std::map<TaskId, std::size_t> lines;
  std::string out;
  for (const TaskId id : step.order()) {
    const Task& task = step[id];
    lines.emplace(id, lines.size() + 1);
    std::string line = std::to_string(lines.size());
    line.insert(0, line.size() < 6 ? 6 - line.size() : 0, ' ');
    line += "  " + std::string(name_of(task.kind));
    if (task.pass >= 0 || task.direction != Direction::kForward) {
      line += " " + std::string(name_of(task.direction));
    }
    if (task.microbatch >= 0) line += "  microbatch " + std::to_string(task.microbatch);
    if (task.chunk >= 0) line += "  chunk " + std::to_string(task.chunk);
    if (task.layer >= 0) line += "  layer " + std::to_string(task.layer);
    line += index_text(task) + form_text(task);
    if (task.of.valid()) line += "  of " + std::to_string(lines[task.of]);
    for (const After& after : task.after) {
      line += "  after " + std::to_string(lines[after.task]);
      if (after.stream != nullptr) line += " (" + std::string(after.stream) + ")";
    }
    out += line + "\n";
  }
  return out;
}

}  // namespace foretrain
