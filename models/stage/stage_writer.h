// StageWriter: builds a stage's Program in three steps: frames and segments, the schedule, the
// update.
#pragma once

#include <array>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "models/layers/encoder_decoder.h"
#include "models/schedule/schedule.h"
#include "models/stage/chunk.h"
#include "models/stage/stage.h"
#include "models/step/passes.h"

namespace foretrain {

class StageWriter {
 public:
  StageWriter(const Model& model, const Plan& plan, std::int64_t stage);
  Program run() &&;
  /// The tasks alone: see `lowered_step`.
  StageStep step(const std::string& until, bool verified) &&;

 private:
  // --- Frames and segments (stage_parts.cpp) ---
  void write_layouts();
  void write_segments();
  template <typename Layouts>
  void parameter_frames(Layouts& out, const std::string& name,
                        const std::vector<Parameter>& parameters);
  void write_layer_kinds(LayerLayouts& layer);
  void write_end_parameters();
  void write_ends(bool embedding, bool head);
  Batch batch();
  void make_chunk(std::int64_t index);
  void place_parts(Chunk& chunk);
  std::vector<Replica> replicas(const Chunk& chunk, std::int64_t cut_begin, std::int64_t cut_end);
  /// Elements [begin, end) of a chunk's gradients, whose sum over `group` they are parts of.
  struct GridPart {
    std::int64_t begin = 0, end = 0;
    const char* group = nullptr;
  };
  std::vector<GridPart> grid_parts(const Chunk& chunk, std::int64_t cut_begin,
                                   std::int64_t cut_end);
  PartFrames head_with_table_of(const Chunk& owner, std::int64_t total);
  PartFrames place(const ParameterLayouts& parameters, LayoutId weights, LayoutId gradients,
                   LayoutId shared, LayoutId shared_gradients, std::int32_t layer);
  bool holds(std::int64_t chunk) const {
    return x_stage == x_plan.stage_of(chunk) ||
           (x_plan.ways() == 2 && x_stage == x_plan.stage_of(chunk, 1));
  }
  bool sharded(const Holders& holders) const { return !by_units() && holders.shards > 1; }
  const char* shard_group() const { return x_plan.replicas() > 1 ? kShardGroup : kDataGroup; }
  const LayerLayouts& kind_of(const Chunk& chunk, std::int64_t l) const {
    if (x_model.is_network()) return x_blocks[block_kind(chunk, l)];
    if (x_model.is_encoder_decoder()) return stack_layouts(chunk.first_layer + l);
    return x_model.sparse(chunk.first_layer + l) ? x_sparse_layer : x_layer;
  }
  void own_buffers(Chunk& chunk, std::int64_t elements, std::vector<Replica> replicas);

  // --- Networks of layers (stage_network.cpp) ---
  struct BetweenBlocks {
    ImageShape shape;
    LayoutId output, gradient;
  };
  const BetweenBlocks& between_blocks(const ImageShape& shape);
  LayoutId image_inputs();
  void write_blocks();
  std::size_t block_kind(const Chunk& chunk, std::int64_t l) const {
    return x_block_kinds[static_cast<std::size_t>(chunk.first_layer + l)];
  }

  // --- Encoder-decoders (stage_encoder_decoder.cpp) ---
  LayoutId paired_inputs();
  void write_stacks();
  void write_stack_ends();
  LayerSegments write_stack_layer(Stack stack, bool first, bool again, const LayerLayouts& layouts);
  const LayerSegments& stack_segments(Chunk& chunk, std::int64_t l);
  const LayerLayouts& stack_layouts(std::int64_t layer) const;

  // --- The experts of a chunk (stage_experts.cpp) ---
  void make_experts(std::size_t index);
  void make_expert_units(Chunk& experts, const Chunk& owner);
  /// The unit that holds the experts of `layer`; null without experts or units.
  Unit* expert_unit(const Chunk& chunk, std::int64_t layer);
  void bind_experts(const Chunk& chunk, std::int64_t l, bool backward, Call& call);
  void add_expert_norm(SegmentWriter& w);
  bool own_expert_norm() const {
    return x_model.has_experts() && x_plan.sharding == Sharding::kNone;
  }

