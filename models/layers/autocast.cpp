#include "models/layers/autocast.h"

namespace foretrain {

void write_casts(SegmentWriter& w, const std::string& name,
                 const std::array<std::int64_t, 3>& parts, std::int64_t width, const Ref& from,
                 const Ref& to) {
  std::int64_t begin = 0;
  const auto cast = [&](std::int64_t rows) {
    w.compute(name, kernel_of(KernelKind::kCast, rows, width, from.dtype),
              {from.part(begin, rows * width)}, {to.part(begin, rows * width)});
    begin += rows * width;
  };
  if (parts[0] == 0) return cast(from.count / width);
  for (const std::int64_t rows : parts) {
    if (rows > 0) cast(rows);
  }
}

void write_narrow_gradient(SegmentWriter& w, const Plan& plan, const std::string& name, Gemm gemm,
                           const Ref& d, const Ref& in, const Ref& gradient) {
  SegmentWriter& target = w.of_weights();
  const std::string at = name + ".weight_gradient";
  const auto temporary = [&](const std::string& of, DType type) {
    return target.local().add(of, BufferKind::kActivations, type, gradient.count);
  };
  gemm.out = plan.precision.branch();
  gemm.accumulate = false;
  const std::int64_t width = gradient.count / gemm.m;
  const Ref narrow = temporary(at, gemm.out);
  target.compute(at, gemm, {d.view(), in.view()}, {narrow.view()});
  const bool adds = !plan.writes_fresh() && plan.microbatches() > 1;
  const Ref wide = adds ? temporary(at + " in fp32", gradient.dtype) : gradient;
  write_casts(target, name + ".cast_gradient", gemm.columns.parts, width, narrow, wide);
  if (!adds) return;
  target.compute(name + ".accumulate", kernel_of(KernelKind::kAdd, gemm.m, width, gradient.dtype),
                 {gradient.view(), wide.view()}, {gradient.view()});
}

}  // namespace foretrain
