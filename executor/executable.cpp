// What executors refuse, found before anything starts.
#include "executor/executable.h"

#include <algorithm>
#include <array>
#include <numeric>
#include <string>
#include <string_view>

#include "executor/host_rank.h"

namespace foretrain {
namespace {

Status refuse(const std::string& backend, const Work& work, const std::string& why) {
  return unsupported("the " + backend + " cannot execute " + text_of(work) + ": " + why);
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
Status check_tensors(const Program& program, const std::string& backend) {
  struct Refused {
    std::string_view name, why;
  };
  constexpr std::array kRefused = {
      Refused{"attention.sinks", "attention sinks"},
      Refused{"moe.experts.up.bias", "biases of experts"},
      Refused{"predict1.", "multi-token prediction"},
      Refused{" of shape ", "layers of several shapes"},
      Refused{"moe.latent.", "experts in a latent space"},
      Refused{"moe.shared.norm", "an MLP beside experts"},
      Refused{"mlp.activation.", "activations with weights"},
      Refused{"embedding.layers", "embeddings of every layer"},
      Refused{"head.transform", "a transform before the output matrix"},
  };
  for (const Tensor& tensor : program.tensors) {
    for (const Refused& refused : kRefused) {
      if (tensor.name.find(refused.name) == std::string::npos) continue;
      return unsupported("the " + backend + " cannot execute " + std::string(refused.why) +
                         " (parameter " + tensor.name + "): only simulated");
    }
  }
  return ok_status();
}

/// How many of a rank's `rows` tokens at least follow each other in their sequence: fewer where
/// sequences are cut.
std::int64_t tokens_in_a_row(const Workload& workload, std::size_t program, std::int64_t rows) {
  const Batch& batch = workload.programs[program].batch;
  if (!batch.context.valid()) return rows;
  for (const RankBinding& rank : workload.ranks) {
    if (rank.program.index() != program) continue;
    const GroupId group = rank.groups[batch.context.index()];
    const auto members = static_cast<std::int64_t>(workload.groups[group.index()].size());
    const std::int64_t chunks = batch.contiguous ? members : 2 * members;
    if (batch.documents.empty()) return std::gcd(rows, batch.length / chunks);
    std::int64_t out = rows;
    for (const std::int64_t document : batch.documents) out = std::gcd(out, document / chunks);
    return out;
  }
  return rows;
}

Status check_kernel(const std::string& backend, const Kernel& work, std::int64_t in_a_row) {
  const ExpertRows& to = work.rows_of;
  if (work.kind < KernelKind::kRoute || work.kind >= KernelKind::kPackKeys) return ok_status();
  if (work.kind >= KernelKind::kLatentHeads) {
    return refuse(backend, work, "latent attention is only simulated");
  }
  if (to.experts == 0) return refuse(backend, work, "masked tokens are only simulated");
  if (to.choice == ExpertChoice::kUnknown) {
    return refuse(backend, work,
                  "the sizes of moe.routing natural and of the dispatchers deepep and hybridep "
                  "are expectations; set moe.routing to balanced or capacity, and moe.dispatcher "
                  "to alltoall or allgather");
  }
  if (work.kind == KernelKind::kRoute && to.choice == ExpertChoice::kInTurn &&
      in_a_row * to.top_k % to.experts != 0) {
    return refuse(backend, work,
                  "balanced routing shares every " + std::to_string(in_a_row) +
                      " tokens of a rank evenly, and " + std::to_string(to.experts) +
                      " experts do not divide " + std::to_string(in_a_row) + " x " +
                      std::to_string(to.top_k) +
                      "; choose another sequence or micro batch, or moe.routing capacity");
  }
  return ok_status();
}

Status check_work(const Workload& workload, std::size_t program, const std::string& backend,
                  const Work& work) {
  if (const auto* opaque = std::get_if<Opaque>(&work); opaque != nullptr && !opaque->kernel) {
    return unsupported(
        "the " + backend + " cannot execute " + opaque->name + ": only its bytes and " +
        "FLOPs are known (layers given as numbers, optimizers other than Adam, " +
        "compression, gather_dtype int8 and fp8, reduce_dtype int4, offload.delayed_update, "
        "overlap.post_validation)");
  }
  if (std::holds_alternative<Convolution>(work) || std::holds_alternative<Scan>(work))
    return refuse(backend, work, "it is only simulated");
  if (const auto* kernel = std::get_if<Kernel>(&work)) {
    if (kernel->kind >= KernelKind::kBatchNorm)
      return refuse(backend, work, "it is only simulated");
    return check_kernel(backend, *kernel, tokens_in_a_row(workload, program, kernel->rows));
  }
  return ok_status();
}

/// A norm whose rows share one weight of a row's width; of others no kernel is written.
bool has_one_weight(const Kernel& norm, const Op& op) {
  const Bytes width = bytes_of(norm.dtype, norm.cols);
  return std::any_of(op.reads.begin() + 1, op.reads.end(),
                     [width](const View& read) { return read.bytes == width; });
}

Status check_norms(const Program& program, const std::string& backend) {
  for (const Segment& segment : program.segments) {
    for (const Op& op : segment.ops) {
      const Work& work = program.works[op.work.index()];
      const auto* kernel = std::get_if<Kernel>(&work);
      const bool norm = kernel != nullptr && (kernel->kind == KernelKind::kRmsNorm ||
                                              kernel->kind == KernelKind::kLayerNorm);
      if (!norm || op.reads.empty() || has_one_weight(*kernel, op)) continue;
      return refuse(backend, work,
                    op.name +
                        ": norms without weights, or with weights of each head, are only "
                        "simulated");
    }
  }
  return ok_status();
}

}  // namespace

Status check_written_down(const Workload& workload, const std::string& backend) {
  for (std::size_t p = 0; p < workload.programs.size(); ++p) {
    const Program& program = workload.programs[p];
    FT_TRY(check_tensors(program, backend));
    FT_TRY(check_norms(program, backend));
    for (const Work& work : program.works) FT_TRY(check_work(workload, p, backend, work));
  }
  return ok_status();
}

Status check_executable(const Workload& workload) {
  for (const Program& program : workload.programs) FT_TRY(check_types(program));
  return check_written_down(workload, "host backend");
}

}  // namespace foretrain
