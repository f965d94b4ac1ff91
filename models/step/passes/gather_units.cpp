// When the parameters of sharded units (ZeRO-3, FSDP) are gathered and let go of.
//
// A unit is gathered before the first layer that needs it, unless it is there, and let go of behind
// its last one unless a pass will read it soon. With `persist_elements` the small parameters of a
// chunk are a unit that stays gathered (DeepSpeed's stage3_param_persistence_threshold): only the
// update makes them anew. Left out: small tables and experts stay sharded.
#include <array>
#include <map>
#include <utility>

#include "models/step/passes.h"

namespace foretrain {
namespace {

/// One walk over the tasks of a step.
class Gathers {
 public:
  Gathers(const StageContext& s, StageStep& step) : x_s(s), x_step(step) {
    for (const Chunk& chunk : s.chunks) x_open.emplace_back(chunk.units.size(), kClosed);
  }

  void run() {
    for (const TaskId id : x_step.order()) {
      const Task& at = x_step[id];
      const bool back = at.direction == Direction::kBackward;
      const bool pass = back || at.direction == Direction::kForward;
      const bool layer = at.kind == TaskKind::kLayer && pass;
      x_at = &at;
      if (layer) {
        open_layer(at.chunk, at.layer, back);
        const Unit& unit = unit_of(at.chunk, at.layer);
        prefetch(at.chunk, back ? unit.first - 1 : unit.last, back, 1, in_use(at, unit, back));
      }
      x_order.push_back(id);
      if (at.kind == TaskKind::kOpen && pass) {
        if (const std::int32_t root = x_s.chunk(at.chunk).root; root >= 0) {
          open(at.chunk, root, back);
        }
        if (back) prefetch(at.chunk, x_s.chunk(at.chunk).layers - 1, true, 0, 0);
      }
      if (layer) end_layer(id, at, back);
      if (at.kind == TaskKind::kGradientsReady) end_chunk(id, at);
    }
    x_step.place(std::move(x_order));
  }

 private:
  static constexpr std::int64_t kClosed = -1;

  const Unit& unit_of(std::int32_t c, std::int64_t layer) const {
    return unit_at(c, unit_of_layer(x_s.chunk(c), layer));
  }
  const Unit& unit_at(std::int32_t c, std::int32_t u) const {
    return x_s.chunk(c).units[static_cast<std::size_t>(u)];
  }
  std::int64_t& state(std::int32_t c, std::int32_t u) {
    return x_open[static_cast<std::size_t>(c)][static_cast<std::size_t>(u)];
  }

  TaskId add(TaskKind kind, std::int32_t c, std::int32_t u, Direction direction) {
    Task task = beside(*x_at, kind, direction);
    task.chunk = c;
    task.layer = -1;
    task.index = u;
    x_order.push_back(x_step.make(std::move(task)));
    return x_order.back();
  }

  /// Gathers a unit unless it is there, or what is missing of it. A gather waits until an earlier
  /// one's parameters are let go where more must not be in flight; where that one's pass is still
  /// to come, as with a prefetch beside a limit of one, until those before it are.
  void open(std::int32_t c, std::int32_t u, bool back) {
    const ShardLayout& shape = x_s.shape(unit_at(c, u));
    if (x_begun.erase({c, u}) > 0) {
      gather(c, u, back);
      return;
    }
    if (shape.whole || state(c, u) != kClosed) return;
    const TaskId gather = this->gather(c, u, back);
    state(c, u) = 0;
    if (shape.root) return;
    std::vector<TaskId>& let_go = x_let_go[shape.holders.expert ? 1 : 0];
    const std::size_t number = let_go.size();
    state(c, u) = static_cast<std::int64_t>(number);
    const auto limit = static_cast<std::size_t>(x_s.plan.units.gathers_in_flight);
    std::size_t earlier = limit > 0 && number >= limit ? number - limit + 1 : 0;
    while (earlier > 0 && !let_go[earlier - 1].valid()) --earlier;
    if (earlier > 0) x_step[gather].after.push_back({let_go[earlier - 1]});
    let_go.emplace_back();
  }

  TaskId gather(std::int32_t c, std::int32_t u, bool back) {
    return add(TaskKind::kGather, c, u, back ? Direction::kBackward : Direction::kForward);
  }

  /// Gathers as many of a unit's first parameters as make up `most` elements, the last ones whole;
  /// false if that is all of them, or they come at once.
  bool begin(std::int32_t c, std::int32_t u, bool back, std::int64_t most) {
    const std::vector<std::int64_t>& calls = x_s.shape(unit_at(c, u)).gather.calls;
    const auto known = x_begun.find({c, u});
    if (state(c, u) != kClosed && known == x_begun.end()) return false;
    std::size_t count = 0;
    for (std::int64_t elements = 0; count < calls.size() && elements < most; ++count) {
      elements += calls[count];
    }
    if (count == calls.size()) return false;
    const auto form = static_cast<std::int16_t>(count);
    if (known != x_begun.end() && form <= known->second) return true;
    if (known == x_begun.end()) {
      open(c, u, back);
    } else {
      gather(c, u, back);
    }
    x_step[x_order.back()].form = form;
    x_begun[{c, u}] = form;
    return true;
  }

