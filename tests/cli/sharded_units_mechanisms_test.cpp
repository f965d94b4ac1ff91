// What do PyTorch's FSDP and Angel-PTM do with the units of a small model: gathers, reductions,
// moves between host and device, and what waits for what, from the descriptions and the code of the
// systems?
#include <gtest/gtest.h>

#include <algorithm>

#include "sim/program/memory.h"
#include "tests/cli/mechanism_counts.h"

namespace foretrain {
namespace {

constexpr std::int64_t kRanks = Sizes::kRanks, kLayers = Sizes::kLayers;

/// FSDP's step: `in_flight` gathers before one must be let go.
Lines fsdp_story(const Sizes& sizes, std::int64_t in_flight) {
  const auto gather = [&](std::int64_t number) {
    return on_data("all-gather", number, 2 * sizes.layer());
  };
  // Passes through layers in order: gather n is for pass n - 1, and waits for pass n - 1 - limit.
  const auto pass = [](std::int64_t n) {
    return n < kLayers ? numbered("layer forward", n)
                       : numbered("layer backward", 2 * kLayers - 1 - n);
  };
  const auto behind = [&](std::int64_t n) { return n >= 0 ? " after " + pass(n) : std::string(); };
  Lines lines = {on_data("all-gather", 0, 2 * sizes.ends()),
                 "embedding forward after all-gather 0"};
  for (std::int64_t l = 0; l < kLayers; ++l) {
    lines.push_back(gather(l + 1) + behind(l - in_flight));
    lines.push_back(pass(l) + " after all-gather " + std::to_string(l + 1));
  }
  lines.emplace_back("head forward");
  lines.push_back(gather(kLayers + 1) + behind(kLayers - in_flight));
  lines.emplace_back("head backward");
  for (std::int64_t i = 0; i < kLayers; ++i) {
    const std::int64_t n = kLayers + i;
    // The next gather, before this pass and thus before its reduction: this unit is not let go.
    const std::int64_t let_go = std::min(n + 1 - in_flight, n - 1);
    if (i + 1 < kLayers) lines.push_back(gather(n + 2) + behind(let_go));
    lines.push_back(pass(n) + " after all-gather " + std::to_string(n + 1));
    lines.push_back(on_data("reduce-scatter", i, 2 * sizes.layer()) + " after " + pass(n));
  }
  lines.emplace_back("embedding backward");
  lines.push_back(on_data("reduce-scatter", kLayers, 2 * sizes.ends()) +
                  " after embedding backward");
  std::string update = "update after ";
  for (std::int64_t i = kLayers; i-- > 0;) update += numbered("reduce-scatter", i) + ", ";
  lines.push_back(update + numbered("reduce-scatter", kLayers));
  return lines;
}

// FSDP: a layer is a unit, the ends are one that stays. Forward a unit is gathered, in 16 bits from
// a shard in fp32, when its pass comes, which the host reaches early, but no more than two of them
// before one is let go; units are gathered again backward, each before the pass of the one before
// (BACKWARD_PRE) and so before its reduction. Gradients are divided, then reduce-scattered in 16
// bits with every microbatch, and added to the rank's part in fp32.
TEST(Mechanisms, OfPyTorchFsdp) {
  const Sizes sizes;
  for (const std::int64_t in_flight : {1, 2, 3}) {
    const std::string set = "sharding.gathers_in_flight=" + std::to_string(in_flight);
    EXPECT_EQ(Story(lowered("pytorch-fsdp", {set})).lines, fsdp_story(sizes, in_flight)) << set;
  }
  EXPECT_EQ(Story(lowered("pytorch-fsdp", {})).lines, fsdp_story(sizes, 2));
  const Program twice = lowered("pytorch-fsdp", {"batch.global=8"});
  EXPECT_EQ(starting_with(Story(twice).lines, "reduce-scatter").size(), 2U * (kLayers + 1));
  const RanOps cast = ran(twice, "parameters.cast");
  EXPECT_EQ(cast.read, 2 * cast.written);
  EXPECT_EQ(ran(twice, "gradients.average").written, 2 * 2 * sizes.all());
  EXPECT_EQ(ran(twice, "gradients.keep").written, 4 * sizes.all() / kRanks);
  EXPECT_EQ(ran(twice, "gradients.accumulate").written, 4 * sizes.all() / kRanks);
  EXPECT_EQ(kept(twice, BufferKind::kParameters), 4 * sizes.all() / kRanks);
  EXPECT_EQ(kept(twice, BufferKind::kOptimizer), 8 * sizes.all() / kRanks);
}

/// A step's copies and what the host does, in order: "name: B bytes".
Lines moves_of(const Program& program) {
  Lines out;
  for (const Call& call : program.calls) {
    for (const Op& op : program.segments[call.segment.index()].ops) {
      const auto* copy = std::get_if<Copy>(&program.works[op.work.index()]);
      if (copy == nullptr || op.name.starts_with("data.")) continue;
      out.push_back(op.name + ": " + std::to_string(copy->bytes) + " on " +
                    program.streams[op.stream.index()]);
    }
  }
  return out;
}

// Angel-PTM: a rank moves its part of a unit's 16-bit parameters in, then all gather; the next
// unit's move and gather come before a pass, forward and backward. Its part of the gradients goes
// out behind each reduction, and when all are out and their norm is known the host updates unit by
// unit. New parameters stay there. Nothing that pads a page travels or is updated.
TEST(Mechanisms, OfAngelPtm) {
  const Sizes sizes;
  const Program program = lowered("angel-ptm", {"offload.device_share=0"});
  const std::int64_t layer = 2 * sizes.layer() / kRanks;
  const std::int64_t ends = 2 * sizes.ends() / kRanks;
  const auto in = [](std::int64_t bytes) {
    return "parameters.from_host: " + std::to_string(bytes) + " on from host";
  };
  const auto out = [](std::int64_t bytes) {
    return "gradients.to_host: " + std::to_string(bytes) + " on to host";
  };
  Lines moves = {in(ends)};
  moves.insert(moves.end(), kLayers + 2, in(layer));  // forward, and backward's first two
  for (std::int64_t l = kLayers; l-- > 0;) {
    moves.push_back(out(layer));
    if (l > 1) moves.push_back(in(layer));
  }
  moves.push_back(out(ends));
  EXPECT_EQ(moves_of(program), moves);
  EXPECT_EQ(ops_of(program, "gather unit").front(), "parameters.gather: all-gather of " +
                                                        std::to_string(2 * sizes.layer()) +
                                                        " B on data after parameters.from_host");
  // Four units in flight: the fifth and the sixth move wait for those of four moves before.
  Lines waits(kLayers + 2);
  waits.insert(waits.end(), {"layer forward 0", "layer forward 1"});
  EXPECT_EQ(awaited(program, "gather unit", "from host"), waits);
  EXPECT_EQ(waiting_for(Story(program).lines, "all-gather").size(), 1U + 2 * kLayers);
  Lines host(kLayers + 1, "gradients.norm on host update");
  host.insert(host.end(), {"gradients.norm.reduce on compute", "gradients.check on compute"});
  host.insert(host.end(), kLayers + 1, "optimizer.adam on host update");
  EXPECT_EQ(issued(program, "update on the host"), host);
  // 16-bit weights, the fp32 copy and Adam's states.
  EXPECT_EQ(ran(program, "optimizer.adam").written, (2 + 12) * sizes.all() / kRanks);
  const std::int64_t page = 4 << 20;
  EXPECT_EQ(memory_peak(program, Memory::kHost).persistent,
            padded_to((2 + 2 + 12) * sizes.all() / kRanks, page));
}

// States that there is room for stay on the device, those of the first layers, and are updated
// there beside the host's update.
TEST(Mechanisms, OfAngelPtmsStatesOnTheDevice) {
  const Sizes sizes;
  const Program program = lowered("angel-ptm", {"offload.device_share=0.34"});  // of three, one
  const std::int64_t there = 2 * kLayers * sizes.layer() / kRanks + 2 * sizes.ends() / kRanks;
  EXPECT_EQ(ran(program, "gradients.to_host").written, there - 2 * sizes.layer() / kRanks);
  EXPECT_EQ(issued(program, "update on the device").back(), "optimizer.adam on compute");
  EXPECT_EQ(with_part(issued(program, "update on the host"), "optimizer.adam").size(),
            static_cast<std::size_t>(kLayers));
}

}  // namespace
}  // namespace foretrain
