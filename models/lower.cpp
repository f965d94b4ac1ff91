#include "models/lower.h"

#include <algorithm>
#include <map>
#include <string_view>

#include "models/emit/emit.h"
#include "models/layers/tensor_grid.h"
#include "models/plan/layout/plan_stages.h"
#include "models/slots.h"
#include "sim/base/check.h"
#include "sim/base/threads.h"

namespace foretrain {
namespace {

/// The dimensions of `Plan::rank_order`, fastest first, as strides. Where stages have tensor
/// degrees of their own they stand one after the other, each with strides of its own.
class RankOrder {
 public:
  explicit RankOrder(const Plan& plan) : x_context(plan.context) {
    if (!plan.tensors.any()) {
      x_stages.push_back({0, axes_of(plan, plan.tensor)});
      return;
    }
    std::int64_t first = 0;
    for (const std::int64_t degree : plan.tensors.degrees) {
      x_stages.push_back({first, axes_of(plan, degree)});
      std::erase_if(x_stages.back().axes,
                    [](const Axis& axis) { return axis.dimension == Dimension::kPipeline; });
      first += degree * plan.data;
    }
  }

  /// The rank's number.
  std::int64_t number(const Coordinates& at) const {
    const StageAxes& stage = axes_at(at);
    std::int64_t rank = stage.first;
    for (const Axis& axis : stage.axes) rank += axis.stride * place(at, axis.dimension);
    return rank;
  }
  /// Its number among the ranks of its stage.
  std::int64_t number_in_stage(const Coordinates& at) const {
    std::int64_t rank = 0;
    for (const Axis& axis : axes_at(at).axes) {
      rank += axis.stride_in_stage * place(at, axis.dimension);
    }
    return rank;
  }
  Coordinates coordinates(std::int64_t rank) const {
    Coordinates at;
    std::size_t stage = x_stages.size() - 1;
    while (x_stages[stage].first > rank) --stage;
    if (x_stages.size() > 1) at.pipeline = static_cast<std::int64_t>(stage);
    rank -= x_stages[stage].first;
    for (const Axis& axis : x_stages[stage].axes) {
      const std::int64_t place = rank / axis.stride % axis.size;
      if (axis.dimension == Dimension::kTensor) at.tensor = place;
      if (axis.dimension == Dimension::kBatch) at.data += place * x_context;
      if (axis.dimension == Dimension::kContext) at.data += place;
      if (axis.dimension == Dimension::kPipeline) at.pipeline = place;
    }
    return at;
  }

 private:
  enum class Dimension : std::uint8_t { kTensor, kBatch, kContext, kPipeline };
  struct Axis {
    Dimension dimension = Dimension::kTensor;
    std::int64_t size = 1, stride = 1;
    std::int64_t stride_in_stage = 0;  ///< 0: of the stages themselves
  };

  /// Of all stages, or of one.
  struct StageAxes {
    std::int64_t first = 0;  ///< its first rank
    std::vector<Axis> axes;  ///< of more than one place
  };

  static std::vector<Axis> axes_of(const Plan& plan, std::int64_t tensor) {
    std::vector<Axis> out;
    std::int64_t stride = 1;
    std::int64_t in_stage = 1;
    for (const std::string& name : plan.rank_order) {
      const Axis axis = axis_of(plan, tensor, name, stride, in_stage);
      if (axis.size > 1) out.push_back(axis);
      stride *= axis.size;
      if (axis.dimension != Dimension::kPipeline) in_stage *= axis.size;
    }
    return out;
  }

  static Axis axis_of(const Plan& plan, std::int64_t tensor, const std::string& name,
                      std::int64_t stride, std::int64_t in_stage) {
    if (name == "tp") return {Dimension::kTensor, tensor, stride, in_stage};
    if (name == "dp") return {Dimension::kBatch, plan.batch_ranks(), stride, in_stage};
    if (name == "cp") return {Dimension::kContext, plan.context, stride, in_stage};
    if (name == "pp") return {Dimension::kPipeline, plan.pipeline, stride, 0};
    return {};  // experts lie within the others
  }

  std::int64_t place(const Coordinates& at, Dimension dimension) const {
    switch (dimension) {
      case Dimension::kTensor:
        return at.tensor;
      case Dimension::kBatch:
        return at.data / x_context;
      case Dimension::kContext:
        return at.data % x_context;
      case Dimension::kPipeline:
        break;
    }
    return at.pipeline;
  }

  const StageAxes& axes_at(const Coordinates& at) const {
    return x_stages[x_stages.size() == 1 ? 0 : static_cast<std::size_t>(at.pipeline)];
  }

