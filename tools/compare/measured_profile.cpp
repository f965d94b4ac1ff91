// Kernels of a trace as samples of a profile.
#include <algorithm>
#include <cmath>
#include <map>
#include <utility>

#include "hardware/presets.h"
#include "tools/compare/comparison.h"

namespace foretrain {
namespace {

constexpr const char* kTracedLibrary = "PyTorch, as traced";

using Dims = std::vector<std::int64_t>;

/// Lists of whole numbers, one for each operand.
std::vector<Dims> lists_of(const std::string& text) {
  std::vector<Dims> out;
  const Result<Json> json = parse_json(text, "shapes");
  if (!json.ok() || json.value().array() == nullptr) return out;
  for (const Json& operand : *json.value().array()) {
    Dims& dims = out.emplace_back();
    if (operand.array() == nullptr) continue;
    for (const Json& size : *operand.array()) {
      const auto* number = std::get_if<std::int64_t>(&size.value);
      dims.push_back(number == nullptr ? 0 : *number);
    }
  }
  return out;
}

std::vector<std::string> texts_of(const std::string& text) {
  std::vector<std::string> out;
  const Result<Json> json = parse_json(text, "types");
  if (!json.ok() || json.value().array() == nullptr) return out;
  for (const Json& one : *json.value().array()) {
    out.push_back(one.string() != nullptr ? *one.string() : std::string());
  }
  return out;
}

std::optional<DType> dtype_of(const std::string& text, const std::string& kernel) {
  if (text.find("BFloat16") != std::string::npos) return DType::kBf16;
  if (text.find("Half") != std::string::npos) return DType::kFp16;
  if (text != "float") return std::nullopt;
  // Kernels for tensor cores that take fp32 operands multiply in tf32.
  const bool tf32 =
      kernel.find("tf32") != std::string::npos || kernel.find("s1688gemm") != std::string::npos;
  return tf32 ? DType::kTf32 : DType::kFp32;
}

bool in_range(const Dims& dims) {
  constexpr std::int64_t kLargest = std::int64_t{1} << 40;
  return std::all_of(dims.begin(), dims.end(),
                     [](std::int64_t size) { return size > 0 && size <= kLargest; });
}

/// Which operands of a product stand transposed. cuBLAS' letters are of its column-major view: the
/// first is B's here, the second A's.
std::optional<std::pair<bool, bool>> layout_of(const LaunchDetail& detail, std::size_t first,
                                               const std::string& kernel) {
  const std::vector<Dims> strides = lists_of(detail.strides);
  if (strides.size() >= first + 2) {
    const auto transposed = [&strides](std::size_t i) -> std::optional<bool> {
      const Dims& s = strides[i];
      if (s.size() < 2) return std::nullopt;
      if (s.back() == 1) return false;
      return s[s.size() - 2] == 1 ? std::optional(true) : std::nullopt;
    };
    const std::optional<bool> a = transposed(first);
    const std::optional<bool> b = transposed(first + 1);
    if (a && b) return std::pair(*a, *b);
  }
  const std::pair<const char*, std::pair<bool, bool>> letters[] = {
      {"tn", {false, true}}, {"nn", {false, false}}, {"nt", {true, false}}, {"tt", {true, true}}};
  for (const auto& [letter, layout] : letters) {
    const std::string word = std::string("_") + letter;
    const std::size_t at = kernel.find(word);
    if (at == std::string::npos) continue;
    const std::size_t after = at + word.size();
    if (after == kernel.size() || kernel[after] == '_' || kernel[after] == '(') return layout;
  }
  return std::nullopt;
}

/// aten::mm, addmm, bmm, baddbmm.
std::optional<Work> product_of(const LaunchDetail& detail, const std::string& kernel) {
  const bool adds = detail.op == "aten::addmm" || detail.op == "aten::baddbmm";
  const bool batched = detail.op == "aten::bmm" || detail.op == "aten::baddbmm";
  if (!adds && !batched && detail.op != "aten::mm") return std::nullopt;
  const std::size_t first = adds ? 1 : 0;
  const std::vector<Dims> dims = lists_of(detail.dims);
  const std::vector<std::string> types = texts_of(detail.types);
  if (dims.size() < first + 2 || types.size() < first + 2) return std::nullopt;
  const Dims& a = dims[first];
  const Dims& b = dims[first + 1];
  const std::size_t rank = batched ? 3 : 2;
  if (a.size() != rank || b.size() != rank || !in_range(a) || !in_range(b)) return std::nullopt;
  const std::optional<DType> dtype = dtype_of(types[first], kernel);
  const auto layout = layout_of(detail, first, kernel);
  if (!dtype || !layout || a.back() != b[rank - 2]) return std::nullopt;
  Gemm out;
  out.m = a[rank - 2];
  out.k = a.back();
  out.n = b.back();
  out.batch = batched ? a.front() : 1;
  out.transpose_a = layout->first;
  out.transpose_b = layout->second;
  out.in = *dtype;
  out.out = *dtype == DType::kTf32 ? DType::kFp32 : *dtype;
  return Work{out};
}

struct AttentionForm {
  const char* op;
  std::size_t query;   ///< which operand; key and value follow
  std::size_t causal;  ///< which argument says so
  bool heads_first;    ///< [batch, heads, length, head], else [batch, length, heads, head]
  bool backward;
  AttentionKernel kernel;
};

/// Arguments: aten/src/ATen/native/native_functions.yaml of PyTorch 2.5.
constexpr AttentionForm kForms[] = {
    {"aten::_flash_attention_forward", 0, 8, false, false, AttentionKernel::kFlash2},
    {"aten::_flash_attention_backward", 1, 11, false, true, AttentionKernel::kFlash2},
    {"aten::_scaled_dot_product_flash_attention", 0, 4, true, false, AttentionKernel::kFlash2},
    {"aten::_scaled_dot_product_flash_attention_backward", 1, 11, true, true,
     AttentionKernel::kFlash2},
    {"aten::_scaled_dot_product_cudnn_attention", 0, 6, true, false, AttentionKernel::kCudnn},
    {"aten::_scaled_dot_product_cudnn_attention_backward", 1, 14, true, true,
     AttentionKernel::kCudnn},
};

std::optional<Work> attention_of(const LaunchDetail& detail, const std::string& kernel) {
  for (const AttentionForm& form : kForms) {
    if (detail.op != form.op) continue;
    const std::vector<Dims> dims = lists_of(detail.dims);
    const std::vector<std::string> types = texts_of(detail.types);
    const std::vector<std::string> values = texts_of(detail.concrete);
    if (dims.size() < form.query + 3 || types.size() <= form.query) return std::nullopt;
    if (values.size() <= form.causal) return std::nullopt;
    const Dims& q = dims[form.query];
    const Dims& k = dims[form.query + 1];
    const Dims& v = dims[form.query + 2];
    if (q.size() != 4 || k.size() != 4 || v.size() != 4) return std::nullopt;
    if (!in_range(q) || !in_range(k) || !in_range(v)) return std::nullopt;
    const std::optional<DType> dtype = dtype_of(types[form.query], kernel);
    if (!dtype) return std::nullopt;
    const std::size_t heads = form.heads_first ? 1 : 2;
    const std::size_t length = form.heads_first ? 2 : 1;
    Attention out;
    out.backward = form.backward;
    out.batch = q[0];
    out.q_heads = q[heads];
    out.kv_heads = k[heads];
    out.q_len = q[length];
    out.kv_len = k[length];
    out.head_dim = q[3];
    out.value_dim = v[3] == q[3] ? 0 : v[3];
    out.causal = values[form.causal] == "True" || values[form.causal] == "true";
    out.kernel = form.kernel;
    out.dtype = *dtype;
    return Work{out};
  }
  return std::nullopt;
}

/// Microseconds of every call of one shape.
struct Calls {
  Work work;
  DType dtype = DType::kBf16;
  std::vector<double> us;
};

double at_share(const std::vector<double>& sorted, double share) {
  const auto last = static_cast<double>(sorted.size() - 1);
  return sorted[static_cast<std::size_t>(std::lround(last * share))];
}

Sample sample_of(SampleKey key, Calls calls) {
  std::sort(calls.us.begin(), calls.us.end());
  Sample out;
  if (key.by == Maker::kOwn) key.by = Maker::kFramework;
  out.key = std::move(key);
  out.dtype = name_of(calls.dtype);
  out.library = kTracedLibrary;
  out.size = sample_size(calls.work);
  out.count = std::ssize(calls.us);
  out.median_us = at_share(calls.us, 0.5);
  out.p10_us = at_share(calls.us, 0.1);
  out.p90_us = at_share(calls.us, 0.9);
  double sum = 0;
  double counted = 0;
  for (const double us : calls.us) {
    if (us > 3 * out.median_us) continue;
    sum += us;
    counted += 1;
  }
  out.mean_us = sum / counted;
  return out;
}

/// The calls of one trace; the number of its products and attentions that are none.
std::int64_t add_calls(const ActivityTrace& trace, std::map<SampleKey, Calls>& out) {
  struct Call {
    double us = 0;
    std::int32_t detail = -1;
    std::string kernel;  ///< the longest, which names the layout
    double longest = 0;
  };
  std::map<std::int32_t, Call> calls;
  std::int64_t left_out = 0;
  for (const GpuEvent& event : trace.events) {
    const Family family = trace.names[event.name].of.family;
    if (family != Family::kGemm && family != Family::kAttention) continue;
    if (event.call < 0) {
      ++left_out;
      continue;
    }
    Call& call = calls[event.call];
    const double us = static_cast<double>(event.end - event.begin) * 1e-3;
    call.us += us;
    call.detail = event.detail;
    if (us < call.longest) continue;
    call.longest = us;
    call.kernel = trace.names[event.name].name;
  }
  for (const auto& entry : calls) {
    const Call& call = entry.second;
    const LaunchDetail& detail = trace.details[static_cast<std::size_t>(call.detail)];
    std::optional<Work> work = product_of(detail, call.kernel);
    if (!work) work = attention_of(detail, call.kernel);
    if (!work || call.us <= 0) {
      ++left_out;
      continue;
    }
    const SampleKey key = sample_key(*work, 1);
    const auto* gemm = std::get_if<Gemm>(&*work);
    const DType dtype = gemm != nullptr ? gemm->in : std::get<Attention>(*work).dtype;
    out.try_emplace(key, Calls{*work, dtype, {}}).first->second.us.push_back(call.us);
  }
  return left_out;
}

}  // namespace

Result<MeasuredProfile> profile_of(const Side& side, const std::string& device,
                                   const std::string& command) {
  MeasuredProfile out;
  std::map<SampleKey, Calls> calls;
  for (const ActivityTrace& trace : side.traces) out.left_out += add_calls(trace, calls);
  if (calls.empty()) {
    return input_error("--profile: " + side.source + " has no shapes of products or attention (" +
                       std::to_string(out.left_out) +
                       " kernels of them); profile with record_shapes=True");
  }
  const NamedGpu known = gpu_called(side.device);
  const std::string preset = known.device.empty() ? device : known.device;
  if (preset.empty()) {
    return input_error("--profile: " + side.source + " is of " +
                       (side.device.empty() ? std::string("a device that it does not name")
                                            : "\"" + side.device + "\", which no preset has") +
                       "; compare it with a RUN, whose device is taken");
  }
  for (auto& [key, one] : calls) {
    out.taken += std::ssize(one.us);
    out.profile.add(sample_of(key, std::move(one)));
  }
  Json machine{Json::Object{}};
  machine.set("device", preset);
  machine.set("processor", side.device.empty() ? preset : side.device);
  machine.set("cores", 1);
  machine.set("blas", kTracedLibrary);
  machine.set("date", "as traced");
  machine.set("command", command);
  machine.set("skipped", Json::Array{});
  out.profile.machine = std::move(machine);
  return out;
}

}  // namespace foretrain