  void close(std::int32_t c, std::int32_t u, TaskId behind) {
    const ShardLayout& shape = x_s.shape(unit_at(c, u));
    if (shape.whole || state(c, u) == kClosed) return;
    add(TaskKind::kRelease, c, u, x_at->direction);
    if (!shape.root) {
      x_let_go[shape.holders.expert ? 1 : 0][static_cast<std::size_t>(state(c, u))] = behind;
    }
    state(c, u) = kClosed;
  }

  /// The unit of a layer, and that of its experts.
  void open_layer(std::int32_t c, std::int64_t layer, bool back) {
    open(c, unit_of_layer(x_s.chunk(c), layer), back);
    const std::int32_t experts = x_s.chunk(c).experts;
    if (experts < 0) return;
    const std::int32_t u = unit_of_layer(x_s.chunk(experts), layer);
    if (u >= 0) open(experts, u, back);
  }

  /// Whether a layer's modules keep their parameters as long as its backward pass has not been
  /// reduced: those of a layer that is computed again, of which several buckets are reduced. The
  /// host is at most three reductions ahead of the device (stage3.py, max_param_reduce_events).
  /// Where a layer's gradients fit into one it is layers ahead, and gathers what modules let go of
  /// before the reductions.
  bool keeps_through(std::int32_t c, std::int64_t layer) const {
    const std::int64_t bucket = x_s.plan.bucket_elements;
    if (bucket == 0 || elements_of(c, unit_of(c, layer)) <= bucket) return false;
    return recomputes(x_s.plan, x_s.chunk(c).layers_before + layer);
  }

  /// Elements that are in use through the backward pass of such a layer: its own, and a tied table,
  /// which no module lets go of (is_external_param).
  std::int64_t in_use(const Task& at, const Unit& unit, bool back) const {
    const Chunk& chunk = x_s.chunk(at.chunk);
    if (!back || !keeps_through(at.chunk, at.layer)) return 0;
    std::int64_t out = elements_of(at.chunk, unit);
    const bool tied = x_s.model.tied_embeddings && chunk.has_embedding && chunk.has_head;
    if (tied && chunk.root >= 0) out += x_s.shape(unit_at(at.chunk, chunk.root)).filled;
    return out;
  }

  /// Of a unit that does not stay gathered, and of its experts.
  std::int64_t elements_of(std::int32_t c, const Unit& unit) const {
    const ShardLayout& shape = x_s.shape(unit);
    std::int64_t out = shape.whole ? 0 : shape.filled;
    const std::int32_t experts = x_s.chunk(c).experts;
    if (experts < 0) return out;
    const std::int32_t u = unit_of_layer(x_s.chunk(experts), unit.first);
    return u < 0 ? out : out + x_s.shape(unit_at(experts, u)).filled;
  }

  /// Gathers ahead of a pass the units from that of `layer` on, in the order in which the pass
  /// needs them: the next one, or with `live_elements` until they have so many elements, in no more
  /// than `gathers_in_flight` units, the `units` among them. Going by elements is DeepSpeed's
  /// stage3_max_live_parameters (runtime/zero/partitioned_param_coordinator.py, fetch_sub_module):
  /// each of a layer's modules gathers stage3_prefetch_bucket_size more, the last parameter whole,
  /// so that what is ahead and in use grows to that limit. A layer that `keeps_through` is in use
  /// to the end of its backward pass; what is left of the next one's parameters is then gathered
  /// when its pass comes, behind the reductions that one communicator has to do before. Forward,
  /// modules are let go of one by one as the host passes them. Left out: how far within a layer the
  /// host is, that the next pass's gathers begin before the forward pass is over, and that the host
  /// waits for gathers a few modules back.
  void prefetch(std::int32_t c, std::int64_t layer, bool back, std::int64_t units,
                std::int64_t elements) {
    const Units& u = x_s.plan.units;
    const bool next = back ? u.backward_prefetch == Prefetch::kBefore : u.forward_prefetch;
    const bool by_elements = u.live_elements > 0;
    const std::int64_t most = by_elements ? u.live_elements : next ? elements + 1 : 0;
    const bool limited = by_elements && u.gathers_in_flight > 0;
    const Chunk& chunk = x_s.chunk(c);
    const bool by_parameter = by_elements && back;
    for (std::int64_t l = layer; l >= 0 && l < chunk.layers && elements < most;) {
      if (limited && units >= u.gathers_in_flight) return;
      ++units;
      const Unit& unit = unit_of(c, l);
      const bool kept = by_parameter && keeps_through(c, l);
      if (kept && begin(c, unit_of_layer(chunk, l), back, most - elements)) return;
      open_layer(c, l, back);
      elements += elements_of(c, unit);
      l = back ? unit.first - 1 : unit.last;
    }
  }

