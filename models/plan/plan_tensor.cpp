#include "models/plan/plan_tensor.h"

#include <algorithm>
#include <array>
#include <iterator>
#include <map>
#include <numeric>
#include <string>
#include <utility>
#include <vector>

#include "models/plan/plan_reading.h"

namespace foretrain {
namespace {

/// What must be a multiple of `parts`, and what it is called.
struct Width {
  const char* name;
  std::int64_t value, parts;
};

/// One fault names every width that the parts of one size do not divide.
template <typename Widths>
void check_divided(const Plan& p, const Widths& widths, Violations& out) {
  std::map<std::int64_t, std::vector<std::string>> undivided;
  for (const Width& w : widths) {
    if (w.value % w.parts != 0) {
      undivided[w.parts].push_back(w.name + (" " + text(w.value)));
    }
  }
  for (const auto& [parts, names] : undivided) {
    const std::string each = parts == p.tensor ? "" : " needs parts of " + text(parts) + ", which";
    const std::string ranks = p.in_grid() ? std::string(name_of(p.tensor_mode)) + " on " : "";
    out.add("parallel/tensor",
            ranks + text(p.tensor) + each + " does not divide " + enumerated(names));
  }
}

void check_widths(const Model& m, const Plan& p, Violations& out) {
  const std::array<Width, 3> widths = {{{"the model's attention heads", m.heads, p.tensor},
                                        {"the model's key-value heads", m.kv_heads, p.tensor},
                                        {"intermediate_size", m.intermediate, p.tensor}}};
  check_divided(p, widths, out);
}

/// Context-parallel ranks that exchange heads hold whole ones.
void check_exchanged_heads(const Model& m, const Plan& p, Violations& out) {
  if (p.context == 1 || m.kv_heads % (p.tensor * p.head_ranks()) == 0) return;
  out.add(p.context_inner > 1 ? "parallel/context_inner" : "parallel/context",
          text(p.head_ranks()) + " x tensor " + text(p.tensor) +
              " does not divide the model's key-value heads " + text(m.kv_heads) +
              ", as an exchange of heads needs");
}

void check_1d(const Model& m, const Plan& p, Violations& out) {
  if (m.hybrid.shapes.empty()) {
    check_widths(m, p, out);
  } else {
    for (const LayersOfKind& of : m.kinds(false)) check_widths(m.of(of.kind), p, out);
  }
  if (p.sequence && p.tokens() % p.tensor != 0) {
    out.add("parallel/sequence", "a microbatch of " + text(p.tokens()) +
                                     " tokens does not divide among tensor " + text(p.tensor));
  }
}

/// tensor = q^2, d q^2 or q^3. Returns whether the ranks make a grid.
bool check_shape(const Plan& p, Violations& out) {
  const std::int64_t q = p.side();
  const std::int64_t face = q * q;
  std::string expected;
  switch (p.tensor_mode) {
    case TensorMode::k1D:
      return true;
    case TensorMode::k2D:
      if (p.tensor == face) return true;
      expected = "2d needs the square of a number of ranks, found " + text(p.tensor) +
                 "; the nearest are " + text(face) + " and " + text((q + 1) * (q + 1));
      break;
    case TensorMode::k25D:
      if (p.tensor == p.tensor_depth * face) return true;
      expected = "2.5d needs tensor_depth " + text(p.tensor_depth) +
                 " times the square of a number of ranks, found " + text(p.tensor);
      break;
    case TensorMode::k3D:
      if (p.tensor == face * q) return true;
      expected = "3d needs the cube of a number of ranks, found " + text(p.tensor) +
                 "; the nearest are " + text(face * q) + " and " +
                 text((q + 1) * (q + 1) * (q + 1));
      break;
  }
  out.add("parallel/tensor", expected);
  return false;
}

void check_grid(const Model& m, const Plan& p, Violations& out) {
  const std::string mode(name_of(p.tensor_mode));
  if (p.sequence) {
    out.unsupported("parallel/sequence", mode +
                                             " cuts the tokens between the linears itself: set "
                                             "parallel.sequence to false");
  }
  out.beside("tensor_mode " + mode,
             {{p.context > 1, "parallel/context", "context parallelism"},
              {m.has_experts(), "parallel/tensor_mode", "experts"},
              {m.is_latent(), "parallel/tensor_mode", "latent attention"},
              {m.qk_norm, "parallel/tensor_mode", "norms of queries and keys"},
              {m.attention.sinks, "parallel/tensor_mode", "attention sinks"},
              {m.predict_layers > 0, "parallel/tensor_mode", "multi-token prediction"},
              {m.ends.masked > 0, "parallel/tensor_mode", "the head of masked tokens"},
              {m.ends.layer_rows > 0, "parallel/tensor_mode", "embeddings of every layer"},
              {m.is_encoder_decoder(), "parallel/tensor_mode", "encoder-decoders"},
              {p.precision.low(), "precision", "less than 16 bits"},
              {p.by_units(), "sharding/level", "sharded gradients or parameters"},
              {p.directions() == 2, "schedule", "two copies of the parameters"}},
             ": set parallel.tensor_mode to 1d");
  if (!check_shape(p, out)) return;
  const std::int64_t q = p.side();
  const std::int64_t rows = p.tensor_mode == TensorMode::k3D ? q * q : q;
  const std::array<Width, 5> widths = {
      {{"the model's attention heads", m.heads, q},
       {"the model's key-value heads", m.kv_heads, q},
       {"intermediate_size", m.intermediate, rows},
       {"hidden_size", m.hidden, rows},
       {"the width of queries, keys and values", m.query_width() + 2 * m.kv_width(), rows}}};
  check_divided(p, widths, out);
  if (p.micro_batch % p.token_parts() == 0) return;
  out.add("batch/micro", mode + " cuts whole sequences of a microbatch into " +
                             text(p.token_parts()) + " parts, and " + text(p.micro_batch) +
                             " is not a multiple of that");
}

/// The passes of a layer in slices.
void check_slices(const Model& m, const Plan& p, Violations& out) {
  const std::int64_t slices = p.overlap.tensor_slices;
  if (slices == 1) return;
  if (p.tensor == 1) {
    out.add("overlap/tensor_slices", "needs parallel.tensor > 1: there are no collectives to hide");
  }
  if (p.micro_batch % slices != 0) {
    out.add("batch/micro", "overlap.tensor_slices " + text(slices) +
                               " cuts whole sequences of a microbatch into as many parts, and " +
                               text(p.micro_batch) + " is not a multiple of that");
  }
  out.beside(
      "overlap.tensor_slices",
      {{p.in_grid(), "parallel/tensor_mode", "grids"},
       {p.sequence, "parallel/sequence", "sequence parallelism: set parallel.sequence to false"},
       {p.context > 1, "parallel/context", "context parallelism"},
       {m.has_experts(), "overlap/tensor_slices", "experts"},
       {m.is_encoder_decoder(), "overlap/tensor_slices", "encoder-decoders"},
       {m.is_latent(), "overlap/tensor_slices", "latent attention"},
       {m.qk_norm, "overlap/tensor_slices", "norms of queries and keys"},
       {p.precision.low(), "precision", "less than 16 bits"},
       {p.by_units(), "sharding/level", "sharded gradients or parameters"},
       {p.offload.activation_layers > 0, "offload/activation_layers", "activations on the host"}});
}

/// Whole heads, or heads and groups, of a mixer on every tensor rank.
void check_heads(const Plan& p, const std::string& mixer, std::int64_t heads, std::int64_t groups,
                 Violations& out) {
  if (heads % p.tensor == 0 && groups % p.tensor == 0) return;
  out.add("parallel/tensor", "every rank holds whole heads and groups of a " + mixer + ", and " +
                                 text(p.tensor) + " does not divide " + text(heads) +
                                 " heads and " + text(groups) + " groups; try " +
                                 text(std::gcd(p.tensor, std::gcd(heads, groups))));
}

/// The mixers beside attention. Megatron Core gives every tensor rank whole heads and groups of a
/// state space (ssm/mamba_mixer.py), of a delta net whole heads of keys and of values
/// (ssm/gated_delta_net/common.py).
void check_mixers(const Model& m, const Plan& p, Violations& out) {
  const Hybrid& h = m.hybrid;
  const bool delta = m.has_mixer(Mixer::kDelta);
  const bool selects = m.has_mixer(Mixer::kMamba1);
  if (p.tensor > 1 && (selects || (delta && h.delta.by_channel()))) {
    out.unsupported("parallel/tensor",
                    std::string(selects ? "Mamba's mixer" : "a delta net with decays by channel") +
                        " is not modelled over tensor ranks: set parallel.tensor to 1");
  }
  if (m.has_mixer(Mixer::kMamba2) || m.has_mixer(Mixer::kBeside)) {
    check_heads(p, "state space", h.state_space.heads, h.state_space.groups, out);
  }
  if (delta) check_heads(p, "delta net", h.delta.value_heads, h.delta.key_heads, out);
}

/// An indexer that chooses the keys of a query.
void check_indexer(const Model& m, const Plan& p, Violations& out) {
  if (m.latent.index_heads == 0) return;
  out.beside(
      "an indexer that chooses the keys of a query",
      {{p.context > 1, "parallel/context", "context parallelism"},
       {!p.documents.empty(), "batch/documents", "several documents in a sequence"},
       {p.precision.autocast, "kernels/autocast", "autocast"},
       {p.splits_backward(), "schedule", "backward passes in two parts"},
       {p.attention == AttentionKernel::kUnfused, "kernels/attention",
        "attention that stores its scores: set kernels.attention to flash, and precision to bf16 "
        "or fp16 where it is fp32"}});
}

/// Weights that several layers multiply with: one stage holds them, and their gradients add up over
/// the layers of a pass.
void check_common_weights(const Model& m, const Plan& p, Violations& out) {
  const bool blocks = m.hybrid.shared.blocks > 0;
  if (!blocks && !m.hybrid.one_layer) return;
  out.beside(
      blocks ? "a model whose layers share a block" : "a model whose layers share weights",
      {{p.pipeline > 1, "parallel/pipeline", "several pipeline stages"},
       {p.by_units(), "sharding/level", "sharded gradients or parameters in units"},
       {p.writes_fresh(), "gradients", "gradients that each pass writes anew"},
       {p.splits_backward(), "schedule", "backward passes in two parts"},
       {p.precision.low(), "precision", "less than 16 bits"},
       {p.recompute.in_blocks(), "recompute", "blocks of layers that are computed again"},
       {p.offload.activation_layers > 0, "offload/activation_layers", "activations on the host"}});
  if (!blocks) return;
  out.beside(
      "a model whose layers share a block",
      {{p.tensor > 1, "parallel/tensor", "several tensor ranks"},
       {p.context > 1, "parallel/context", "several context ranks"},
       {p.precision.autocast, "kernels/autocast", "autocast"},
       {p.attention == AttentionKernel::kUnfused, "kernels/attention",
        "attention that stores its scores: set kernels.attention to flash, and precision to bf16 "
        "or fp16 where it is fp32"}});
}

/// Models whose layers are not all attention and a feed-forward, each with a norm before it.
void check_hybrid(const Model& m, const Plan& p, Violations& out) {
  if (const std::string& part = m.notes.not_lowered; !part.empty()) {
    out.unsupported("model", part + ": counted, not simulated");
  }
  const Mixer others[] = {Mixer::kMamba2, Mixer::kBeside, Mixer::kConv, Mixer::kDelta,
                          Mixer::kMamba1};
  const bool mixes = std::any_of(std::begin(others), std::end(others),
                                 [&m](Mixer mixer) { return m.has_mixer(mixer); });
  out.beside("a model with layers of these kinds",
             {{p.in_grid(), "parallel/tensor_mode", "grids: set parallel.tensor_mode to 1d"},
              {p.overlap.tensor_slices > 1, "overlap/tensor_slices", "slices of a microbatch"},
              {p.overlap.passes, "overlap/passes", "passes that run beside each other"},
              {p.recompute.parts > 1, "recompute/co_shard", "parts of a layer"},
              {(m.ends.transform || !m.ends.plain() || !m.ends.final_norm) && p.shares_vocabulary(),
               "schedule", "a vocabulary that all stages share"},
              {m.experts.more.latent > 0 && p.overlap.expert, "overlap/expert",
               "shared experts beside the exchange of latent tokens"},
              {p.context > 1 && mixes, "parallel/context",
               "context parallelism of a state space or convolution"}});
  check_mixers(m, p, out);
  check_common_weights(m, p, out);
  check_indexer(m, p, out);
}

/// More than layers of attention and a feed-forward, each with a norm before it, between a table
/// and an output matrix.
bool has_more(const Model& m) {
  const bool norms = !m.norms.plain() || !m.norms.weights;
  const bool ends = !m.ends.plain() || m.ends.transform || !m.ends.final_norm || m.biases.head;
  const bool experts = m.experts.more.latent > 0 || m.experts.more.beside;
  const bool counted = m.latent.index_heads > 0 || m.attention.value_dim > 0 ||
                       m.hybrid.one_layer || m.biases.activation > 0 ||
                       !m.notes.not_lowered.empty();
  return m.is_hybrid() || norms || ends || experts || counted || !m.attention.plain();
}

}  // namespace

std::string_view name_of(TensorMode mode) {
  constexpr std::array<std::string_view, 4> kNames = {"1d", "2d", "2.5d", "3d"};
  return kNames.at(static_cast<std::size_t>(mode));
}

void check_tensor(const Model& model, const Plan& plan, Violations& out) {
  if (has_more(model)) check_hybrid(model, plan, out);
  check_exchanged_heads(model, plan, out);
  plan.in_grid() ? check_grid(model, plan, out) : check_1d(model, plan, out);
  check_slices(model, plan, out);
}

}  // namespace foretrain
