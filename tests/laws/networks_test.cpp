// Are networks of layers what their papers say, and do their gradients travel as those of
// transformers do?
#include <gtest/gtest.h>

#include <algorithm>

#include "hardware/cluster.h"
#include "hardware/hardware_cost_model.h"
#include "models/layers/network_block.h"
#include "models/lower.h"
#include "sim/program/memory.h"
#include "sim/program/verify.h"
#include "tests/support/small_plans.h"

namespace foretrain {
namespace {

Json file_of(const std::string& name) {
  const std::string path = std::string(FORETRAIN_SOURCE_DIR) + "/configs/models/" + name + ".json";
  return read_json_file(path).value();
}

Model preset(const std::string& name) { return read_model(file_of(name), name, "").value(); }

Model without_auxiliary(const std::string& name) {
  Json json = file_of(name);
  Json::Array layers;
  for (const Json& item : *json.find("layers")->array()) {
    if (item.find("auxiliary") == nullptr) layers.push_back(item);
  }
  json.set("layers", std::move(layers));
  return read_model(json, name, "").value();
}

Model network(const std::string& layers, const std::string& image = "[8, 12, 12]") {
  const Result<Json> json =
      parse_json(R"({"image": )" + image + R"(, "layers": )" + layers + "}", "test");
  return read_model(json.value(), "test", "").value();
}

Plan plan_of(const Model& model, std::int64_t ranks, std::int64_t images) {
  Plan plan = small_plan(model, {1, 1, 1, ranks}, 1);
  plan.sequence_length = 1;
  plan.micro_batch = images;
  plan.global_batch = images * ranks;
  plan.precision = Precision{DType::kFp32, DType::kFp32, false, DType::kFp32, DType::kFp32, false};
  plan.overlap.gradient_reduce = true;
  plan.dropout = -1;
  return plan;
}

Workload lowered(const Model& model, const Plan& plan) {
  Workload out = lower(model, plan);
  const Status status = verify(out);
  EXPECT_TRUE(status.ok()) << model.name << ": " << status.error().message;
  return out;
}

double multiply_adds(const Model& model) { return forward_flops(model.network) / 2e9; }

// Trainable parameters that torchvision states for its models.
TEST(Networks, Parameters) {
  EXPECT_EQ(parameter_count(preset("resnet-50")), 25'557'032);
  EXPECT_EQ(parameter_count(preset("resnet-101")), 44'549'160);
  EXPECT_EQ(parameter_count(preset("resnet-152")), 60'192'808);
  EXPECT_EQ(parameter_count(preset("vgg-16")), 138'357'544);
  EXPECT_EQ(parameter_count(preset("inception-v3")), 27'161'264);
  EXPECT_EQ(parameter_count(without_auxiliary("inception-v3")), 23'834'568);
}

// Billions of multiply-adds of an image, likewise.
TEST(Networks, MultiplyAdds) {
  EXPECT_NEAR(multiply_adds(preset("resnet-50")), 4.09, 0.005);
  EXPECT_NEAR(multiply_adds(preset("resnet-101")), 7.80, 0.005);
  EXPECT_NEAR(multiply_adds(preset("resnet-152")), 11.51, 0.005);
  EXPECT_NEAR(multiply_adds(preset("vgg-16")), 15.47, 0.005);
  EXPECT_NEAR(multiply_adds(without_auxiliary("inception-v3")), 5.71, 0.005);
}

/// FLOPs of products in a step of one rank.
double product_flops(const Program& program) {
  double sum = 0;
  for (const Call& call : program.calls) {
    for (const Op& op : program.segments[call.segment.index()].ops) {
      sum += flops_of(program.works[op.work.index()]);
    }
  }
  return sum;
}

// Forward, input gradient and weight gradient are as large; nobody wants the gradient of images.
TEST(Networks, AStepIsThreeForwardPasses) {
  constexpr std::int64_t kImages = 4;
  for (const char* name : {"resnet-50", "vgg-16", "inception-v3"}) {
    const Model model = preset(name);
    const Workload workload = lowered(model, plan_of(model, 1, kImages));
    const double first = 2 * model.network.blocks.front().nodes.front().multiply_adds();
    const double expected = kImages * (3 * forward_flops(model.network) - first);
    EXPECT_NEAR(product_flops(workload.programs[0]), expected, 1e-9 * expected) << name;
    EXPECT_EQ(model_flops(model, kImages, 1).full, 3 * kImages * forward_flops(model.network));
  }
}

// Every network, form of kernels, type and way of adding gradients gives a Program without races.
TEST(Networks, AreWellFormed) {
  for (const char* name : {"resnet-50", "resnet-152", "vgg-16", "inception-v3"}) {
    const Model model = preset(name);
    for (const Fusion fusion : {Fusion::kFused, Fusion::kEager}) {
      for (const bool wide : {false, true}) {
        Plan plan = plan_of(model, 4, 2);
        plan.fusion = fusion;
        plan.channels_first = fusion == Fusion::kEager;
        plan.global_batch *= wide ? 2 : 1;
        plan.fused_accumulation = wide;
        plan.dropout = wide ? 0 : -1;
        if (!wide) plan.precision = Precision();
        plan.sharding = wide ? Sharding::kOptimizer : Sharding::kNone;
        lowered(model, plan);
      }
    }
  }
}

// A reader of the images, two readers of one activation, nothing but sums, branches of branches.
TEST(Networks, GradientsOfBranchesAddUp) {
  const Model model = network(R"([
      {"branches": [[{"conv": 8, "kernel": 3, "padding": 1}], []], "join": "add"},
      {"branches": [[], [], []], "join": "add", "activation": "relu"},
      {"branches": [[{"conv": 4}, {"branches": [[{"conv": 2}], []], "join": "concat"}],
                    [{"pool": "max", "kernel": 3, "stride": 1, "padding": 1}]], "join": "concat"},
      {"norm": true}, {"activation": "relu"}, {"pool": "average"}, {"linear": 10}])");
  const Workload workload = lowered(model, plan_of(model, 1, 2));
  std::vector<std::string> sums;
  const Program& program = workload.programs[0];
  for (const Call& call : program.calls) {
    for (const Op& op : program.segments[call.segment.index()].ops) {
      if (op.name.ends_with("d_sum")) sums.push_back(op.name);
    }
  }
  // In reverse: conv1's output in block 2 is read by conv2 and by the inner concat, the block's
  // input by conv1 and by the pool; of three times x two additions; the images none.
  EXPECT_EQ(sums,
            (std::vector<std::string>{"conv2.d_sum", "conv1.d_sum", "add1.d_sum", "add1.d_sum"}));
}

// Kept for the backward pass, in elements of an image: the image itself, what the norm reads, its
// statistics, what the relu leaves (the convolution behind reads it), logits' exponentials.
TEST(Networks, KeepWhatTheBackwardPassReads) {
  const Model model = network(R"([{"conv": 6, "kernel": 3, "norm": true, "activation": "relu"},
      {"conv": 5, "kernel": 10}])");
  constexpr std::int64_t kImages = 3;
  const Program program = lowered(model, plan_of(model, 1, kImages)).programs[0];
  const std::int64_t elements = 600 + 600 + 5 + 5 + 1;
  EXPECT_EQ(memory_peak(program).saved, 4 * (kImages * elements + 12));
}

