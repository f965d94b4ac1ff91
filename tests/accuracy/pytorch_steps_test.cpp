// Does PyTorch take as long for a step as predicted, where the step was measured here? Prints the
// table of docs/results.md: build/release/tests/foretrain_accuracy --gtest_filter='PyTorchSteps*'
#include <gtest/gtest.h>

#include <cmath>
#include <cstdio>
#include <map>
#include <string>

#include "tools/predict/predict.h"

namespace foretrain {
namespace {

/// Largest error of the step of dense layers, whose forms are modelled.
constexpr double kDense = 0.07;

/// Errors of rows that lack something, by what. They may not move by more than kMoves unsaid.
constexpr double kMoves = 0.02;
const std::map<std::string, double>& known_errors() {
  static const std::map<std::string, double> out = {
      {"qwen3-30b-a3b-bf16", -0.118},  // Transformers masks and sorts what its experts get
      {"mixtral-bf16", -0.123},        // likewise
      {"gpt-oss-20b-bf16", -0.399},  // scores with sinks are joined, and their products misaligned
      {"bert-large-autocast", -0.125},  // an eighth of the step the device waits for the host
      {"gemma3-4b-bf16", -0.150},       // a tenth likewise; heads of 256
      {"gpt2-medium-autocast", -0.087}  // what autocast casts around a composed gelu
  };
  return out;
}

double predicted_seconds(const Json& run, const std::string& name) {
  const Result<Run> resolved = resolve_run(run, name, {});
  EXPECT_TRUE(resolved.ok()) << (resolved.ok() ? "" : resolved.error().message);
  if (!resolved.ok()) return 0;
  PredictOptions alone;
  alone.step_alone = true;
  const Result<Prediction> out = predict(resolved.value(), alone);
  EXPECT_TRUE(out.ok()) << (out.ok() ? "" : out.error().message);
  return out.ok() ? out.value().iteration_time_s : 0;
}

TEST(PyTorchSteps, AreAsPredicted) {
  const Json data =
      read_json_file(std::string(FORETRAIN_TEST_DATA) + "/pytorch_steps.json").value();
  const Json::Array& rows = *data.find("rows")->array();
  ASSERT_GE(rows.size(), 15U);
  std::printf("| step | measured s | predicted | error |\n");
  for (const Json& row : rows) {
    const std::string name = *row.find("name")->string();
    const double predicted = predicted_seconds(*row.find("run"), name);
    const double measured = row.find("measured")->find("step_s")->number();
    const double error = predicted / measured - 1;
    std::printf("| %s | %.4f | %.4f | %+.1f %% |\n", name.c_str(), measured, predicted,
                100 * error);
    const auto known = known_errors().find(name);
    if (known == known_errors().end()) {
      EXPECT_LE(std::abs(error), kDense) << name;
    } else {
      EXPECT_NEAR(error, known->second, kMoves) << name;
    }
  }
}

}  // namespace
}  // namespace foretrain
