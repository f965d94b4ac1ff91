// Work: what one operation does, in shapes, types and bytes. Never a duration.
#pragma once

#include <array>
#include <compare>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "sim/base/id.h"
#include "sim/program/dtype.h"

namespace foretrain {

/// Which group of ranks, or which peer, as the Program names it; each rank binds its own
/// (Workload).
using GroupSlot = Id<struct GroupSlotTag>;
using ChannelSlot = Id<struct ChannelSlotTag>;

/// How the columns of y = x W^T are cut.
struct ColumnCuts {
  /// The weights W are up to three matrices of so many rows, and each is multiplied by a GEMM of
  /// its own: they cut n of y = x W^T, k of d x = d y W and m of d W = d y^T x. Zeros: one matrix.
  std::array<std::int64_t, 3> parts{};
  /// They lie in arrays of so many columns each, one after the other, since different kernels take
  /// them: those of the result, and of A of both gradients. None: in one.
  std::vector<std::int64_t> blocks = {};
  bool operator==(const ColumnCuts&) const = default;
};

/// C[m,n] = op(A) op(B), row-major, `batch` times; `accumulate` adds to C instead of replacing it.
/// Operands: reads A, B; writes C (and reads it when accumulating). FLOPs 2 m n k batch.
struct Gemm {
  std::int64_t m = 0, n = 0, k = 0, batch = 1;
  bool transpose_a = false, transpose_b = false, accumulate = false;
  DType in = DType::kBf16, out = DType::kBf16;
  /// fp8 products are added up outside the tensor cores every few steps, as backward passes do.
  bool split_accumulator = false;
  /// A CUTLASS kernel with both operands scaled by blocks of k; else the vendor's, or one as fast.
  bool cutlass = false;
  ColumnCuts columns = {};
  /// The products of the batch are GEMMs of their own, issued one after another on a few streams;
  /// else one kernel computes them all.
  bool apart = false;
  /// So many like it, itself among them, are issued on `streams` streams by turns: where one leaves
  /// SMs idle the next one's tiles take them.
  std::int32_t beside = 1, streams = 1;
  /// Tokens of each product of the batch where they differ, as those of experts do: m, or k of a
  /// weight's gradient (transpose_a). m or k is their mean then, rounded up.
  std::vector<std::int64_t> groups = {};
  bool operator==(const Gemm&) const = default;
};

/// The GEMMs that `work` is: itself, or one for each of its parts.
std::vector<Gemm> gemms_of(const Gemm& work);

enum class ConvolutionPass : std::uint8_t { kForward, kInputGradient, kWeightGradient };

/// y[b, o, v] = sum over i, u of x[b, i, stride v - pad + u] w[o, i, u]: a convolution of `batch`
/// images, without groups. Operands: forward reads x, w and writes y; the input gradient reads d y,
/// w and writes d x; the weight gradient reads d y, x and writes d w (and reads it when
/// accumulating). FLOPs of each pass: 2 batch out_height out_width out_channels in_channels
/// kernel_height kernel_width.
struct Convolution {
  ConvolutionPass pass = ConvolutionPass::kForward;
  std::int64_t batch = 1;
  std::int64_t in_channels = 1, in_height = 1, in_width = 1;
  std::int64_t out_channels = 1, out_height = 1, out_width = 1;
  std::int64_t kernel_height = 1, kernel_width = 1, stride = 1, pad_height = 0, pad_width = 0;
  bool accumulate = false;
  DType in = DType::kBf16, out = DType::kBf16;
  bool operator==(const Convolution&) const = default;
};

/// The matrix product that a pass is (cuDNN's implicit GEMM), patches standing for their pixels:
///     forward          m = batch out_height out_width    n = out_channels   k = in_channels taps
///     input gradient   m = batch in_height in_width      n = in_channels    k = out_channels taps
///     weight gradient  m = out_channels   n = in_channels taps   k = batch out_height out_width
/// with taps = kernel_height kernel_width. With a stride s a pixel of d x meets only every s^2-th
/// tap: k of the input gradient is divided by it, rounded up.
Gemm implicit_gemm(const Convolution& work);

enum class AttentionKernel : std::uint8_t {
  kFlash,    ///< tiled, scores never stored; the newest generation for the GPU
  kCudnn,    ///< cuDNN's fused graph
  kUnfused,  ///< scores stored: batched GEMM, softmax, dropout, batched GEMM
  kFlash2,   ///< FlashAttention 2, wherever it runs
  kFlash1,   ///< FlashAttention 1
  kTriton,   ///< FlashAttention 1 as Triton compiles it
};

/// How context-parallel ranks, each with its part of every sequence, share an attention.
enum class ContextPart : std::uint8_t {
  kWhole,   ///< not at all
  kOwn,     ///< queries and keys of this rank's part
  kMember,  ///< its queries, keys of the member `hops` places before it: an operand of their own
  kAll,     ///< its queries, keys of all members, one after another: likewise
  kHeads,   ///< its part of the heads, of whole sequences
};

/// One op of an unfused attention that goes block by block (ring self-attention): a product with
/// the keys or values of one member, whose columns of the scores S or probabilities P are `hops`
/// blocks before the queries' own, or an op on whole rows. What each reads and writes stands in
/// docs/reference/programs.md.
enum class AttentionStep : std::uint8_t {
  kWhole,                ///< no step: all of it
  kScores,               ///< columns of S = Q K^T
  kSoftmax,              ///< P = dropout(softmax(scale S + mask)); backward d S from d P
  kValues,               ///< out = P V, columns times one block; added from the second block on
  kValueGradient,        ///< d V = P^T d out, of the tokens of all members
  kProbabilityGradient,  ///< columns of d P = d out V^T
  kKeyGradient,          ///< d K = d S^T Q, of the tokens of all members
  kQueryGradient,        ///< d Q = d S K, columns times one block; added from the second block on
};

/// Kernels, and what they move.
struct MoreKernels {
  std::int32_t kernels = 0;
  Bytes bytes = 0;
  bool operator==(const MoreKernels&) const = default;
};

/// What a softmax of scores has besides.
struct ScoreForm {
  bool sinks = false;  ///< a logit of every head beside those of the keys
  double cap = 0;      ///< soft cap of scores; 0: none
  bool operator==(const ScoreForm&) const = default;
};

/// softmax(scale Q K^T + mask) V for `batch` sequences. Q, K, V and their gradients are read from
/// one packed buffer [batch, length, (q_heads + 2 kv_heads) head_dim]: for each key-value head its
/// q_heads / kv_heads queries, its key, its value, so that a cut by heads is contiguous. Forward:
/// reads qkv; writes out [batch, q_len, q_heads head_dim] and the saved statistics (flash: fp32
/// log-sum-exp per row; unfused: probabilities, and with dropout the mask and the dropped
/// probabilities). Backward: reads d_out, qkv, out and the statistics; writes d_qkv. FLOPs (causal
/// halves them for every kernel but the unfused, which computes the full square): forward 4 batch
/// q_heads q_len kv_len head_dim, backward 2.5 times that (flash recomputes the scores) or 2 times
/// (unfused). Of kAll, kv_len is what a query sees on average without a window: half the sequence
/// (context_pairs.h). A step's products have 2 batch q_heads q_len kv_len head_dim, with the kv_len
/// keys that it has; its softmax has none.
/// With `sinks` every head has a logit of its own beside those of the keys, whose probability goes
/// nowhere: forward reads these logits [q_heads] last; backward reads them last, and writes their
/// gradients of every token [batch q_len, q_heads] last, which a sum over tokens follows. With a
/// `cap` c a score s is c tanh(s / c), before slopes and mask.
struct Attention {
  bool backward = false;
  std::int64_t batch = 1, q_heads = 1, kv_heads = 1, q_len = 1, kv_len = 1, head_dim = 1;
  std::int64_t value_dim = 0;  ///< of a value where it is not head_dim
  bool causal = true;
  bool alibi = false;
  double dropout = 0;       ///< rate
  std::int64_t window = 0;  ///< keys each query sees, 0 = all
  /// Lengths of the documents that every sequence packs, if it packs several: keys of others are
  /// not seen. Of kOwn and kMember each is cut among the members, as the Batch says.
  std::vector<std::int64_t> documents = {};
  AttentionKernel kernel = AttentionKernel::kFlash;
  DType dtype = DType::kBf16;
  bool plain = false;          ///< unfused: its products run off the tensor cores
  GroupSlot heads_split_over;  ///< the rank holds its equal part of the model's heads; none = all
  GroupSlot sequences_split_over;   ///< likewise of the microbatch's sequences
  std::int64_t first_sequence = 0;  ///< among those that the rank holds
  /// Which of so many equal parts of the rank's heads these are, where masks or slopes tell.
  std::int32_t head_part = 0, head_parts = 1;
  ContextPart part = ContextPart::kWhole;
  GroupSlot parts_over;   ///< the members that hold a part of every sequence; none: the Batch's
  GroupSlot heads_over;   ///< members of one part: each has its equal part of the rank's heads
  std::int32_t hops = 0;  ///< see kMember
  AttentionStep step = AttentionStep::kWhole;
  /// Unfused: kernels besides the products and one pass each for softmax and dropout, and what all
  /// kernels move besides those.
  MoreKernels more = {};
  ScoreForm score = {};
  std::int64_t value_width() const { return value_dim > 0 ? value_dim : head_dim; }
  bool operator==(const Attention&) const = default;
};

/// How a scan's state goes from token to token.
enum class ScanRule : std::uint8_t {
  kStateSpace,    ///< Mamba-2
  kSelective,     ///< Mamba: a step for every channel
  kDelta,         ///< the gated delta rule
  kChannelDelta,  ///< likewise, with a decay for every channel of a key
};

/// A recurrence over the tokens of a sequence. kStateSpace is scanned in chunks (Mamba-2's SSD,
/// arXiv 2405.21060). Each of `heads` heads has a state of head_dim x state elements; heads of one
/// of `groups` groups share B and C:
///     h_t = exp(a dt_t) h_(t-1) + dt_t x_t B_t^T,   y_t = h_t C_t + D x_t,   dt = softplus(. +
///     bias)
/// Forward reads [tokens, heads head_dim + 2 groups state] of x, B, C, the steps dt [tokens,
/// heads], the logarithm of -a, D and the bias of steps [heads]; writes y. Backward reads d y and
/// the same; writes d of x, B and C, of dt, and adds to those of a, D and the bias. kSelective
/// (arXiv 2312.00752): channels are heads of one element, each with steps and a [state] of its own,
/// and a group shares B and C; z is read beside x, and y silu(z) written. One kernel. kDelta (arXiv
/// 2412.06464), of values of head_dim and keys of `state` elements; heads of one group have one
/// query and key, which are read once for each head:
///     S_t = exp(g_t) S_(t-1) (1 - b_t k_t k_t^T) + b_t v_t k_t^T,   y_t = S_t q_t / sqrt(state)
/// Forward reads q and k [tokens, 2 heads state], v, what decays and strengths come from (of
/// kChannelDelta one number for every element of a key), a and the bias: g = -exp(a) softplus(. +
/// bias), b = sigmoid(.); writes y, the sums of g since its chunk began, in fp32, and of every
/// token its row [chunk] of (1 + L)^-1, where L_ij = b_i k_i k_j exp(g_(j+1) + ... + g_i) for j <
/// i. Backward reads d y and all of these; writes d of q, k, v and those inputs, and adds to d of a
/// and the bias. The kernels: scan.h.
struct Scan {
  bool backward = false;
  std::int64_t batch = 1, length = 1, heads = 1, groups = 1, head_dim = 1, state = 1, chunk = 1;
  DType dtype = DType::kBf16;
  ScanRule rule = ScanRule::kStateSpace;
  bool operator==(const Scan&) const = default;
};

/// Kernels bound by memory bandwidth. `rows` x `cols` is the shape of the main operand; what each
/// reads and writes, in this order, stands in docs/reference/programs.md.
enum class KernelKind : std::uint8_t {
  kEmbedding,
  kEmbeddingBackward,
  kLayerNorm,
  kLayerNormBackward,
  kRmsNorm,
  kRmsNormBackward,
  kRope,
  kRopeBackward,
  kNormSums,          ///< per row, over the local columns: what a norm sums
  kNormGradientSums,  ///< likewise its backward pass
  kGelu,
  kGeluBackward,
  kSwiglu,
  kSwigluBackward,
  kRelu,
  kReluBackward,
  kRelu2,
  kRelu2Backward,
  kResidualAdd,          ///< out = residual + dropout(x + bias)
  kResidualAddBackward,  ///< d_x = mask * d_out
  kDropout,              ///< y = dropout(x), and the mask
  kAdd,
  kPositionsAdd,   ///< out = x + row (position) of the table
  kPositionsGrad,  ///< rows of d_y added to their position's row of the table gradient
  kBiasAdd,
  kBiasGrad,      ///< column sums, accumulated
  kLossMax,       ///< per row: maximum over the local part of the vocabulary
  kLossSumExp,    ///< per row: sum of exp(x - max), and the target's logit where it is local
  kLossMean,      ///< sum over rows of log(sum) - target, over the tokens of the batch; added
  kLossShift,     ///< per row: sums of exponentials, and the target, less another maximum
  kLossInput,     ///< d of the output matrix' input, from its product with exponentials
  kLossBackward,  ///< d_logits
  kFill,
  kCast,
  kScale,
  kSquaredNorm,  ///< sum of squares into one fp32
  kLargest,      ///< largest magnitude into one fp32
  kQuantize,     ///< scaled copies in fewer bits, by rows or by columns
  kAdam,         ///< fused AdamW on fp32 master, momentum and variance; writes the model copy
  kRoute,        ///< scores of all experts and the choice of the best, from logits
  kRouteBackward,
  kExpertCounts,  ///< how many tokens go to each expert
  kPermute,       ///< rows copied into the order of their experts
  kUnpermute,     ///< and back, rows of one token summed
  kLatentHeads,  ///< latent attention: heads packed, rotated, with the part of keys that they share
  kLatentHeadsBackward,
  kPackKeys,        ///< keys and values out of packed qkv
  kUnpackKeys,      ///< and into it
  kAddQueries,      ///< d q added to that in packed d qkv
  kMergeAttention,  ///< parts of an attention put together by their log-sum-exps
  kSplitHeads,      ///< a token's heads, by the members that get them
  kJoinHeads,
  kSplitSequence,  ///< tokens of whole sequences, by the members that hold them
  kJoinSequence,
  kBatchNorm,          ///< over each of `cols` channels; keeps mean and deviation
  kBatchNormBackward,  ///< likewise
  kMaxPool,
  kMaxPoolBackward,
  kAveragePool,
  kAveragePoolBackward,
  kConcatenate,  ///< channels of several images, one after another
  kSplitChannels,
  kTranspose,   ///< an image's channels before or behind its pixels
  kCausalConv,  ///< silu of a convolution over a few tokens up to this one, channel by channel
  kCausalConvBackward,
  kGatedNorm,  ///< RMS norm of y silu(z), of each of a token's groups, or that of y times silu(z)
  kGatedNormBackward,
  kGeglu,  ///< gelu of the gate times the other half
  kGegluBackward,
  kGateRows,  ///< rows times the sigmoid of a number each
  kGateRowsBackward,
  kGatedConv,  ///< c conv(b x), channel by channel, over a few tokens up to this one
  kGatedConvBackward,
  kUnitRows,  ///< rows divided by their lengths
  kUnitRowsBackward,
  kSigmoidGate,  ///< y sigmoid(gate), element by element or one gate for a head's elements
  kSigmoidGateBackward,
  kRepeatHeads,  ///< every head of a row several times
  kRepeatHeadsBackward,
  kCount
};

/// Which experts a token goes to.
enum class ExpertChoice : std::uint8_t {
  kUnknown,  ///< the sizes are expectations: priced, refused by executors
  kInTurn,   ///< each its share, whatever the router says
  kBest,     ///< those of the largest scores, as long as they have room
};

/// Whose rows a kernel moves, from kRoute on. An expert has room for `capacity` rows of each rank.
struct ExpertRows {
  ExpertChoice choice = ExpertChoice::kUnknown;
  std::int64_t experts =
      0;                   ///< of the layer; in a sort of what ranks have sent, those of this rank
  std::int64_t top_k = 0;  ///< experts of a token
  std::int64_t capacity = 0;
  std::int64_t sources = 1;  ///< ranks whose rows a sort puts together
  bool operator==(const ExpertRows&) const = default;
};

/// What the kernels that compose one move besides its operands, for each of rows x cols, and of all
/// that is moved what goes an element at a time, in so many passes.
struct BetweenKernels {
  std::int64_t bytes = 0, unvectorized_bytes = 0;
  double unvectorized_passes = 0;
  bool operator==(const BetweenKernels&) const = default;
};

/// One launch of a memory-bound kernel (or `launches` of them, one per tensor, for unfused forms).
/// `bytes` is what it moves, from the views the op reads and writes (`kernel_bytes` in program.h):
/// the builder fills it in, `verify` checks it.
struct Kernel {
  KernelKind kind = KernelKind::kFill;
  std::int64_t rows = 0, cols = 0;
  DType dtype = DType::kBf16;
  Bytes bytes = 0;
  std::int64_t flops = 0;
  std::int32_t launches = 1;
  BetweenKernels between;
  /// Of rope and of heads that are repeated. Of a causal convolution whose result lies in two
  /// arrays the columns of the first; 0: in one.
  std::int64_t head_dim = 0;
  std::int64_t first_row = 0;  ///< of dropouts: among the tokens that the rank holds
  /// The rate of a dropout, the norm that `scale` and `adam` clip to, the share of a head that rope
  /// turns, the cap of the logits of a loss; 1 of a gelu that eager code composes, of a gated norm
  /// whose gate comes behind the norm, and of a norm of all queries or keys of a token at once.
  double value = 0;
  /// The rank holds its equal part of: the microbatch's tokens (dropouts, positions, routing), the
  /// vocabulary (embedding, loss), the experts (sorts of gathered tokens). None = all of them. Of
  /// heads split and joined: who exchanges them, none = the Batch's context ranks.
  GroupSlot split_over;
  /// The rank holds its equal part of the columns (norms, whose sums are an operand then,
  /// dropouts).
  GroupSlot cols_split_over;
  ExpertRows rows_of;  ///< where experts get them
  bool operator==(const Kernel&) const = default;
};

/// Of a head, the elements that rope turns: pairs, at least one.
inline std::int64_t turned_of(const Kernel& rope) {
  const auto all = static_cast<double>(rope.head_dim);
  return std::max<std::int64_t>(2, static_cast<std::int64_t>(all * rope.value + 0.5) / 2 * 2);
}

enum class CollectiveKind : std::uint8_t {
  kAllReduce,
  kAllGather,
  kReduceScatter,
  kBroadcast,
  kReduce,
  kAllToAll,
};

/// Where the rows of an all-to-all go when each is wanted by several members: `drawn` items (a
/// token's experts) out of `items` that the members hold in equal parts, drawn alike from `limit`
/// of the `groups` equal groups of items. 0 drawn: every member gets its own rows.
struct FanOut {
  std::int32_t drawn = 0, items = 1, groups = 1, limit = 1;
  std::int32_t sms = 0;     ///< that its kernels hold
  std::int32_t enough = 0;  ///< that carry as much as the links do; fewer carry their part of it
  bool operator==(const FanOut&) const = default;
};

/// Of `parts` equal parts of the items, how many hold any of what a row draws, in the mean:
///     parts (1 - sum_j H(j) C((limit - j) g - s, drawn) / C(limit g, drawn))
/// with g items a group; a part lies in one group, which is among the limited ones or not (s items
/// missed of it), or spans whole groups, j of them among the limited ones (H hypergeometric).
double parts_hit(const FanOut& fan_out, std::int64_t parts);

/// A rendezvous of one group. `count` is the number of elements of the FULL array: what every
/// member holds for all-reduce and broadcast, the gathered array for all-gather and reduce-scatter,
/// the local buffer for all-to-all. Reductions sum (`maximum`: take the largest). Every member
/// reads and names a result, but a broadcast takes what the root reads, and a reduce writes the
/// result of the root alone.
struct Collective {
  CollectiveKind kind = CollectiveKind::kAllReduce;
  GroupSlot group;
  std::int64_t count = 0;
  DType dtype = DType::kBf16;
  bool maximum = false;
  /// Of an all-to-all whose rows are sent once to a node and spread there over its own links, by
  /// kernels made for it (DeepEP).
  FanOut fan_out = {};
  std::int32_t root = 0;  ///< place in the group, of broadcast and reduce
  /// Of all-gather and reduce-scatter: the array is runs of so many elements, of each of which a
  /// member has its part, one after the other, and all travel at once; none: it is one.
  std::vector<std::int64_t> runs = {};
  bool operator==(const Collective&) const = default;
};

/// One point-to-point message along a channel, which fixes both its ends.
struct Message {
  bool send = false;
  ChannelSlot channel;
  Bytes bytes = 0;
  bool copied = false;  ///< within a node by copy engines, which hold no SMs
  bool operator==(const Message&) const = default;
};

/// A group of sends and receives that make progress together, as between ncclGroupStart and
/// ncclGroupEnd: the op ends when all of them have. Alone on a stream, a send waits for its
/// receive. Operands: sends are read, receives written, in the order of `messages`.
struct P2PBatch {
  std::vector<Message> messages;
  bool operator==(const P2PBatch&) const = default;
};

enum class Memory : std::uint8_t { kDevice, kHost, kStorage };

/// A copy by an engine that takes no SMs.
struct Copy {
  Memory from = Memory::kHost, to = Memory::kDevice;
  Bytes bytes = 0;
  bool pageable = false;  ///< the host's memory: the driver copies through pinned pages of its own
  bool operator==(const Copy&) const = default;
};

/// The host waits until everything before it on this op's stream is done (`.item()`, `.wait()`).
struct HostSync {
  bool operator==(const HostSync&) const = default;
};

/// Host time that the RUN states (data preparation, Python overhead); blocks the issue of what
/// follows.
struct HostDelay {
  Time time;
  bool operator==(const HostDelay&) const = default;
};

/// The stream does nothing for so long and takes no SMs: a background thread's cycle.
struct Pause {
  Time time;
  bool operator==(const Pause&) const = default;
};

/// Priced by bytes and FLOPs: work given as numbers. `where` is the memory that it moves the bytes
/// in; on the host it takes nothing of the device. Executors run `kernel` on the op's operands, and
/// refuse work that has none.
struct Opaque {
  std::string name;
  Bytes bytes = 0;
  std::int64_t flops = 0;
  DType dtype = DType::kBf16;
  Memory where = Memory::kDevice;
  std::optional<Kernel> kernel = std::nullopt;  ///< what it computes, where that is written down
  bool operator==(const Opaque&) const = default;
};

using Work = std::variant<Gemm, Attention, Kernel, Collective, P2PBatch, Copy, HostSync, HostDelay,
                          Pause, Opaque, Convolution, Scan>;

std::string_view name_of(KernelKind kind);
std::string_view name_of(CollectiveKind kind);
std::string_view name_of(AttentionKernel kernel);
std::string_view name_of(AttentionStep step);
std::string_view name_of(ConvolutionPass pass);
std::string_view name_of(ScanRule rule);
std::string_view name_of(Memory memory);

/// FLOPs that arithmetic units execute for this work (a multiply-add counts two); 0 for
/// communication.
double flops_of(const Work& work);

/// One line, stable: `gemm 4096x6144x4096 nt bf16->bf16`, `all-reduce group 0 16777216 bf16`, ...
std::string text_of(const Work& work);

}  // namespace foretrain
