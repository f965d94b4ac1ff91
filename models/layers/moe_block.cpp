#include "models/layers/moe_block.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "models/layers/layer_parts.h"
#include "models/plan/expert_plan.h"
#include "models/slots.h"
#include "sim/base/check.h"

namespace foretrain {
namespace {

std::int64_t ceil_div(std::int64_t a, std::int64_t b) { return (a + b - 1) / b; }

/// What this matrix takes has rows' probabilities as factors: they weigh its bias too.
constexpr const char* kExpertsDown = "moe.experts.down";

}  // namespace

FanOut fan_out(const Experts& e) {
  return FanOut{static_cast<std::int32_t>(e.top_k), static_cast<std::int32_t>(e.count),
                static_cast<std::int32_t>(e.groups), static_cast<std::int32_t>(e.group_top_k)};
}

MoeSizes moe_sizes(const Model& model, const Plan& plan) {
  const Experts& e = model.experts;
  const ExpertPlan& p = plan.experts;
  const std::int64_t tokens = plan.tokens() / plan.shard();
  const auto scaled = [](std::int64_t count, double factor) {
    return static_cast<std::int64_t>(std::ceil(static_cast<double>(count) * factor));
  };
  MoeSizes out;
  out.local = e.count / p.expert;
  const auto of_expert = [&](double load) {
    return ceil_div(scaled(tokens * e.top_k * p.tensor, load), out.local * p.tensor) * p.tensor;
  };
  if (p.routing == Routing::kCapacity) {
    out.capacity =
        scaled(1, static_cast<double>(tokens * e.top_k) * p.factor / static_cast<double>(e.count));
    out.capacity = std::max(out.capacity, p.least_capacity);
    out.sent = out.capacity * e.count;
    out.per_expert = out.capacity * p.expert * p.tensor;
  } else {
    const double load = busiest_load(p);
    out.capacity = ceil_div(tokens * e.top_k, e.count);
    out.sent = tokens * e.top_k;
    out.per_expert = of_expert(load);
    for (const double own : busiest_loads(p)) out.rows.push_back(of_expert(own));
    if (!out.rows.empty()) out.per_expert = ceil_div(out.worked(), out.local);
    const auto equal = [&out](std::int64_t rows) { return rows == out.per_expert; };
    if (std::all_of(out.rows.begin(), out.rows.end(), equal)) out.rows.clear();
  }
  out.received = out.worked() / p.tensor;
  if (p.dispatcher == Dispatcher::kAllGather) {
    out.sent = tokens;
    out.received = tokens * p.expert * p.tensor;
  } else if (p.dispatcher != Dispatcher::kAllToAll) {
    const double load = busiest_load(p);
    out.sent = scaled(tokens, parts_hit(fan_out(e), p.expert));
    out.received = scaled(out.sent, load);
  }
  return out;
}

MoeBlock::MoeBlock(ProgramBuilder& builder, const Model& model, const Plan& plan,
                   const LayerLayouts& layouts, const Recompute& again)
    : Block(builder, model, plan, layouts),
      x_sizes(moe_sizes(model, plan)),
      x_again(again),
      x_width(model.experts.width / plan.experts.tensor),
      x_shared(model.experts.shared_width / plan.tensor) {
  x_router = matrix("moe.router", model.experts.count, model.hidden);
  x_more.width = model.experts.token_width(model.hidden);
  if (model.experts.more.latent > 0) x_more.latent.emplace(builder, model, plan, layouts);
  if (model.experts.more.beside) x_more.beside.emplace(builder, model, plan, layouts);
  if (x_shared == 0) return;
  x_shared_up = matrix("moe.shared.up", raised(x_shared), model.hidden);
  x_shared_down = matrix("moe.shared.down", model.hidden, x_shared);
  if (model.experts.more.shared_gate) x_more.gate.emplace(builder, model, plan, layouts);
}

bool MoeBlock::sorts() const {
  return gathers() || fused() || (group_size() > 1 && x_sizes.local > 1);
}

/// A kernel that moves rows of all experts. Where sizes are expectations it cannot be executed.
Kernel MoeBlock::of_experts(KernelKind kind, std::int64_t rows, std::int64_t cols) const {
  Kernel out = kernel(kind, rows, cols);
  ExpertRows& to = out.rows_of;
  to.experts = x_model.experts.count;
  to.top_k = x_model.experts.top_k;
  to.capacity = x_sizes.capacity;
  if (fused()) return out;
  if (x_plan.experts.routing == Routing::kBalanced) to.choice = ExpertChoice::kInTurn;
  if (x_plan.experts.routing == Routing::kCapacity) to.choice = ExpertChoice::kBest;
  return out;
}

Ref MoeBlock::expert(const std::string& name, bool of_gradients, const char* part) const {
  const ParameterLayouts& all = of_gradients ? x_layouts.parameter_gradients : x_layouts.parameters;
  for (std::size_t b = 0; b < all.experts.buffers.size(); ++b) {
    const Buffer& buffer = all.experts.buffers[b];
    if (buffer.name != name + part) continue;
    return Ref{of_gradients ? kExpertGradients : kExpertWeights, static_cast<std::int16_t>(b),
               buffer.dtype, buffer.count};
  }
  FT_CHECK(false, "no such parameter of the experts");
  return Ref();
}

void MoeBlock::declare(LayoutWriter& saved, LayoutWriter& local, const Ref& stream) {
  const Placer place{saved, local, x_plan.precision};
  const bool whole = x_again.layer || x_again.moe;
  const DType type = x_plan.precision.compute;
  const std::int64_t experts = x_model.experts.count;
  const std::int64_t rows = x_sizes.worked();
  const bool low = x_plan.precision.low();
  x_scores = place.add("router scores", DType::kFp32, x_rows * experts, whole);
  x_map = place.add("routing map", DType::kUint8, x_rows * experts, whole);
  if (!cast_first()) {
    x_input = place.add("expert input", type, rows * x_more.width, whole || low);
  }
  if (x_more.latent) x_more.latent->declare(place, whole);
  if (x_more.beside) x_more.beside->declare(place, whole, stream);
  x_in = place.operand("expert input quantized", x_input, whole);
  if (masks()) {
    declare_masks(place, whole);
  } else {
    x_probabilities = place.add("expert probabilities", DType::kFp32, rows, whole);
  }
  if (gathers()) x_places = place.add("expert places", DType::kInt64, rows, whole);
  x_up = place.add("expert up", type, rows * raised(x_width), whole);
  const bool activation = whole || x_again.expert_activation;
  x_act = place.add("expert activation", type, rows * x_width, low || activation);
  x_activated = place.operand("expert activation quantized", x_act, activation);
  if (x_shared == 0) return;
  const bool shared = whole || x_again.shared_experts;
  x_s_up = place.add("shared expert up", type, x_tokens * raised(x_shared), shared);
  x_s_act = place.add("shared expert activation", type, x_tokens * x_shared, low || shared);
  x_s_activated = place.operand("shared expert activation quantized", x_s_act, shared);
  if (x_more.gate) x_more.gate->declare(place, whole);
}

void MoeBlock::bias_gradient(SegmentWriter& w, const std::string& name, std::int64_t rows,
                             std::int64_t cols, const Ref& d_out, const Ref& bias,
                             const Ref& d_chances) {
  std::vector<View> reads = {d_out.view()};
  std::vector<View> writes;
  if (d_chances.valid()) {
    reads.push_back(x_probabilities.view());
    reads.push_back(expert(name, false, ".bias").view());
    reads.push_back(d_chances.view());
    writes.push_back(d_chances.view());
  }
  add_gradients(x_plan, {bias}, reads, writes);
  w.compute(name + ".bias_gradient", kernel(KernelKind::kBiasGrad, rows, cols), std::move(reads),
            std::move(writes));
}

// --- Forward -----------------------------------------------------------------------------------
void MoeBlock::route(SegmentWriter& w, const Ref& in) {
  const Ref logits = temporary("router logits", x_rows * x_router.out);
  const Ref read = x_more.beside ? x_more.beside->scaled(w, in) : in;
  std::vector<View> reads = {read.view(), x_quantizer->by_rows(x_router.weight).view()};
  if (const Ref bias = parameter("moe.router.bias"); bias.valid()) reads.push_back(bias.view());
  w.compute("moe.router",
            x_quantizer->typed(forward_gemm(x_plan, x_rows, x_router.out, x_router.in),
                               x_router.weight, false),
            std::move(reads), {logits.view()});
  Kernel choose = of_experts(KernelKind::kRoute, x_rows, x_router.out);
  choose.launches = router_launches(x_plan.experts).forward;
  if (x_plan.sequence) choose.split_over = x_tensor;
  w.compute("moe.route", choose, {logits.view()}, {x_scores.view(), x_map.view()});
}

/// The host sizes buffers and GEMMs by the counts, unless a capacity fixes them.
void MoeBlock::count_tokens(SegmentWriter& w) {
  if (masks()) {  // which log the counts
    w.compute("moe.counts.check", HostSync{}, {x_map.view()}, {}).category = Category::kHost;
  }
  if (x_plan.experts.routing == Routing::kCapacity) return;
  const std::int64_t experts = x_router.out;
  Ref counts = temporary("token counts", experts, DType::kInt64);
  w.compute("moe.counts", of_experts(KernelKind::kExpertCounts, x_rows, experts), {x_map.view()},
            {counts.view()});
  if (group_size() > 1) {
    const Ref all = temporary("token counts of all", experts * group_size(), DType::kInt64);
    w.wait(w.on_stream("expert", "moe.counts.gather", Category::kExpert,
                       Collective{CollectiveKind::kAllGather, x_builder.group(kExpertModelGroup),
                                  all.count, DType::kInt64, false},
                       {counts.view()}, {all.view()}));
    counts = all;
  }
  w.compute("moe.counts.check", HostSync{}, {counts.view()}, {}).category = Category::kHost;
}

void MoeBlock::dispatch(SegmentWriter& w, const Ref& normed) {
  const std::int64_t h = x_more.width;
  const Ref in = x_more.latent ? x_more.latent->down(w, normed) : normed;
  if (cast_first()) {
    const Ref own = temporary("tokens quantized", in.count, x_in.in.dtype);
    x_quantizer->quantize(w, "moe.dispatch.quantize", in, x_rows, own, Ref());
    to_experts(w, "moe.dispatch",
               {{own, x_in.in, h}, {x_scores, x_probabilities, probability_width()}});
    return x_quantizer->turn(w, "moe.experts.up.turn", x_in.in, x_sizes.worked(), x_in.kept);
  }
  if (fused() || gathers()) {
    to_experts(w, "moe.dispatch",
               {{in, x_input, h}, {x_scores, x_probabilities, probability_width()}});
    return;
  }
  const bool here = way().steps.empty();
  const std::int64_t rows = way().rows.front();
  if (masks()) {
    const Ref picked = here ? x_input : temporary("picked", rows * h);
    pick(w, in, picked);
    if (!here) to_experts(w, "moe.dispatch", {{picked, x_input, h}});
    return;
  }
  const Ref tokens = here ? x_input : temporary("permuted", rows * h);
  const Ref chances =
      here ? x_probabilities : temporary("permuted probabilities", rows, DType::kFp32);
  w.compute("moe.permute", of_experts(KernelKind::kPermute, rows, h),
            {in.view(), x_scores.view(), x_map.view()}, {tokens.view(), chances.view()});
  if (here) return;
  to_experts(w, "moe.dispatch", {{tokens, x_input, h}, {chances, x_probabilities, 1}});
}

void MoeBlock::grouped(SegmentWriter& w, const std::string& name, Gemm gemm, const Ref& of,
                       bool backward, const Ref& a, const Ref& b, const Ref& out) {
  gemm.batch = x_sizes.local;
  gemm.apart = gemm.batch > 1 && !x_plan.experts.single_kernel;
  gemm.groups = x_sizes.rows;
  gemm.in = x_plan.precision.matrix;
  gemm = x_quantizer->typed(gemm, of, backward);
  if (gemm.transpose_a) return write_weight_gradient(w, x_plan, name, gemm, a, b, out);
  gemm.out = x_plan.precision.compute;
  std::vector<View> reads = {a.view(), b.view()};
  if (!backward && x_model.experts.bias) {
    reads.push_back(expert(name, false, ".bias").view());
    if (name == kExpertsDown && !masks()) reads.push_back(x_probabilities.view());
  }
  w.compute(name, gemm, std::move(reads), {out.view()});
}

Ref MoeBlock::padded(SegmentWriter& w, const std::string& name, const Ref& rows) {
  if (!pads()) return rows;
  const Ref out = temporary(name, rows.count);
  w.compute(name, kernel(KernelKind::kCast, x_sizes.worked(), x_more.width), {rows.view()},
            {out.view()});
  return out;
}

void MoeBlock::activation(SegmentWriter& w) {
  std::vector<View> reads = {x_up.view()};
  if (!masks()) reads.push_back(x_probabilities.view());
  w.compute("moe.experts.activation",
            kernel(activation_kind(x_model.activation, false), x_sizes.worked(), x_width),
            std::move(reads), {x_act.view()});
  x_quantizer->quantize(w, "moe.experts.down.quantize", x_act, x_sizes.worked(), x_activated);
}

void MoeBlock::experts_forward(SegmentWriter& w, const Ref& routed) {
  const std::int64_t h = x_more.width;
  const Ref out = x_more.latent ? x_more.latent->joined() : routed;
  const std::int64_t m = x_sizes.per_expert;
  const Ref up = expert("moe.experts.up", false);
  const Ref narrow = expert("moe.experts.down", false);
  if (!cast_first()) {
    x_quantizer->quantize(w, "moe.experts.up.quantize", padded(w, "moe.experts.pad", x_input),
                          x_sizes.worked(), x_in);
  }
  grouped(w, "moe.experts.up", {m, raised(x_width), h}, up, false, x_in.in,
          x_quantizer->by_rows(up), x_up);
  activation(w);
  const bool last = masks() && way().steps.empty();
  const Ref down = last ? x_masks.results : temporary("expert output", x_sizes.worked() * h);
  grouped(w, "moe.experts.down", {m, h, x_width, 1, false, true}, narrow, false, x_activated.in,
          x_quantizer->by_rows(narrow), down);
  const Ref results = padded(w, "moe.experts.unpad", down);
  if (direct()) {
    from_experts(w, "moe.combine", {{results, out, h}});
    if (x_more.latent) x_more.latent->up(w, routed);
    return;
  }
  Ref back = results;
  if (const Way path = way(); !path.steps.empty()) {
    back = masks() ? x_masks.results : temporary("combined", path.rows.front() * h);
    from_experts(w, "moe.combine", {{results, back, h}});
  }
  if (masks()) return join(w, out);
  w.compute("moe.unpermute", of_experts(KernelKind::kUnpermute, x_rows, h),
            {back.view(), x_map.view()}, {out.view()});
  if (x_more.latent) x_more.latent->up(w, routed);
}

void MoeBlock::shared_up(SegmentWriter& w, const LinearOperand& x) {
  linear(w, "moe.shared.up", x_shared_up, x_tokens, gathered(w, "moe.shared", x.in), x_s_up);
  w.compute("moe.shared.activation",
            kernel(activation_kind(x_model.activation, false), x_tokens, x_shared), {x_s_up.view()},
            {x_s_act.view()});
  x_quantizer->quantize(w, "moe.shared.down.quantize", x_s_act, x_tokens, x_s_activated);
}

Ref MoeBlock::shared_down(SegmentWriter& w) {
  const Ref full = x_more.gate && !x_plan.sequence
                       ? x_more.gate->results()
                       : temporary("shared expert output", x_tokens * x_model.hidden);
  linear(w, "moe.shared.down", x_shared_down, x_tokens, x_s_activated.in, full);
  if (!x_plan.sequence) return full;
  const Ref part = x_more.gate ? x_more.gate->results()
                               : temporary("shared expert reduced", x_rows * x_model.hidden);
  w.collective("moe.shared.reduce", over_tensor(CollectiveKind::kReduceScatter, full.count),
               {full.view()}, {part.view()});
  return part;
}

void SharedGate::declare(const Placer& place, bool again) {
  const DType type = x_plan.precision.compute;
  x_gate = place.add("shared expert gate", type, x_rows, again);
  x_results = place.add("shared expert output", type, x_rows * x_model.hidden, again);
}

Ref SharedGate::forward(SegmentWriter& w, const Ref& in) {
  w.compute("moe.shared.gate", forward_gemm(x_plan, x_rows, 1, x_model.hidden),
            {in.view(), weight("moe.shared.gate").view()}, {x_gate.view()});
  const Ref out = temporary("gated shared output", x_rows * x_model.hidden);
  w.compute("moe.shared.weigh", kernel(KernelKind::kGateRows, x_rows, x_model.hidden),
            {x_results.view(), x_gate.view()}, {out.view()});
  return out;
}

Ref SharedGate::backward(SegmentWriter& w, const Ref& in, const Ref& d_out,
                         std::vector<View>& d_inputs) {
  const std::int64_t h = x_model.hidden;
  const Ref d_shared = temporary("d shared output", x_rows * h);
  const Ref d_gate = temporary("d shared gate", x_rows);
  w.compute("moe.shared.weigh_gradient", kernel(KernelKind::kGateRowsBackward, x_rows, h),
            {d_out.view(), x_results.view(), x_gate.view()}, {d_shared.view(), d_gate.view()});
  write_weight_gradient(w, x_plan, "moe.shared.gate", weight_gradient_gemm(x_plan, x_rows, 1, h),
                        d_gate, in, gradient("moe.shared.gate"));
  const Ref d_in = temporary("d shared gate input", x_rows * h);
  w.compute("moe.shared.gate.input_gradient", input_gradient_gemm(x_plan, x_rows, 1, h),
            {d_gate.view(), weight("moe.shared.gate").view()}, {d_in.view()});
  d_inputs.push_back(d_in.view());
  return d_shared;
}

void MoeBlock::forward(SegmentWriter& w, const Ref& in, const LinearOperand& normed,
                       const Ref& out) {
  if (x_more.latent) x_more.latent->write_to(*x_local, *x_quantizer);
  if (x_more.beside) x_more.beside->write_to(*x_local, *x_quantizer);
  const LinearOperand x = x_more.beside ? x_more.beside->read(w) : normed;
  route(w, in);
  count_tokens(w);
  if (x_shared == 0) {
    dispatch(w, in);
    return experts_forward(w, out);
  }
  Ref routed = temporary("routed output", out.count);
  Ref shared;
  if (!overlaps()) {
    dispatch(w, in);
    experts_forward(w, routed);
    shared_up(w, x);
    shared = shared_down(w);
  } else {
    x_beside = [&] { shared_up(w, x); };
    dispatch(w, in);
    run_waiting();
    x_beside = [&] { shared = shared_down(w); };
    experts_forward(w, routed);
    run_waiting();
  }
  if (x_more.gate) {
    x_more.gate->write_to(*x_local, *x_quantizer);
    shared = x_more.gate->forward(w, in);
  }
  if (x_more.beside) {
    const BesideMlp::Results results = x_more.beside->after(w, {routed, shared});
    routed = results.routed;
    shared = results.shared;
  }
  w.compute("moe.add", kernel(KernelKind::kAdd, x_rows, x_model.hidden),
            {routed.view(), shared.view()}, {out.view()});
}

void MoeBlock::again(SegmentWriter& w, const Ref& in, const LinearOperand& x, const Ref& out) {
  if (x_again.layer || x_again.moe) return forward(w, in, x, out);
  if (x_again.expert_activation) activation(w);
  if (x_again.shared_experts && x_shared > 0) {
    shared_up(w, x_more.beside ? x_more.beside->input() : x);
  }
}

// --- Backward ----------------------------------------------------------------------------------
/// Both gradients of the experts' matrix `name` as grouped GEMMs of these sizes. A matrix
/// [input, output] is transposed for its input's gradient, and its own is input^T d.
void MoeBlock::expert_linear_backward(SegmentWriter& w, const std::string& name, Gemm of_input,
                                      Gemm of_weight, const Quantizer::Copies& d, const Ref& in,
                                      const Ref& d_in) {
  const Ref matrix = expert(name, false);
  grouped(w, name + ".input_gradient", of_input, matrix, true, d.rows,
          x_quantizer->by_columns(matrix), d_in);
  of_weight.transpose_a = true;
  const bool by_inputs = of_input.transpose_b;
  grouped(w, name, of_weight, matrix, true, by_inputs ? in : d.columns, by_inputs ? d.columns : in,
          expert(name, true));
}

Quantizer::Copies MoeBlock::gradient_of(SegmentWriter& w, const std::string& name, const Ref& d) {
  return x_quantizer->gradient(w, name, expert(name, false), d, x_sizes.worked());
}

/// The gradient of the experts' results, from where these went.
Quantizer::Copies MoeBlock::result_gradient(SegmentWriter& w, const Ref& d_back) {
  const std::int64_t count = x_sizes.worked() * x_more.width;
  Ref from = d_back;
  if (cast_first()) {
    from = temporary("d results quantized", d_back.count, x_plan.precision.linear);
    x_quantizer->quantize(w, "moe.combine_gradient.quantize", d_back, x_rows, from, Ref());
  }
  Ref d_down = from;
  if (!way().steps.empty()) {
    d_down = temporary("d expert output", count, from.dtype);
    to_experts(w, "moe.combine_gradient", {{from, d_down, x_more.width}});
  }
  if (!cast_first()) {
    return gradient_of(w, "moe.experts.down", padded(w, "moe.experts.pad_gradient", d_down));
  }
  if (x_plan.precision.one_copy) return {d_down, d_down};
  const Ref columns = temporary("d expert output by columns", count, from.dtype);
  x_quantizer->turn(w, "moe.experts.down.turn_gradient", d_down, x_sizes.worked(), columns);
  return {d_down, columns};
}

MoeBlock::InputGradients MoeBlock::experts_backward(SegmentWriter& w, const Ref& d_out,
                                                    std::function<void()> beside) {
  const std::int64_t h = x_more.width;
  const std::int64_t m = x_sizes.per_expert;
  const std::int64_t rows = x_sizes.worked();
  const Way path = way();
  Ref d_back = d_out;
  if (!direct()) {
    d_back = temporary("d combined", path.rows.front() * h);
  }
  if (masks()) {
    join_gradient(w, d_out, d_back);
  } else if (!direct()) {
    w.compute("moe.unpermute_gradient", of_experts(KernelKind::kPermute, path.rows.front(), h),
              {d_out.view(), x_map.view()}, {d_back.view()});
  }
  const Quantizer::Copies d_down = result_gradient(w, d_back);
  run_waiting();
  const Ref d_act = temporary("d expert activation", rows * x_width);
  expert_linear_backward(w, "moe.experts.down", {m, x_width, h}, {h, x_width, m}, d_down,
                         x_activated.kept, d_act);
  const Ref d_up = temporary("d expert up", rows * raised(x_width));
  Ref d_chances;
  std::vector<View> reads = {d_act.view(), x_up.view()};
  std::vector<View> writes = {d_up.view()};
  if (!masks()) {
    d_chances = temporary("d expert probabilities", rows, DType::kFp32);
    reads.push_back(x_probabilities.view());
    writes.push_back(d_chances.view());
  }
  w.compute("moe.experts.activation_gradient",
            kernel(activation_kind(x_model.activation, true), rows, x_width), std::move(reads),
            std::move(writes));
  const Ref d_padded = temporary("d expert input", rows * h);
  expert_linear_backward(w, "moe.experts.up", {m, h, raised(x_width), 1, false, true},
                         {h, raised(x_width), m}, gradient_of(w, "moe.experts.up", d_up), x_in.kept,
                         d_padded);
  const Ref d_input = padded(w, "moe.experts.unpad_gradient", d_padded);
  if (x_model.experts.bias) {
    bias_gradient(w, kExpertsDown, rows, h, d_down.rows, expert(kExpertsDown, true, ".bias"),
                  d_chances);
    bias_gradient(w, "moe.experts.up", rows, raised(x_width), d_up,
                  expert("moe.experts.up", true, ".bias"));
  }
  if (masks()) {
    Ref d_picked = d_input;
    if (!path.steps.empty()) {
      d_picked = temporary("d picked", path.rows.front() * h);
      from_experts(w, "moe.dispatch_gradient", {{d_input, d_picked, h}});
    }
    return pick_gradient(w, d_picked);
  }
  x_beside = std::move(beside);
  const Ref d_tokens = temporary("d dispatched", x_rows * h);
  const Ref d_scores =
      temporary("d scores", x_rows * (gathers() ? x_model.experts.count : x_model.experts.top_k),
                DType::kFp32);
  if (direct()) {
    from_experts(w, "moe.dispatch_gradient",
                 {{d_input, d_tokens, h}, {d_chances, d_scores, probability_width()}});
    return {d_tokens, d_scores};
  }
  Ref d_sent = d_input;
  Ref d_sent_chances = d_chances;
  if (!path.steps.empty()) {
    d_sent = temporary("d permuted", path.rows.front() * h);
    d_sent_chances = temporary("d permuted probabilities", path.rows.front(), DType::kFp32);
    from_experts(w, "moe.dispatch_gradient",
                 {{d_input, d_sent, h}, {d_chances, d_sent_chances, 1}});
  }
  w.compute("moe.permute_gradient", of_experts(KernelKind::kUnpermute, x_rows, h),
            {d_sent.view(), d_sent_chances.view(), x_map.view()},
            {d_tokens.view(), d_scores.view()});
  return {d_tokens, d_scores};
}

Ref MoeBlock::router_backward(SegmentWriter& w, const Ref& in, const Ref& d_probabilities) {
  const Ref d_logits = temporary("d router logits", x_rows * x_router.out);
  Kernel choose = of_experts(KernelKind::kRouteBackward, x_rows, x_router.out);
  choose.launches = router_launches(x_plan.experts).backward;
  w.compute("moe.route_gradient", choose, {d_probabilities.view(), x_scores.view(), x_map.view()},
            {d_logits.view()});
  if (x_model.experts.router_bias) {
    bias_gradient(w, "moe.router", x_rows, x_router.out, d_logits,
                  parameter_ref(x_layouts.parameter_gradients, "moe.router.bias", kGradients,
                                kSharedGradients));
  }
  if (!x_more.beside) return linear_backward(w, "moe.router", x_router, x_rows, d_logits, in);
  x_more.beside->scale_gradient(w, d_logits);
  const Ref read = x_more.beside->router_input(in);
  return x_more.beside->scaled_backward(
      w, in, linear_backward(w, "moe.router", x_router, x_rows, d_logits, read));
}

Ref MoeBlock::shared_down_backward(SegmentWriter& w, const Ref& d_out) {
  const Quantizer::Copies d =
      x_plan.sequence
          ? x_quantizer->gathered_gradient(w, "moe.shared.d_output", d_out, x_rows)
          : x_quantizer->gradient(w, "moe.shared.down", x_shared_down.weight, d_out, x_tokens);
  const Ref d_act =
      linear_backward(w, "moe.shared.down", x_shared_down, x_tokens, d, x_s_activated.kept);
  const Ref d_up = temporary("d shared expert up", x_tokens * raised(x_shared));
  w.compute("moe.shared.activation_gradient",
            kernel(activation_kind(x_model.activation, true), x_tokens, x_shared),
            {d_act.view(), x_s_up.view()}, {d_up.view()});
  return d_up;
}

Ref MoeBlock::backward(SegmentWriter& w, const Ref& in, const LinearOperand& normed,
                       const Ref& d_sum, Ref& d_stream) {
  if (x_more.latent) x_more.latent->write_to(*x_local, *x_quantizer);
  if (x_more.beside) x_more.beside->write_to(*x_local, *x_quantizer);
  const LinearOperand& x = x_more.beside ? x_more.beside->input() : normed;
  BesideMlp::Results results{d_sum, d_sum};
  if (x_more.beside) results = x_more.beside->after_backward(w, d_sum);
  const Ref& d_out = results.shared;
  Ref d_shared_up;
  Ref d_shared;
  std::vector<View> d_inputs;
  Ref d_of_shared = d_out;
  if (x_more.gate) {
    x_more.gate->write_to(*x_local, *x_quantizer);
    d_of_shared = x_more.gate->backward(w, in, d_out, d_inputs);
  }
  const auto down = [&] { d_shared_up = shared_down_backward(w, d_of_shared); };
  const auto up = [&] {
    d_shared = column_backward(w, "moe.shared.up", x_shared_up, d_shared_up, x.kept);
  };
  std::function<void()> beside_last;
  if (x_shared > 0 && overlaps()) {
    x_beside = down;
    beside_last = up;
  } else if (x_shared > 0) {
    down();
    up();
  }
  const Ref d_routed =
      x_more.latent ? x_more.latent->up_backward(w, results.routed) : results.routed;
  InputGradients d = experts_backward(w, d_routed, std::move(beside_last));
  run_waiting();
  if (x_more.latent) d.tokens = x_more.latent->down_backward(w, d.tokens, in);
  if (x_more.beside) d_stream = x_more.beside->add_to_stream(w, d_shared, d_stream);
  const Ref d_router = router_backward(w, in, d.probabilities);
  std::vector<View> reads = {d.tokens.view(), d_router.view()};
  if (d_shared.valid() && !x_more.beside) reads.push_back(d_shared.view());
  reads.insert(reads.end(), d_inputs.begin(), d_inputs.end());
  w.compute("moe.input_gradient", kernel(KernelKind::kAdd, x_rows, x_model.hidden),
            std::move(reads), {d.tokens.view()});
  return d.tokens;
}

}  // namespace foretrain