/// Parameters of the network from the last to the first.
std::vector<std::int64_t> parameters_backward(const Model& model) {
  std::vector<std::int64_t> out;
  for (const NetworkBlock& block : model.network.blocks) {
    for (const Parameter& p : block_parameters(block)) out.push_back(p.count());
  }
  std::reverse(out.begin(), out.end());
  return out;
}

// PyTorch DDP: parameters in reverse order of registration, 1 MiB first, then 25 MiB each. For
// ResNet-50 the first bucket is the classifier alone.
TEST(Networks, DdpBucketsOfResnet50) {
  const Model model = preset("resnet-50");
  Plan plan = plan_of(model, 4, 2);
  plan.buckets.cut = Bucketing::kParameters;
  plan.buckets.bytes = 25 << 20;
  plan.buckets.first_bytes = 1 << 20;
  std::vector<std::int64_t> expected = {0};
  for (const std::int64_t count : parameters_backward(model)) {
    const Bytes limit = expected.size() == 1 ? 1 << 20 : 25 << 20;
    if (4 * expected.back() >= limit) expected.push_back(0);
    expected.back() += count;
  }
  EXPECT_EQ(collective_sizes(lowered(model, plan), "gradients.reduce"), expected);
  EXPECT_EQ(expected.front(), 2048 * 1000 + 1000);
  EXPECT_EQ(expected.size(), 5U);
}

