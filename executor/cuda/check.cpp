// What devices refuse, found before anything starts.
#include <algorithm>
#include <array>
#include <string>
#include <string_view>

#include "executor/cuda/device.h"
#include "executor/cuda/flash_kernels.h"
#include "executor/executable.h"
#include "executor/task_list.h"

namespace foretrain {
namespace {

/// The types that a kernel's operands must have, by letter; the last one repeats. w: the work type,
/// g: of gradients (the work type or fp32), ?: w, or an operand that is written too, f: fp32,
/// i: ids, m: a mask, *: any real type. A kernel of several forms has several.
struct Pattern {
  KernelKind kind;
  std::string_view reads, writes;
};
constexpr std::array kPatterns = {
    Pattern{KernelKind::kEmbedding, "wi", "w"},
    Pattern{KernelKind::kEmbeddingBackward, "wi?", "g"},
    Pattern{KernelKind::kLayerNorm, "w", "wf"},
    Pattern{KernelKind::kLayerNormBackward, "wwfw?", "wg"},
    Pattern{KernelKind::kRmsNorm, "w", "wf"},
    Pattern{KernelKind::kRmsNormBackward, "wwfw?", "wg"},
    // Of cut columns, with their sums.
    Pattern{KernelKind::kLayerNorm, "wwwf", "wf"},
    Pattern{KernelKind::kLayerNorm, "wwf", "wf"},
    Pattern{KernelKind::kLayerNormBackward, "wwfwfw?", "wg"},
    Pattern{KernelKind::kLayerNormBackward, "wwfwf?", "wg"},
    Pattern{KernelKind::kRmsNorm, "wwf", "wf"},
    Pattern{KernelKind::kRmsNormBackward, "wwfwfw?", "wg"},
    Pattern{KernelKind::kRmsNormBackward, "wwfwf?", "wg"},
    Pattern{KernelKind::kNormSums, "w", "f"},
    Pattern{KernelKind::kNormGradientSums, "wwfw", "f"},
    Pattern{KernelKind::kRope, "w", "w"},
    Pattern{KernelKind::kRopeBackward, "w", "w"},
    Pattern{KernelKind::kGelu, "w", "w"},
    Pattern{KernelKind::kGeluBackward, "w", "w"},
    Pattern{KernelKind::kSwiglu, "wf", "w"},
    Pattern{KernelKind::kSwigluBackward, "wwf", "wf"},
    Pattern{KernelKind::kRelu, "w", "w"},
    Pattern{KernelKind::kReluBackward, "w", "w"},
    Pattern{KernelKind::kRelu2, "w", "w"},
    Pattern{KernelKind::kRelu2Backward, "w", "w"},
    Pattern{KernelKind::kResidualAdd, "w", "wm"},
    Pattern{KernelKind::kResidualAddBackward, "wm", "w"},
    Pattern{KernelKind::kDropout, "w", "wm"},
    Pattern{KernelKind::kAdd, "*", "*"},
    Pattern{KernelKind::kPositionsAdd, "w", "w"},
    Pattern{KernelKind::kPositionsGrad, "w?", "g"},
    Pattern{KernelKind::kBiasAdd, "w", "w"},
    Pattern{KernelKind::kBiasGrad, "w?", "g"},
    Pattern{KernelKind::kLossMax, "w", "f"},
    Pattern{KernelKind::kLossSumExp, "wfi", "f"},
    Pattern{KernelKind::kLossMean, "f", "f"},
    Pattern{KernelKind::kLossShift, "ffffi", "f"},
    Pattern{KernelKind::kLossInput, "wwf", "w"},
    Pattern{KernelKind::kLossBackward, "ffi", "*"},
    Pattern{KernelKind::kFill, "", "*"},
    Pattern{KernelKind::kCast, "*", "*"},
    Pattern{KernelKind::kScale, "wf", "w"},
    Pattern{KernelKind::kSquaredNorm, "*f", "f"},
    Pattern{KernelKind::kRoute, "w", "fm"},
    Pattern{KernelKind::kRouteBackward, "ffm", "*"},
    Pattern{KernelKind::kExpertCounts, "m", "i"},
    // By a routing map, by places of gathered tokens, by order.
    Pattern{KernelKind::kPermute, "wfm", "wf"},
    Pattern{KernelKind::kPermute, "wm", "w"},
    Pattern{KernelKind::kPermute, "wf", "wfi"},
    Pattern{KernelKind::kPermute, "wi", "w"},
    Pattern{KernelKind::kPermute, "wf", "wf"},
    Pattern{KernelKind::kUnpermute, "wfm", "wf"},
    Pattern{KernelKind::kUnpermute, "wm", "w"},
    Pattern{KernelKind::kUnpermute, "wfi", "wf"},
    Pattern{KernelKind::kUnpermute, "wi", "w"},
    Pattern{KernelKind::kUnpermute, "wf", "wf"},
    Pattern{KernelKind::kPackKeys, "w", "w"},
    Pattern{KernelKind::kUnpackKeys, "w", "w"},
    Pattern{KernelKind::kAddQueries, "w", "w"},
    Pattern{KernelKind::kMergeAttention, "wfwf", "wf"},
    Pattern{KernelKind::kSplitHeads, "w", "w"},
    Pattern{KernelKind::kJoinHeads, "w", "w"},
    Pattern{KernelKind::kSplitSequence, "w", "w"},
    Pattern{KernelKind::kJoinSequence, "w", "w"},
};

/// Types and places of an op's operands; a call that runs the op tells which frames they are in.
class OpTypes {
 public:
  OpTypes(const Program& program, const Call& call, const Op& op)
      : x_program(program), x_call(call), x_op(op) {}

