// What the host backend refuses, found before anything starts.
#include <array>
#include <string>
#include <string_view>

#include "executor/host_rank.h"

namespace foretrain {
namespace {

Status refuse(const Work& work, const std::string& why) {
  return unsupported("the host backend cannot execute " + text_of(work) + ": " + why);
}

/// fp32, and what indices and masks are stored in.
Status check_types(const Program& program) {
  for (const FrameLayout& layout : program.layouts) {
    for (const Buffer& buffer : layout.buffers) {
      const DType t = buffer.dtype;
      if (t == DType::kFp32 || t == DType::kInt64 || t == DType::kUint8) continue;
      return unsupported("the host backend stores fp32; buffer " + layout.name + "." + buffer.name +
                         " is " + std::string(name_of(t)) + ": set precision to fp32");
    }
  }
  return ok_status();
}

/// Parameters whose operations a Program prices but does not write down completely.
Status check_tensors(const Program& program) {
  struct Refused {
    std::string_view name, why;
  };
  constexpr std::array kRefused = {
      Refused{"attention.sinks", "attention sinks"},
      Refused{"moe.router.bias", "biases of experts"},
      Refused{"predict1.", "multi-token prediction"},
  };
  for (const Tensor& tensor : program.tensors) {
    for (const Refused& refused : kRefused) {
      if (tensor.name.find(refused.name) == std::string::npos) continue;
      return unsupported("the host backend cannot execute " + std::string(refused.why) +
                         " (parameter " + tensor.name + "): only simulated");
    }
  }
  return ok_status();
}

Status check_kernel(const Kernel& work) {
  const ExpertRows& to = work.rows_of;
  if (work.kind < KernelKind::kRoute) return ok_status();
  if (work.kind >= KernelKind::kLatentHeads) {
    return refuse(work, "latent attention is only simulated");
  }
  if (to.experts == 0) return refuse(work, "masked tokens are only simulated");
  if (to.choice == ExpertChoice::kUnknown) {
    return refuse(work,
                  "the sizes of moe.routing natural and of the dispatchers deepep and hybridep "
                  "are expectations; set moe.routing to balanced or capacity, and moe.dispatcher "
                  "to alltoall or allgather");
  }
  if (work.kind == KernelKind::kRoute && to.choice == ExpertChoice::kInTurn &&
      work.rows * to.top_k % to.experts != 0) {
    return refuse(work, "balanced routing shares the " + std::to_string(work.rows) +
                            " tokens of a rank evenly, and " + std::to_string(to.experts) +
                            " experts do not divide " + std::to_string(work.rows) + " x " +
                            std::to_string(to.top_k) +
                            "; choose another sequence or micro batch, or moe.routing capacity");
  }
  return ok_status();
}

Status check_work(const Work& work) {
  if (const auto* opaque = std::get_if<Opaque>(&work)) {
    return unsupported("the host backend cannot execute " + opaque->name +
                       ": the model gives its bytes and FLOPs only");
  }
  if (const auto* kernel = std::get_if<Kernel>(&work)) return check_kernel(*kernel);
  const auto* copy = std::get_if<Copy>(&work);
  if (copy != nullptr && (copy->from == Memory::kStorage || copy->to == Memory::kStorage)) {
    return unsupported("the host backend cannot execute " + text_of(work));
  }
  return ok_status();
}

}  // namespace

Status check_executable(const Workload& workload) {
  for (const Program& program : workload.programs) {
    FT_TRY(check_types(program));
    FT_TRY(check_tensors(program));
    for (const Segment& segment : program.segments) {
      for (const Op& op : segment.ops) {
        if (op.category != Category::kContext) continue;
        return unsupported("the host backend cannot execute context parallelism (" + op.name +
                           "): masks and positions depend on the rank; set parallel.context to 1");
      }
    }
    for (const Work& work : program.works) FT_TRY(check_work(work));
  }
  return ok_status();
}

}  // namespace foretrain