// Horovod: what a block's backward pass leaves goes through the fusion buffer as one all-reduce,
// the last block first, after a coordinator's cycle; blocks without parameters send nothing.
TEST(Networks, HorovodFusesBlocksOfResnet50) {
  const Model model = preset("resnet-50");
  Plan plan = plan_of(model, 4, 2);
  plan.buckets.cut = Bucketing::kReady;
  plan.buckets.bytes = plan.buckets.first_bytes = 128 << 20;
  plan.buckets.copy = true;
  plan.buckets.cycle = Time::from_us(1000);
  const Workload workload = lowered(model, plan);
  std::vector<std::int64_t> expected;
  for (const NetworkBlock& block : model.network.blocks) {
    std::int64_t sum = 0;
    for (const Node& node : block.nodes) sum += node.parameter_count();
    if (sum > 0) expected.push_back(sum);
  }
  std::reverse(expected.begin(), expected.end());
  EXPECT_EQ(collective_sizes(workload, "gradients.reduce"), expected);
  EXPECT_EQ(expected.size(), 1U + 16 + 1);
  EXPECT_EQ(collective_sizes(workload, "coordinator.ready").size(), 2 * expected.size());
  // The buffer holds the largest list: the first block of the last stage.
  const FrameLayout* buckets = nullptr;
  for (const FrameLayout& layout : workload.programs[0].layouts) {
    if (layout.name == "buckets") buckets = &layout;
  }
  ASSERT_NE(buckets, nullptr);
  EXPECT_EQ(buckets->buffers[0].count, *std::max_element(expected.begin(), expected.end()));
}

// A fusion buffer smaller than a block cuts it between tensors.
TEST(Networks, HorovodCutsWhatDoesNotFit) {
  const Model model = preset("vgg-16");
  Plan plan = plan_of(model, 4, 2);
  plan.buckets.cut = Bucketing::kReady;
  plan.buckets.bytes = plan.buckets.first_bytes = 64 << 20;
  const auto each = collective_sizes(lowered(model, plan), "gradients.reduce");
  std::int64_t sum = 0;
  for (const std::int64_t count : each) sum += count;
  EXPECT_EQ(sum, parameter_count(model));
  // The classifier of 4096 x 25088 goes alone.
  EXPECT_NE(std::find(each.begin(), each.end(), std::int64_t{4096} * 25088), each.end());
}

// Bytes and FLOPs bound every pass from below; a pass of all three is as much work.
TEST(Networks, ConvolutionsAreImplicitProducts) {
  const Result<Json> json = parse_json(R"({"preset": "dgx-a100-80gb", "accelerators": 1})", "test");
  const Cluster cluster = read_cluster(json.value(), "test", "").value();
  const std::unique_ptr<CostModel> prices = make_cost_model(cluster, PriceOptions());
  Convolution work{ConvolutionPass::kForward, 64, 64, 56, 56, 128, 28, 28, 3, 3, 2, 1, 1};
  const double flops = 2.0 * 64 * 28 * 28 * 128 * 64 * 9;
  for (const ConvolutionPass pass : {ConvolutionPass::kForward, ConvolutionPass::kInputGradient,
                                     ConvolutionPass::kWeightGradient}) {
    work.pass = pass;
    EXPECT_EQ(flops_of(Work{work}), flops);
    EXPECT_EQ(flops_of(Work{implicit_gemm(work)}), flops);
    const double seconds = prices->price(Work{work}, {}).value().duration.seconds();
    EXPECT_GT(seconds, flops / (cluster.device.bf16_tflops * 1e12));
    EXPECT_LT(seconds, 6 * flops / (cluster.device.bf16_tflops * 1e12));
    EXPECT_GT(seconds,
              2.0 * 64 * (64 * 56 * 56 + 128 * 28 * 28) / (cluster.device.memory_gb_per_s * 1e9));
  }
}

