// One operation lifted out of its Program, and small Programs that do nothing but repeat it.
#pragma once

#include <string>
#include <vector>

#include "hardware/profile.h"
#include "sim/program/program.h"

namespace foretrain {

/// An op with buffers of its own that lie as its operands did. Views are of frame 0.
struct MicroOp {
  SampleKey key;
  Work work;
  Op op;
  std::vector<Buffer> buffers;
  Batch batch;
  Bytes bytes() const;
};

/// The distinct operations of a Workload, each once, that take time of their own; `ranks` of the
/// keys is that of the Workload, or of the group of a collective.
std::vector<MicroOp> distinct_ops(const Workload& workload);

/// Refuses collectives of groups that `ranks` ranks do not divide into: all ranks measure at once,
/// each in a group of that size.
Status check_measurable(const std::vector<MicroOp>& ops, std::int64_t ranks);

/// A GEMM of its own, of its types; a batch lies one product after another.
MicroOp micro_gemm(const Gemm& work, std::int64_t ranks);
/// Attention over whole sequences of a rank of its own, that saves log-sum-exps.
MicroOp micro_attention(const Attention& work);
/// The same by cuDNN, of which the parts of heads and sequences that a rank has tell nothing;
/// whether cuDNN's graphs have it.
Attention cudnn_twin(const Attention& work);
bool cudnn_attends(const Attention& work);
/// A collective over `ranks` ranks, out of place; a message.
MicroOp micro_collective(CollectiveKind kind, std::int64_t count, std::int64_t ranks,
                         DType type = DType::kFp32);
MicroOp micro_message(Bytes bytes);

/// Ranks, groups and channels of all micro workloads of that many ranks, without Programs: groups
/// of every size that divides `ranks`, channels from even ranks to the next.
Workload micro_ranks(std::int64_t ranks);

/// Every rank runs the op `repeats` times on one stream, turning through `sets` sets of buffers.
/// Messages go from even ranks to the next.
Workload micro_workload(const MicroOp& op, std::int64_t ranks, std::int64_t sets,
                        std::int64_t repeats);

/// Two streams hand an op that does next to nothing back and forth.
Workload event_workload(std::int64_t ranks, std::int64_t repeats);
/// The same op on one stream.
Workload dispatch_workload(std::int64_t ranks, std::int64_t repeats);

}  // namespace foretrain