  // --- The schedule (stage_writer.cpp) ---
  struct Passage {                ///< one microbatch in one chunk
    std::vector<FrameId> hidden;  ///< residual stream: before layer 0, after layer 0, ...
    std::vector<FrameId> saved;   ///< by layer
    FrameId embedding_saved, head_saved;
    FrameId embedding_local;          ///< of its backward pass, where that is two
    FrameId embedded, returned;       ///< where an earlier pass's output is added
    FrameId memory, memory_gradient;  ///< the encoder's output, where a decoder reads it
    FrameId gradient;                 ///< of the residual stream, as the backward pass comes down
    /// Copies on the host or in storage of what layer `first` keeps: its input where `second`.
    std::map<std::pair<std::int64_t, bool>, FrameId> on_host;
    FrameId part;                ///< of what was sent, where that is all of it that is kept
    StreamWait done, head_done;  ///< the last backward op so far; the head's
  };
  /// Where other tasks find what a task has done.
  struct Done {
    StreamWait output, end;
  };
  static Done done_at(FrameId frame, std::int16_t event) {
    return {StreamWait{StreamId(), frame, event}, StreamWait{StreamId(), frame, event}};
  }
  /// A layer's pass in slices: by slice its blocks.
  struct Sliced {
    Call call;
    std::vector<std::vector<SegmentId>> blocks;
    std::size_t last() const { return blocks.front().size() - 1; }
  };

  // --- Tasks as calls (emit.cpp) ---
  void write_holdings();
  StageContext context() const;
  StreamWait point(const Task& task) const;
  std::vector<StreamWait> waits_of(const Task& task, SegmentId segment);
  void emit(TaskId id);
  void emit_of_step(TaskId id);
  void mark(TaskId id);
  void end_passage(const Task& task, const Pass& pass, Passage& passage);
  void emit_compute(TaskId id);
  void emit_message(TaskId id);
  void emit_gather(TaskId id);
  void emit_reduction(TaskId id);
  void emit_move(TaskId id);
  void load_ahead();
  StreamWait zero(std::size_t c);
  FrameId inputs_of(std::int32_t microbatch) const;
  void need_input(std::int32_t c, std::int32_t mb, bool gradient);
  void embedding_forward(Chunk& chunk, Passage& passage, const Task& task);
  void embedding_backward(Chunk& chunk, Passage& passage, TaskId id);
  void layer_forward(Chunk& chunk, Passage& passage, TaskId id);
  void layer_backward(Chunk& chunk, Passage& passage, TaskId id);
  void layer_again(Chunk& chunk, Passage& passage, const Task& task);
  Call forward_call(Chunk& chunk, Passage& passage, const Task& task, FrameId out);
  void head_forward(Chunk& chunk, Passage& passage, const Task& task);
  void head_backward(Chunk& chunk, Passage& passage, TaskId id);
  void weight_gradients(Chunk& chunk, TaskId id);
  void quantize_weights(Chunk& chunk, const Task& task);
  void checkpoint(std::int32_t mb);
  void share_scales(const Task& task);
  void call_slice_heads(TaskId id, Call call, const std::vector<SegmentId>& slices);
  void call_slice_bodies(const Task& task);
  void call_slice_tails(const Task& task);
  void call_block(const Sliced& sliced, std::size_t slice, std::size_t block);
  void add_returned(Passage& passage, std::int32_t mb);
  void embedding_inner_forward(Chunk& chunk, Passage& passage, const Task& task);
  void embedding_inner_backward(Chunk& chunk, Passage& passage, const Task& task);
  void head_inner_backward(Chunk& chunk, Passage& passage, const Task& task);
  Call inner_call(SegmentId segment, const PartFrames& part, const Task& task,
                  std::vector<FrameId> frames);
  void message(const Task& task, FrameId frame, bool send);
  void wait_on_host(const Task& task);
  void keep_part(Passage& passage, std::int32_t mb);
  void let_go_of_casts(const Chunk& chunk, const Passage& passage, const Task& task);
  void bind_loss(const Chunk& chunk, std::int64_t l, Call& call) const;
  StreamWait reduce_parts_of(Chunk& chunk, const Task& task);
  StreamWait update(const Task& task);
  void validate_last_step(const Task& task);
  void reduce_loss(const Task& task);
  void fill_last_pages(Bytes page);
  StreamWait zero_units();
  void open_unit(Unit& unit, const Task& task);
  void reduce_unit(Unit& unit, std::int32_t mb, StreamWait after);
  FrameId gradients_of(Unit& unit, std::int32_t mb);
  void load_weights(const Task& task);
  StreamWait host_updated(const Unit& unit) const;
  void move_out(const Chunk& chunk, Passage& passage, TaskId id);
  void let_go_of_copied(const std::vector<std::pair<FrameId, FrameId>>& moved);
  void read_back(const Chunk& chunk, Passage& passage, std::int64_t l);
  void move_back(const Chunk& chunk, Passage& passage, std::int64_t l);