// 3 x 3 filters of stride 1 in fp32 take 16 multiplications in place of 36: faster than the
// arithmetic of their FLOPs, no faster than that of a 2.25th. Nothing else is.
TEST(Networks, WinogradMultipliesLess) {
  const Result<Json> json = parse_json(R"({"preset": "dgx-1v", "accelerators": 1})", "test");
  const Cluster cluster = read_cluster(json.value(), "test", "").value();
  const std::unique_ptr<CostModel> prices = make_cost_model(cluster, PriceOptions());
  const double peak = cluster.device.fp32_tflops * 1e12;
  // Of the time that the FLOPs of a convolution with `kernel` and `stride` take at the peak.
  const auto share = [&](ConvolutionPass pass, std::int64_t kernel, std::int64_t stride) {
    const std::int64_t out = 56 / stride;
    const std::int64_t pad = kernel / 2;
    Convolution work{pass, 128, 256, 56, 56, 256, out, out, kernel, kernel, stride, pad, pad};
    work.in = work.out = DType::kFp32;
    return prices->price(Work{work}, {}).value().duration.seconds() / (flops_of(Work{work}) / peak);
  };
  for (const ConvolutionPass pass : {ConvolutionPass::kForward, ConvolutionPass::kInputGradient,
                                     ConvolutionPass::kWeightGradient}) {
    EXPECT_LT(share(pass, 3, 1), 1);
    EXPECT_GT(share(pass, 3, 1), 1 / 2.25);
    EXPECT_GT(share(pass, 3, 2), 1);
    EXPECT_GT(share(pass, 5, 1), 1);
  }
}

// Where channels come first a 16-bit convolution reads copies: its input, the gradient of its
// output for the input's, and both for the weights'. Of the images nobody wants a gradient; linears
// and wider types read what there is.
TEST(Networks, ChannelsFirstAreTransposed) {
  const Model model = network(R"([{"conv": 6, "kernel": 3, "norm": true, "activation": "relu"},
      {"conv": 5}, {"pool": "average"}, {"linear": 10}])");
  Plan plan = plan_of(model, 1, 2);
  plan.channels_first = true;
  const auto transposes = [&model](const Plan& p) {
    const Program program = lowered(model, p).programs[0];
    std::vector<std::string> out;
    for (const Call& call : program.calls) {
      for (const Op& op : program.segments[call.segment.index()].ops) {
        const auto* kernel = std::get_if<Kernel>(&program.works[op.work.index()]);
        if (kernel == nullptr || kernel->kind != KernelKind::kTranspose) continue;
        out.push_back(op.name + " " + std::to_string(kernel->rows * kernel->cols));
      }
    }
    return out;
  };
  EXPECT_TRUE(transposes(plan).empty());
  plan.precision = Precision();
  // Two images of 8 x 12 x 12, what the first leaves of them 6 x 10 x 10, the second 5 x 10 x 10.
  const std::vector<std::string> expected = {"conv1.transpose 2304",
                                             "conv1.transpose 1200",
                                             "conv1.input_gradient.transpose 1000",
                                             "conv1.weight_gradient.transpose 1000",
                                             "conv1.weight_gradient.input.transpose 1200",
                                             "conv1.weight_gradient.transpose 1200",
                                             "conv1.weight_gradient.input.transpose 2304"};
  EXPECT_EQ(transposes(plan), expected);
  plan.channels_first = false;
  EXPECT_TRUE(transposes(plan).empty());
}

struct Wrong {
  const char* layers;
  const char* message;
};

class Refused : public testing::TestWithParam<Wrong> {};

TEST_P(Refused, SaysWhereAndWhy) {
  const std::string text = R"({"image": [3, 8, 8], "layers": )" + std::string(GetParam().layers);
  const Result<Json> json = parse_json(text + "}", "test");
  ASSERT_TRUE(json.ok()) << json.error().message;
  const Result<Model> model = read_model(json.value(), "m.json", "/model");
  ASSERT_FALSE(model.ok());
  EXPECT_NE(model.error().message.find(GetParam().message), std::string::npos)
      << model.error().message;
}

