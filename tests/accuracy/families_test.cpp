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
  static const std::map<std::string, std::string> kCounted = {
      {"zamba2", "several layers share"}, {"electra", "classes"}, {"vit", "patches"}};
  return kCounted;
}

/// `shared/validation/families_open.json`, where a checkout has it beside it.
Result<Json> families() {
  return read_json_file(std::string(FORETRAIN_SOURCE_DIR) +
                        "/../shared/validation/families_open.json");
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

// Every file becomes a Program, or is refused by name.
TEST(Families, PublishersFilesAreLowered) {
  const Result<Json> rows = families();
  if (!rows.ok()) GTEST_SKIP() << rows.error().message;
  std::set<std::string> refused;
  for (const Json& row : *rows.value().array()) {
    const std::string& id = *row.find("id")->string();
    const std::string& type = *row.find("model_type")->string();
    Model model = read_model(*row.find("config"), id, "").value();
    model.ends.masked = 0;
    const Plan plan = small_plan(model, {1, 1, 1, 1}, 1);
    const Violations found = found_by(check_tensor, model, plan);
    if (!found.empty()) {
      const std::string& message = found.all().front().message;
      ASSERT_TRUE(not_lowered().contains(type)) << id << ": " << message;
      EXPECT_NE(message.find(not_lowered().at(type)), std::string::npos) << message;
      refused.insert(type);
      continue;
    }
    const Status fault = verify(lower(model, plan));
    EXPECT_TRUE(fault.ok()) << id << ": " << fault.error().message;
  }
  EXPECT_EQ(refused.size(), not_lowered().size());
}

}  // namespace
}  // namespace foretrain