  void bind_memory(Chunk& chunk, Passage& passage, std::int64_t l, bool backward, Call& call);
  StreamWait call_marked(SegmentWriter& w, const char* event, std::vector<FrameId> frames,
                         std::vector<StreamWait> waits = {});
  void load_inputs(Passage& passage, std::int32_t mb);
  Call for_weights(Call call, SegmentId segment) const;

  // --- Passes that run as one (stage_weave.cpp) ---
  using Blocks = std::vector<std::vector<Call>>;
  bool waits_for_others(const Segment& segment, const Op& op) const;
  const std::vector<SegmentId>& blocks_of(SegmentId id);
  std::vector<Blocks> in_blocks(const std::vector<Call>& calls);
  void weave();

  // --- Slices of a microbatch (stage_slices.cpp) ---
  bool sliced() const { return x_plan.overlap.tensor_slices > 1; }

  // --- Forward passes whose output comes back (stage_recycling.cpp) ---

  // --- A vocabulary on all stages (stage_vocabulary.cpp) ---

  // --- Messages between stages (stage_messages.cpp) ---
  bool goes_up(std::int32_t chunk) const {
    return x_plan.placement() != ChunkPlacement::kRound && chunk % 2 == 1;
  }
  void host_takes_time(bool backward, std::int32_t mb);
  View whole_of_parts(std::int16_t frame) const;
  View sent_part(std::int16_t frame);
  Op gather_of_parts(const char* name, Phase phase);
  void gather_output(Passage& passage, std::int32_t mb);
  void gather_message(bool backward, std::int32_t mb, FrameId arrived);
  SegmentId message_segment(const std::string& stream, const char* channel, LayoutId layout,
                            bool send);