  /// Whether parameters stay gathered after a pass. The root's wait for its backward pass; in a
  /// pipeline, whose microbatches overlap, they and what is never resharded stay for the whole
  /// step. Breadth-first, a chunk's parameters stay while its microbatches follow each other.
  bool keeps(const Task& at, const Unit& unit, bool back) {
    const Units& u = x_s.plan.units;
    const bool follows = x_step.place_of(at).same_follows;
    if (follows && x_s.plan.schedule == Schedule::kBreadthFirst) return true;
    const bool root = x_s.shape(unit).root;
    const bool pipeline = x_s.plan.pipeline > 1;
    if (back) return pipeline && (root || !u.reshard);
    const bool last = unit.last == x_s.chunk(at.chunk).layers && !pipeline;
    return root || !u.reshard || (last && !u.reshard_last) || reused_soon(at.chunk, unit);
  }

  /// Whether the modules that run from a unit's forward to its backward pass have fewer elements
  /// than `reuse_elements`: those behind it twice, three times where they are computed again
  /// (DeepSpeed's stage3_max_reuse_distance, runtime/zero/partitioned_param_coordinator.py). Never
  /// in a pipeline: other microbatches run in between.
  bool reused_soon(std::int32_t c, const Unit& unit) {
    const std::int64_t most = x_s.plan.units.reuse_elements;
    if (most == 0 || x_s.plan.pipeline > 1) return false;
    std::vector<std::int64_t>& behind = x_behind[c];
    if (behind.empty()) behind = elements_behind(c);
    return behind[static_cast<std::size_t>(unit.last)] < most;
  }

  /// By layer: elements of the modules that run from its forward to its backward pass, itself among
  /// them; last those of the head.
  std::vector<std::int64_t> elements_behind(std::int32_t c) const {
    const Chunk& chunk = x_s.chunk(c);
    std::vector<std::int64_t> out(static_cast<std::size_t>(chunk.layers) + 1, 0);
    if (chunk.has_head) {
      out.back() = 2 * (x_s.head.parameters.cut_elements + x_s.head.parameters.shared_elements);
    }
    for (std::int64_t l = chunk.layers; l-- > 0;) {
      const auto i = static_cast<std::size_t>(l);
      const ParameterLayouts& p = x_s.kind(c, l).parameters;
      const std::int64_t passes = recomputes(x_s.plan, chunk.layers_before + l) ? 3 : 2;
      out[i] = out[i + 1] + passes * (p.cut_elements + p.shared_elements + p.expert_elements);
    }
    return out;
  }

  void end_layer(TaskId id, const Task& at, bool back) {
    const std::int32_t u = unit_of_layer(x_s.chunk(at.chunk), at.layer);
    const Unit& unit = unit_at(at.chunk, u);
    if (at.layer != (back ? unit.first : unit.last - 1)) return;
    const bool over = back && at.last;
    if (over || !keeps(at, unit, back)) close(at.chunk, u, id);
    const std::int32_t experts = x_s.chunk(at.chunk).experts;
    const std::int32_t e = experts < 0 ? -1 : unit_of_layer(x_s.chunk(experts), at.layer);
    if (e >= 0 && (over || !keeps(at, unit_at(experts, e), back))) close(experts, e, id);
    const Units& units = x_s.plan.units;
    const bool after = back && units.backward_prefetch == Prefetch::kAfter;
    if (after && units.live_elements == 0 && unit.first > 0) {
      open_layer(at.chunk, unit.first - 1, true);
    }
  }

  void end_chunk(TaskId id, const Task& at) {
    const bool weights = at.direction == Direction::kWeights;
    const std::int32_t root = x_s.chunk(at.chunk).root;
    if (weights != x_s.plan.splits_backward() || root < 0) return;
    if (at.last || !keeps(at, unit_at(at.chunk, root), true)) close(at.chunk, root, id);
  }

  const StageContext& x_s;
  StageStep& x_step;
  const Task* x_at = nullptr;  ///< where new tasks stand
  std::vector<TaskId> x_order;
  std::vector<std::vector<std::int64_t>> x_open;  ///< by chunk and unit: its gather's number
  /// By chunk and unit: how many of its all-gathers have been issued, where that is not all.
  std::map<std::pair<std::int32_t, std::int32_t>, std::int16_t> x_begun;
  std::map<std::int32_t, std::vector<std::int64_t>> x_behind;  ///< by chunk: `elements_behind`
  /// By number of the gather: what read its parameters last. Of layers, of experts.
  std::array<std::vector<TaskId>, 2> x_let_go;
};

}  // namespace

void gather_units(const StageContext& s, StageStep& step) { Gathers(s, step).run(); }

}  // namespace foretrain
