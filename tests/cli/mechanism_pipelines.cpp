#include "tests/cli/mechanism_pipelines.h"

#include <algorithm>
#include <utility>

namespace foretrain {
namespace {

constexpr std::int64_t kPipelineStages = 2, kPipelineLayers = 4;

void add_pass(Lines& out, const PipelineStage& at, const ListedPass& pass) {
  const std::string of = " of " + std::to_string(pass.microbatch);
  const std::string way = pass.forward ? "forward" : "backward";
  const std::string what = pass.forward ? "activations" : "gradients";
  const std::int64_t chunk = pass.chunk * kPipelineStages + at.stage;
  const std::int64_t each = kPipelineLayers / (kPipelineStages * at.chunks);
  const bool first = chunk == 0, last = chunk == kPipelineStages * at.chunks - 1;
  const auto end = [&](const char* name) { out.push_back(name + way + of); };
  const auto again = [&] {
    for (std::int64_t i = 0; at.again && !pass.forward && i < each; ++i) {
      out.push_back("layer again " + std::to_string(chunk * each + i) + of);
    }
  };
  if (pass.forward ? !first : !last) {
    out.push_back("receive " + what + of);
    again();
    if (at.host_waits) out.push_back("host waits, " + way + of);
  }
  if (pass.forward && first) end("embedding ");
  if (!pass.forward && last) end("head ");
  if (last) again();
  for (std::int64_t i = 0; i < each; ++i) {
    const std::int64_t layer = chunk * each + (pass.forward ? i : each - 1 - i);
    out.push_back("layer " + way + at.suffix + " " + std::to_string(layer) + of);
  }
  if (pass.forward && last) end("head ");
  if (!pass.forward && first) end("embedding ");
  if (pass.forward ? !last : !first) out.push_back("send " + what + of);
}

}  // namespace

std::int64_t padded_to(std::int64_t count, std::int64_t unit) {
  return (count + unit - 1) / unit * unit;
}

Lines pipelined_by(Lines more) {
  const Lines sets = {"parallel.tensor=2", "parallel.pipeline=2", "cluster.accelerators=8",
                      "model.num_hidden_layers=4", "batch.global=8"};
  more.insert(more.begin(), sets.begin(), sets.end());
  return more;
}

std::string moved(const char* kind, std::int64_t bytes, const char* stream) {
  return std::string(": ") + kind + " of " + std::to_string(bytes) + " B on " + stream;
}

Lines streams_in(Lines lines) {
  const std::pair<std::string, const char*> kinds[] = {
      {"<gather>", "all-gather"}, {"<scatter>", "reduce-scatter"}, {"<reduce>", "all-reduce"}};
  for (std::string& line : lines) {
    for (const auto& [mark, kind] : kinds) {
      const std::size_t at = line.find(mark);
      if (at != std::string::npos)
        line.replace(at, mark.size(), moved(kind, SmallModel::kStream, "tensor"));
    }
  }
  return lines;
}

std::vector<ListedPass> one_forward_one_backward(const PipelineStage& stage) {
  const std::int64_t v = stage.chunks, total = stage.microbatches * v;
  const std::int64_t behind = kPipelineStages - stage.stage - 1;
  const std::int64_t warm_up =
      std::min(total, v > 1 ? 2 * behind + (v - 1) * kPipelineStages : behind);
  const auto at = [&](std::int64_t i, bool forward) {
    const std::int64_t chunk = i / kPipelineStages % v;
    return ListedPass{forward, forward ? chunk : v - 1 - chunk,
                      i / (kPipelineStages * v) * kPipelineStages + i % kPipelineStages};
  };
  std::vector<ListedPass> out;
  for (std::int64_t i = 0; i < total + warm_up; ++i) {
    if (i < total) out.push_back(at(i, true));
    if (i >= warm_up) out.push_back(at(i - warm_up, false));
  }
  return out;
}

Lines lines_of(const PipelineStage& stage, const std::vector<ListedPass>& passes) {
  Lines out;
  for (const ListedPass& pass : passes) add_pass(out, stage, pass);
  return out;
}

Lines passes_of(const Lines& story) {
  Lines out;
  for (const std::string& line : story) {
    const std::string name = line.substr(0, std::min(line.find(": "), line.find(" after ")));
    if (name.find(" of ") != std::string::npos) out.push_back(name);
  }
  return out;
}

std::set<std::int64_t> message_sizes(const Lines& story) {
  std::set<std::int64_t> out;
  for (const std::string& line : story) {
    for (const std::string way : {": sends ", ": receives "}) {
      const std::size_t at = line.find(way);
      if (at != std::string::npos) out.insert(std::stoll(line.substr(at + way.size())));
    }
  }
  return out;
}

}  // namespace foretrain