  // --- Buckets (stage_buckets.cpp, stage_compression.cpp) ---
  using AddBuffer = std::function<void(const char*, DType, std::int64_t)>;
  void make_buckets(Chunk& chunk);
  Bucket new_bucket(const Chunk& chunk, std::int64_t begin, std::int64_t end);
  std::vector<std::int64_t> bucket_begins(const Chunk& chunk) const;
  void make_staging(Chunk& chunk);
  DType travelling_type() const;
  void reduce_bucket(Chunk& chunk, Bucket& bucket, FrameId frame, std::int16_t event);
  StreamWait prepare_bucket(const Chunk& chunk, const Bucket& bucket, StreamWait after);
  Op& bucket_op(const Bucket& bucket, Segment& segment, const char* name, Work work,
                std::vector<View> reads, std::vector<View> writes);
  View gradients_of(const Bucket& bucket) const;
  void write_in_place(Bucket& bucket, Segment& segment);
  bool scatters(const Bucket& bucket) const;
  void sum_over_ranks(const Bucket& bucket, Segment& segment, const View& all, const View& part,
                      DType type, EventRef done);
  void write_narrowed(Bucket& bucket, Segment& segment, Call& call, const View& from);
  std::vector<std::int64_t> list_begins(const Chunk& chunk) const;
  void number_lists(Chunk& chunk) const;
  void coordinate(const Chunk& chunk, const Bucket& bucket, Segment& segment);
  void sum_copies(const Bucket& bucket, const Ref& copied, Segment& segment);
  void pad(const Bucket& bucket, const Ref& rest, Segment& segment);
  Ref copy_in(const Bucket& bucket, Segment& segment);
  void write_copied(Bucket& bucket, Segment& segment, const Ref& copy);
  void copy_back(Chunk& chunk);
  void collect_pass(Chunk& chunk, bool last);
  StreamWait add_pass(const Chunk& chunk);
  void let_go_of_output(const Chunk& chunk, const Passage& passage, std::int32_t mb);
  void stage_factors(Chunk& chunk, const AddBuffer& add);
  void write_factors(Bucket& bucket, Segment& segment, const View& all);
  std::int64_t sign_bytes(const Bucket& bucket) const;
  void stage_signs(Chunk& chunk, const AddBuffer& add);
  void write_signs(Bucket& bucket, Segment& segment, const View& all);

  // --- Gradients to their owners (stage_owners.cpp) ---
  std::vector<Op> scattered(const Holders& holders, const View& whole, const View& part,
                            std::int64_t count, DType type,
                            const std::vector<std::int64_t>& runs = {});
  std::vector<Op> sums(const Bucket& bucket, const View& all, const View& part, DType type);
  std::vector<Op> from_owners(const Holders& holders, const View& whole, std::int64_t count,
                              DType type, Phase phase);

  // --- Contiguous buckets (stage_contiguous.cpp) ---
  /// Copies of a part's gradients into a bucket, and the bucket that is reduced before them.
  struct CopyIn {
    int reduced = -1;
    SegmentId segment;
  };
  std::vector<std::int64_t> contiguous_begins(const Chunk& chunk) const;
  void make_own(Chunk& chunk);
  Buffer own_gradients(const Chunk& chunk, const Bucket& bucket);
  FrameId contiguous_frame();
  std::int16_t turn(std::size_t bucket) const {
    return static_cast<std::int16_t>(x_plan.overlap.gradient_reduce ? bucket % 2 : 0);
  }
  void fresh_end(Chunk& chunk, PartFrames& part, const EndLayouts& end);
  void bind_tied(const Chunk& chunk, bool backward, Call& call) const;
  void copy_in(Chunk& chunk, FrameId from, std::int64_t begin, StreamWait after = {});
  std::vector<CopyIn> write_copies(Chunk& chunk, LayoutId from, std::int64_t begin);
  void reduce_contiguous(Chunk& chunk, Bucket& bucket, StreamWait after);
  SegmentId write_contiguous(const Chunk& chunk, Bucket& bucket, bool again);
  void finish_contiguous(Chunk& chunk, FrameId frame, std::int16_t event, bool last);
  void wait_for_buffer(std::size_t bucket, Call& call) const;
  void add_own(Chunk& chunk);

