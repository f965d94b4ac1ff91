// Do graphs of layers take what they name off the host, and nothing else?
#include <gtest/gtest.h>

#include <map>
#include <string>

#include "models/lower.h"
#include "sim/program/verify.h"
#include "tests/support/small_plans.h"

namespace foretrain {
namespace {

Program captured_program(const Model& model, const Plan& plan) {
  Workload workload = lower(model, plan);
  const Status status = verify(workload);
  EXPECT_TRUE(status.ok()) << status.error().message;
  return workload.programs[0];
}

/// Launches of graphs by segment; every operation of a layer is captured as `held` says by its name
/// and whether the layer has experts.
template <typename Held>
std::map<std::string, int> graph_launches(const Program& program, Held held) {
  std::map<std::string, int> out;
  for (const Segment& segment : program.segments) {
    const bool layer = segment.name.starts_with("layer ");
    for (const Op& op : segment.ops) {
      if (op.name == "graph.launch") {
        EXPECT_FALSE(op.captured);
        ++out[segment.name];
      } else {
        EXPECT_EQ(op.captured, layer && op.category != Category::kHost &&
                                   held(op.name, segment.name.ends_with("experts")))
            << segment.name << " " << op.name;
      }
    }
  }
  return out;
}

// One graph forward and one backward; embedding, head and update stay as they are.
TEST(CapturedLayers, WholeOnes) {
  Plan plan = small_plan(small_llama(), {2, 1, 1, 1}, 2);
  plan.sequence = true;
  plan.captured = {true, true, true, false, false, Time{1}};
  const auto all = [](const std::string&, bool) { return true; };
  const auto launches = graph_launches(captured_program(small_llama(), plan), all);
  EXPECT_EQ(launches, (std::map<std::string, int>{{"layer forward", 1}, {"layer backward", 1}}));
}

// Megatron Core's attention, router and preprocessing: what counts tokens waits for the host, which
// ends a graph; exchanges and experts are launched one by one.
TEST(CapturedLayers, PartsOfExperts) {
  Plan plan = small_plan(small_moe(), {1, 1, 1, 2}, 2);
  plan.experts = ExpertPlan{2, 1, Dispatcher::kAllToAll, Routing::kNatural, 1};
  plan.captured = {true, false, false, true, true, Time{1}};
  const auto held = [](const std::string& name, bool sparse) {
    if (!sparse) return name.starts_with("attention.");
    for (const char* module :
         {"attention.", "mlp.norm", "moe.rout", "moe.shared.", "moe.counts", "moe.permute"}) {
      if (name.starts_with(module)) return true;
    }
    return false;
  };
  const Program program = captured_program(small_moe(), plan);
  const auto launches = graph_launches(program, held);
  // From the norm of attention to the counts, behind the host's wait, and shared experts, which
  // stand behind the exchanges.
  EXPECT_EQ(launches.at("layer forward with experts"), 3);
  EXPECT_GE(launches.at("layer backward with experts"), 1);
  plan.captured = {true, false, false, false, false, Time{1}};
  const auto attention = graph_launches(captured_program(small_moe(), plan), [](auto& name, bool) {
    return name.starts_with("attention.");
  });
  EXPECT_EQ(attention.at("layer forward with experts"), 1);
}

}  // namespace
}  // namespace foretrain
