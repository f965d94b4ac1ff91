#include "tests/cli/story.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <iterator>
#include <utility>

#include "sim/program/verify.h"
#include "tools/predict/run_file.h"

namespace foretrain {
namespace {

constexpr const char* kMechanismsRun = R"({
  "model": {"model_type": "llama", "hidden_size": 256, "num_hidden_layers": 3,
            "num_attention_heads": 4, "intermediate_size": 512, "vocab_size": 1024},
  "cluster": {"preset": "dgx-a100-80gb", "accelerators": 4},
  "batch": {"global": 4, "micro": 1, "sequence": 128}})";

constexpr StreamId kCompute{std::size_t{0}};

std::string bytes_text(Bytes bytes) { return std::to_string(bytes) + " B"; }

/// Neither data nor a message between stages.
bool is_pass(const Program& program, const Call& call) {
  const Segment& segment = program.segments[call.segment.index()];
  const bool message =
      call.layer < 0 && !segment.ops.empty() &&
      std::holds_alternative<P2PBatch>(program.works[segment.ops.front().work.index()]);
  return call.microbatch >= 0 && segment.name != "load inputs" && !message;
}

void add_name(std::string& after, const std::string& name) {
  after += (after.empty() ? " after " : ", ") + name;
}

/// "sends 8 B, receives 8 B".
std::string messages_text(const P2PBatch& batch) {
  std::string out;
  for (const Message& message : batch.messages) {
    out += (out.empty() ? "" : ", ") + std::string(message.send ? "sends " : "receives ") +
           bytes_text(message.bytes);
  }
  return out;
}

struct Told {
  bool told = false;
  std::string name, what;
};

Told told_of(const Program& program, const Op& op) {
  const Work& work = program.works[op.work.index()];
  Told out{true, op.name, ""};
  if (const auto* moved = std::get_if<Collective>(&work)) {
    const bool rooted =
        moved->kind == CollectiveKind::kBroadcast || moved->kind == CollectiveKind::kReduce;
    if (rooted) out.name += " " + std::to_string(moved->root);
    out.what = ": " + std::string(name_of(moved->kind)) + " of " +
               bytes_text(bytes_of(moved->dtype, moved->count));
  } else if (const auto* batch = std::get_if<P2PBatch>(&work)) {
    out.what = ": " + messages_text(*batch);
  } else {
    out.told = std::holds_alternative<Gemm>(work) || std::holds_alternative<Attention>(work);
  }
  if (!(op.stream == kCompute)) out.what += " on " + program.streams[op.stream.index()];
  return out;
}

}  // namespace

Workload lowered_workload(const std::string& system, std::vector<std::string> sets) {
  sets.push_back("system=" + system);
  const Result<Run> run = resolve_run(parse_json(kMechanismsRun, "run").value(), "run", sets);
  EXPECT_TRUE(run.ok()) << run.error().message;
  Workload workload = lower(run.value().model, run.value().plan);
  const Status status = verify(workload);
  EXPECT_TRUE(status.ok()) << status.error().message;
  return workload;
}

Program lowered(const std::string& system, std::vector<std::string> sets) {
  return std::move(lowered_workload(system, std::move(sets)).programs.front());
}

Story::Story(const Program& program, bool pipelined) : x_program(program), x_pipelined(pipelined) {
  for (const Call& call : program.calls) tell(call);
}

std::string Story::label_of(const Call& call) const {
  std::string label = x_program.segments[call.segment.index()].name;
  if (call.layer >= 0) label += " " + std::to_string(call.layer);
  if (x_pipelined && call.microbatch >= 0) label += " of " + std::to_string(call.microbatch);
  return label;
}