  // --- Reductions and the update (stage_update.cpp) ---
  /// All-reduces parts of the gradients over a small group; returns where the last one's event is.
  StreamWait reduce_parts(const char* stream, const char* group, const Chunk& chunk,
                          const std::vector<ElementRange>& parts, std::int16_t mark,
                          StreamWait after);
  void reduce_over_replicas(Segment& segment, const Holders& holders, const View& shard,
                            std::int64_t count, DType type, EventRef before, EventRef after);
  /// What one kernel of the update touches, in formal frames of the update's segment.
  struct Updated {
    View gradient, weights;
    std::int16_t states = 0;            ///< frame of the optimizer states
    std::int16_t first = 0;             ///< its first buffer that is a state
    std::int64_t begin = 0, count = 0;  ///< elements of the states
    bool master = false;                ///< the last state is a copy of the weights
    bool expert = false;
    std::int64_t factors = 0;  ///< elements of states that matrices share by row and column
  };
  void update_operands(const Updated& u, std::vector<View>& reads, std::vector<View>& writes) const;
  void bind_update(SegmentWriter& w, Call& call, std::vector<Updated>& out);
  void write_unscaling(SegmentWriter& w, const std::vector<Updated>& updated);
  void sum_over_norm_group(SegmentWriter& w, const char* name, const Ref& value);
  void pass_down(SegmentWriter& w, const std::string& name, const Ref& value);
  void write_clipping(SegmentWriter& w, const std::vector<Updated>& updated);
  void flatten_gradients(SegmentWriter& w, Call& call, std::vector<Updated>& updated);
  void write_clips(SegmentWriter& w, const std::vector<Updated>& updated) const;
  void write_updates(SegmentWriter& w, const std::vector<Updated>& updated);
  std::int64_t updated_tensors() const;
  void gather_bucket(Chunk& chunk, Bucket& bucket, StreamWait after);
  /// This rank's part of a bucket in formal frame `frame`; all of it when the optimizer is not
  /// sharded.
  View shard_view(std::int16_t frame, const Bucket& bucket, DType type);
  std::int64_t shard_elements(const Bucket& bucket) const;
  void map_weights(Chunk& chunk, bool head_table) const;
  void map_expert_weights(Chunk& experts, const Chunk& owner) const;
  Bytes weight_byte(const Chunk& chunk, std::int64_t element) const;
  View weights_of(std::int16_t frame, const Chunk& chunk, const Bucket& bucket) const;
  View own_weights(std::int16_t frame, const Chunk& chunk, const Bucket& bucket);
  Buffer weight_buffer(Chunk& chunk, std::int64_t elements) const;
  LayoutId layout_of(FrameId frame) const {
    return x_builder.program().frames[frame.index()].layout;
  }

  // --- Sharded units (stage_units.cpp, stage_shapes.cpp) ---
  bool by_units() const { return x_plan.by_units(); }
  bool sharded_parameters() const { return x_plan.shards_parameters(); }
  void make_units(Chunk& chunk);
  void append_layout(UnitContent& out, const FrameLayout& layout, std::int64_t layer) const;
  void add_unit(Chunk& chunk, std::int64_t first, std::int64_t last, UnitContent& small);
  std::size_t root_shape(Chunk& chunk, UnitContent& small);
  void append_owners(std::size_t shape, std::vector<LayoutId>& out) const;
  std::vector<LayoutId> owners_of(Chunk& chunk, std::int64_t layer);
  /// Every rank holds its parameters from step to step.
  bool stays_whole(const UnitShape& shape) const { return !sharded_parameters() || shape.whole; }
  Unit* small_unit(Chunk& chunk) const;
  void push_unit(Chunk& chunk, std::size_t shape, std::int64_t first, std::int64_t last);
  std::size_t shape_of(UnitShape shape, const UnitContent& content);
  FrameLayout weights_layout(const UnitShape& shape) const;
  void write_shape(UnitShape& shape, const std::vector<Piece>& pieces);
  void add_host_states(FrameLayout& states, std::int64_t own) const;
  void mark_shard(Buffer& buffer, const UnitShape& shape) const;
  const std::vector<Piece>& pieces_of(const UnitShape& shape) const;
  bool copies_out(const UnitShape& shape) const;
  SegmentId write_copy_out(const UnitShape& shape);
  SegmentId write_gather(UnitShape& shape);
  SegmentId write_reduction(const UnitShape& shape, bool first);
  void sum_copies_of_unit(const UnitShape& shape, const View& part, std::int64_t count,
                          Segment& segment);
  void sum_shared(const UnitShape& shape, Segment& segment);
  StreamWait sum_tied(Unit& unit);
  Op unit_op(const char* stream, const char* name, Work work, Phase phase);
  Unit& unit_of(Chunk& chunk, std::int64_t layer) const;
  Unit* root_of(Chunk& chunk);
  void gather_weights(Unit& unit, StreamWait after);
  /// Binds the parameters of a layer of the chunk, or of the end whose layouts are `end`.
  void bind_part(Chunk& chunk, std::int64_t layer, const EndLayouts* end, bool backward,
                 Call& call);
  void bind_units(SegmentWriter& w, Call& call, std::vector<Updated>& out);
  const LayerSegments& layer_segments(Chunk& chunk, std::int64_t layer);
  View own_shard(std::int16_t frame, std::int16_t buffer, const UnitShape& shape, DType type) const;
  void bind_unit(Unit& unit, bool backward, Call& call);