  std::int64_t x_context;
  std::vector<StageAxes> x_stages;  ///< one where all are alike
};

class Lowering {
 public:
  Lowering(const Model& model, const Plan& plan) : x_model(model), x_plan(plan), x_order(plan) {}

  Workload run() {
    write_stages();
    x_out.ranks.resize(static_cast<std::size_t>(x_plan.accelerators));
    for (std::size_t r = 0; r < x_out.ranks.size(); ++r) {
      x_at.push_back(x_order.coordinates(static_cast<std::int64_t>(r)));
      const Coordinates& at = x_at.back();
      RankBinding& rank = x_out.ranks[r];
      rank.program = ProgramId(static_cast<std::size_t>(at.pipeline));
      rank.groups.resize(program(at).group_slots.size());
      rank.channels.resize(program(at).channel_slots.size());
    }
    bind_groups();
    bind_channels();
    bind_context();
    bind_rings();
    return std::move(x_out);
  }

 private:
  const Program& program(const Coordinates& at) const {
    return x_out.programs[static_cast<std::size_t>(at.pipeline)];
  }

  /// At once on all cores where they are long.
  void write_stages() {
    constexpr std::int64_t kLong = 512;  // passes of layers
    const std::size_t threads = x_plan.microbatches() * x_model.layers < kLong ? 1 : 0;
    x_out.programs.resize(static_cast<std::size_t>(x_plan.pipeline));
    in_parallel(
        x_out.programs.size(),
        [this](std::size_t s) {
          x_out.programs[s] = write_stage(x_model, x_plan, static_cast<std::int64_t>(s));
        },
        threads);
  }

  static int slot_in(const std::vector<std::string>& slots, std::string_view name) {
    const auto it = std::find(slots.begin(), slots.end(), name);
    return it == slots.end() ? -1 : static_cast<int>(it - slots.begin());
  }

  using Key = std::array<std::int64_t, 3>;
  using Names = std::vector<const char*>;

  /// Binds slot `name` of every rank that has it to the group of ranks with the same key.
  template <typename KeyOf>
  void bind(const char* name, KeyOf key_of) {
    bind_any(Names{name}, [&key_of](const Coordinates& at, std::size_t) { return key_of(at); });
  }

  /// The same for slots that may be bound to one group, each with a key of its own.
  template <typename KeyOf>
  void bind_any(const Names& names, KeyOf key_of) {
    std::vector<std::vector<int>> slots(names.size());  // by name and stage
    bool any = false;
    for (std::size_t n = 0; n < names.size(); ++n) {
      for (const Program& program : x_out.programs) {
        slots[n].push_back(slot_in(program.group_slots, names[n]));
        any |= slots[n].back() >= 0;
      }
    }
    if (!any) return;
    std::map<Key, GroupId> known;
    for (std::size_t r = 0; r < x_out.ranks.size(); ++r) {
      for (std::size_t n = 0; n < names.size(); ++n) {
        const int slot = slots[n][static_cast<std::size_t>(x_at[r].pipeline)];
        if (slot < 0) continue;
        const GroupId next(x_out.groups.size());
        const auto [it, fresh] = known.try_emplace(key_of(x_at[r], n), next);
        if (fresh) x_out.groups.emplace_back();
        x_out.groups[it->second.index()].push_back(RankId(r));
        x_out.ranks[r].groups[static_cast<std::size_t>(slot)] = it->second;
      }
    }
  }