const Wrong kWrong[] = {
    {"[]", "/model/layers: no layers"},
    {"3", "/model/layers: found 3, expected a list of layers"},
    {"[3]", "/model/layers/0: found 3, expected an object"},
    {R"([{"convv": 3}])", "did you mean \"conv\"?"},
    {R"([{"conv": 3, "linear": 2}])", "/model/layers/0: is both conv and linear"},
    {R"([{"conv": 3, "kernel": 9}])", "/kernel: 9 is larger than the 8 that it slides over"},
    {R"([{"conv": 3, "kernel": [1, 2, 3]}])", "/model/layers/0/kernel: found a list"},
    {R"([{"conv": 0}])", "/model/layers/0/conv"},
    {R"([{"conv": 3, "activation": "gelu"}])", "/model/layers/0/activation"},
    {R"([{"conv": 3}])", "the last layer leaves 3 x 8 x 8 of an image"},
    {R"([{"linear": 3}, {"dropout": 0.5}])", "the last item needs a layer behind it"},
    {R"([{"pool": "average"}, {"linear": 3}])", "the first layer has no parameters"},
    {R"([{"branches": [[{"conv": 2}], []], "join": "add"}])",
     "leave 2 x 8 x 8 and 3 x 8 x 8 of an image, which cannot be joined"},
    {R"([{"branches": [[]], "join": "add"}])", "two or more lists"},
    {R"([{"branches": [[], []]}])", "/model/layers/0/join"},
    {R"([{"branches": [[{"repeat": 2, "layers": []}], []], "join": "add"}])",
     "repeat stands in the model's own list"},
    {R"([{"auxiliary": [{"conv": 2}]}, {"linear": 3}])", "expected one number for each class"},
    {R"([{"norm": false}, {"linear": 3}])", "an item without any layer"},
    {R"([{"conv": 3, "size": 2}])", "/model/layers/0/size"},
    {R"([{"parameters": 3}])", "/model/layers/0/forward_flops"},
    {R"([{"parameters": 3, "forward_flops": 2, "output": [1, 2]}])", "[channels, height, width]"},
    {R"([{"repeat": 9999, "layers": [{"repeat": 9999, "layers": []}]}, {"linear": 3}])",
     "more than 100000 layers"},
    {R"([{"repeat": 9999, "layers": [{"conv": 3, "norm": true, "activation": "relu"},
         {"conv": 3}, {"conv": 3}, {"conv": 3}, {"conv": 3}, {"conv": 3}]}])",
     "more than 100000 layers"},
    {R"([{"linear": 1000000}, {"linear": 1000000}])", "more than 10^10 parameters"},
};
INSTANTIATE_TEST_SUITE_P(Each, Refused, testing::ValuesIn(kWrong));

// Layers given as numbers: their parameters, FLOPs and bytes are what a step has.
TEST(Networks, LayersAsNumbers) {
  const Model model = network(R"([
      {"name": "stem", "parameters": 1000, "forward_flops": 5000000, "activation_bytes": 4096,
       "output": [4, 6, 6]},
      {"repeat": 3, "layers": [{"name": "cell", "parameters": 2000, "forward_flops": 7000000,
       "activation_bytes": 8192, "output": [4, 6, 6]}]},
      {"linear": 10}])");
  EXPECT_EQ(parameter_count(model), 1000 + 3 * 2000 + 144 * 10 + 10);
  EXPECT_EQ(forward_flops(model.network), 5e6 + 3 * 7e6 + 2 * 1440);
  const Program program = lowered(model, plan_of(model, 2, 2)).programs[0];
  EXPECT_EQ(product_flops(program), 2 * 3 * forward_flops(model.network));
  const Bytes kept = 4096 + 3 * 8192 + 4 * (4 * 144 + 10 + 10 + 1);
  EXPECT_EQ(memory_peak(program).saved, 2 * kept);
}

}  // namespace
}  // namespace foretrain