  DType of(const View& view) const { return buffer(view).dtype; }
  const Buffer& buffer(const View& view) const {
    const FrameId id = x_call.frames[static_cast<std::size_t>(view.frame)];
    const Frame& frame = x_program.frames[id.index()];
    const Frame& home = frame.alias_of.valid() ? x_program.frames[frame.alias_of.index()] : frame;
    const auto at =
        static_cast<std::size_t>(frame.alias_of.valid() ? frame.alias_buffer : view.buffer);
    return x_program.layouts[home.layout.index()].buffers[at];
  }
  bool on_device() const {
    const auto there = [this](const View& view) {
      return view.bytes == 0 || buffer(view).memory == Memory::kDevice;
    };
    return std::all_of(x_op.reads.begin(), x_op.reads.end(), there) &&
           std::all_of(x_op.writes.begin(), x_op.writes.end(), there);
  }
  bool fits(const Pattern& pattern) const {
    const DType work = stored_as(of(x_op.reads.empty() ? x_op.writes[0] : x_op.reads[0]));
    return fit(x_op.reads, pattern.reads, work) && fit(x_op.writes, pattern.writes, work);
  }

 private:
  static DType stored_as(DType type) { return type == DType::kTf32 ? DType::kFp32 : type; }

  bool fit(const std::vector<View>& views, std::string_view letters, DType work) const {
    for (std::size_t i = 0; i < views.size(); ++i) {
      if (views[i].bytes == 0) continue;  // stands for memory that is held, not for an operand
      if (letters.empty()) return false;
      if (!fit(views[i], letters[std::min(i, letters.size() - 1)], work)) return false;
    }
    return true;
  }
  bool fit(const View& view, char letter, DType work) const {
    const DType type = stored_as(of(view));
    switch (letter) {
      case 'w':
        return is_real(type) && type == work;
      case 'g':
        return is_real(type) && (type == work || type == DType::kFp32);
      case '?':
        return type == work ||
               std::find(x_op.writes.begin(), x_op.writes.end(), view) != x_op.writes.end();
      case 'f':
        return type == DType::kFp32;
      case 'i':
        return type == DType::kInt64;
      case 'm':
        return type == DType::kUint8;
      default:
        return is_real(type);
    }
  }

