// Are config files of publishers read as they are, with the exact number of parameters?
#include <gtest/gtest.h>

#include <fstream>
#include <map>
#include <set>

#include "models/architecture/model.h"
#include "models/lower.h"
#include "models/plan/plan_tensor.h"
#include "sim/program/verify.h"
#include "tests/support/small_plans.h"

namespace foretrain {
namespace {

/// Files that are counted and refused by name when they are lowered.
const std::map<std::string, std::string>& not_lowered() {
  static const std::map<std::string, std::string> kCounted = {{"axk2", "gates of norms"},
                                                              {"deepseek_v4", "hyper-connections"}};
  return kCounted;
}

/// `shared/validation/families_open.json`, where a checkout has it beside it.
Result<Json> families() {
  return read_json_file(std::string(FORETRAIN_SOURCE_DIR) +
                        "/../shared/validation/families_open.json");
}

/// The types that are refused by name when their files are lowered; faults of the others.
std::set<std::string> refused_of(const Json& rows) {
  std::set<std::string> refused;
  for (const Json& row : *rows.array()) {
    const std::string& id = *row.find("id")->string();
    const std::string& type = *row.find("config")->find("model_type")->string();
    Model model = read_model(*row.find("config"), id, "").value();
    model.ends.masked = 0;
    Plan plan = small_plan(model, {1, 1, 1, 1}, 1);
    if (model.ends.patch > 0) plan.sequence_length = model.positions;
    const Violations found = found_by(check_tensor, model, plan);
    if (!found.empty()) {
      const std::string& message = found.all().front().message;
      const auto expected = not_lowered().find(type);
      if (expected == not_lowered().end()) {
        ADD_FAILURE() << id << ": " << message;
        continue;
      }
      EXPECT_NE(message.find(expected->second), std::string::npos) << message;
      refused.insert(type);
      continue;
    }
    const Status fault = verify(lower(model, plan));
    EXPECT_TRUE(fault.ok()) << id << ": " << fault.error().message;
  }
  return refused;
}

TEST(Families, PublishersFilesAreCountedExactly) {
  const Result<Json> rows = families();
  if (!rows.ok()) GTEST_SKIP() << rows.error().message;
  ASSERT_NE(rows.value().array(), nullptr);
  for (const Json& row : *rows.value().array()) {
    const std::string& id = *row.find("id")->string();
    const Result<Model> model = read_model(*row.find("config"), id, "");
    ASSERT_TRUE(model.ok()) << model.error().message;
    const auto published = static_cast<std::int64_t>(row.find("parameters")->number());
    EXPECT_EQ(parameter_count(model.value()), published) << id;
    if (const Json* active = row.find("active_parameters")) {
      EXPECT_EQ(active_parameter_count(model.value()), static_cast<std::int64_t>(active->number()))
          << id;
    }
  }
  EXPECT_EQ(rows.value().array()->size(), 75U);
}

// Every file becomes a Program.
TEST(Families, PublishersFilesAreLowered) {
  const Result<Json> rows = families();
  if (!rows.ok()) GTEST_SKIP() << rows.error().message;
  EXPECT_EQ(refused_of(rows.value()), std::set<std::string>());
}

TEST(Families, FilesOfFurtherTypesAreLowered) {
  const Result<Json> rows =
      read_json_file(std::string(FORETRAIN_SOURCE_DIR) + "/tests/data/model_types.json");
  ASSERT_TRUE(rows.ok()) << rows.error().message;
  EXPECT_EQ(refused_of(rows.value()), (std::set<std::string>{"axk2", "deepseek_v4"}));
}

}  // namespace
}  // namespace foretrain
