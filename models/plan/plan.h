// How a model is trained: the RUN file without its model and its machine.
#pragma once

#include <cstdint>
#include <numeric>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "models/architecture/model.h"
#include "models/architecture/precision.h"
#include "models/plan/captured.h"
#include "sim/base/json.h"
#include "sim/base/result.h"
#include "sim/cost/host_operations.h"
#include "sim/program/program.h"

namespace foretrain {

/// See models/schedule/schedule.h.
enum class Schedule : std::uint8_t {
  kGpipe,
  k1F1B,
  kInterleaved,
  kZbH1,
  kZbH2,
  kZbV,
  kZbAuto,
  kDualPipe,
  kDualPipeV,
  kChimera,
  kBreadthFirst,
  kSharedVocabulary,
  kVocabulary1,
  kVocabulary2,
  k3F1B,
  kFile,
};

/// Where the chunks of the pipeline stand.
enum class ChunkPlacement : std::uint8_t {
  kRound,  ///< round the stages: chunk c on stage c mod p
  kV,      ///< down the stages and up again: chunks s and 2p - 1 - s on stage s, then as before
  kBidirectional,  ///< one pipeline down and one up: stage s holds chunks s and p - 1 - s of p
};

enum class PassKind : std::uint8_t {
  kForward,
  kBackward,         ///< both gradients
  kInputGradients,   ///< what the stage before waits for
  kWeightGradients,  ///< the rest, at any later time
  kForwardOnly,      ///< nothing is kept: its output comes back to the embedding
  // Where all stages share the vocabulary, on every stage; these stand last.
  kEmbedding,
  kHead,          ///< forward and backward, on all stages at once
  kHeadForward,   ///< S of Vocab-1 and Vocab-2: models/step/passes/spread_vocabulary.cpp
  kHeadBackward,  ///< T
  kEmbeddingGradients,
};
/// One pass of a microbatch through one chunk. `chunk` counts on its stage: `Plan::chunk_at`.
struct Pass {
  std::int32_t chunk = 0;
  std::int32_t microbatch = 0;
  PassKind kind = PassKind::kForward;
  /// It runs as one with the pass behind it: both have their input before the first begins, and
  /// what they send goes when the last is done.
  bool joined = false;
  std::int32_t round = 0;  ///< of a forward pass: how many of this microbatch came before
  bool operator==(const Pass&) const = default;
};

/// Durations of a stage's passes and of a message, for schedules that fit them; memory for zb-auto.
struct AutoSchedule {
  Time forward = Time{1}, input_gradients = Time{1}, weight_gradients = Time{1}, transfer;
  double activations = 0;   ///< of microbatches, the most on a stage; 0 = as many as stages
  double weight_share = 1;  ///< of the activations of a microbatch: what W needs
  bool given = false;       ///< the durations are a RUN's own
  bool operator==(const AutoSchedule&) const = default;
};

/// How tensor-parallel ranks share a linear: models/layers/tensor_grid.h.
enum class TensorMode : std::uint8_t { k1D, k2D, k25D, k3D };
std::string_view name_of(TensorMode mode);

/// How queries meet the keys of other context-parallel ranks: models/layers/context_parts.h.
enum class ContextExchange : std::uint8_t { kRing, kAllGather, kAllToAll, kRingSelf };
/// What is held in parts by the ranks of a shard group: nothing; optimizer states (ZeRO-1);
/// gradients too (ZeRO-2); parameters too (ZeRO-3, FSDP).
enum class Sharding : std::uint8_t { kNone, kOptimizer, kGradients, kParameters };
/// Where the host stops until the device has done what it was given, beside what a Program needs:
/// before forward passes (timers of throughput), when a transfer that blocks has arrived, or around
/// every pass (timers of passes).
enum class HostWaits : std::uint8_t { kNone, kForward, kTransfers, kPasses };
/// When the backward pass issues the gather of the next unit: as it gets there, after the current
/// unit's gradients, before them.
enum class Prefetch : std::uint8_t { kNone, kAfter, kBefore };
/// How a bucket's gradients travel when the optimizer is sharded; kReduce:
/// models/gradients/owners.cpp.
enum class GradientReduction : std::uint8_t { kReduceScatter, kAllReduce, kReduce };

/// How gradients that are not sharded are cut into buckets, from the end of the list.
enum class Bucketing : std::uint8_t {
  kRanges,      ///< equal ranges of elements (Megatron-LM)
  kParameters,  ///< whole parameters until the bucket is full (PyTorch DDP)
  kReady,       ///< whole parameters that one layer's backward pass makes ready (Horovod)
  /// Whole parameters as long as they fit, copied into a buffer: models/gradients/contiguous.cpp.
  kContiguous,
};
/// What travels in place of a bucket's gradients; see models/gradients/compression.cpp.
enum class Compression : std::uint8_t { kNone, kFp16, kBf16, kPowerSgd, kOneBit };

/// How elementwise work is composed: models/layers/kernel_forms.h.
enum class Fusion : std::uint8_t { kFused, kEager, kNorms, kCompiled };
/// One kernel a pass; Megatron-LM's vocabulary-parallel operations; PyTorch's cross_entropy in
/// fp32.
enum class LossForm : std::uint8_t { kFused, kParallel, kTorch };

/// Who brings tokens to their experts; see models/layers/moe_block.h.
enum class Dispatcher : std::uint8_t { kAllGather, kAllToAll, kDeepEp, kHybridEp };
enum class Routing : std::uint8_t {
  kBalanced,  ///< every expert gets the same
  kNatural,   ///< the busiest rank gets `factor` times the mean, and every rank is taken as it
  kCapacity,  ///< every expert gets `factor` times the mean, padded or dropped
};

/// How experts are spread over the ranks of a stage.
struct ExpertPlan {
  std::int64_t expert = 1, tensor = 1;  ///< ranks that share the experts; that cut each of them
  Dispatcher dispatcher = Dispatcher::kAllToAll;
  Routing routing = Routing::kBalanced;
  double factor = 1;
  /// Tokens of each expert over the mean, where a RUN gives them; `factor` is of the busiest rank.
  std::vector<double> load = {};
  std::int64_t least_capacity = 0;
  bool single_kernel = false;  ///< one computes the products of all experts of a rank
  std::int32_t sms = 0;        ///< that fused dispatchers hold
  bool cast_first = false;  ///< tokens, and the gradients of results, travel in the linears' 8 bits
  bool fused_router = false;  ///< one kernel chooses, scales and adds up the auxiliary loss
  bool masks = false;  ///< they are picked by products with masks: models/layers/moe_masks.cpp
  /// One kernel sorts and sends.
  bool fused() const {
    return dispatcher == Dispatcher::kDeepEp || dispatcher == Dispatcher::kHybridEp;
  }
  bool operator==(const ExpertPlan&) const = default;
};

/// What is alike among the chunks of the pipeline: the number of their layers, that of their
/// parameters, the time of their passes, which who knows prices works out (tools/predict/divide.h).
enum class Partition : std::uint8_t { kLayers, kParameters, kProfiled };

/// Which modules' activations are computed again in the backward pass.
struct Recompute {
  bool layer = false, attention = false, norm = false, mlp = false, activation = false;
  /// All but the core of attention, what is scattered over tensor ranks and, in 16 bits and more,
  /// every second product of the layer, the first kept: torchtitan's policy for operations.
  bool operations = false;
  bool moe = false, expert_activation = false, shared_experts = false, latent_up = false;
  /// Of a layer that is computed again: results that stay, and whether it stops at the last that
  /// the backward pass reads.
  bool keep_heads = false, keep_core = false, keep_projection = false, keep_up = false;
  bool early_stop = false;
  /// Parts of the heads and of the MLP's width, one after the other on one device, each computed
  /// again alone: models/layers/co_shard.cpp. Parameters lie by parts.
  std::int64_t parts = 1;
  std::int64_t layers = -1;       ///< first so many layers of every stage; -1 all
  std::int64_t layer_period = 1;  ///< every so many-th layer
  /// So many layers of a chunk are computed again one after the other from the input of the first,
  /// 0: all of it, before any of them goes back: models/step/passes/recompute_blocks.cpp.
  std::int64_t block_layers = 1;
  bool early = false;  ///< the first block of a pass before the gradient is there
  bool any() const {
    return layer || attention || norm || mlp || activation || operations || moe ||
           expert_activation || shared_experts || latent_up || parts > 1;
  }
  bool in_blocks() const { return layer && (block_layers != 1 || early); }
  bool keeps() const { return keep_heads || keep_core || keep_projection || keep_up; }
  bool operator==(const Recompute&) const = default;
};

struct Overlap {
  bool tensor = false;          ///< see docs/plans.md
  bool tensor_backward = true;  ///< collectives of a linear's backward pass beside its GEMMs
  bool pipeline = true, gradient_reduce = false, parameter_gather = false;
  bool expert = false;  ///< shared experts beside the exchanges of tokens
  /// Of the first so many microbatches the output matrix's gradients follow the stage's last pass.
  std::int64_t head_deferral = 0;
  bool passes =
      false;  ///< exchanges of a pass beside another microbatch's: models/emit/interleave.cpp
  /// The gradients' norm goes from stage to stage, which update before it is known: the next step
  /// looks at it. models/step/passes/post_validate.cpp.
  bool post_validation = false;
  /// Parts of a microbatch that take turns in every layer: models/step/passes/slice_microbatch.cpp.
  std::int64_t tensor_slices = 1;
  std::int64_t tensor_streams = 1;   ///< for the products of `tensor`'s parts, by turns
  bool tensor_copy_engines = false;  ///< they move what `tensor` gathers
  bool operator==(const Overlap&) const = default;
};

/// Sharded gradients and parameters. A unit is a run of layers of a chunk; the ends of the chunk
/// are one more, which stays gathered until its backward pass is over.
struct Units {
  std::int64_t layers = 1;          ///< of a unit
  bool reshard = true;              ///< parameters are let go after the forward pass
  bool reshard_last = true;         ///< those of the last unit of a chunk as well
  bool reshard_in_pipeline = true;  ///< else stages gather and reduce once a step
  /// Parameters of at most so many elements stay gathered, but tables and experts; 0 = none.
  std::int64_t persist_elements = 0;
  /// Parameters that the backward pass needs again after fewer others stay gathered; 0 = none.
  std::int64_t reuse_elements = 0;
  std::int64_t inner_group =
      1;  ///< neighbours that gather in a second stage: models/units/levels.cpp
  std::int64_t chunk_elements = 0;   ///< least of what travels at once; 0: a unit (derive_chunks)
  std::int64_t gather_elements = 0;  ///< parameters are cut apart, so many go at once; 0: a unit
  bool forward_prefetch = false;     ///< the next unit's gather is issued before this one's pass
  Prefetch backward_prefetch = Prefetch::kBefore;
  std::int64_t live_elements = 0;      ///< instead of both: of what is gathered ahead; 0 = by them
  std::int64_t gathers_in_flight = 2;  ///< gathered to be let go after a pass; 0 = no limit
  bool narrow_shards = false;          ///< shards in the compute type; else fp32, cast to gather
  bool reduce_each = true;             ///< gradients of every microbatch; else of the last one
  bool reduce_waits = false;           ///< compute goes on when they are reduced
  DType reduce = DType::kFp32;         ///< type in which gradients are reduced
  // ZeRO++ (arXiv 2306.10209), see models/units/quantized.cpp:
  bool quantized_gathers = false;  ///< shards of parameters travel in 8 bits (qwZ)
  bool casts_shards = false;       ///< those of layers in fp8, as their linears read them
  bool copies_out = false;         ///< gathered into an array that compute copies them out of
  std::int64_t secondary = 0;      ///< ranks that share a copy for backward passes (hpZ); 0 = none
  bool quantized_reduction = false;  ///< gradients are exchanged in 4 bits, then summed (qgZ)
  bool operator==(const Units&) const = default;
};

/// What a coordinator's cycle finds ready: so many parts of the backward pass, of which a layer is
/// one, and how long the last of them waits for it.
struct ReadyList {
  std::int64_t parts = 1;
  Time wait;
  bool operator==(const ReadyList&) const = default;
};

/// How gradients that are not sharded travel: models/gradients/buckets.cpp.
struct GradientBuckets {
  Bucketing cut = Bucketing::kRanges;
  Bytes bytes = 0, first_bytes = 0;  ///< of a bucket of whole parameters; of the first one
  bool copy = false;                 ///< gradients are copied into buckets and back
  bool last_pass_only = true;        ///< reduced once a step; else with every microbatch
  bool averages = false;             ///< of units too: a kernel divides them before the reduction
  bool checks = false;               ///< the host looks at the norm of each before it
  std::int64_t inner_group = 1;      ///< all-reduce in groups of so many ranks, then among them
  Compression compression = Compression::kNone;
  std::int64_t rank = 0;  ///< of the factors that PowerSGD sends
  Time cycle;             ///< of a coordinator that lists what is ready; 0 = none
  /// What it lists cycle by cycle, which who knows the times decides (tools/predict/ready_lists.h);
  /// empty: every part in a cycle of its own, half a cycle after it is ready.
  std::vector<ReadyList> lists;
  bool operator==(const GradientBuckets&) const = default;
};

/// The framework's allocator (sim/program/allocator.h).
struct FrameworkMemory {
  bool expandable_segments = false, records_streams = false;
  bool planned = false;  ///< instead, memory is laid out before the step (XLA)
  bool operator==(const FrameworkMemory&) const = default;
};

/// The rule of the update: models/layers/optimizer.h.
enum class Optimizer : std::uint8_t { kAdam, kFusedAdam, kLamb, kAdafactor, kAdam8bit, kSgd };

/// What lives in host memory or storage instead of the device's; see
/// models/emit/host_states.cpp.
struct Offload {
  Memory optimizer = Memory::kDevice;  ///< states, with the gradients that they need
  Memory parameters = Memory::kDevice, activations = Memory::kHost;  ///< shards; what layers keep
  std::int64_t activation_layers = 0;                                ///< first so many of a stage
  bool delayed_update = false;  ///< the host updates beside the next step's passes
  /// Of the layers of a stage the share whose states stay on the device after all, the first ones;
  /// at 1 everything does. kRoom: as many as there is room for, which who knows the device decides.
  double device_share = 0;
  static constexpr double kRoom = -1;
  Bytes page = 0;         ///< states lie in pages of so many bytes; 0: as they come
  bool pageable = false;  ///< the host's memory is not pinned: it waits for every copy
  bool states() const { return optimizer != Memory::kDevice || parameters != Memory::kDevice; }
  /// The host writes new weights over those that it keeps, which no pass reads meanwhile.
  bool in_place() const { return parameters != Memory::kDevice && !delayed_update; }
  bool operator==(const Offload&) const = default;
};

/// What a stage of the pipeline does otherwise than the plan says (`pipeline_stages` of a RUN).
struct StageChoice {
  std::optional<std::int64_t> recompute_layers = {}, activation_layers = {};  ///< first so many
  std::optional<double> device_share = {};  ///< of its layers, whose states stay on the device
  std::optional<Sharding> sharding = {};
  bool operator==(const StageChoice&) const = default;
};

/// Tensor degrees of the stages of a pipeline, where they are not one (`pipeline_stages` of a RUN).
/// Stages have equally many data- and context-parallel ranks: a stage of a larger degree has more
/// ranks (a submesh of its own).
struct StageTensors {
  std::vector<std::int64_t> degrees;  ///< by stage; empty: every stage has the plan's
  bool sequence =
      false;  ///< between stages tensor ranks hold parts of the tokens, else all of them
  bool any() const { return !degrees.empty(); }
  std::int64_t sum() const {
    return std::accumulate(degrees.begin(), degrees.end(), std::int64_t{0});
  }
  bool operator==(const StageTensors&) const = default;
};

/// A file that lists the passes of every stage, where `schedule` is kFile.
struct ScheduleFile {
  std::string path;
  ChunkPlacement placement = ChunkPlacement::kRound;
  bool operator==(const ScheduleFile&) const = default;
};

/// How the head's loss is worked out, over which words.
struct LossPlan {
  LossForm form = LossForm::kFused;
  /// A rank's rows of the tables of embedding and head are a multiple of it.
  std::int64_t vocabulary_multiple = 128;
  /// Head and loss go by so many parts of the tokens, gradients and all (models/layers/ends.h); 0:
  /// whole.
  std::int64_t chunks = 0;
  bool operator==(const LossPlan&) const = default;
};

/// Scores of attention that are stored.
struct StoredScores {
  bool plain_products = false;  ///< the products run off the tensor cores
  /// Kinds of attention that a release's fused kernels do not have: one more logit a head, queries
  /// wider than values.
  bool of_sinks = false, of_latent = false;
  bool operator==(const StoredScores&) const = default;
};

struct Plan {
  std::int64_t accelerators = 1, tensor = 1, pipeline = 1, virtual_pipeline = 1, context = 1;
  std::int64_t data = 1;  ///< ranks of a stage that hold the same: data- times context-parallel
  /// Neighbours in a ring of keys that exchange heads for tokens: it has as many fewer members.
  std::int64_t context_inner = 1;
  bool sequence = false;  ///< sequence parallelism beside tensor parallelism
  TensorMode tensor_mode = TensorMode::k1D;
  std::int64_t tensor_depth = 1;  ///< d of 2.5d: tensor = d q^2
  Sharding sharding = Sharding::kNone;
  GradientReduction reduction = GradientReduction::kReduceScatter;
  bool fused_accumulation = true, adds_nothing = false;  ///< to gradients of earlier microbatches
  /// Every backward pass writes gradients in the compute type, which are added to those before when
  /// it has ended: models/gradients/buckets.cpp.
  bool sums_after_pass = false;
  bool flat_update = false;  ///< a rank's part of 16-bit gradients is flattened, then widened
  bool unscales = false;     ///< fp16's scale leaves the gradients in a pass of its own
  bool retain_outputs =
      false;  ///< a stage lets go of what it sent after that microbatch's backward
  bool scatter_gather = false;          ///< tensor ranks send a part each of what they hold alike
  std::vector<std::string> rank_order;  ///< fastest first: tp, cp, ep, dp, pp
  std::vector<std::int64_t> pipeline_layout;  ///< layers of every chunk, chunk-major; filled in
  std::vector<StageChoice> stages;  ///< empty where all do as the plan says: `plan_of_stage`
  StageTensors tensors;             ///< none where `stages` is empty; `tensor` is the largest
  Partition partition = Partition::kLayers;  ///< how, where no RUN gives it
  std::int64_t shard_group = 0;  ///< ranks that share one copy of the states; 0 = all data ranks
  Units units;
  std::int64_t bucket_elements = 0;  ///< parameters of a gradient bucket; 0 = one bucket
  GradientBuckets buckets;
  Offload offload;
  std::int64_t global_batch = 1, micro_batch = 1, sequence_length = 1;
  std::int64_t target_length = 0;       ///< tokens of the decoder's sequences; 0 = as the encoder's
  std::vector<std::int64_t> documents;  ///< lengths of those that every sequence packs, if several
  Precision precision;
  Recompute recompute;
  ExpertPlan experts;
  ScheduleFile file;
  std::vector<std::vector<Pass>> passes;  ///< by stage, where a file or a search made them
  Schedule schedule = Schedule::k1F1B;
  AutoSchedule automatic;
  /// Forward passes of a microbatch, the last with gradients; each but the first adds what the one
  /// before gave to the embedding: models/step/passes/recycle_outputs.cpp.
  std::int64_t forwards = 1;
  Overlap overlap;
  HostWaits host_waits = HostWaits::kNone;
  AttentionKernel attention = AttentionKernel::kFlash;
  StoredScores stored_scores;
  bool separate_projections = false;  ///< q, k and v, a gated MLP's halves are linears of their own
  bool channels_first = false;  ///< order of images in memory: models/layers/network_block.cpp
  Fusion fusion = Fusion::kFused;
  LossPlan loss;
  ContextExchange context_exchange = ContextExchange::kRing;
  Optimizer optimizer = Optimizer::kFusedAdam;
  bool copies_master_to_model = false;  ///< 16-bit weights are cast from fp32 ones after the update
  double dropout = -1;                  ///< overrides the model's; -1: see `dropout_of`
  double clip_norm = 1;                 ///< 0 = no gradient clipping
  Time data_time, loader_time;  ///< to prepare a microbatch: of the host, of workers beside it
  Time pass_time;               ///< host time of each pass of a microbatch through a chunk
  Time step_time;               ///< host time a step outside of kernels' launches
  Time update_time;             ///< host time of each parameter tensor: models/layers/optimizer.h
  Time scatter_time;            ///< of each parameter and rank in a unit's reduction
  Time checkpoint_time;         ///< host time that recomputing a layer adds
  Captured captured;            ///< of layers
  HostOperations host_operations;  ///< of the framework, where nothing is captured or compiled
  double context_gib = 0;          ///< what CUDA and its libraries hold before the first tensor
  FrameworkMemory memory;

