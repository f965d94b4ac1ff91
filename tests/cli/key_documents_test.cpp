// Are the documents that are made from declarations of keys current, and do they hold for files?
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <set>

#include "sim/base/json.h"
#include "tests/cli/run_command.h"
#include "tools/predict/documents/key_documents.h"
#include "tools/predict/documents/model_support.h"

namespace foretrain {
namespace {

const std::string kRoot = FORETRAIN_SOURCE_DIR;

TEST(KeyDocuments, AreCurrent) {
  EXPECT_EQ(read_text_file(kRoot + "/docs/reference/keys.md").value(), keys_page())
      << "foretrain schema run --page > docs/reference/keys.md";
  EXPECT_EQ(read_text_file(kRoot + "/docs/reference/run.schema.json").value(),
            dump_json(schema_of("run")) + "\n")
      << "foretrain schema run > docs/reference/run.schema.json";
}

TEST(ModelDocuments, AreCurrent) {
  const Result<std::string> page = models_page();
  ASSERT_TRUE(page.ok()) << page.error().message;
  EXPECT_EQ(read_text_file(kRoot + "/docs/reference/models.md").value(), page.value())
      << "foretrain list models --page > docs/reference/models.md";
}

/// Pointers of members that the schema, which closes its objects, does not have.
void list_unknown(const Json& json, const Json& schema, const Json& root, const std::string& at,
                  std::vector<std::string>& out) {
  if (json.object() == nullptr) return;
  if (const Json* reference = schema.find("$ref")) {
    const std::string name = reference->string()->substr(std::string("#/$defs/").size());
    return list_unknown(json, *root.find("$defs")->find(name), root, at, out);
  }
  const Json* any = schema.find("anyOf");
  if (any != nullptr) {
    for (const Json& one : *any->array()) {
      if (one.find("properties") != nullptr) list_unknown(json, one, root, at, out);
    }
    return;
  }
  const Json* properties = schema.find("properties");
  if (properties == nullptr) return;  // open
  for (const auto& [key, value] : *json.object()) {
    const Json* known = properties->find(key);
    if (known == nullptr) {
      out.push_back(at + "/" + key);
    } else {
      list_unknown(value, *known, root, at + "/" + key, out);
    }
  }
}

TEST(KeyDocuments, SchemasKnowEveryKeyOfShippedFiles) {
  for (const std::string& kind : schema_kinds()) {
    // A section of RUNs, and what the program writes: no files of these ship.
    static const std::set<std::string> kWritten = {"campaign", "timeline", "result", "search",
                                                   "goodput"};
    if (kWritten.contains(kind)) continue;
    const Json schema = schema_of(kind);
    int files = 0;
    const std::string folder = kind == "reliability" ? kind : kind + "s";
    for (const auto& entry : std::filesystem::directory_iterator(kRoot + "/configs/" + folder)) {
      const Json file = read_json_file(entry.path().string()).value();
      std::vector<std::string> unknown;
      list_unknown(file, schema, schema, "", unknown);
      EXPECT_EQ(unknown, std::vector<std::string>{}) << entry.path();
      ++files;
    }
    EXPECT_GT(files, kind == "profile" ? 1 : kind == "reliability" ? 4 : 10) << kind;
  }
  std::vector<std::string> unknown;
  const Json wrong = parse_json(R"({"parallel": {"tensr": 2}})", "test").value();
  list_unknown(wrong, schema_of("run"), schema_of("run"), "", unknown);
  EXPECT_EQ(unknown, std::vector<std::string>{"/parallel/tensr"});
}

/// Pointers of values whose type the schema does not have, and of members that it requires.
void list_wrong(const Json& json, const Json& schema, const std::string& at,
                std::vector<std::string>& out) {
  const Json* constant = schema.find("const");
  if (constant != nullptr && !(*constant == json)) out.push_back(at + " is not the constant");
  if (const Json* type = schema.find("type")) {
    const char* const names[] = {"null",   "boolean", "integer", "number",
                                 "string", "array",   "object"};
    const std::string is = names[json.value.index()];
    const Json::Array one{*type};
    bool fits = false;
    for (const Json& name : type->array() == nullptr ? one : *type->array()) {
      fits = fits || name == Json(is) || (is == "integer" && name == Json("number"));
    }
    if (!fits) out.push_back(at + " is of the type " + is);
  }
  if (const Json* required = schema.find("required"); required != nullptr && json.object()) {
    for (const Json& key : *required->array()) {
      if (json.find(*key.string()) == nullptr) out.push_back(at + " lacks " + *key.string());
    }
  }
  const Json* items = schema.find("items");
  if (items != nullptr && json.array() != nullptr) {
    for (const Json& item : *json.array()) list_wrong(item, *items, at + "/[]", out);
  }
  if (json.object() == nullptr) return;
  const Json* properties = schema.find("properties");
  const Json* others = schema.find("additionalProperties");
  for (const auto& [key, value] : *json.object()) {
    const Json* known = properties == nullptr ? nullptr : properties->find(key);
    if (known == nullptr && others != nullptr && others->object() != nullptr) known = others;
    if (known != nullptr) list_wrong(value, *known, at + "/" + key, out);
  }
}

/// The same of members that the schema does not know, lists included.
void list_new(const Json& json, const Json& schema, const std::string& at,
              std::vector<std::string>& out) {
  const Json* items = schema.find("items");
  if (items != nullptr && json.array() != nullptr) {
    for (const Json& item : *json.array()) list_new(item, *items, at + "/[]", out);
  }
  const Json* properties = schema.find("properties");
  if (properties == nullptr || json.object() == nullptr) return;
  for (const auto& [key, value] : *json.object()) {
    const Json* known = properties->find(key);
    if (known == nullptr) {
      out.push_back(at + "/" + key);
    } else {
      list_new(value, *known, at + "/" + key, out);
    }
  }
}

TEST(KeyDocuments, SchemasAreOfWhatIsWritten) {
  const Workplace place;
  const auto expect_known = [](const std::string& text, const std::string& kind) {
    const Json json = parse_json(text, kind).value();
    std::vector<std::string> wrong;
    list_wrong(json, schema_of(kind), "", wrong);
    list_new(json, schema_of(kind), "", wrong);
    std::sort(wrong.begin(), wrong.end());
    wrong.erase(std::unique(wrong.begin(), wrong.end()), wrong.end());
    EXPECT_EQ(wrong, std::vector<std::string>{}) << kind;
  };
  const std::vector<std::vector<std::string>> runs = {
      {"llama-3.1-405b-16384-h100", "--set", "campaign.tokens=1e12", "--set",
       "campaign.price_per_gpu_hour=2"},
      {"llama-3-8b-8-h100", "--no-advice", "--set", "offload.optimizer=cpu"},
      {"gpt-small-host"}};
  for (std::vector<std::string> run : runs) {
    run.insert(run.begin(), "simulate");
    run.insert(run.end(), {"--quiet", "--json", "r.json", "--timeline", "t.json"});
    ASSERT_EQ(place.run(run).exit_code, 0) << run[1];
    expect_known(place.read("r.json"), "result");
    if (run[1] == "gpt-small-host") expect_known(place.read("t.json"), "timeline");
  }
  place.write("s.json", R"({"model":"gpt3-350m","cluster":{"preset":"dgx-h100","accelerators":8},
      "batch":{"global":64},"search":{"price":["2"],"fix":["parallel.context","recompute"]}})");
  ASSERT_EQ(place.run({"search", "s.json", "--quiet", "--json", "s.out"}).exit_code, 0);
  expect_known(place.read("s.out"), "search");
  const std::vector<std::vector<std::string>> campaigns = {
      {"campaign.steps=20000", "campaign.reliability=meta-rsc-1", "campaign.price_per_gpu_hour=2"},
      {"campaign.steps=20000"},
      {"campaign.steps=20000", "campaign.reliability=llama-3-405b", "campaign.policy=shrink",
       "campaign.spares=2"}};
  for (const std::vector<std::string>& sets : campaigns) {
    const CommandResult result = place.run(
        with_sets({"goodput", "llama-3-8b-8-h100", "--campaigns", "5", "--json", "-"}, sets));
    ASSERT_EQ(result.exit_code, 0) << result.err;
    expect_known(result.out, "goodput");
  }
  for (const auto& entry : std::filesystem::directory_iterator(kRoot + "/configs/reliability")) {
    expect_known(read_text_file(entry.path().string()).value(), "reliability");
  }
  std::vector<std::string> wrong;
  list_wrong(parse_json(R"({"components": {"gpu": {"repair_s": 3}}})", "").value(),
             schema_of("reliability"), "", wrong);
  EXPECT_EQ(wrong, std::vector<std::string>{"/components/gpu lacks per_unit_day"});
  wrong.clear();
  list_wrong(parse_json(R"({"schema": "x", "name": 3})", "").value(), schema_of("result"), "",
             wrong);
  EXPECT_GT(wrong.size(), 3U);
  for (const auto& entry : std::filesystem::directory_iterator(kRoot + "/configs/profiles")) {
    expect_known(read_text_file(entry.path().string()).value(), "profile");
  }
}

TEST(KeyDocuments, BashCompletesKeysAndValues) {
  const Workplace place;
  place.write("in.sh", place.run({"completion", "bash"}).out + R"(
COMP_WORDS=(foretrain simulate --set sharding.le); COMP_CWORD=3; _foretrain; echo ${COMPREPLY[@]}
COMP_WORDS=(foretrain simulate --set overlap.pipeline = t); COMP_CWORD=5; _foretrain
echo ${COMPREPLY[@]}
COMP_WORDS=(foretrain sch); COMP_CWORD=1; _foretrain; echo ${COMPREPLY[@]}
COMP_WORDS=(foretrain simulate --no); COMP_CWORD=2; _foretrain; echo ${COMPREPLY[@]}
COMP_WORDS=(foretrain search --objective e); COMP_CWORD=3; _foretrain; echo ${COMPREPLY[@]}
COMP_WORDS=(foretrain list clu); COMP_CWORD=2; _foretrain; echo ${COMPREPLY[@]}
)");
  const std::string command = "bash " + place.path("in/in.sh").string() + " > " +
                              place.path("in/out.txt").string() + " 2>&1";
  if (std::system("bash -c 'compgen -W a' > /dev/null 2>&1") != 0) GTEST_SKIP() << "no bash";
  ASSERT_EQ(std::system(command.c_str()), 0) << place.read("out.txt");
  EXPECT_EQ(place.read("out.txt"),
            "sharding.level=\ntrue\nschema\n--no-advice\nenergy\nclusters\n");
}

TEST(KeyDocuments, FishCompletesVerbsOptionsKeysAndValues) {
  if (std::system("fish --version > /dev/null 2>&1") != 0) GTEST_SKIP() << "no fish";
  const Workplace place;
  place.write("in.fish", place.run({"completion", "fish"}).out + R"(
complete -C 'foretrain sch' | cut -f 1
complete -C 'foretrain simulate --set sharding.le' | cut -f 1
complete -C 'foretrain simulate --set overlap.pipeline=t' | cut -f 1
complete -C 'foretrain simulate --no' | cut -f 1
complete -C 'foretrain search --objective e' | cut -f 1
)");
  const std::string command = "HOME=" + place.path("in").string() + " fish " +
                              place.path("in/in.fish").string() + " > " +
                              place.path("in/out.txt").string() + " 2>&1";
  ASSERT_EQ(std::system(command.c_str()), 0) << place.read("out.txt");
  EXPECT_EQ(place.read("out.txt"),
            "schema\nsharding.level=\noverlap.pipeline=true\n--no-advice\nenergy\n");
}

TEST(KeyDocuments, ZshReadsItsScript) {
  if (std::system("zsh --version > /dev/null 2>&1") != 0) GTEST_SKIP() << "no zsh";
  const Workplace place;
  const std::string script = place.run({"completion", "zsh"}).out;
  EXPECT_TRUE(script.starts_with("#compdef foretrain\n"));
  for (const char* part : {"'simulate:Predict one run", "'parallel.tensor:", "*--objective["}) {
    EXPECT_NE(script.find(part), std::string::npos) << part;
  }
  // Its functions are defined where there is no completion system; `compdef` stands for that.
  place.write("in.zsh",
              "compdef() { print $1 $2 }\n" + script + "functions -m _foretrain | wc -l\n");
  const std::string command = "zsh -f " + place.path("in/in.zsh").string() + " > " +
                              place.path("in/out.txt").string() + " 2>&1";
  ASSERT_EQ(std::system(command.c_str()), 0) << place.read("out.txt");
  EXPECT_TRUE(place.read("out.txt").starts_with("_foretrain foretrain\n")) << place.read("out.txt");
}

TEST(KeyDocuments, CompletionKnowsThreeShells) {
  const Workplace place;
  const CommandResult other = place.run({"completion", "tcsh"});
  EXPECT_EQ(other.exit_code, 1);
  EXPECT_NE(other.err.find("expected bash, zsh or fish"), std::string::npos) << other.err;
}

TEST(KeyDocuments, FilesMayNameTheirSchema) {
  const Workplace place;
  place.write("run.json", kSmallRun);
  const std::string plain = place.run({"show", "run.json"}).out;
  place.write("run.json", R"({"$schema": "here.json",)" + std::string(kSmallRun).substr(1));
  EXPECT_EQ(place.run({"show", "run.json"}).out, plain);
  for (const char* kind : {"cluster", "system", "model"}) {
    const std::string name = std::string(kind) == "cluster"  ? "dgx-a100-80gb"
                             : std::string(kind) == "system" ? "megatron-lm"
                                                             : "gpt3-125m";
    const std::string text =
        read_text_file(kRoot + "/configs/" + kind + "s/" + name + ".json").value();
    place.write("file.json", R"({"$schema": "here.json",)" + text.substr(text.find('{') + 1));
    const std::string path = std::string(kind) == "cluster" ? "cluster.preset" : kind;
    const CommandResult shown =
        place.run({"show", "run.json", "--set", path + "=file.json", "--json", "-", "--quiet"});
    EXPECT_EQ(shown.exit_code, 0) << kind << ": " << shown.err;
    EXPECT_EQ(shown.err, "") << kind;
  }
}

}  // namespace
}  // namespace foretrain