void Story::tell(const Call& call) {
  const Segment& segment = x_program.segments[call.segment.index()];
  const bool pass = is_pass(x_program, call);
  std::string label = label_of(call);
  const std::size_t before = lines.size();
  for (const Op& op : segment.ops) {
    const Work& work = x_program.works[op.work.index()];
    std::string what;
    if (const auto* moved = std::get_if<Collective>(&work)) {
      if (pass || moved->count == 1) continue;  // ops_of; sums of norms and losses
      const std::string kind(name_of(moved->kind));
      label = kind + " " + std::to_string(x_numbers[kind]++);
      what = bytes_text(bytes_of(moved->dtype, moved->count));
    } else if (const auto* batch = std::get_if<P2PBatch>(&work)) {
      if (pass) continue;
      what = messages_text(*batch);
    } else {
      continue;
    }
    lines.push_back(label + ": " + what + " on " + x_program.streams[op.stream.index()] +
                    behind(call, op.stream));
  }
  const bool told = lines.size() > before;
  if (!told && (pass || segment.name == "update" || segment.name == "copy parameters out")) {
    lines.push_back(label + behind(call, kCompute));
  }
  for (const Op& op : segment.ops) {
    if (!op.records.valid()) continue;
    const FrameId frame = call.frames[static_cast<std::size_t>(op.records.frame)];
    x_recorded[{frame.value, op.records.event}] = {label, op.stream, pass};
  }
}

std::string Story::behind(const Call& call, StreamId stream) const {
  Lines names;
  const auto add = [&](FrameId frame, std::int16_t event) {
    const auto found = x_recorded.find({frame.value, event});
    if (found != x_recorded.end()) names.push_back(found->second.label);
  };
  for (const StreamWait& wait : call.waits) {
    if (wait.stream == stream) add(wait.frame, wait.event);
  }
  const Segment& segment = x_program.segments[call.segment.index()];
  for (const Op& op : segment.ops) {
    if (!x_pipelined || !(op.stream == stream)) continue;
    for (const EventRef& wait : op.waits) {
      const FrameId frame = call.frames[static_cast<std::size_t>(wait.frame)];
      const auto found = x_recorded.find({frame.value, wait.event});
      // One pass follows another on compute, whichever stream its last operation is on.
      if (found == x_recorded.end() || found->second.stream == stream) continue;
      if (!(is_pass(x_program, call) && found->second.by_pass)) add(frame, wait.event);
    }
  }
  std::string out;
  for (const std::string& name : names) add_name(out, name);
  return out;
}

Lines ops_of(const Program& program, const std::string& segment) {
  Lines lines;
  const auto found = std::find_if(program.segments.begin(), program.segments.end(),
                                  [&](const Segment& s) { return s.name == segment; });
  if (found == program.segments.end()) {
    ADD_FAILURE() << "no segment " << segment;
    return lines;
  }
  std::map<std::pair<std::int16_t, std::int16_t>, std::string> recorded;
  std::map<std::size_t, std::string> awaited;  // by stream
  for (const Op& op : found->ops) {
    std::string& after = awaited[op.stream.index()];
    for (const EventRef& wait : op.waits) {
      const auto event = recorded.find({wait.frame, wait.event});
      if (event != recorded.end()) add_name(after, event->second);
    }
    const Told told = told_of(program, op);
    if (told.told) lines.push_back(told.name + told.what + std::exchange(after, ""));
    if (op.records.valid()) recorded[{op.records.frame, op.records.event}] = told.name;
  }
  if (!awaited[kCompute.index()].empty()) lines.push_back("end" + awaited[kCompute.index()]);
  return lines;
}

Lines starting_with(const Lines& lines, const std::string& start) {
  Lines out;
  std::copy_if(lines.begin(), lines.end(), std::back_inserter(out),
               [&](const std::string& line) { return line.starts_with(start); });
  return out;
}

Lines with_part(const Lines& lines, const std::string& part) {
  Lines out;
  std::copy_if(lines.begin(), lines.end(), std::back_inserter(out),
               [&](const std::string& line) { return line.find(part) != std::string::npos; });
  return out;
}

Lines waiting_for(const Lines& lines, const std::string& what) {
  Lines out;
  std::copy_if(lines.begin(), lines.end(), std::back_inserter(out), [&](const std::string& line) {
    const std::size_t after = line.find(" after ");
    return after != std::string::npos && line.find(what, after) != std::string::npos;
  });
  return out;
}

std::size_t members_of(const Workload& workload, const std::string& group) {
  const std::vector<std::string>& slots = workload.programs.front().group_slots;
  const auto at = std::find(slots.begin(), slots.end(), group) - slots.begin();
  const std::vector<GroupId>& groups = workload.ranks.front().groups;
  if (static_cast<std::size_t>(at) >= groups.size()) return 0;
  return workload.groups[groups[static_cast<std::size_t>(at)].index()].size();
}

}  // namespace foretrain