  /// Parts of the global batch: data-parallel ranks proper.
  std::int64_t batch_ranks() const { return data / context; }
  /// Context-parallel ranks that cut heads instead of tokens within the attention.
  std::int64_t head_ranks() const {
    return context_exchange == ContextExchange::kAllToAll ? context : context_inner;
  }
  std::int64_t microbatches() const { return global_batch / (micro_batch * batch_ranks()); }
  std::int64_t chunks() const { return pipeline * virtual_pipeline; }
  ChunkPlacement placement() const;
  /// Pipelines that run over the same stages, each with a copy of the parameters.
  std::int64_t directions() const { return placement() == ChunkPlacement::kBidirectional ? 2 : 1; }
  std::int64_t chunks_of_stage() const { return virtual_pipeline * directions(); }
  /// The second half of the microbatches goes up the stages where there are two ways.
  std::int64_t way_of(std::int64_t microbatch) const {
    return directions() * microbatch / microbatches();
  }
  /// The chunk of the pipeline that stands as `index` on `stage`.
  std::int64_t chunk_at(std::int64_t stage, std::int64_t index) const;
  /// The stage of a chunk, in one of the ways.
  std::int64_t stage_of(std::int64_t chunk, std::int64_t way = 0) const;
  /// Passes that run as one hide each other's exchanges of tokens.
  bool interleaves_pairs() const;
  /// Every stage holds a part of the vocabulary: models/step/passes/spread_vocabulary.cpp.
  bool shares_vocabulary() const {
    return schedule == Schedule::kSharedVocabulary || spreads_vocabulary();
  }
  /// Its passes stand between those of the layers, on each stage where it has time.
  bool spreads_vocabulary() const { return vocabulary_barriers() > 0; }
  /// How often all stages wait for each other from a microbatch's last forward to its first
  /// backward pass, where the vocabulary's passes are spread.
  std::int64_t vocabulary_barriers() const {
    if (schedule == Schedule::kVocabulary1) return 2;
    return schedule == Schedule::kVocabulary2 ? 1 : 0;
  }
  /// Into how many parts it is cut (1d).
  std::int64_t vocabulary_parts() const { return shares_vocabulary() ? tensor * pipeline : tensor; }
  /// Gradients of weights have passes of their own.
  bool splits_backward() const;
  /// The last stage leaves gradients of the output matrix to when its passes are over.
  bool defers_head() const { return overlap.head_deferral > 0 && pipeline > 1; }
  /// Of a microbatch, on one rank (before sequence parallelism).
  std::int64_t tokens() const { return micro_batch * sequence_length / context; }
  std::int64_t target() const { return target_length > 0 ? target_length : sequence_length; }
  /// Ranks that hold the same parameters.
  std::int64_t replica_ranks() const { return data * directions(); }
  /// `scatter_gather`, where a message is not a part anyway: models/emit/messages.cpp.
  bool scatters_messages() const {
    return scatter_gather && pipeline > 1 && tensor > 1 && shard() == 1;
  }
  /// Ranks of a stage that hold the same experts.
  std::int64_t expert_data() const {
    return accelerators / (pipeline * experts.expert * experts.tensor);
  }
  /// What tensor ranks exchange goes around in parts, under the products (`linear_parts.h`).
  bool rings() const { return overlap.tensor && sequence && tensor > 1; }
  /// The collectives of a dense layer's column-parallel linears run beside the GEMMs of their
  /// backward pass; where others travel in parts they have kernels of their own for it.
  bool backward_overlaps() const { return overlap.tensor_backward || rings(); }
  /// Tensor ranks form a grid of more than one dimension, of so many ranks a side.
  bool in_grid() const { return tensor_mode != TensorMode::k1D; }
  std::int64_t side() const;
  /// Parts into which tensor ranks cut the residual stream: its columns, its tokens, both.
  std::int64_t column_parts() const { return in_grid() ? side() : 1; }
  std::int64_t token_parts() const { return in_grid() ? tensor / side() : sequence ? tensor : 1; }
  std::int64_t shard() const { return token_parts() * column_parts(); }
  /// Tokens of the residual stream on one rank.
  std::int64_t rows() const { return tokens() / token_parts(); }
  /// Into how many parts heads and the MLP's width are cut.
  std::int64_t width_parts() const { return in_grid() ? side() : tensor; }
  /// Ranks that share one copy of what is sharded.
  std::int64_t shards() const {
    if (sharding == Sharding::kNone) return 1;
    return shard_group == 0 ? replica_ranks() : shard_group;
  }
  std::int64_t replicas() const {
    return replica_ranks() / shards();
  }  ///< copies of what is sharded
  std::int64_t norm_ranks() const {
    return shards() * (tensors.any() ? tensors.sum() : tensor * pipeline);
  }  ///< of the gradients
  /// Ranks that share the states of the same experts: a group holds all (`check_expert_plan`).
  std::int64_t expert_shards() const {
    if (sharding == Sharding::kNone) return 1;
    return expert_data() * directions() / replicas();
  }
  bool updates_on_host() const {
    return offload.optimizer != Memory::kDevice && offload.device_share < 1;
  }
  /// Type of a shard of parameters, and whether optimizer states hold an fp32 copy of it.
  DType shard_type() const { return units.narrow_shards ? precision.compute : DType::kFp32; }
  bool master_shards() const {
    // A host that updates weights of the device has nothing else to start from.
    const bool of_device = updates_on_host() && offload.parameters == Memory::kDevice;
    return (precision.master || of_device) &&
           (sharding != Sharding::kParameters || units.narrow_shards);
  }
  bool by_units() const {
    return sharding == Sharding::kParameters || (sharding == Sharding::kGradients && !contiguous());
  }
  /// Gradients are reduced to the rank that updates their parameters, which are broadcast by it.
  bool reduces_to_owner() const {
    return reduction == GradientReduction::kReduce && sharding != Sharding::kNone &&
           sharding != Sharding::kParameters;
  }
  /// Gradients are copied into contiguous buckets, whose sums a rank keeps its part of.
  bool contiguous() const { return buckets.cut == Bucketing::kContiguous; }
  /// So is every microbatch's, and nothing else of them is kept.
  bool contiguous_passes() const { return contiguous() && sharding == Sharding::kGradients; }
  bool shards_parameters() const { return sharding == Sharding::kParameters; }  ///< ZeRO-3, FSDP
  bool shards_by_parameter() const;  ///< `units.gather_elements`, where it goes
  /// Small parameters stay gathered: models/units/units.cpp.
  bool persists() const { return shards_parameters() && units.persist_elements > 0; }
  /// The backward pass of each microbatch writes gradients instead of adding to them.
  bool fresh_gradients() const { return by_units() && units.reduce_each; }
  /// So does that of parameters whose gradients are added up after every pass.
  bool writes_fresh() const { return fresh_gradients() || sums_after_pass || contiguous_passes(); }
  /// Every microbatch's gradients are reduced on their own and then added up.
  bool reduces_each_pass() const {
    return sharding == Sharding::kNone && !buckets.last_pass_only && data > 1 && microbatches() > 1;
  }
  /// Buckets are copied before they travel.
  bool stages_buckets() const {
    return sharding == Sharding::kNone &&
           (buckets.copy || buckets.inner_group > 1 || buckets.compression != Compression::kNone);
  }
  /// Parameters are copied out of what they were gathered in: `units.copies_out`, where it goes.
  bool copies_out() const {
    return shards_parameters() && units.copies_out && !units.quantized_gathers &&
           units.secondary == 0 && units.inner_group == 1;
  }
  /// Layers' parameters arrive in fp8, which their linears read.
  bool gathers_fp8() const { return shards_parameters() && units.casts_shards && shards() > 1; }
  /// Sums of gradients are cast to a narrower type to travel, and back.
  bool narrows_gradients() const {
    return !by_units() && !contiguous() && bits_of(units.reduce) < bits_of(precision.gradients);
  }
  /// `overlap.post_validation`, where stages would wait for each other.
  bool validates_later() const {
    return overlap.post_validation && pipeline > 1 && (clip_norm > 0 || unscales);
  }
  bool divides_gradients() const { return buckets.averages && data > 1; }
  /// Type of gradients as the backward pass writes them.
  DType local_gradients() const { return writes_fresh() ? precision.compute : precision.gradients; }
  bool operator==(const Plan&) const = default;
};

/// Reads every RUN key but `name`, `model`, `cluster`, `system` and `profile` from a resolved RUN
/// (all defaults filled in), and refuses what cannot be: degrees that do not divide, more ranks
/// than accelerators, schedules that do not fit, features that are not modelled (as unsupported).
Result<Plan> read_plan(const Json& run, const std::string& source, const Model& model,
                       std::int64_t accelerators);

/// The keys that `read_plan` accepts, for messages.
const std::vector<std::string>& plan_keys();

/// The default division of `layers` into `chunks`: equal when they divide; else, if they hold the
/// `ends`, with the embedding and the loss counted as one layer each when that divides; else as
/// equal as can be, the shorter chunks first and last.
std::vector<std::int64_t> default_layout(std::int64_t layers, std::int64_t chunks,
                                         bool ends = true);

}  // namespace foretrain
