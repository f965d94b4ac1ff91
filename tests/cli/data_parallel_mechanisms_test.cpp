// What do PyTorch's wrappers (DDP, FSDP), the loops above them (Transformers, LightSeq, MindNLP)
// and Angel-PTM do with a small model: collectives, copies, casts and the host's time, from the
// descriptions and the code of the systems?
#include <gtest/gtest.h>

#include <algorithm>
#include <iterator>

#include "models/plan/keys/keys.h"
#include "sim/program/memory.h"
#include "tests/cli/mechanism_counts.h"
#include "tests/cli/mechanism_pipelines.h"

namespace foretrain {
namespace {

constexpr std::int64_t kLayers = Sizes::kLayers;
constexpr std::int64_t kMiB = 1 << 20;

/// The passes of a microbatch. `after_pass` follows every backward pass.
template <typename AfterPass>
void add_passes(Lines& lines, AfterPass after_pass) {
  lines.emplace_back("embedding forward");
  for (std::int64_t l = 0; l < kLayers; ++l) lines.push_back(numbered("layer forward", l));
  lines.emplace_back("head forward");
  const auto add = [&](const std::string& pass) {
    lines.push_back(pass);
    after_pass(pass);
  };
  add("head backward");
  for (std::int64_t l = kLayers; l-- > 0;) add(numbered("layer backward", l));
  add("embedding backward");
}

void add_passes(Lines& lines) {
  add_passes(lines, [](const std::string&) {});
}

/// Bytes of buckets of whole parameters, from the last one on, that are closed once they have
/// 1 MiB, then 25 MiB, each behind the backward pass of its last parameter.
class DdpBuckets {
 public:
  explicit DdpBuckets(const Sizes& sizes) {
    add(sizes.table(), "head backward");
    for (std::int64_t l = kLayers; l-- > 0;) {
      const std::vector<std::int64_t> matrices = sizes.matrices();
      for (auto m = matrices.rbegin(); m != matrices.rend(); ++m)
        add(*m, numbered("layer backward", l));
    }
    add(sizes.table(), "embedding backward");
    x_filled += 4 * (2 * kLayers + 1) * sizes.hidden;  // norms lie with the table
    close("embedding backward");
  }
  std::vector<std::pair<std::string, std::int64_t>> buckets;  ///< pass that completes it, bytes

