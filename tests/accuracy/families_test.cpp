// Are config files of publishers read as they are, with the exact number of parameters?
#include <gtest/gtest.h>

#include <fstream>
#include <map>
#include <set>

#include "models/architecture/model.h"

namespace foretrain {
namespace {

/// Files that are not read yet, and what is missing. An entry that is read now is a fault.
const std::map<std::string, std::string>& not_read() {
  static const std::map<std::string, std::string> kMissing = {
      {"gemma4", "two head sizes, experts beside an MLP"},
      {"qwen3_next", "gated delta nets, gated attention"},
      {"qwen3_5_moe", "gated delta nets, gated attention"},
      {"phi3small", "block-sparse attention"},
      {"zamba2", "one block shared by several layers, with adapters"},
      {"falcon_h1", "two mixers side by side"},
      {"nemotron-3-ultra-550b-a55b", "experts in a latent space"},
      {"arctic", "experts beside an MLP"},
      {"roberta", "the head of masked tokens"},
      {"electra", "factorised embeddings, a discriminator's head"},
      {"vit", "patches of images"}};
  return kMissing;
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
  std::set<std::string> refused;
  std::size_t exact = 0;
  for (const Json& row : *rows.value().array()) {
    const std::string& id = *row.find("id")->string();
    const std::string& type = *row.find("model_type")->string();
    const Result<Model> model = read_model(*row.find("config"), id, "");
    const std::string& name = not_read().contains(id) ? id : type;
    if (!model.ok()) {
      EXPECT_TRUE(not_read().contains(name)) << model.error().message;
      refused.insert(name);
      continue;
    }
    const auto published = static_cast<std::int64_t>(row.find("parameters")->number());
    if (not_read().contains(name)) {
      EXPECT_NE(parameter_count(model.value()), published) << id << " is counted exactly now";
      refused.insert(name);
      continue;
    }
    EXPECT_EQ(parameter_count(model.value()), published) << id;
    ++exact;
  }
  EXPECT_EQ(refused.size(), not_read().size());
  EXPECT_EQ(exact, 63U);
}

}  // namespace
}  // namespace foretrain
