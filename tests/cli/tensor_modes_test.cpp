// Tensor parallelism on grids from the command line: what is predicted, what is refused by name.
#include <gtest/gtest.h>

#include "tests/cli/run_command.h"

namespace foretrain {
namespace {

constexpr const char* kGridRun = R"({
  "model": "gpt3-125m",
  "cluster": {"preset": "dgx-a100-80gb", "accelerators": 16},
  "system": "colossal-ai",
  "batch": {"global": 64, "micro": 8, "sequence": 512}
})";

struct Refused {
  std::vector<std::string> sets;
  std::vector<std::string> parts;
};
void PrintTo(const Refused& refused, std::ostream* out) {
  for (const std::string& set : refused.sets) *out << set << " ";
}

class TensorModes : public testing::TestWithParam<Refused> {};

TEST_P(TensorModes, AreRefused) {
  const Workplace place;
  place.write("run.json", kGridRun);
  std::vector<std::string> command = {"simulate", "run.json"};
  for (const std::string& set : GetParam().sets) {
    command.emplace_back("--set");
    command.push_back(set);
  }
  const CommandResult result = place.run(command);
  EXPECT_EQ(result.exit_code, 1) << result.out;
  EXPECT_EQ(result.out, "");
  for (const std::string& part : GetParam().parts) {
    EXPECT_NE(result.err.find(part), std::string::npos) << part << " is not in: " << result.err;
  }
}

const std::string kFlat = "parallel.tensor_mode=2d";
const std::string kDeep = "parallel.tensor_mode=2.5d";
const std::string kCube = "parallel.tensor_mode=3d";
const std::string kFour = "parallel.tensor=4";
const std::string kEight = "parallel.tensor=8";
const std::string kMoe =
    R"(model={"model_type":"qwen3_moe","num_hidden_layers":2,"hidden_size":256,)"
    R"("num_attention_heads":4,"intermediate_size":512,"vocab_size":512,"num_experts":8,)"
    R"("moe_intermediate_size":64,"num_experts_per_tok":2})";

const Refused kShapes[] = {
    {{"parallel.tensor_mode=4d"}, {"/parallel/tensor_mode", "\"4d\"", "1d, 2d, 2.5d, 3d"}},
    {{kFlat, kEight}, {"/parallel/tensor", "2d needs the square", "found 8", "4 and 9"}},
    {{kCube, kFour}, {"/parallel/tensor", "3d needs the cube", "found 4", "1 and 8"}},
    {{kDeep, kEight}, {"/parallel/tensor", "tensor_depth 1 times the square", "found 8"}},
    {{kDeep, kFour, "parallel.tensor_depth=3"}, {"tensor_depth 3 times the square", "found 4"}},
    {{kFlat, kFour, "parallel.tensor_depth=2"},
     {"/parallel/tensor_depth", "needs tensor_mode 2.5d"}},
    {{"parallel.tensor_depth=0"}, {"/parallel/tensor_depth", "found 0", "from 1"}},
};
INSTANTIATE_TEST_SUITE_P(Shapes, TensorModes, testing::ValuesIn(kShapes));

const Refused kSizes[] = {
    {{kFlat, kFour, "batch.micro=1"}, {"/batch/micro", "2 parts", "1 is not a multiple"}},
    {{kCube, kEight, "batch.micro=2"}, {"/batch/micro", "4 parts", "2 is not a multiple"}},
    {{kDeep, kEight, "parallel.tensor_depth=2", "batch.micro=2"}, {"/batch/micro", "4 parts"}},
    {{kFlat, kFour, "model.n_head=3"}, {"/parallel/tensor", "parts of 2", "attention heads 3"}},
    {{kFlat, kFour, "model.n_inner=3073"}, {"/parallel/tensor", "intermediate_size 3073"}},
    {{kCube, kEight, "model.n_inner=3074"}, {"parts of 4", "intermediate_size 3074"}},
    {{kFlat, kFour, "model.n_embd=765", "model.n_head=15"}, {"/parallel/tensor", "heads 15"}},
};
INSTANTIATE_TEST_SUITE_P(Sizes, TensorModes, testing::ValuesIn(kSizes));

const Refused kBeside[] = {
    {{kFlat, kFour, "parallel.sequence=true"}, {"/parallel/sequence", "false"}},
    {{kFlat, kFour, "parallel.context=2", "kernels.attention=flash"},
     {"/parallel/context", "2d", "context parallelism"}},
    {{kFlat, kFour, "sharding.level=parameters"}, {"/sharding/level", "2d", "sharded"}},
    {{kFlat, kFour, "precision=fp8"}, {"/precision", "2d", "16 bits"}},
    {{kFlat, kFour, "schedule=dualpipe", "parallel.pipeline=2", "model.tie_word_embeddings=false"},
     {"/schedule", "2d", "two copies"}},
    {{kFlat, kFour, kMoe}, {"/parallel/tensor_mode", "2d", "experts"}},
    {{kFlat, kFour, "model=qwen3-8b"}, {"/parallel/tensor_mode", "norms of queries and keys"}},
    {{kFlat, kFour, "model=bert-large", "model.max_predictions_per_seq=20"},
     {"/parallel/tensor_mode", "masked tokens"}},
};
INSTANTIATE_TEST_SUITE_P(Beside, TensorModes, testing::ValuesIn(kBeside));

/// Seconds of a step.
double step_of(const std::vector<std::string>& sets) {
  const Workplace place;
  place.write("run.json", kGridRun);
  return at(simulated(place, "run.json", sets), "iteration_time_s").number();
}

// All modes are predicted, beside stages and data-parallel ranks; one rank has no grid.
TEST(Grids, ArePredicted) {
  for (const std::string& mode : {kFlat, kDeep}) {
    EXPECT_GT(step_of({mode, kFour, "parallel.pipeline=2"}), 0);
  }
  EXPECT_EQ(step_of({kFlat, kFour}), step_of({kDeep, kFour}));
  EXPECT_GT(step_of({kDeep, kEight, "parallel.tensor_depth=2"}), 0);
  EXPECT_GT(step_of({kCube, kEight, "parallel.pipeline=2"}), 0);
  const std::string alone = "parallel.tensor=1";
  EXPECT_EQ(step_of({kFlat, alone, "batch.global=128"}), step_of({alone, "batch.global=128"}));
  EXPECT_NE(step_of({kFlat, kFour}), step_of({kFour}));
}

}  // namespace
}  // namespace foretrain