 private:
  void add(std::int64_t elements, const std::string& pass) {
    x_filled += 4 * elements;
    const bool last = pass == "embedding backward";
    if (!last && x_filled >= (buckets.empty() ? kMiB : 25 * kMiB)) close(pass);
  }
  void close(const std::string& pass) {
    buckets.emplace_back(pass, x_filled);
    x_filled = 0;
  }
  std::int64_t x_filled = 0;
};

/// Two microbatches under DDP: gradients travel in the last one, or in each.
Lines ddp_story(const DdpBuckets& ddp, bool each) {
  Lines lines;
  Lines awaited;
  std::int64_t number = 0;
  for (int microbatch = 0; microbatch < 2; ++microbatch) {
    add_passes(lines, [&](const std::string& pass) {
      if (microbatch == 0 && !each) return;
      for (const auto& [completes, bytes] : ddp.buckets) {
        if (completes != pass) continue;
        if (microbatch == 1) awaited.push_back(numbered("all-reduce", number));
        lines.push_back(on_data("all-reduce", number++, bytes) + " after " + pass);
      }
    });
  }
  std::string update;
  for (const std::string& one : awaited) update += (update.empty() ? "" : ", ") + one;
  lines.push_back("update after " + update);
  return lines;
}

const Lines kWide = {"batch.global=8", "model.hidden_size=1024", "model.intermediate_size=2048"};

// DDP: whole parameters from the last on, at least 1 MiB, then 25 MiB a bucket; a bucket is
// all-reduced in fp32 once it is full, one after the other on one stream, under no_sync in the last
// microbatch alone. Compute copies gradients in, which is where they are divided, and out at the
// end of the backward pass. A view needs neither.
TEST(Mechanisms, OfPyTorchDdp) {
  const Sizes wide{1024, 2048};
  const DdpBuckets ddp(wide);
  ASSERT_GT(ddp.buckets.size(), 3U);
  const Program program = lowered("pytorch-ddp", kWide);
  EXPECT_EQ(Story(program).lines, ddp_story(ddp, false));
  const auto count = std::ssize(ddp.buckets);
  Lines reduction;
  for (std::int64_t i = 0; i < count; ++i) {
    reduction.insert(reduction.end(), {"gradients.copy on compute", "gradients.reduce on data"});
  }
  EXPECT_EQ(issued(program, "reduce gradients"), reduction);
  EXPECT_EQ(with_part(ops_of(program, "reduce gradients"), "gradients.reduce: ").front(),
            "gradients.reduce: all-reduce of " + std::to_string(ddp.buckets.front().second) +
                " B on data after gradients.copy");
  EXPECT_EQ(ran(program, "gradients.copy").written, 4 * wide.all());
  EXPECT_EQ(issued(program, "copy buckets back"),
            Lines(static_cast<std::size_t>(count), "gradients.copy_back on compute"));
  EXPECT_EQ(ran(program, "gradients.copy_back").written, 4 * wide.all());
  EXPECT_EQ(ran(program, "gradients.average").times, 0);

  const Program view = lowered("pytorch-ddp", with(kWide, {"gradients.bucket_copy=false"}));
  EXPECT_EQ(Story(view).lines, ddp_story(ddp, false));
  EXPECT_EQ(issued(view, "reduce gradients"),
            Lines(static_cast<std::size_t>(count), "gradients.reduce on data"));
  EXPECT_TRUE(issued(view, "copy buckets back").empty());

  const Program each = lowered("pytorch-ddp", with(kWide, {"gradients.no_sync=false"}));
  EXPECT_EQ(starting_with(Story(each).lines, "all-reduce").size(), 2 * ddp.buckets.size());
}

// Its hooks: compute casts the bucket, which stays, half of the bytes travel, and what comes back
// is cast into the bucket beside compute.
TEST(Mechanisms, OfPyTorchDdpsCompression) {
  const Sizes wide{1024, 2048};
  const DdpBuckets ddp(wide);
  const Program program = lowered("pytorch-ddp", with(kWide, {"gradients.compression=fp16"}));
  Lines reduction;
  Lines sizes;
  for (const auto& [pass, bytes] : ddp.buckets) {
    reduction.insert(reduction.end(), {"gradients.copy on compute", "gradients.narrow on compute",
                                       "gradients.reduce on data", "gradients.widen on data"});
    sizes.push_back(on_data("all-reduce", std::ssize(sizes), bytes / 2) + " after " + pass);
  }
  EXPECT_EQ(issued(program, "reduce gradients"), reduction);
  EXPECT_EQ(starting_with(Story(program).lines, "all-reduce"), sizes);
  EXPECT_EQ(ran(program, "gradients.copy").written, 4 * wide.all());
  EXPECT_EQ(ran(program, "gradients.narrow").written, 2 * wide.all());
  EXPECT_EQ(ran(program, "gradients.widen").written, 4 * wide.all());
  EXPECT_EQ(kept(program, BufferKind::kCommunication), 4 * wide.all());
}

// The Trainer in fp32: DDP's buckets under no_sync; the host prepares every microbatch, and stops
// once a step for the norm of the gradients. Autograd adds a microbatch's gradient of a matrix or a
// table to those before. On one GPU nothing travels and nothing is copied into buckets.
TEST(Mechanisms, OfTransformers) {
  const Sizes sizes;
  const Program program = lowered("transformers", {"batch.global=8"});
  EXPECT_EQ(Story(program).lines, ddp_story(DdpBuckets(sizes), false));
  EXPECT_EQ(ran(program, "data.prepare").times, 2);
  EXPECT_GT(ran(program, "data.prepare").host.ps, 0);
  EXPECT_EQ(ran(program, "gradients.check").times, 1);
  const RanOps added = ran(program, ".accumulate");
  EXPECT_EQ(added.times, 2 * (4 * kLayers + 2));
  EXPECT_EQ(added.written, 2 * 4 * (kLayers * sizes.of_matrices() + 2 * sizes.table()));
  // Those of a step's only microbatch are kept as they are.
  for (const char* precision : {"fp32", "fp16"}) {
    const Program once = lowered("transformers", {std::string("precision=") + precision});
    EXPECT_EQ(ran(once, ".accumulate").times, 0) << precision;
  }

  const Program alone = lowered("transformers", {"batch.global=8", "cluster.accelerators=1"});
  for (const Work& work : alone.works) EXPECT_FALSE(std::holds_alternative<Collective>(work));
  EXPECT_EQ(ran(alone, "gradients.copy").times, 0);
  EXPECT_EQ(ran(alone, "data.prepare").times, 8);
}

// Its optimizer as a loop over tensors: 78 + 22 us of the host for each, beside the device's
// update.
TEST(Mechanisms, OfTransformersLoopOverTensors) {
  constexpr std::int64_t kTensors = 6 * kLayers + 3;  // matrices and norms; tables, last norm
  const Program program = lowered("transformers", {"host.update_us=100"});
  const Lines update = issued(program, "update");
  ASSERT_FALSE(update.empty());
  EXPECT_EQ(update.back(), "host.update on compute");
  EXPECT_EQ(ran(program, "host.update").host, Time::from_us(100 * kTensors));
  EXPECT_EQ(ran(lowered("transformers", {}), "host.update").times, 0);
}

// --fp16: parameters and gradients stay in fp32. Each linear casts its weight once a forward pass
// and what linears share once for all of them; gradients come in 16 bits and are cast. The scaler
// multiplies all gradients and the host waits for whether they are finite.
TEST(Mechanisms, OfTransformersAutocast) {
  const Sizes sizes;
  const Program program = lowered("transformers", {"batch.global=8", "precision=fp16"});
  EXPECT_EQ(Story(program).lines, ddp_story(DdpBuckets(sizes), false));
  const std::int64_t matrices = kLayers * sizes.of_matrices() + sizes.table();
  const RanOps weights = ran(program, ".cast_weight");
  EXPECT_EQ(weights.times, 2 * (4 * kLayers + 1));
  EXPECT_EQ(weights.read, 2 * 4 * matrices);
  EXPECT_EQ(weights.written, 2 * 2 * matrices);
  // Normed inputs of attention, of the MLP and of the output matrix; others are in 16 bits.
  EXPECT_EQ(ran(program, ".cast_input").written, 2 * (2 * kLayers + 1) * SmallModel::kStream);
  const RanOps gradients = ran(program, ".cast_gradient");
  EXPECT_EQ(gradients.read, 2 * 2 * matrices);
  EXPECT_EQ(gradients.written, 2 * 4 * matrices);
  EXPECT_EQ(ran(program, "gradients.unscale").written, 4 * sizes.all());
  EXPECT_EQ(ran(program, "gradients.finite").times, 1);
  EXPECT_EQ(kept(program, BufferKind::kParameters), 4 * sizes.all());
  EXPECT_EQ(kept(program, BufferKind::kOptimizer), 8 * sizes.all());
}

// LightSeq: what stands between a layer's products is one kernel each (two norms, the rotation, the
// activation, two sums with dropout) and the loss three; 16-bit gradients lie in one array, which
// is all-reduced at once when it is whole; one kernel updates everything, without fp32 copies of
// parameters and gradients.
TEST(Mechanisms, OfLightSeq) {
  const Sizes sizes;
  const Program program = lowered("lightseq", {"batch.global=8"});
  Lines lines;
  add_passes(lines);
  add_passes(lines);
  lines.push_back(on_data("all-reduce", 0, 2 * sizes.all()) + " after embedding backward");
  lines.emplace_back("update after all-reduce 0");
  EXPECT_EQ(Story(program).lines, lines);
  EXPECT_EQ(kernels_of(program, "layer forward"), 6);
  EXPECT_EQ(kernels_of(program, "head forward"), 1 + 3);
  EXPECT_GE(kernels_of(lowered("transformers", {"batch.global=8"}), "layer forward"), 2 * 6);
  EXPECT_EQ(kernels_of(program, "update"), 2 + 1 + 1);  // the norm, clipping, the update
  EXPECT_EQ(ran(program, "gradients.unscale").times, 0);
  EXPECT_EQ(kept(program, BufferKind::kParameters), 2 * sizes.all());
  EXPECT_EQ(kept(program, BufferKind::kGradients), 2 * sizes.all());
  EXPECT_EQ(kept(program, BufferKind::kOptimizer), 8 * sizes.all());
  EXPECT_EQ(kept(program, BufferKind::kCommunication), 0);
  // A layer's array goes to autograd, which adds it to that of earlier microbatches.
  EXPECT_EQ(ran(program, ".accumulate").written,
            2 * 2 * (kLayers * sizes.of_matrices() + 2 * sizes.table()));
}

// MindNLP: all gradients in one all-reduce after the last backward pass, which nothing overlaps;
// with groups of all-reduces (all_reduce_fusion_config) each goes when its gradients are there.
// Eager kernels compose what a graph fuses.
TEST(Mechanisms, OfMindNlp) {
  const Sizes sizes;
  const Program program = lowered("mindnlp", {"batch.global=8"});
  Lines lines;
  add_passes(lines);
  add_passes(lines);
  Lines fused = lines;
  fused.push_back(on_data("all-reduce", 0, 4 * sizes.all()) + " after embedding backward");
  fused.emplace_back("update after all-reduce 0");
  EXPECT_EQ(Story(program).lines, fused);
  EXPECT_GT(kernels_of(program, "layer forward"),
            kernels_of(lowered("mindnlp", {"kernels.fusion=fused"}), "layer forward"));

  // Of a million parameters each, from the last on: the output matrix, layer 2 and the end of
  // layer 1; the rest of it and most of layer 0; what is left.
  constexpr std::int64_t kGroup = 1'000'000;
  const std::int64_t behind = sizes.table() + 2 * sizes.of_matrices();
  ASSERT_GT(behind, kGroup);
  ASSERT_LT(behind - sizes.of_matrices(), kGroup);
  ASSERT_GT(behind + sizes.of_matrices(), 2 * kGroup);
  ASSERT_LT(behind, 2 * kGroup);
  Lines groups;
  add_passes(groups);
  add_passes(groups, [&](const std::string& pass) {
    const bool first = pass == "layer backward 1";
    if (first || pass == "layer backward 0") {
      groups.push_back(on_data("all-reduce", first ? 0 : 1, 4 * kGroup) + " after " + pass);
    } else if (pass == "embedding backward") {
      groups.push_back(on_data("all-reduce", 2, 4 * (sizes.all() - 2 * kGroup)) + " after " + pass);
    }
  });
  groups.emplace_back("update after all-reduce 0, all-reduce 1, all-reduce 2");
  EXPECT_EQ(Story(lowered("mindnlp", {"batch.global=8", "overlap.gradient_reduce=true",
                                      "gradients.bucket_elements=1000000"}))
                .lines,
            groups);
}

}  // namespace
}  // namespace foretrain