  void bind_groups() {
    bind(kTensorGroup, [](const Coordinates& at) { return Key{at.data, at.pipeline, 0}; });
    bind(kTensorScaleGroup, [](const Coordinates& at) { return Key{at.data, at.pipeline, 0}; });
    bind(kDataGroup, [](const Coordinates& at) { return Key{at.tensor, at.pipeline, 0}; });
    const std::int64_t context = x_plan.context;
    bind(kContextGroup, [context](const Coordinates& at) {
      return Key{at.tensor, at.pipeline, at.data / context};
    });
    const std::int64_t of_heads = x_plan.context_inner;
    bind(kContextInnerGroup, [of_heads](const Coordinates& at) {
      return Key{at.tensor, at.pipeline, at.data / of_heads};
    });
    bind(kContextOuterGroup, [context, of_heads](const Coordinates& at) {
      return Key{at.tensor, at.pipeline, at.data / context * of_heads + at.data % of_heads};
    });
    bind(kBatchGroup, [context](const Coordinates& at) {
      return Key{at.tensor, at.pipeline, at.data % context};
    });
    for (const char* name : {kStagesGroup, kStagesGradientGroup, kStagesEmbeddingGroup,
                             kStagesEmbeddingGradientGroup}) {
      bind(name, [](const Coordinates& at) { return Key{at.tensor, at.data, 0}; });
    }
    bind(kVocabularyGroup, [](const Coordinates& at) { return Key{at.data, 0, 0}; });
    bind(kTiedGroup, [](const Coordinates& at) { return Key{at.tensor, at.data, 0}; });
    const std::int64_t shards = x_plan.shards();
    bind(kShardGroup, [shards](const Coordinates& at) {
      return Key{at.tensor, at.pipeline, at.data / shards};
    });
    bind(kReplicaGroup, [shards](const Coordinates& at) {
      return Key{at.tensor, at.pipeline, at.data % shards};
    });
    const std::int64_t inner = x_plan.buckets.inner_group;
    bind(kInnerGroup, [inner](const Coordinates& at) {
      return Key{at.tensor, at.pipeline, at.data / inner};
    });
    bind(kOuterGroup, [inner](const Coordinates& at) {
      return Key{at.tensor, at.pipeline, at.data % inner};
    });
    const std::int64_t level = x_plan.units.inner_group;
    bind(kInnerShardGroup, [level](const Coordinates& at) {
      return Key{at.tensor, at.pipeline, at.data / level};
    });
    bind(kOuterShardGroup, [level, shards](const Coordinates& at) {
      return Key{at.tensor, at.pipeline, at.data / shards * level + at.data % level};
    });
    const std::int64_t secondary = std::max<std::int64_t>(x_plan.units.secondary, 1);
    bind(kSecondaryGroup, [secondary](const Coordinates& at) {
      return Key{at.tensor, at.pipeline, at.data / secondary};
    });
    for (const bool next : {true, false}) {
      bind(next ? kPartsToNext : kPartsToPrevious, [this, next](const Coordinates& at) {
        return Key{at.data, at.pipeline, at.tensor / parts_to(at.pipeline, neighbour(at, next))};
      });
    }
    bind_expert_groups();
    if (x_plan.in_grid()) bind_grid();
    if (x_plan.directions() == 2) bind_ways();
    bind(kScaleGroup, [](const Coordinates& at) { return Key{at.pipeline, 0, 0}; });
    bind(kNormGroup, [shards](const Coordinates& at) { return Key{at.data / shards, 0, 0}; });
    bind(kStageNormGroup, [shards](const Coordinates& at) {
      return Key{at.data / shards, at.pipeline, 0};
    });
  }

  /// The holders of a chunk that stands on two stages.
  void bind_ways() {
    bind_any({kWayGroups[0], kWayGroups[1]}, [this](const Coordinates& at, std::size_t way) {
      return Key{at.tensor, x_plan.chunk_at(at.pipeline, static_cast<std::int64_t>(way)), 0};
    });
    bind_any({kExpertWayGroups[0], kExpertWayGroups[1]}, [this](const Coordinates& at,
                                                                std::size_t way) {
      const ExpertCoordinates e = expert_coordinates(x_plan, at);
      return Key{e.tensor, e.expert, x_plan.chunk_at(at.pipeline, static_cast<std::int64_t>(way))};
    });
    const auto pair = [this](const Coordinates& at) {
      return std::min(at.pipeline, x_plan.pipeline - 1 - at.pipeline);
    };
    bind(kMirrorGroup, [pair](const Coordinates& at) { return Key{at.tensor, at.data, pair(at)}; });
    bind(kTensorMirrorGroup, [pair](const Coordinates& at) { return Key{at.data, pair(at), 0}; });
  }

  /// Ranks of a tensor group that agree in some of their coordinates on the grid.
  void bind_plane(const char* name, bool first, bool second, bool third) {
    const std::int64_t q = x_plan.side();
    const std::int64_t stages = x_plan.pipeline;
    bind(name, [=](const Coordinates& at) {
      const std::int64_t place = (first ? at.tensor % q : 0) +
                                 (second ? at.tensor / q % q * q : 0) +
                                 (third ? at.tensor / (q * q) * q * q : 0);
      return Key{at.data, at.pipeline + stages * place, 0};
    });
  }