  // --- Runs of units (stage_runs.cpp), gathers at once and in two levels (stage_levels.cpp) ---
  std::vector<std::int64_t> unit_runs(const UnitShape& shape, const UnitContent& content) const;
  std::int64_t unit_elements(const UnitShape& shape) const;
  std::vector<UnitRuns> gathered_together(const UnitShape& shape) const;
  std::vector<UnitRuns> reduced_together(const UnitShape& shape) const;
  bool gathers_in_levels(const UnitShape& shape) const {
    return x_plan.units.inner_group > 1 && shape.holders.shards > 1;
  }
  void gather_whole(const UnitShape& shape, const View& part, const Ref& whole, Segment& segment);

  // --- Units in fewer bits, and a second copy of them (stage_narrow.cpp) ---
  using PushOp = std::function<void(Op, std::vector<View> reads, const View& write)>;
  Ref as_it_travels(const UnitShape& shape, Ref whole, const PushOp& push);
  bool gathers_narrow(const UnitShape& shape) const;
  void add_narrow(const UnitShape& shape, FrameLayout& weights, FrameLayout& gradients) const;
  void gather_narrow(const UnitShape& shape, const Ref& shard, const Ref& whole, Segment& segment);
  void write_secondary(UnitShape& shape, const Ref& whole, Segment& forward);
  void reduce_narrow(const UnitShape& shape, const Ref& whole, const Ref& part, const PushOp& push);

  // --- Host memory and storage (stage_offload.cpp) ---
  Op& side_op(Segment& segment, const char* stream, const std::string& name, Work work,
              std::vector<View> reads, std::vector<View> writes);
  Copy host_copy(Memory from, Memory to, Bytes bytes) const;
  void wait_for_copy(Segment& segment, const char* stream);
  Op& host_op(Segment& segment, const std::string& name, const Kernel& kernel,
              std::vector<View> reads, std::vector<View> writes, double factor = 1);
  void gradients_to_host(Segment& segment, const View& part, std::int64_t own, bool first);
  void add_at_host(Segment& segment, const View& part, const Ref& sum, const Ref& arrived,
                   EventRef done);
  void make_host_buckets(Chunk& chunk);
  SegmentId write_to_host(const Chunk& chunk, const Bucket& bucket, bool again);
  void bucket_to_host(const Chunk& chunk, Bucket& bucket, StreamWait after);
  void shard_from_host(Segment& segment, const View& shard, const View& to);
  std::int16_t fresh_weights() const;
  std::vector<View> state_views(std::int16_t frame, std::int16_t first, std::int64_t own) const;
  /// Whether the host keeps the states of a unit up to layer `last` of a chunk; 0: of its ends.
  bool kept_on_host(const Chunk& chunk, std::int64_t last) const;
  Memory shard_memory(const UnitShape& shape) const {
    return shape.on_host ? x_plan.offload.parameters : Memory::kDevice;
  }
  void update_on_host(bool at_begin);
  void update_on_device();
  void write_host_norm(Segment& segment, const std::vector<UpdatedPart>& parts,
                       const std::vector<UpdatedPart>& on_device);
  void write_host_update(Segment& segment, const UpdatedPart& part);
  LayoutId away_layout(LayoutId device, Memory memory);
  SegmentId copy_segment(LayoutId near, LayoutId far, bool out);
  SegmentId let_go_segment(LayoutId device);
  const HostCopies& host_copies(LayoutId device);
  FrameId store(const HostCopies& copies, FrameId host, std::int32_t layer);
  void wait_loaded(const Passage& passage, std::int64_t l, Call& call) const;

