#include "models/layers/linear_parts.h"

#include <utility>

#include "models/layers/autocast.h"
#include "models/slots.h"

namespace foretrain {

void LinearParts::gather(SegmentWriter& w, const char* block, const Ref& part, const Ref& full) {
  if (!x_plan.sequence) return;
  w.collective(std::string(block) + ".gather", x_quantizer.gather_of(full), {part.view()},
               {full.view()});
}

void LinearParts::cast_weights(SegmentWriter& w, const std::string& name, const Linear& l) const {
  if (!x_plan.precision.autocast) return;
  write_casts(w, name + ".cast_weight", l.columns.parts, l.in, l.own_weight, l.weight);
  if (l.bias.valid()) write_casts(w, name + ".cast_bias", l.columns.parts, 1, l.own_bias, l.bias);
}

void LinearParts::forward_linear(SegmentWriter& w, const char* name, const Linear& l, const Ref& in,
                                 const std::vector<Ref>& out, bool with_bias) {
  cast_weights(w, name, l);
  if (x_grid) {
    const Ref& whole = out.front();
    x_grid->forward(w, name, l.of_grid(), in, x_b.kept.at(l.number), whole);
    if (!with_bias || !l.bias.valid()) return;
    w.compute(std::string(name) + ".bias", kernel(KernelKind::kBiasAdd, x_tokens, l.out),
              {whole.view(), l.bias.view()}, {whole.view()});
    return;
  }
  std::vector<View> reads = {in.view(), x_quantizer.by_rows(l.weight).view()};
  if (with_bias && l.bias.valid()) reads.push_back(l.bias.view());
  w.compute(name, of_linear(l, forward_gemm(x_plan, x_tokens, l.out, l.in), false),
            std::move(reads), views_of(out));
}

void LinearParts::product(SegmentWriter& w, const std::string& name, const Linear& l,
                          const Gemm& gemm, const Ref& in, const Ref& matrix, const Ref& out,
                          bool adds) {
  Gemm work = of_linear(l, gemm, w.phase == Phase::kBackward);
  work.accumulate = adds;
  std::vector<View> reads = {in.view(), matrix.view()};
  if (adds) reads.push_back(out.view());
  w.compute(name, work, std::move(reads), {out.view()});
}

void LinearParts::forward_column(SegmentWriter& w, const char* block, const char* name,
                                 const Linear& l, const Ref& part, const Ref& full,
                                 const std::vector<Ref>& out, bool with_bias) {
  if (!x_plan.rings() || !part.valid()) {
    if (part.valid()) gather(w, block, part, full);
    return forward_linear(w, name, l, full, out, with_bias);
  }
  const Gemm gemm = of_part(of_linear(l, forward_gemm(x_plan, x_rows, l.out, l.in), false));
  ring_gather(w, std::string(block) + ".gather", part, full,
              [&](std::int64_t hops, const View& in) {
                std::vector<View> reads = {in, x_quantizer.by_rows(l.weight).view()};
                if (with_bias && l.bias.valid()) reads.push_back(l.bias.view());
                std::vector<View> writes;
                for (const Ref& ref : out) writes.push_back(member(ref, hops));
                w.compute(name, gemm, std::move(reads), std::move(writes));
              });
}

void LinearParts::column_again(SegmentWriter& w, const char* block, const char* name,
                               const Linear& l, const Ref& part, const Ref& full, const Ref& out) {
  const std::int64_t width = out.count / x_tokens;
  const View matrix = l.weight.part(0, width * l.in);
  if (!x_plan.rings() || !part.valid()) {
    if (part.valid()) gather(w, block, part, full);
    w.compute(name, forward_gemm(x_plan, x_tokens, width, l.in), {full.view(), matrix},
              {out.view()});
    return;
  }
  const Gemm gemm = of_part(forward_gemm(x_plan, x_rows, width, l.in));
  ring_gather(w, std::string(block) + ".gather", part, full,
              [&](std::int64_t hops, const View& in) {
                w.compute(name, gemm, {in, matrix}, {member(out, hops)});
              });
}

void LinearParts::forward_row(SegmentWriter& w, const char* block, const char* name,
                              const Linear& l, const Ref& in, const Ref& partial, const Ref& out,
                              bool adds) {
  if (x_plan.rings()) return ring_reduce(w, block, name, l, in, partial, out, adds);
  if (adds) {
    cast_weights(w, name, l);
    product(w, name, l, forward_gemm(x_plan, x_tokens, l.out, l.in), in,
            x_quantizer.by_rows(l.weight), partial, true);
  } else {
    forward_linear(w, name, l, in, {partial}, false);
  }
  if (x_plan.tensor == 1 || x_plan.in_grid()) return;
  w.collective(std::string(block) + ".reduce", reduction_of(partial), {partial.view()},
               {out.view()});
}

Quantizer::Copies LinearParts::row_input_gradient(SegmentWriter& w, const std::string& name,
                                                  const Linear& l, const Ref& d, const Ref& d_in) {
  const Ref matrix = x_quantizer.by_columns(l.weight);
  if (!x_plan.rings()) {
    const Quantizer::Copies copies = x_plan.sequence
                                         ? x_quantizer.gathered_gradient(w, name, d, x_rows)
                                         : x_quantizer.gradient(w, name, l.weight, d, x_rows);
    product(w, name + ".input_gradient", l, input_gradient_gemm(x_plan, x_tokens, l.out, l.in),
            copies.rows, matrix, d_in, false);
    return copies;
  }
  const Quantizer::Copies own = x_quantizer.cast_own(w, name, d, x_rows);
  const Ref& part = own.rows;
  const Ref full = temporary(w, name + " d gathered", part.count * x_plan.tensor, part.dtype);
  const Gemm gemm = of_part(of_linear(l, input_gradient_gemm(x_plan, x_rows, l.out, l.in), true));
  ring_gather(w, name + ".gather", part, full, [&](std::int64_t hops, const View& in) {
    w.compute(name + ".input_gradient", gemm, {in, matrix.view()}, {member(d_in, hops)});
  });
  return {full, x_quantizer.all_columns(w, name, own, full, x_tokens)};
}

void LinearParts::bias_gradient(SegmentWriter& w, const std::string& name, const Linear& l,
                                const Ref& d, std::int64_t rows) {
  if (!l.bias.valid()) return;
  std::vector<View> reads = {d.view()};
  std::vector<View> writes;
  add_gradients(x_plan, {l.bias_gradient}, reads, writes);
  w.compute(name + ".bias_gradient", kernel(KernelKind::kBiasGrad, rows, l.out), std::move(reads),
            std::move(writes));
}

void LinearParts::weight_gradient(SegmentWriter& w, const std::string& name, const Linear& l,
                                  const Ref& d, const Ref& in) {
  const Gemm gemm = of_linear(l, weight_gradient_gemm(x_plan, x_tokens, l.out, l.in), true);
  write_weight_gradient(w, x_plan, name, gemm, d, in, l.weight_gradient);
}

View LinearParts::member(const Ref& all, std::int64_t hops) const {
  View out = shard_of(all.view(), x_plan.tensor, x_tensor);
  out.hops = static_cast<std::int32_t>(hops == 0 ? x_plan.tensor : hops);
  return out;
}

/// To the member `places` on in the group, from the one as many places before.
EventRef LinearParts::exchange(SegmentWriter& w, const std::string& name, std::int64_t places,
                               const View& out, const View& in, bool copied) {
  return w.exchange(kTensorGroup, name, Category::kTensor, ring_channel(true, places),
                    ring_channel(false, places), out, in, copied);
}

void LinearParts::ring_gather(SegmentWriter& w, const std::string& name, const Ref& part,
                              const Ref& full, const Product& product) {
  const std::int64_t width = part.count / x_rows;
  w.compute(name + ".own", kernel_of(KernelKind::kCast, x_rows, width, part.dtype), {part.view()},
            {member(full, 0)});
  for (std::int64_t i = 0; i < x_plan.tensor; ++i) {
    const View here = member(full, i);
    EventRef next;
    if (i + 1 < x_plan.tensor) {
      next = exchange(w, name, 1, here, member(full, i + 1), x_plan.overlap.tensor_copy_engines);
    }
    product(i, here);
    if (next.valid()) w.wait(next);
  }
}

void LinearParts::ring_reduce(SegmentWriter& w, const char* block, const char* name,
                              const Linear& l, const Ref& in, const Ref& partial, const Ref& out,
                              bool adds) {
  const std::string reduce = std::string(block) + ".reduce";
  const std::int64_t t = x_plan.tensor;
  const std::int64_t own = x_rows * l.out;
  const View mine = adds ? member(partial, 0) : temporary(w, reduce + " own", own).view();
  const Ref arriving = temporary(w, reduce + " of others", own * (t - 1));
  Gemm gemm = of_part(of_linear(l, forward_gemm(x_plan, x_rows, l.out, l.in), false));
  gemm.accumulate = adds;
  const View matrix = x_quantizer.by_rows(l.weight).view();
  const auto multiply = [&](std::int64_t hops, const View& to) {
    std::vector<View> reads = {member(in, hops), matrix};
    if (adds) reads.push_back(to);
    w.compute(name, gemm, std::move(reads), {to});
  };
  std::vector<View> sum = {mine};
  EventRef arrived;
  for (std::int64_t i = 1; i < t; ++i) {
    multiply(t - i, member(partial, t - i));
    sum.push_back(arriving.part((i - 1) * own, own));
    arrived = exchange(w, reduce, i, member(partial, t - i), sum.back(), false);
  }
  multiply(0, mine);
  w.wait(arrived);
  w.compute(reduce + ".add", kernel(KernelKind::kAdd, x_rows, l.out), std::move(sum), {out.view()});
}

}  // namespace foretrain