  /// Tensor rank j + q (i + q k), k the depth; in 3d i + q (j + q l) (Colossal-AI's numbering).
  void bind_grid() {
    if (x_plan.tensor_mode == TensorMode::k3D) {
      bind_plane(kGridInput, true, false, true);
      bind_plane(kGridWeight, false, true, true);
      bind_plane(kGridOutput, true, true, false);
      bind_plane(kGridInputWeight, false, false, true);
      bind_plane(kGridOutputWeight, false, true, false);
      return;
    }
    bind_plane(kGridRow, false, true, true);
    bind_plane(kGridColumn, true, false, true);
    bind_plane(kGridDepth, true, true, false);
    bind_plane(kGridColumns, true, false, false);
    const std::int64_t face = x_plan.side() * x_plan.side();
    bind(kTiedDepthGroup, [face](const Coordinates& at) {
      return Key{at.tensor % face, at.data, 0};
    });
  }

  void bind_expert_groups() {
    const auto place = [this](const Coordinates& at) { return expert_coordinates(x_plan, at); };
    bind(kExpertGroup, [place](const Coordinates& at) {
      const ExpertCoordinates e = place(at);
      return Key{e.tensor, e.data, at.pipeline};
    });
    bind(kExpertTensorGroup, [place](const Coordinates& at) {
      const ExpertCoordinates e = place(at);
      return Key{e.expert, e.data, at.pipeline};
    });
    bind(kExpertModelGroup, [place](const Coordinates& at) {
      return Key{place(at).data, at.pipeline, 0};
    });
    bind(kExpertDataGroup, [place](const Coordinates& at) {
      const ExpertCoordinates e = place(at);
      return Key{e.tensor, e.expert, at.pipeline};
    });
    const std::int64_t shards = x_plan.expert_shards();
    bind(kExpertShardGroup, [this, place, shards](const Coordinates& at) {
      const ExpertCoordinates e = place(at);
      return Key{e.tensor + x_plan.experts.tensor * e.expert, at.pipeline, e.data / shards};
    });
    bind(kExpertReplicaGroup, [this, place, shards](const Coordinates& at) {
      const ExpertCoordinates e = place(at);
      return Key{e.tensor + x_plan.experts.tensor * e.expert, at.pipeline, e.data % shards};
    });
    bind(kExpertNormGroup, [place](const Coordinates& at) { return Key{place(at).data, 0, 0}; });
  }

  /// A channel from slot `from_slot` of every rank that has it to `to_slot` of the one that
  /// `next_of` its coordinates gives; `reverse`: from that one to the rank.
  template <typename NextOf>
  void join(const std::string& from_slot, const std::string& to_slot, const NextOf& next_of,
            bool reverse = false) {
    std::vector<int> out, in;  // by stage
    for (const Program& program : x_out.programs) {
      out.push_back(slot_in(program.channel_slots, from_slot));
      in.push_back(slot_in(program.channel_slots, to_slot));
    }
    const auto none = [](int slot) { return slot < 0; };
    if (std::all_of(out.begin(), out.end(), none) && std::all_of(in.begin(), in.end(), none))
      return;
    for (std::size_t r = 0; r < x_out.ranks.size(); ++r) {
      const Coordinates there = next_of(x_at[r]);
      const Coordinates& from = reverse ? there : x_at[r];
      const Coordinates& to = reverse ? x_at[r] : there;
      const int a = out[static_cast<std::size_t>(from.pipeline)];
      const int b = in[static_cast<std::size_t>(to.pipeline)];
      FT_CHECK((a < 0) == (b < 0), "a channel with one end");
      if (a < 0) continue;
      connect(static_cast<std::size_t>(x_order.number(from)), a,
              static_cast<std::size_t>(x_order.number(to)), b);
    }
  }

  /// A channel between slots of two ranks.
  void connect(std::size_t source, int from_slot, std::size_t destination, int to_slot) {
    const auto a = static_cast<std::size_t>(from_slot);
    const auto b = static_cast<std::size_t>(to_slot);
    const auto id = push_id<ChannelId>(x_out.channels, Channel{RankId(source), RankId(destination),
                                                               ChannelSlot(a), ChannelSlot(b)});
    x_out.ranks[source].channels[a] = id;
    x_out.ranks[destination].channels[b] = id;
  }

  /// Around the ring of each context-parallel group.
  void bind_context() {
    if (x_plan.context == 1) return;
    join(kContextToNext, kContextFromPrevious, [this](Coordinates at) {
      const std::int64_t place = at.data % x_plan.context;
      at.data += (place + x_plan.context_inner) % x_plan.context - place;
      return at;
    });
  }

  /// From every member of a tensor group to every other.
  void bind_rings() {
    if (!x_plan.rings()) return;
    for (std::int64_t i = 1; i < x_plan.tensor; ++i) {
      join(ring_channel(true, i), ring_channel(false, i), [this, i](Coordinates at) {
        at.tensor = (at.tensor + i) % tensor_of(x_plan, at.pipeline);
        return at;
      });
    }
  }

