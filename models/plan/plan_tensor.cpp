#include "models/plan/plan_tensor.h"

#include <array>
#include <numeric>

#include "models/plan/plan_reading.h"

namespace foretrain {
namespace {

using Refused = std::optional<Refusal>;

/// What must be a multiple of `parts`, and what it is called.
struct Width {
  const char* name;
  std::int64_t value, parts;
};

template <typename Widths>
Refused undivided(const Plan& p, const Widths& widths) {
  for (const Width& w : widths) {
    if (w.value % w.parts == 0) continue;
    const std::string parts =
        w.parts == p.tensor ? "" : " needs parts of " + text(w.parts) + ", which";
    const std::string ranks = p.in_grid() ? std::string(name_of(p.tensor_mode)) + " on " : "";
    return Refusal{"parallel/tensor", ranks + text(p.tensor) + parts + " does not divide " +
                                          w.name + " " + text(w.value)};
  }
  return std::nullopt;
}

Refused refused_1d(const Model& m, const Plan& p) {
  const std::array<Width, 3> widths = {{{"the model's attention heads", m.heads, p.tensor},
                                        {"the model's key-value heads", m.kv_heads, p.tensor},
                                        {"intermediate_size", m.intermediate, p.tensor}}};
  if (Refused no = undivided(p, widths)) return no;
  if (p.sequence && p.tokens() % p.tensor != 0) {
    return Refusal{"parallel/sequence", "a microbatch of " + text(p.tokens()) +
                                            " tokens does not divide among tensor " +
                                            text(p.tensor)};
  }
  return std::nullopt;
}

/// tensor = q^2, d q^2 or q^3.
Refused refused_shape(const Plan& p) {
  const std::int64_t q = p.side();
  const std::int64_t face = q * q;
  switch (p.tensor_mode) {
    case TensorMode::k1D:
      return std::nullopt;
    case TensorMode::k2D:
      if (p.tensor == face) return std::nullopt;
      return Refusal{"parallel/tensor", "2d needs the square of a number of ranks, found " +
                                            text(p.tensor) + "; the nearest are " + text(face) +
                                            " and " + text((q + 1) * (q + 1))};
    case TensorMode::k25D:
      if (p.tensor == p.tensor_depth * face) return std::nullopt;
      return Refusal{"parallel/tensor", "2.5d needs tensor_depth " + text(p.tensor_depth) +
                                            " times the square of a number of ranks, found " +
                                            text(p.tensor)};
    case TensorMode::k3D:
      if (p.tensor == face * q) return std::nullopt;
      return Refusal{"parallel/tensor", "3d needs the cube of a number of ranks, found " +
                                            text(p.tensor) + "; the nearest are " + text(face * q) +
                                            " and " + text((q + 1) * (q + 1) * (q + 1))};
  }
  return std::nullopt;
}

/// What the lowering on a grid does not write.
Refused refused_beside(const Model& m, const Plan& p) {
  const std::string mode(name_of(p.tensor_mode));
  const auto no = [&mode](const char* place, const std::string& what) {
    return Refusal{place,
                   "tensor_mode " + mode + " is not modelled with " + what +
                       ": set parallel.tensor_mode to 1d",
                   ErrorKind::kUnsupported};
  };
  if (p.sequence) {
    return Refusal{"parallel/sequence", mode +
                                            " cuts the tokens between the linears itself: set "
                                            "parallel.sequence to false"};
  }
  if (p.context > 1) return no("parallel/context", "context parallelism");
  if (m.has_experts()) return no("parallel/tensor_mode", "experts");
  if (m.is_latent()) return no("parallel/tensor_mode", "latent attention");
  if (m.qk_norm) return no("parallel/tensor_mode", "norms of queries and keys");
  if (m.attention_sinks) return no("parallel/tensor_mode", "attention sinks");
  if (m.predict_layers > 0) return no("parallel/tensor_mode", "multi-token prediction");
  if (m.masked > 0) return no("parallel/tensor_mode", "the head of masked tokens");
  if (m.is_encoder_decoder()) return no("parallel/tensor_mode", "encoder-decoders");
  if (p.precision.low()) return no("precision", "less than 16 bits");
  if (p.by_units()) return no("sharding/level", "sharded gradients or parameters");
  if (p.ways() == 2) return no("schedule", "two copies of the parameters");
  return std::nullopt;
}

Refused refused_grid(const Model& m, const Plan& p) {
  if (Refused no = refused_shape(p)) return no;
  if (Refused no = refused_beside(m, p)) return no;
  const std::int64_t q = p.side();
  const std::int64_t rows = p.tensor_mode == TensorMode::k3D ? q * q : q;
  const std::array<Width, 5> widths = {
      {{"the model's attention heads", m.heads, q},
       {"the model's key-value heads", m.kv_heads, q},
       {"intermediate_size", m.intermediate, rows},
       {"hidden_size", m.hidden, rows},
       {"the width of queries, keys and values", m.query_width() + 2 * m.kv_width(), rows}}};
  if (Refused no = undivided(p, widths)) return no;
  if (p.micro_batch % p.token_parts() == 0) return std::nullopt;
  return Refusal{"batch/micro", std::string(name_of(p.tensor_mode)) +
                                    " cuts whole sequences of a microbatch into " +
                                    text(p.token_parts()) + " parts, and " + text(p.micro_batch) +
                                    " is not a multiple of it"};
}

/// What the passes of a layer in slices do not go with.
Refused refused_slices(const Model& m, const Plan& p) {
  const std::int64_t slices = p.overlap.tensor_slices;
  if (slices == 1) return std::nullopt;
  if (p.tensor == 1) {
    return Refusal{"overlap/tensor_slices",
                   "needs parallel.tensor > 1: there are no collectives to hide"};
  }
  if (p.micro_batch % slices != 0) {
    return Refusal{"batch/micro", "overlap.tensor_slices " + text(slices) +
                                      " cuts whole sequences of a microbatch into as many parts, "
                                      "and " +
                                      text(p.micro_batch) + " is not a multiple of it"};
  }
  const auto no = [](const char* place, const std::string& what) {
    return Refusal{place, "overlap.tensor_slices is not modelled with " + what,
                   ErrorKind::kUnsupported};
  };
  if (p.in_grid()) return no("parallel/tensor_mode", "grids");
  if (p.sequence) {
    return no("parallel/sequence", "sequence parallelism: set parallel.sequence to false");
  }
  if (p.context > 1) return no("parallel/context", "context parallelism");
  if (m.has_experts()) return no("overlap/tensor_slices", "experts");
  if (m.is_encoder_decoder()) return no("overlap/tensor_slices", "encoder-decoders");
  if (m.is_latent()) return no("overlap/tensor_slices", "latent attention");
  if (m.qk_norm) return no("overlap/tensor_slices", "norms of queries and keys");
  if (p.precision.low()) return no("precision", "less than 16 bits");
  if (p.by_units()) return no("sharding/level", "sharded gradients or parameters");
  if (p.offload.activation_layers > 0) {
    return no("offload/activation_layers", "activations on the host");
  }
  return std::nullopt;
}

}  // namespace

std::string_view name_of(TensorMode mode) {
  constexpr std::array<std::string_view, 4> kNames = {"1d", "2d", "2.5d", "3d"};
  return kNames.at(static_cast<std::size_t>(mode));
}

/// Of models whose layers are not all attention and a feed-forward, each with a norm before it.
/// Megatron Core gives every tensor rank whole heads and groups of a state space
/// (ssm/mamba_mixer.py).
static Refused refused_hybrid(const Model& m, const Plan& p) {
  const auto no = [](const char* place, const std::string& what) {
    return Refusal{place, "layers of this model's kinds are not modelled with " + what,
                   ErrorKind::kUnsupported};
  };
  if (p.in_grid()) return no("parallel/tensor_mode", "grids: set parallel.tensor_mode to 1d");
  if (p.overlap.tensor_slices > 1) return no("overlap/tensor_slices", "slices of a microbatch");
  if (p.overlap.passes) return no("overlap/passes", "passes that run beside each other");
  if (p.recompute.parts > 1) return no("recompute/co_shard", "parts of a layer");
  const bool scans = m.has_mixer(Mixer::kMamba2);
  if (p.context > 1 && (scans || m.has_mixer(Mixer::kConv))) {
    return no("parallel/context", "context parallelism of a state space or convolution");
  }
  if (!scans) return std::nullopt;
  const StateSpace& s = m.hybrid.state_space;
  if (s.heads % p.tensor == 0 && s.groups % p.tensor == 0) return std::nullopt;
  return Refusal{"parallel/tensor",
                 "every rank holds whole heads and groups of a state space, and " +
                     std::to_string(p.tensor) + " does not divide " + std::to_string(s.heads) +
                     " heads and " + std::to_string(s.groups) + " groups; try " +
                     std::to_string(std::gcd(p.tensor, std::gcd(s.heads, s.groups)))};
}

std::optional<Refusal> refused_tensor(const Model& model, const Plan& plan) {
  if (model.is_hybrid() || !model.norms.plain() || !model.norms.weights || model.biases.head) {
    if (Refused no = refused_hybrid(model, plan)) return no;
  }
  if (Refused no = plan.in_grid() ? refused_grid(model, plan) : refused_1d(model, plan)) return no;
  return refused_slices(model, plan);
}

}  // namespace foretrain