  const Program& x_program;
  const Call& x_call;
  const Op& x_op;
};

bool gemm_fits(const Gemm& w, const Op& op, const OpTypes& types) {
  const auto bits = [](DType type) { return type == DType::kTf32 ? DType::kFp32 : type; };
  const DType in = bits(types.of(op.reads[0]));
  const DType out = bits(types.of(op.writes[0]));
  const bool same = is_real(in) && in == bits(types.of(op.reads[1])) && in == bits(w.in);
  for (std::size_t i = 2; i < op.reads.size(); ++i) {
    if (bits(types.of(op.reads[i])) != out) return false;
  }
  return same && (out == in || out == DType::kFp32);
}

bool kernel_fits(const Kernel& w, const Op& op, const OpTypes& types) {
  if (w.kind == KernelKind::kAdam) {
    // gradients, [weights], momentum, variance, [master] -> weights, momentum, variance, [master]
    return types.fits({w.kind, "*", "*"}) &&
           types.fits({w.kind, "*", op.writes.size() > 3 ? "*fff" : "*ff"});
  }
  if (w.kind == KernelKind::kRmsNormBackward && op.writes.size() == 3) {
    return types.fits({w.kind, "wwww?", "wg"});  // of heads
  }
  if (w.kind == KernelKind::kRmsNorm && op.writes.size() == 1)
    return types.fits({w.kind, "w", "w"});
  return std::any_of(kPatterns.begin(), kPatterns.end(), [&](const Pattern& pattern) {
    return pattern.kind == w.kind && types.fits(pattern);
  });
}

/// What its graph describes.
Status check_cudnn(const Attention& w, const Op& op) {
  const auto refused = [&op](const std::string& why) {
    return unsupported("the CUDA backend's cuDNN attention takes " + why + " (" + op.name +
                       "): set kernels.attention to flash or unfused");
  };
  if (w.dtype != DType::kBf16 && w.dtype != DType::kFp16) return refused("bf16 and fp16 only");
  if (w.head_dim % 8 != 0 || w.head_dim > 128 || w.value_width() != w.head_dim) {
    return refused("heads of a multiple of 8 up to 128, not " + std::to_string(w.head_dim));
  }
  if (w.window > 0 || w.alibi || w.dropout > 0) {
    return refused("neither windows nor ALiBi nor dropout");
  }
  if (w.q_len != w.kv_len) return refused("as many keys as queries only");
  return ok_status();
}

/// Forms of kernels that the host has and the device does not.
const char* form_without_kernel(const Kernel& w, const Op& op) {
  const bool loss = w.kind >= KernelKind::kLossMax && w.kind <= KernelKind::kLossBackward;
  if (loss && w.value > 0) return "it has no soft caps of logits";
  const bool turns = w.kind == KernelKind::kRope || w.kind == KernelKind::kRopeBackward;
  if (turns && !(op.reads[0] == op.writes[0])) return "it turns heads in place";
  const bool gated = w.kind == KernelKind::kSwiglu || w.kind == KernelKind::kSwigluBackward;
  const std::size_t gate = w.kind == KernelKind::kSwiglu ? 0 : 1;
  if (gated && op.reads[gate].bytes == bytes_of(w.dtype, w.rows * w.cols)) {
    return "it has no gated activation whose halves lie apart";
  }
  const bool alone =
      (w.kind >= KernelKind::kGelu && w.kind <= KernelKind::kRelu2Backward) && !gated;
  if (alone && op.name.starts_with("moe.experts.")) return "it has no experts without gates";
  const bool norm = w.kind == KernelKind::kLayerNorm || w.kind == KernelKind::kRmsNorm ||
                    w.kind == KernelKind::kLayerNormBackward ||
                    w.kind == KernelKind::kRmsNormBackward;
  const Bytes width = bytes_of(w.dtype, w.cols);
  const bool weighs = std::any_of(op.reads.begin() + 1, op.reads.end(),
                                  [width](const View& read) { return read.bytes == width; });
  if (norm && !weighs) return "it has no norms without weights or with weights of each head";
  return nullptr;
}

Status check_attention(const Attention& w, const Op& op) {
  if (w.score.sinks || w.score.cap > 0) {
    return unsupported("the CUDA backend has no attention with sinks or soft caps (" + op.name +
                       "): execute on the host backend");
  }
  if (!w.documents.empty()) {
    return unsupported("the CUDA backend attends to whole sequences (" + op.name +
                       "): leave batch.documents out, or execute on the host backend");
  }
  const bool cut = w.part != ContextPart::kWhole && w.part != ContextPart::kHeads;
  if (cut && w.kernel != AttentionKernel::kFlash) {
    return unsupported("the CUDA backend attends over parts of sequences with its own kernel (" +
                       op.name + "): set kernels.attention to flash, or kernels.context to " +
                       "alltoall");
  }
  if (w.kernel == AttentionKernel::kUnfused) return ok_status();
  if (w.kernel == AttentionKernel::kCudnn) return check_cudnn(w, op);
  if (w.kernel != AttentionKernel::kFlash) {
    return unsupported("the CUDA backend has no " + std::string(name_of(w.kernel)) +
                       " attention: set kernels.attention to flash (its own), cudnn or unfused");
  }
  if (w.head_dim > device::kWidestHead) {
    return unsupported("the CUDA backend's flash attention takes heads of up to " +
                       std::to_string(device::kWidestHead) + ", " + op.name + " has " +
                       std::to_string(w.head_dim) + ": set kernels.attention to unfused");
  }
  return ok_status();
}

Status check_op(const Program& program, const Call& call, const Op& op) {
  const Work& work = program.works[op.work.index()];
  const auto refused = [&](const std::string& why) {
    return unsupported("the CUDA backend cannot execute " + op.name + " (" + text_of(work) +
                       "): " + why);
  };
  const OpTypes types(program, call, op);
  const auto* opaque = std::get_if<Opaque>(&work);
  const bool of_host = opaque != nullptr && opaque->where == Memory::kHost;
  if (!of_host && !std::holds_alternative<Copy>(work) && !types.on_device()) {
    return refused("it reads or writes memory of the host");
  }
  if (std::holds_alternative<Scan>(work)) return refused("it has no kernel for scans");
  if (const auto* attention = std::get_if<Attention>(&work)) return check_attention(*attention, op);
  if (const auto* gemm = std::get_if<Gemm>(&work)) {
    if (!gemm->columns.blocks.empty())
      return refused("it has no product whose columns lie in blocks");
    if (!gemm->accumulate && op.reads.size() > (gemm->batch > 1 ? 2U : 3U)) {
      return refused("it has no biases of experts");
    }
    if (!gemm_fits(*gemm, op, types)) return refused("no product of these types");
  } else if (const Kernel* const kernel = kernel_in(work)) {
    if (const char* why = form_without_kernel(*kernel, op); why != nullptr) return refused(why);
    if (!kernel_fits(*kernel, op, types)) return refused("no kernel for these types");
  }
  return ok_status();
}

Status check_storage_types(const Program& program) {
  for (const FrameLayout& layout : program.layouts) {
    for (const Buffer& buffer : layout.buffers) {
      const DType t = buffer.dtype;
      if (is_real(t) || t == DType::kInt64 || t == DType::kUint8) continue;
      return unsupported("the CUDA backend computes in fp32, tf32, bf16 and fp16; buffer " +
                         layout.name + "." + buffer.name + " is " + std::string(name_of(t)) +
                         ": set precision to one of these");
    }
  }
  return ok_status();
}

}  // namespace

Status check_device_executable(const Workload& workload) {
  for (const Program& program : workload.programs) {
    FT_TRY(check_storage_types(program));
    if (!program.batch.contiguous) continue;
    return unsupported(
        "the CUDA backend has no ring self-attention: set kernels.context to another exchange, or "
        "execute on the host backend");
  }
  FT_TRY(check_written_down(workload, "CUDA backend"));
  for (const Program& program : workload.programs) {
    for (const Call& call : program.calls) {
      for (const Op& op : program.segments[call.segment.index()].ops) {
        FT_TRY(check_op(program, call, op));
      }
    }
  }
  return ok_status();
}

}  // namespace foretrain
