#include <string>

#include "sim/program/context_pairs.h"
#include "sim/program/documents.h"
#include "sim/program/program.h"
#include "sim/program/scan.h"

namespace foretrain {
namespace {

template <typename... Fs>
struct Overloaded : Fs... {
  using Fs::operator()...;
};
template <typename... Fs>
Overloaded(Fs...) -> Overloaded<Fs...>;

std::string number(std::int64_t v) { return std::to_string(v); }

std::string text_of(const Attention& w) {
  std::string out(name_of(w.step));
  const bool both = w.step == AttentionStep::kWhole || w.step == AttentionStep::kSoftmax;
  if (w.backward && both) out += "-backward";
  out += " batch " + number(w.batch) + " heads " + number(w.q_heads) + "/" + number(w.kv_heads);
  out += " length " + number(w.q_len) + "x" + number(w.kv_len) + " head " + number(w.head_dim);
  if (w.value_dim > 0) out += "/" + number(w.value_dim);
  if (w.causal) out += " causal";
  if (w.alibi) out += " alibi";
  if (w.first_sequence > 0) out += " from sequence " + number(w.first_sequence);
  if (w.head_parts > 1) out += " part " + number(w.head_part) + " of " + number(w.head_parts);
  if (w.score.sinks) out += " sinks";
  if (w.score.cap > 0) out += " capped";
  if (w.dropout > 0) out += " dropout";
  if (w.window > 0) out += " window " + number(w.window);
  if (!w.documents.empty()) out += " documents";
  for (const std::int64_t length : w.documents) out += " " + number(length);
  if (w.more.kernels > 0) {
    out += " and " + number(w.more.kernels) + " kernels of " + number(w.more.bytes) + " B";
  }
  return out + " " + std::string(name_of(w.kernel)) + " " + std::string(name_of(w.dtype));
}

std::string text_of(const Kernel& w) {
  std::string out(name_of(w.kind));
  out += " " + number(w.rows) + "x" + number(w.cols) + " " + std::string(name_of(w.dtype)) + " " +
         number(w.bytes) + " B";
  if (w.launches != 1) out += " in " + number(w.launches) + " launches";
  if (w.split_over.valid()) out += " split over group " + number(w.split_over.value);
  if (w.first_row > 0) out += " from row " + number(w.first_row);
  if (w.cols_split_over.valid()) {
    out += " columns split over group " + number(w.cols_split_over.value);
  }
  if (const ExpertRows& e = w.rows_of; e.experts > 0) {
    out += " " + number(e.capacity) + " rows an expert of " + number(e.experts);
    if (e.sources > 1) out += " from " + number(e.sources) + " ranks";
  }
  return out;
}

std::string text_of(const FanOut& w) {
  if (w.drawn == 0) return "";
  std::string out = " once a node of " + number(w.drawn) + " of " + number(w.items);
  if (w.limit < w.groups) {
    out += " in " + number(w.limit) + " of " + number(w.groups) + " groups";
  }
  return w.sms > 0 ? out + " by " + number(w.sms) + " SMs" : out;
}

std::string text_of(const P2PBatch& w) {
  std::string out = "p2p";
  for (const Message& m : w.messages) {
    out += (m.send ? " send " : " receive ") + number(m.bytes) + " B on channel " +
           number(m.channel.value) + (m.copied ? " copied" : "");
  }
  return out;
}

std::string text_of(const Gemm& w) {
  std::string out = "gemm " + number(w.m) + "x" + number(w.n) + "x" + number(w.k);
  if (w.batch != 1) out += " batch " + number(w.batch) + (w.apart ? " apart" : "");
  out += std::string(" ") + (w.transpose_a ? "t" : "n") + (w.transpose_b ? "t" : "n");
  out += " " + std::string(name_of(w.in)) + "->" + std::string(name_of(w.out));
  if (w.split_accumulator) out += " split accumulator";
  if (w.cutlass) out += " cutlass";
  if (w.beside > 1) out += " of " + number(w.beside) + " on " + number(w.streams) + " streams";
  if (w.columns.parts[0] > 0) {
    out += " of";
    for (const std::int64_t part : w.columns.parts) out += part > 0 ? " " + number(part) : "";
  }
  if (!w.groups.empty()) out += " groups";
  for (const std::int64_t tokens : w.groups) out += " " + number(tokens);
  if (!w.columns.blocks.empty()) out += " blocks";
  for (const std::int64_t columns : w.columns.blocks) out += " " + number(columns);
  return w.accumulate ? out + " accumulate" : out;
}

std::string text_of(const Convolution& w) {
  std::string out = "convolution " + std::string(name_of(w.pass)) + " batch " + number(w.batch) +
                    " " + number(w.in_channels) + "x" + number(w.in_height) + "x" +
                    number(w.in_width) + " to " + number(w.out_channels) + "x" +
                    number(w.out_height) + "x" + number(w.out_width) + " kernel " +
                    number(w.kernel_height) + "x" + number(w.kernel_width);
  if (w.stride > 1) out += " stride " + number(w.stride);
  if (w.pad_height + w.pad_width > 0) {
    out += " pad " + number(w.pad_height) + "x" + number(w.pad_width);
  }
  out += " " + std::string(name_of(w.in)) + "->" + std::string(name_of(w.out));
  return w.accumulate ? out + " accumulate" : out;
}

std::string text_of(const Scan& w) {
  const std::string rule =
      w.rule == ScanRule::kStateSpace ? "" : " " + std::string(name_of(w.rule));
  return "scan" + std::string(w.backward ? "-backward" : "") + rule + " batch " + number(w.batch) +
         " length " + number(w.length) + " heads " + number(w.heads) + "/" + number(w.groups) +
         " dim " + number(w.head_dim) + " state " + number(w.state) + " chunk " + number(w.chunk) +
         " " + std::string(name_of(w.dtype));
}

std::string text_of(const View& view) {
  std::string out = number(view.frame) + "." + number(view.buffer) + "[" + number(view.offset) +
                    "+" + number(view.bytes);
  if (view.shards > 1) {
    out += " shard of " + number(view.shards) + " by group " + number(view.shard_group.value);
  }
  if (view.hops > 0) out += ", " + number(view.hops) + " before";
  return out + "]";
}

void print_op(const Op& op, const Program& program, std::string& out) {
  out += "    " + program.streams[op.stream.index()] + ": " + op.name + " [" +
         std::string(name_of(op.category)) + " " + std::string(name_of(op.phase)) + "] " +
         text_of(program.works[op.work.index()]);
  const auto list = [&out](const char* label, const auto& items, const auto& print) {
    if (items.empty()) return;
    out += std::string(" ") + label;
    for (const auto& item : items) out += " " + print(item);
  };
  const auto view = [](const View& v) { return text_of(v); };
  const auto ref = [](const BufferRef& b) { return number(b.frame) + "." + number(b.buffer); };
  const auto event = [](const EventRef& e) { return number(e.frame) + "." + number(e.event); };
  list("reads", op.reads, view);
  list("writes", op.writes, view);
  list("allocates", op.allocates, ref);
  list("frees", op.frees, ref);
  list("waits", op.waits, event);
  if (op.records.valid()) out += " records " + event(op.records);
  if (op.captured) out += " captured";
  out += "\n";
}

void print_layout(const FrameLayout& layout, std::size_t index, std::string& out) {
  out += "  layout " + std::to_string(index) + " " + layout.name + "\n";
  for (const Buffer& buffer : layout.buffers) {
    out += "    " + buffer.name + " " + std::string(name_of(buffer.kind)) + " " +
           number(buffer.count) + " " + std::string(name_of(buffer.dtype));
    if (buffer.persistent) out += " persistent";
    if (buffer.memory != Memory::kDevice) out += " in " + std::string(name_of(buffer.memory));
    if (buffer.saved) out += " saved";
    if (buffer.shards > 1) {
      out += " own of " + number(buffer.shards) + " in group " + number(buffer.shard_group.value);
      if (!buffer.runs.empty()) out += " in " + std::to_string(buffer.runs.size()) + " runs";
    }
    for (const Replica& r : buffer.replicas) {
      out += " alike in group " + number(r.group.value) + " [" + number(r.begin) + ", " +
             number(r.end) + ")";
    }
    out += "\n";
  }
  for (const std::string& event : layout.events) out += "    event " + event + "\n";
}

void print_call(const Call& call, const Program& program, std::string& out) {
  out += "  " + program.segments[call.segment.index()].name;
  if (call.layer >= 0) out += " layer " + number(call.layer);
  if (call.microbatch >= 0) out += " microbatch " + number(call.microbatch);
  out += " frames";
  for (const FrameId frame : call.frames) {
    out += frame.valid() ? " " + number(frame.value) : " -";
  }
  for (const StreamWait& wait : call.waits) {
    out += " " + program.streams[wait.stream.index()] + "-waits " + number(wait.frame.value) + "." +
           number(wait.event);
  }
  out += "\n";
}

double gemm_flops(const Gemm& w) {
  if (w.groups.empty()) {
    return 2.0 * static_cast<double>(w.m) * static_cast<double>(w.n) * static_cast<double>(w.k) *
           static_cast<double>(w.batch);
  }
  double tokens = 0;
  for (const std::int64_t group : w.groups) tokens += static_cast<double>(group);
  return 2.0 * tokens * static_cast<double>(w.n) * static_cast<double>(w.transpose_a ? w.m : w.k);
}

double step_flops(const Attention& w) {
  if (w.step == AttentionStep::kSoftmax) return 0;
  return 2.0 * static_cast<double>(w.batch) * static_cast<double>(w.q_heads) *
         static_cast<double>(w.q_len) * static_cast<double>(w.kv_len) *
         static_cast<double>(w.head_dim);
}

double attention_flops(const Attention& w) {
  if (w.step != AttentionStep::kWhole) return step_flops(w);
  const bool unfused = w.kernel == AttentionKernel::kUnfused;
  const bool packs = !w.documents.empty() && !unfused;
  if (packs && w.part != ContextPart::kAll) {
    double sum = 0;
    for (const Attention& one : by_document(w)) sum += attention_flops(one);
    return sum;
  }
  const bool windowed = w.window > 0 && w.window < w.kv_len;
  const auto length = static_cast<double>(w.kv_len);
  const double keys = windowed ? static_cast<double>(w.window) : length;
  // The unfused kernels compute the full square; the others what the causal mask leaves.
  const double seen = w.causal && !unfused ? keys - keys * keys / (2 * length) : keys;
  double of_head = static_cast<double>(w.q_len) * seen;
  if (windows_gathered(w)) of_head = gathered_pairs(w).mean;
  if (packs) of_head = mean_document_pairs(w);
  const double pairs = static_cast<double>(w.batch) * static_cast<double>(w.q_heads) * of_head;
  const auto k = static_cast<double>(w.head_dim);
  const auto v = static_cast<double>(w.value_width());
  if (!w.backward) return 2.0 * pairs * (k + v);
  return 2.0 * pairs * (unfused ? 2 * k + 2 * v : 3 * k + 2 * v);
}

}  // namespace

std::string text_of(const Work& work) {
  return std::visit(
      Overloaded{
          [](const Gemm& w) { return text_of(w); },
          [](const Attention& w) { return text_of(w); },
          [](const Kernel& w) { return text_of(w); },
          [](const Convolution& w) { return text_of(w); },
          [](const Scan& w) { return text_of(w); },
          [](const Collective& w) {
            const bool rooted =
                w.kind == CollectiveKind::kBroadcast || w.kind == CollectiveKind::kReduce;
            return std::string(name_of(w.kind)) + " group " + number(w.group.value) + " " +
                   number(w.count) + " " + std::string(name_of(w.dtype)) +
                   (w.maximum ? " max" : "") + (rooted ? " root " + number(w.root) : "") +
                   (w.runs.empty() ? "" : " in " + std::to_string(w.runs.size()) + " runs") +
                   text_of(w.fan_out);
          },
          [](const P2PBatch& w) { return text_of(w); },
          [](const Copy& w) {
            return "copy " + std::string(name_of(w.from)) + "->" + std::string(name_of(w.to)) +
                   " " + number(w.bytes) + " B" + (w.pageable ? " pageable" : "");
          },
          [](const HostSync&) { return std::string("host-sync"); },
          [](const HostDelay& w) { return "host-delay " + number(w.time.ps) + " ps"; },
          [](const Pause& w) { return "pause " + number(w.time.ps) + " ps"; },
          [](const Opaque& w) {
            return "opaque " + w.name + " " + number(w.bytes) + " B " + number(w.flops) + " FLOP" +
                   (w.where == Memory::kHost ? " on the host" : "");
          },
      },
      work);
}

std::vector<Gemm> gemms_of(const Gemm& work) {
  std::vector<Gemm> out;
  for (const std::int64_t part : work.columns.parts) {
    if (part == 0) break;
    Gemm one = work;
    one.columns.parts = {};
    std::int64_t& cut = work.transpose_a ? one.m : work.transpose_b ? one.n : one.k;
    // What several matrices give to one input's gradient is added up.
    if (&cut == &one.k && !out.empty()) one.accumulate = true;
    cut = part;
    out.push_back(one);
  }
  if (out.empty()) out.push_back(work);
  return out;
}

Gemm implicit_gemm(const Convolution& w) {
  const std::int64_t taps = w.kernel_height * w.kernel_width;
  const std::int64_t pixels = w.batch * w.out_height * w.out_width;
  Gemm out;
  out.in = w.in;
  out.out = w.out;
  out.accumulate = w.accumulate;
  switch (w.pass) {
    case ConvolutionPass::kForward:
      out.m = pixels;
      out.n = w.out_channels;
      out.k = w.in_channels * taps;
      out.transpose_b = true;
      break;
    case ConvolutionPass::kInputGradient: {
      const std::int64_t met = w.stride * w.stride;
      out.m = w.batch * w.in_height * w.in_width;
      out.n = w.in_channels;
      out.k = (w.out_channels * taps + met - 1) / met;
      break;
    }
    case ConvolutionPass::kWeightGradient:
      out.m = w.out_channels;
      out.n = w.in_channels * taps;
      out.k = pixels;
      out.transpose_a = true;
      break;
  }
  return out;
}

double flops_of(const Work& work) {
  return std::visit(Overloaded{
                        [](const Gemm& w) { return gemm_flops(w); },
                        [](const Attention& w) { return attention_flops(w); },
                        [](const Kernel& w) { return static_cast<double>(w.flops); },
                        [](const Convolution& w) {
                          Convolution forward = w;
                          forward.pass = ConvolutionPass::kForward;
                          return flops_of(Work{implicit_gemm(forward)});
                        },
                        [](const Opaque& w) { return static_cast<double>(w.flops); },
                        [](const Scan& w) {
                          double sum = 0;
                          for (const ScanKernel& kernel : kernels_of(w)) sum += kernel.flops;
                          return sum;
                        },
                        [](const auto&) { return 0.0; },
                    },
                    work);
}

std::int64_t count_ops(const Program& program) {
  std::int64_t count = 0;
  for (const Call& call : program.calls) {
    count += static_cast<std::int64_t>(program.segments[call.segment.index()].ops.size());
  }
  return count;
}

std::string text_of(const Program& program) {
  std::string out = "program " + program.name + "\n";
  const auto names = [&out](const char* label, const std::vector<std::string>& list) {
    out += std::string("  ") + label;
    for (const std::string& name : list) out += " " + name;
    out += "\n";
  };
  names("streams", program.streams);
  names("groups", program.group_slots);
  names("channels", program.channel_slots);
  for (std::size_t i = 0; i < program.layouts.size(); ++i) {
    print_layout(program.layouts[i], i, out);
  }
  for (const Segment& segment : program.segments) {
    out += "  segment " + segment.name + " on layouts";
    for (const LayoutId layout : segment.frames) out += " " + number(layout.value);
    out += "\n";
    for (const Op& op : segment.ops) print_op(op, program, out);
  }
  out += "  frames " + std::to_string(program.frames.size()) + ", calls " +
         std::to_string(program.calls.size()) + ", ops " + number(count_ops(program)) + "\n";
  for (const Call& call : program.calls) print_call(call, program, out);
  return out;
}

}  // namespace foretrain
