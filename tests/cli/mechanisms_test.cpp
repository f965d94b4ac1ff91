// Does each data-parallel system move what its code moves: the sequence of its collectives in a
// step of a small model, their bytes, their streams, and which passes wait for which of them?
// What the norm and the loss exchange is left out.
#include <gtest/gtest.h>

#include <algorithm>

#include "tests/cli/story.h"
#include "tools/predict/ready_lists.h"

namespace foretrain {
namespace {

constexpr const char* kUpdate =
    "update after reduce-scatter 2, reduce-scatter 1, reduce-scatter 0, reduce-scatter 3";

/// `lines` with <n> for n bytes of each parameter of a layer, <<n>> of the embedding, the output
/// matrix and the last norm.
Lines filled(const Lines& lines) {
  constexpr std::int64_t kHidden = 256;
  constexpr std::int64_t kLayer = 4 * kHidden * kHidden + 3 * kHidden * 512 + 2 * kHidden;
  constexpr std::int64_t kEnds = 2 * 1024 * kHidden + kHidden;
  Lines out = lines;
  for (std::string& line : out) {
    const std::size_t at = line.find('<');
    if (at == std::string::npos) continue;
    const bool ends = line[at + 1] == '<';
    const std::int64_t each = line[at + (ends ? 2 : 1)] - '0';
    line.replace(at, ends ? 5 : 3, std::to_string(each * (ends ? kEnds : kLayer)) + " B");
  }
  return out;
}

void expect_story(const std::string& system, std::vector<std::string> sets, const Lines& lines) {
  EXPECT_EQ(Story(lowered(system, std::move(sets))).lines, filled(lines)) << system;
}

/// The forward pass of FSDP2, which prefetches one unit and copies out of what it gathered.
const Lines kFsdp2Forward = {"all-gather 0: <<2>> on data",
                             "copy parameters out after all-gather 0",
                             "embedding forward",
                             "all-gather 1: <2> on data",
                             "all-gather 2: <2> on data",
                             "copy parameters out after all-gather 1",
                             "layer forward 0",
                             "all-gather 3: <2> on data after layer forward 0",
                             "copy parameters out after all-gather 2",
                             "layer forward 1",
                             "copy parameters out after all-gather 3",
                             "layer forward 2",
                             "head forward"};

/// Expects that forward pass, then `backward`.
void expect_fsdp2(const std::string& system, const Lines& backward) {
  Lines lines = kFsdp2Forward;
  lines.insert(lines.end(), backward.begin(), backward.end());
  expect_story(system, {}, lines);
}

// FSDP2: parameters in 16 bits, gradients in fp32. The gather of the next block is issued before
// this one computes, forward and backward, and parameters are copied out when compute needs them;
// the last block's stay from its forward to its backward pass, the ends' all along.
TEST(Mechanisms, OfTorchtitan) {
  expect_fsdp2(
      "torchtitan",
      {"head backward", "all-gather 4: <2> on data after layer forward 1", "layer backward 2",
       "reduce-scatter 0: <4> on data after layer backward 2",
       "all-gather 5: <2> on data after layer backward 2", "copy parameters out after all-gather 4",
       "layer backward 1", "reduce-scatter 1: <4> on data after layer backward 1",
       "copy parameters out after all-gather 5", "layer backward 0",
       "reduce-scatter 2: <4> on data after layer backward 0", "embedding backward",
       "reduce-scatter 3: <<4>> on data after embedding backward", kUpdate});
}

// Accelerate's FSDP2: as torchtitan's, but the last block is let go too, and gradients, whole until
// the last microbatch, travel in 16 bits.
TEST(Mechanisms, OfAccelerate) {
  expect_fsdp2(
      "accelerate",
      {"all-gather 4: <2> on data after layer forward 1", "head backward",
       "all-gather 5: <2> on data after layer forward 2", "copy parameters out after all-gather 4",
       "layer backward 2", "reduce-scatter 0: <2> on data after layer backward 2",
       "all-gather 6: <2> on data after layer backward 2", "copy parameters out after all-gather 5",
       "layer backward 1", "reduce-scatter 1: <2> on data after layer backward 1",
       "copy parameters out after all-gather 6", "layer backward 0",
       "reduce-scatter 2: <2> on data after layer backward 0", "embedding backward",
       "reduce-scatter 3: <<2>> on data after embedding backward", kUpdate});
  const Lines two = Story(lowered("accelerate", {"batch.global=8"})).lines;
  EXPECT_EQ(starting_with(two, "all-gather").size(), 2 * 7U);
  EXPECT_EQ(starting_with(two, "reduce-scatter").size(), 4U);
}

// NeMo AutoModel's FSDP2: torchtitan's order, gradients in fp32 with the last microbatch alone.
TEST(Mechanisms, OfNemoAutomodel) {
  EXPECT_EQ(Story(lowered("nemo-automodel", {})).lines, Story(lowered("torchtitan", {})).lines);
  const auto reductions = [](const std::string& system) {
    return starting_with(Story(lowered(system, {"batch.global=8"})).lines, "reduce-scatter").size();
  };
  EXPECT_EQ(reductions("nemo-automodel"), 4U);
  EXPECT_EQ(reductions("torchtitan"), 8U);
}

// nanotron: DDP's buckets, the last ready first, beside the last microbatch's backward pass, in
// fp32. ZeRO-1 all-reduces everything at once behind it, and gathers behind the update.
TEST(Mechanisms, OfNanotron) {
  const Lines passes = {"embedding forward", "layer forward 0",  "layer forward 1",
                        "layer forward 2",   "head forward",     "head backward",
                        "layer backward 2",  "layer backward 1", "layer backward 0",
                        "embedding backward"};
  const auto story = [&passes](const std::string& level) {
    const Lines lines = Story(lowered("nanotron", {"gradients.bucket_mib=2", "batch.global=8",
                                                   "sharding.level=" + level}))
                            .lines;
    EXPECT_TRUE(starting_with(lines, "reduce-scatter").empty());
    EXPECT_EQ(Lines(lines.begin(), lines.begin() + static_cast<std::ptrdiff_t>(passes.size())),
              passes);
    return lines;
  };
  const Lines buckets = starting_with(story("none"), "all-reduce");
  EXPECT_GT(buckets.size(), 2U);
  EXPECT_FALSE(waiting_for(buckets, "layer backward 2").empty());
  const Lines sharded = story("optimizer");
  const Lines whole = starting_with(sharded, "all-reduce");
  ASSERT_EQ(whole.size(), 1U);
  EXPECT_EQ(waiting_for(whole, "embedding backward"), whole);
  EXPECT_EQ(sharded.back().rfind("all-gather", 0), 0U);
}

// The Trainer's DeepSpeed: ZeRO-2 reduces in every microbatch, in 16 bits and in line; ZeRO-3
// gathers a parameter at a time, as deepspeed does.
TEST(Mechanisms, OfTrainerDeepSpeed) {
  const Lines lines =
      Story(lowered("transformers-deepspeed", {"sharding.level=gradients", "batch.global=8"}))
          .lines;
  EXPECT_EQ(starting_with(lines, "all-reduce").size(), 2U);
  const auto gathers = [](const std::string& system) {
    return starting_with(Story(lowered(system, {"sharding.level=parameters"})).lines, "all-gather");
  };
  EXPECT_EQ(gathers("transformers-deepspeed").size(), gathers("deepspeed").size());
}

// FSDP as llm-foundry sets it: no forward prefetch, but the host runs ahead until two gathers are
// in flight; BACKWARD_POST: the next gather is issued after a block's gradients and before their
// reduction, in fp32, which every microbatch does.
TEST(Mechanisms, OfComposer) {
  Lines lines = {"all-gather 0: <<2>> on data",
                 "embedding forward after all-gather 0",
                 "all-gather 1: <2> on data",
                 "layer forward 0 after all-gather 1",
                 "all-gather 2: <2> on data",
                 "layer forward 1 after all-gather 2",
                 "all-gather 3: <2> on data after layer forward 0",
                 "layer forward 2 after all-gather 3",
                 "head forward",
                 "head backward",
                 "all-gather 4: <2> on data after layer forward 1",
                 "layer backward 2 after all-gather 4",
                 "all-gather 5: <2> on data after layer forward 2",
                 "reduce-scatter 0: <4> on data after layer backward 2",
                 "layer backward 1 after all-gather 5",
                 "all-gather 6: <2> on data after layer backward 2",
                 "reduce-scatter 1: <4> on data after layer backward 1",
                 "layer backward 0 after all-gather 6",
                 "reduce-scatter 2: <4> on data after layer backward 0",
                 "embedding backward",
                 "reduce-scatter 3: <<4>> on data after embedding backward",
                 kUpdate};
  expect_story("composer", {}, lines);
  const auto collectives = [](const std::string& global) {
    const Lines all = Story(lowered("composer", {"batch.global=" + global})).lines;
    return std::count_if(all.begin(), all.end(), [](const std::string& line) {
      return line.find(" on data") != std::string::npos;
    });
  };
  EXPECT_EQ(collectives("12"), 3 * collectives("4"));
}

// FairScale's FSDP: gathers and reductions in 16 bits, no prefetch: a gather stands before its own
// pass, backward behind the reduction of the block before; nothing limits how far ahead of compute
// it starts.
TEST(Mechanisms, OfFairScale) {
  expect_story("fairscale", {"precision=fp16"},
               {"all-gather 0: <<2>> on data",
                "embedding forward after all-gather 0",
                "all-gather 1: <2> on data",
                "layer forward 0 after all-gather 1",
                "all-gather 2: <2> on data",
                "layer forward 1 after all-gather 2",
                "all-gather 3: <2> on data",
                "layer forward 2 after all-gather 3",
                "head forward",
                "head backward",
                "all-gather 4: <2> on data",
                "layer backward 2 after all-gather 4",
                "reduce-scatter 0: <2> on data after layer backward 2",
                "all-gather 5: <2> on data",
                "layer backward 1 after all-gather 5",
                "reduce-scatter 1: <2> on data after layer backward 1",
                "all-gather 6: <2> on data",
                "layer backward 0 after all-gather 6",
                "reduce-scatter 2: <2> on data after layer backward 0",
                "embedding backward",
                "reduce-scatter 3: <<2>> on data after embedding backward",
                kUpdate});
}

// Gemini: the parameters of a layer are two chunks of more than 300,000 elements here, the ends
// one. A pass gathers its chunks when those of the one before are let go; their gradients are
// reduce-scattered, chunk by chunk, beside the passes that follow.
TEST(Mechanisms, OfGemini) {
  expect_story("colossal-ai-gemini", {"sharding.chunk_elements=300000"},
               {"all-gather 0: <<2>> on data",
                "embedding forward after all-gather 0",
                "all-gather 1: <1> on data",
                "all-gather 2: <1> on data",
                "layer forward 0 after all-gather 2",
                "all-gather 3: <1> on data after layer forward 0",
                "all-gather 4: <1> on data after layer forward 0",
                "layer forward 1 after all-gather 4",
                "all-gather 5: <1> on data after layer forward 1",
                "all-gather 6: <1> on data after layer forward 1",
                "layer forward 2 after all-gather 6",
                "head forward",
                "head backward",
                "all-gather 7: <1> on data after layer forward 2",
                "all-gather 8: <1> on data after layer forward 2",
                "layer backward 2 after all-gather 8",
                "reduce-scatter 0: <1> on data after layer backward 2",
                "reduce-scatter 1: <1> on data after layer backward 2",
                "all-gather 9: <1> on data after layer backward 2",
                "all-gather 10: <1> on data after layer backward 2",
                "layer backward 1 after all-gather 10",
                "reduce-scatter 2: <1> on data after layer backward 1",
                "reduce-scatter 3: <1> on data after layer backward 1",
                "all-gather 11: <1> on data after layer backward 1",
                "all-gather 12: <1> on data after layer backward 1",
                "layer backward 0 after all-gather 12",
                "reduce-scatter 4: <1> on data after layer backward 0",
                "reduce-scatter 5: <1> on data after layer backward 0",
                "embedding backward",
                "reduce-scatter 6: <<2>> on data after embedding backward",
                "update after reduce-scatter 5, reduce-scatter 3, reduce-scatter 1, "
                "reduce-scatter 6"});
}

// DeepSpeed's ZeRO-3: parameters are gathered ahead until so many elements are on their way, the
// last of them whole: three of a layer's four matrices (1,048,576 B), then the fourth. Their
// gradients are reduced as many at a time as fit into a bucket, from the last one on. Norms stay
// on every rank: each is gathered after its update, and all are reduced at once.
TEST(Mechanisms, OfDeepSpeedsZero3) {
  Lines story =
      Story(lowered("deepspeed", {"sharding.level=parameters", "host.pass_us=0",
                                  "sharding.persist_elements=1000", "sharding.reuse_elements=0",
                                  "sharding.live_elements=1", "sharding.gather_elements=300000",
                                  "gradients.bucket_elements=400000"}))
          .lines;
  std::erase_if(story, [](const std::string& line) { return line.starts_with("host waits"); });
  const Lines passes = {"all-gather 0: 1048576 B on data",  // the tables
                        "embedding forward after all-gather 0",
                        "all-gather 1: 1048576 B on data",
                        "all-gather 2: 262144 B on data",
                        "all-gather 3: 1048576 B on data",
                        "all-gather 4: 262144 B on data",
                        "layer forward 0 after all-gather 2",
                        "all-gather 5: 1048576 B on data",
                        "all-gather 6: 262144 B on data",
                        "layer forward 1 after all-gather 4",
                        "layer forward 2 after all-gather 6",
                        "head forward",
                        "all-gather 7: 1048576 B on data",
                        "all-gather 8: 262144 B on data",
                        "head backward",
                        "all-gather 9: 1048576 B on data",
                        "all-gather 10: 262144 B on data",
                        "layer backward 2 after all-gather 8",
                        "reduce-scatter 0: 786432 B on data after layer backward 2",
                        "reduce-scatter 1: 524288 B on data after layer backward 2",
                        "all-gather 11: 1048576 B on data",
                        "all-gather 12: 262144 B on data",
                        "layer backward 1 after all-gather 10",
                        "reduce-scatter 2: 786432 B on data after layer backward 1",
                        "reduce-scatter 3: 524288 B on data after layer backward 1",
                        "layer backward 0 after all-gather 12",
                        "reduce-scatter 4: 786432 B on data after layer backward 0",
                        "reduce-scatter 5: 524288 B on data after layer backward 0",
                        "embedding backward",
                        "reduce-scatter 6: 524288 B on data after embedding backward",
                        "reduce-scatter 7: 524288 B on data after embedding backward",
                        "reduce-scatter 8: 3584 B on data after embedding backward"};
  ASSERT_GT(story.size(), passes.size());
  const auto rest = story.begin() + static_cast<std::ptrdiff_t>(passes.size());
  EXPECT_EQ(Lines(story.begin(), rest), passes);
  Lines end = {
      "update after reduce-scatter 5, reduce-scatter 3, reduce-scatter 1, reduce-scatter 7, "
      "reduce-scatter 8"};
  for (int norm = 13; norm < 20; ++norm) {
    end.push_back("all-gather " + std::to_string(norm) + ": 512 B on data after update");
  }
  EXPECT_EQ(Lines(rest, story.end()), end);
}

// Megatron-LLaMA: gradients of every microbatch are copied into buckets of at most so many
// elements, cut between parameters from the end, each of which is cut among the ranks. Full buckets
// are reduce-scattered in fp32 beside the passes that follow; the buckets of parameters are
// gathered in 16 bits beside the next step's forward passes, the first layers' first.
TEST(Mechanisms, OfMegatronLlama) {
  // 2,492,160 parameters and padding: the output matrix and layer 2; layer 1 and layer 0's last
  // matrix; the rest.
  const Lines story =
      Story(lowered("megatron-llama", {"batch.global=8", "gradients.bucket_elements=1000000"}))
          .lines;
  Lines expected = {"all-gather 0: 1576448 B on data after zero gradients 0",
                    "all-gather 1: 1572864 B on data after zero gradients 0",
                    "all-gather 2: 1835520 B on data after zero gradients 0",
                    "embedding forward after all-gather 0",
                    "layer forward 0 after all-gather 1, all-gather 0",
                    "layer forward 1 after all-gather 1, all-gather 0",
                    "layer forward 2 after all-gather 2, all-gather 0",
                    "head forward after all-gather 2, all-gather 0"};
  for (int microbatch = 0; microbatch < 2; ++microbatch) {
    if (microbatch > 0) {
      expected.insert(expected.end(), {"embedding forward", "layer forward 0", "layer forward 1",
                                       "layer forward 2", "head forward"});
    }
    const auto reduced = [&](int bucket, std::int64_t elements) {
      expected.push_back("reduce-scatter " + std::to_string(3 * microbatch + bucket) + ": " +
                         std::to_string(4 * elements) +
                         " B on data after copy gradients into buckets");
    };
    expected.insert(expected.end(), {"head backward", "layer backward 2", "layer backward 1"});
    reduced(0, 917'760);
    expected.emplace_back("layer backward 0");
    reduced(1, 786'432);
    expected.emplace_back("embedding backward");
    reduced(2, 788'224);
  }
  expected.emplace_back("update after reduce-scatter 3, reduce-scatter 4, reduce-scatter 5");
  EXPECT_EQ(story, expected);
}

/// The `count` operations of a unit, each of so many bytes.
void add_parts(Lines& lines, const char* kind, int first, int count, std::int64_t each,
               const std::string& after) {
  for (int i = first; i < first + count; ++i) {
    lines.push_back(kind + (" " + std::to_string(i)) + ": " + std::to_string(each) + " B on data" +
                    " after " + after);
  }
}

// PaddleNLP: in every backward pass gradients are reduced to their owners in 16 bits, and what
// follows waits for it; after the update owners broadcast. Each of 4 owners has a quarter of a
// layer's 655,872 and of the ends' 524,544 parameters.
TEST(Mechanisms, OfPaddleNlp) {
  constexpr std::int64_t kLayer = 2 * 655'872 / 4;
  constexpr std::int64_t kEnds = 2 * 524'544 / 4;
  Lines lines;
  for (int microbatch = 0; microbatch < 2; ++microbatch) {
    int reductions = 16 * microbatch;
    const auto waited = [&] {
      return reductions == 0 ? "" : " after reduce " + std::to_string(reductions - 1);
    };
    lines.push_back("embedding forward" + waited());
    lines.insert(lines.end(), {"layer forward 0", "layer forward 1", "layer forward 2",
                               "head forward", "head backward"});
    for (int l = 2; l >= 0; --l) {
      const std::string pass = "layer backward " + std::to_string(l);
      lines.push_back(pass + (l < 2 ? waited() : ""));
      add_parts(lines, "reduce", reductions, 4, kLayer, pass);
      reductions += 4;
    }
    lines.push_back("embedding backward" + waited());
    add_parts(lines, "reduce", reductions, 4, kEnds, "embedding backward");
  }
  // What comes next waits for the last one, and the update for each.
  lines.emplace_back("update after reduce 31, reduce 27, reduce 23, reduce 19, reduce 31");
  for (int unit = 0; unit < 4; ++unit) {
    add_parts(lines, "broadcast", 4 * unit, 4, unit == 0 ? kEnds : kLayer, "update");
  }
  EXPECT_EQ(Story(lowered("paddlenlp", {"batch.global=8"})).lines, lines);
}

// Horovod: tensors that become ready before the same turn of the coordinator are one list. Turns
// are half a cycle after the first and every cycle from there.
TEST(Mechanisms, OfHorovodsCycles) {
  const auto us = [](std::int64_t n) { return Time{n * 1'000'000}; };
  const std::vector<ReadyList> lists = lists_at_cycles(
      {us(100), us(300), us(600), us(601), us(1'600), us(9'000), us(9'100)}, us(1'000));
  const std::vector<ReadyList> expected = {{3, us(0)}, {2, us(0)}, {2, us(500)}};
  EXPECT_EQ(lists, expected);
}

// Its cycle of 1 ms is longer than the backward pass of a small layer: several are fused into one
// buffer of at most 128 MiB and reduced once; with short cycles each part is.
TEST(Mechanisms, OfHorovod) {
  const auto reductions = [](const std::vector<std::string>& sets) {
    Lines out;
    for (const std::string& line : Story(lowered("horovod", sets)).lines) {
      if (line.starts_with("all-reduce") && line.find(": 128 B") == std::string::npos)
        out.push_back(line);
    }
    return out;
  };
  const Lines fused = reductions({});
  const Lines each = reductions({"gradients.cycle_us=1"});
  EXPECT_LT(fused.size(), each.size());
  EXPECT_EQ(each.size(), 5U);  // the output matrix, three layers, the table with the norms
  EXPECT_GT(reductions({"gradients.bucket_mib=3"}).size(), fused.size());
}

}  // namespace
}  // namespace foretrain
