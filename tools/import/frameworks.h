// What each framework makes of its settings beyond a table's rows: a file each.
#pragma once

#include "tools/import/draft.h"
#include "tools/import/shell.h"
#include "tools/import/table.h"

namespace foretrain {

struct FinishContext {
  const Table& table;
  std::int64_t accelerators = 1;  ///< the world size
  bool has_config = false;        ///< a config.json says what the model is
};

/// From facts `job.*` and `model.*` to keys of a RUN. A preset that a name of the framework stands
/// for goes to `job.preset`.
Status finish_megatron(const FinishContext& context, Draft& draft);
Status finish_megatron_deepspeed(const FinishContext& context, Draft& draft);
Status finish_torchtitan(const FinishContext& context, Draft& draft);
Status finish_deepspeed(const FinishContext& context, Draft& draft);
Status finish_accelerate(const FinishContext& context, Draft& draft);
Status finish_maxtext(const FinishContext& context, Draft& draft);
Status finish_composer(const FinishContext& context, Draft& draft);

/// Finds the configuration of DeepSpeed's engine: in a file of the launch, whose settings are the
/// first `documented`, or in what the script writes; and says where it stands beside Megatron's
/// arguments.
void find_engine(const Shell& shell, const std::string& script, std::size_t documented,
                 Launch& launch);
/// What that configuration says, which goes before the arguments.
Status apply_engine(const Launch& launch, Draft& draft);
/// What follows from several of DeepSpeed's settings, batches and offloading among them.
void finish_engine(const FinishContext& context, Draft& draft);

/// Ranks that the degrees of MaxText's mesh make, as `job.world`; nothing where they are open.
void count_mesh(Draft& draft);

/// Ranks that have the same part of a model, of `accelerators`.
std::int64_t data_ranks(const Draft& draft, std::int64_t accelerators);

/// What PyTorch's ShardingStrategy means: `job.strategy` of full, gradients, none, hybrid.
void conclude_strategy(Draft& draft);

/// The preset that a framework's name of a model stands for, in its table's `models`.
Status conclude_preset(const FinishContext& context, const std::string& name, Draft& draft);

}  // namespace foretrain