  std::int64_t neighbour(const Coordinates& at, bool next) const {
    return neighbour_of(x_plan, at.pipeline, next);
  }
  /// Ranks of a stage that send to one rank of another, at least 1.
  std::int64_t parts_to(std::int64_t stage, std::int64_t other) const {
    return messages_between(x_plan, other, stage);
  }

  /// Between neighbours of several tensor degrees: a rank of the smaller sends to, and receives
  /// from, as many ranks of the larger as the degrees' ratio, in order.
  void join_degrees(const char* from_slot, const char* to_slot, bool next) {
    for (std::size_t r = 0; r < x_out.ranks.size(); ++r) {
      const Coordinates& from = x_at[r];
      Coordinates to = from;
      to.pipeline = neighbour(from, next);
      const std::int64_t sends = messages_between(x_plan, from.pipeline, to.pipeline);
      const std::int64_t senders = parts_to(from.pipeline, to.pipeline);
      for (std::int64_t m = 0; m < sends; ++m) {
        to.tensor = from.tensor * sends / senders + m;
        const int a = slot_in(program(from).channel_slots, message_channel(from_slot, m));
        const int b =
            slot_in(program(to).channel_slots, message_channel(to_slot, from.tensor % senders));
        FT_CHECK((a < 0) == (b < 0), "a channel with one end");
        if (a >= 0) connect(r, a, static_cast<std::size_t>(x_order.number(to)), b);
      }
    }
  }

  /// Around the ring of stages.
  void bind_channels() {
    if (x_plan.pipeline == 1) return;
    if (x_plan.tensors.any()) {
      join_degrees(kToNext, kFromPrevious, true);
      join_degrees(kToPrevious, kFromNext, false);
      return;
    }
    const auto next = [this](Coordinates at) {
      at.pipeline = neighbour(at, true);
      return at;
    };
    join(kToNext, kFromPrevious, next);
    join(kToPrevious, kFromNext, next, true);
    join(kUpToPrevious, kUpFromNext, next, true);
    join(kUpToNext, kUpFromPrevious, next);
    join(kNormToNext, kNormFromPrevious, next);
    join(kStateToPrevious, kStateFromNext, next, true);
  }

  const Model& x_model;
  const Plan& x_plan;
  RankOrder x_order;
  Workload x_out;
  std::vector<Coordinates> x_at;  ///< by rank
};

}  // namespace

Coordinates coordinates_of(const Plan& plan, RankId rank) {
  return RankOrder(plan).coordinates(rank.value);
}

RankId rank_at(const Plan& plan, const Coordinates& at) {
  return RankId(static_cast<std::size_t>(RankOrder(plan).number(at)));
}

ExpertCoordinates expert_coordinates(const Plan& plan, const Coordinates& at) {
  // The rank's number within its stage, then that number read with the experts' degrees.
  std::int64_t rest = RankOrder(plan).number_in_stage(at);
  ExpertCoordinates out;
  const auto take = [&rest](std::int64_t size) {
    const std::int64_t place = rest % size;
    rest /= size;
    return place;
  };
  const bool named =
      std::find(plan.rank_order.begin(), plan.rank_order.end(), "ep") != plan.rank_order.end();
  for (const std::string& dimension : plan.rank_order) {
    if (dimension == "tp") out.tensor = take(plan.experts.tensor);
    if (dimension == "ep" || (dimension == "dp" && !named)) out.expert = take(plan.experts.expert);
    if (dimension == "dp") out.data = take(plan.expert_data());
  }
  return out;
}

std::string name_of(const Coordinates& at) {
  return "tensor " + std::to_string(at.tensor) + ", data " + std::to_string(at.data) +
         ", pipeline " + std::to_string(at.pipeline);
}

Status lowerable(const Model& model, const Plan& plan) {
  constexpr std::int64_t kMostPasses = 1'000'000;
  const std::int64_t layers = model.layers / plan.pipeline;
  if (plan.microbatches() * layers <= kMostPasses / plan.forwards) return ok_status();
  return input_error(
      "/batch/global: " + std::to_string(plan.microbatches()) + " microbatches through " +
      std::to_string(layers) +
      " layers of a stage are more than a million layer passes, each of which has to "
      "be looked at here; take fewer sequences");
}

Workload lower(const Model& model, const Plan& plan) { return Lowering(model, plan).run(); }

}  // namespace foretrain