  const Model& x_model;
  const Plan& x_plan;
  std::int64_t x_stage;
  ProgramBuilder x_builder;
  LayerLayouts x_layer, x_sparse_layer;
  EndLayouts x_embedding, x_head;
  LayerLayouts x_turn, x_cross, x_decoder;  ///< of an encoder-decoder
  MemoryLayouts x_memory;
  /// By kind, whether its backward pass is the first of them, shape of the unit.
  std::map<std::tuple<Stack, bool, bool, std::size_t>, LayerSegments> x_stack_segments;
  std::vector<LayerLayouts> x_blocks;           ///< of a network, by kind
  std::vector<LayerSegments> x_block_segments;  ///< likewise
  std::vector<std::size_t> x_block_kinds;       ///< by layer
  std::vector<BetweenBlocks> x_between;
  LayoutId x_inputs, x_scalars, x_bucket, x_marks;
  LayoutId x_ends, x_copied;  ///< with contiguous buckets: of a tied table; of a copy's event
  FrameId x_contiguous;
  int x_filling = -1;      ///< the contiguous bucket that was copied into last
  StreamWait x_last_copy;  ///< where that is recorded
  std::array<StreamWait, 2> x_buffer_free;
  std::map<std::pair<LayoutId, std::int64_t>, std::vector<CopyIn>> x_copies;
  /// By experts, window, recomputed, shape of the unit and of what stays gathered (0: none).
  std::map<std::tuple<bool, bool, bool, std::size_t, std::size_t>, LayerSegments> x_layer_segments;
  std::vector<UnitShape> x_shapes;
  std::map<std::int32_t, HostCopies> x_host_copies;  ///< by layout on the device
  std::optional<EndSegments> x_embedding_segments, x_head_segments;
  std::array<SegmentId, 2> x_load;        ///< by way
  std::array<SegmentId, 2> x_host_waits;  ///< forward, backward
  /// Of share_scales, with its frame: by largest values and direction.
  std::map<std::pair<std::int64_t, bool>, std::pair<SegmentId, FrameId>> x_scales;
  /// By whether it is sent, goes up the pipeline and carries gradients.
  std::array<std::array<std::array<SegmentId, 2>, 2>, 2> x_messages;
  std::array<SegmentId, 2> x_message_gathers, x_pass_pauses;  ///< forward, backward
  std::pair<SegmentId, LayoutId> x_part, x_output;  ///< of a copy of what is sent; gathered again
  StageStep x_step;
  std::vector<Done> x_done;  ///< by task
  /// Gradients of weights that are still to come: by chunk, microbatch and layer; -1 the head.
  std::map<std::tuple<std::int32_t, std::int32_t, std::int64_t>, Call> x_weights;
  std::map<TaskId, Sliced> x_sliced;  ///< by the task of the first blocks
  /// By the task that copied them out: frames, and those on the host.
  std::map<TaskId, std::vector<std::pair<FrameId, FrameId>>> x_moved;
  /// First call of each of the joined passes, and whether it is a forward pass.
  std::vector<std::pair<std::size_t, bool>> x_joined_begins;
  std::map<SegmentId, std::vector<SegmentId>> x_blocks_of;
  /// Gradients of the residual stream between two chunks of this stage that follow each other.
  std::map<std::int32_t, FrameId> x_turned;
  FrameId x_scalar_frame;
  std::vector<Chunk> x_chunks;
  std::map<std::pair<std::int32_t, std::int32_t>, Passage> x_passages;
  std::map<std::int32_t, FrameId> x_input_frames;
  std::map<std::int32_t, FrameId> x_returned;  ///< outputs of one stage that come back to it
  SegmentId x_adds_returned, x_checkpoint;
  std::map<LayoutId, SegmentId> x_lets_go;  ///< of autocast's copies that such a frame holds
};

}  // namespace foretrain
