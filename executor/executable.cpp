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
      Refused{"beside.in.", "attention and a state space side by side"},
      Refused{"predict1.", "multi-token prediction"},
      Refused{" of shape ", "layers of several shapes"},
      Refused{"moe.latent.", "experts in a latent space"},
      Refused{"moe.router.input_scale", "a router that scales"},
      Refused{"mlp.activation.", "activations with weights"},
      Refused{"embedding.layers", "embeddings of every layer"},
      Refused{"head.transform", "a transform before the output matrix"},
      Refused{"head.classes", "a head of classes"},
      Refused{"head.narrow", "tables narrower than the hidden width"},
      Refused{"embedding.widen", "tables narrower than the hidden width"},
      Refused{"embedding.patches", "patches of images"},
      Refused{"shared1.", "a block that several layers share"},
  };
  for (const Tensor& tensor : program.tensors) {
    for (const Refused& refused : kRefused) {
      if (tensor.name.find(refused.name) == std::string::npos) continue;
      return unsupported("the " + backend + " cannot execute " + std::string(refused.why) +
                         " (parameter " + tensor.name + "): only simulated");
    }
    if (program.batch.context.valid() && tensor.name.find("attention.sinks") != std::string::npos) {
      return unsupported("the " + backend + " cannot execute attention sinks (parameter " +
                         tensor.name + ") over parts of sequences: set parallel.context to 1");
    }
  }
  return ok_status();
}

/// Biases of experts whose matrices are cut: each part's product would add them.
Status check_expert_biases(const Workload& workload, std::size_t p, const std::string& backend) {
  const Program& program = workload.programs[p];
  const bool has = std::any_of(program.tensors.begin(), program.tensors.end(), [](const Tensor& t) {
    return t.name.find("moe.experts.down.bias") != std::string::npos;
  });
  const auto slot =
      std::find(program.group_slots.begin(), program.group_slots.end(), "expert tensor");
  if (!has || slot == program.group_slots.end()) return ok_status();
  const auto index = static_cast<std::size_t>(slot - program.group_slots.begin());
  const bool cut =
      std::any_of(workload.ranks.begin(), workload.ranks.end(), [&](const RankBinding& rank) {
        return rank.program.index() == p && workload.groups[rank.groups[index].index()].size() > 1;
      });
  if (!cut) return ok_status();
  return unsupported("the " + backend + " cannot execute biases of experts whose matrices are " +
                     "cut: set parallel.expert_tensor to 1");
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

/// From kBatchNorm on, what is written down completely.
bool is_executed(KernelKind kind) {
  return (kind >= KernelKind::kCausalConv && kind <= KernelKind::kRepeatHeadsBackward) ||
         kind < KernelKind::kBatchNorm;
}

/// Whether sequences pack documents, which attention alone keeps apart.
bool packs_documents(const Workload& workload) {
  const auto packs = [](const Work& work) {
    const auto* attention = std::get_if<Attention>(&work);
    return attention != nullptr && !attention->documents.empty();
  };
  return std::any_of(workload.programs.begin(), workload.programs.end(),
                     [&](const Program& program) {
                       return std::any_of(program.works.begin(), program.works.end(), packs);
                     });
}

/// Scans, and convolutions over tokens.
Status check_mixer(const Workload& workload, const std::string& backend, const Work& work) {
  const auto* scan = std::get_if<Scan>(&work);
  const auto* kernel = std::get_if<Kernel>(&work);
  const bool convolves = kernel != nullptr && (kernel->kind == KernelKind::kCausalConv ||
                                               kernel->kind == KernelKind::kGatedConv);
  if (scan != nullptr &&
      (scan->rule == ScanRule::kSelective || scan->rule == ScanRule::kChannelDelta)) {
    return refuse(backend, work, "it is only simulated");
  }
  if ((scan == nullptr && !convolves) || !packs_documents(workload)) return ok_status();
  return refuse(backend, work, "it goes on from document to document; leave batch.documents out");
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
  if (std::holds_alternative<Convolution>(work))
    return refuse(backend, work, "it is only simulated");
  FT_TRY(check_mixer(workload, backend, work));
  if (const auto* attention = std::get_if<Attention>(&work)) {
    if (attention->score.cap > 0 && attention->step != AttentionStep::kWhole) {
      return refuse(backend, work, "soft caps in ring self-attention are only simulated");
    }
    if (attention->value_width() != attention->head_dim) {
      return refuse(backend, work, "values of another width than keys are only simulated");
    }
  }
  if (const auto* kernel = std::get_if<Kernel>(&work)) {
    if (!is_executed(kernel->kind)) return refuse(backend, work, "it is only simulated");
    return check_kernel(backend, *kernel, tokens_in_a_row(workload, program, kernel->rows));
  }
  return ok_status();
}

/// What an operation means by its operands, where no kernel does what they say.
Status check_operands(const std::string& backend, const Op& op, const Work& work) {
  if (const auto* gemm = std::get_if<Gemm>(&work);
      gemm != nullptr && !gemm->columns.blocks.empty()) {
    if (!gemm->accumulate && op.reads.size() > 2) {
      return refuse(backend, work, op.name + ": biases of a mixer's linears are only simulated");
    }
    const auto in_part = [](const View& view) { return view.shards > 1; };
    if (std::any_of(op.reads.begin(), op.reads.end(), in_part) ||
        std::any_of(op.writes.begin(), op.writes.end(), in_part)) {
      return refuse(backend, work,
                    op.name +
                        ": packed inputs in parts are only simulated; set overlap.tensor to "
                        "false");
    }
  }
  const auto* kernel = std::get_if<Kernel>(&work);
  if (kernel == nullptr) return ok_status();
  const bool turns = kernel->kind == KernelKind::kRope || kernel->kind == KernelKind::kRopeBackward;
  if ((turns || (kernel->kind == KernelKind::kCast && op.name.starts_with("attention.heads"))) &&
      op.reads[0].bytes != op.writes[0].bytes) {
    return refuse(backend, work, op.name + ": values that are the keys are only simulated");
  }
  const bool norm =
      kernel->kind == KernelKind::kRmsNorm || kernel->kind == KernelKind::kRmsNormBackward;
  if (norm && kernel->value > 0) {
    return refuse(backend, work,
                  op.name + ": norms of all heads of a token at once are only simulated");
  }
  if (kernel->kind == KernelKind::kLossShift && kernel->value > 0) {
    return refuse(backend, work,
                  op.name +
                      ": soft caps of logits are only simulated where all stages share the "
                      "vocabulary; set another parallel.schedule");
  }
  return ok_status();
}

Status check_ops(const Program& program, const std::string& backend) {
  for (const Segment& segment : program.segments) {
    for (const Op& op : segment.ops) {
      const Work& work = program.works[op.work.index()];
      FT_TRY(check_operands(backend, op, work));
    }
  }
  return ok_status();
}

}  // namespace

Status check_written_down(const Workload& workload, const std::string& backend) {
  for (std::size_t p = 0; p < workload.programs.size(); ++p) {
    const Program& program = workload.programs[p];
    FT_TRY(check_tensors(program, backend));
    FT_TRY(check_expert_biases(workload, p, backend));
    FT_TRY(check_ops(program, backend));
    for (const Work& work : program.works) FT_TRY(check_work(workload, p, backend, work));
  }
  return ok_status();
}

Status check_executable(const Workload& workload) {
  for (const Program& program : workload.programs) FT_TRY(check_types(program));
  return check_written_down(workload, "host backend");
}

}  // namespace foretrain
