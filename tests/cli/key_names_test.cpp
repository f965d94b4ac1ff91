// Are the keys that other systems' names are said to be keys that a RUN has?
#include <gtest/gtest.h>

#include <fstream>
#include <iterator>

#include "sim/base/constants.h"
#include "tools/predict/run_file.h"

namespace foretrain {
namespace {

TEST(KeyNames, AreOfKeysThatExist) {
  const Json run = parse_json(R"({"model": "llama-3-8b",
      "cluster": {"preset": "dgx-h100", "accelerators": 8}})",
                              "test")
                       .value();
  const Json file = load_constants("key_names.json");
  for (const auto& [name, ours] : *member(file, "names").object()) {
    std::string key = ours.string()->substr(0, ours.string()->find_first_of(" ,:"));
    if (key == "not") key = "cluster.accelerators";  // that it is not set
    const auto read = resolve_run(run, "test", {key + "=no such value"});
    ASSERT_FALSE(read.ok()) << name;
    EXPECT_EQ(read.error().message.find("unknown key"), std::string::npos)
        << name << ": " << read.error().message;
    // And no key of ours is another's name.
    const auto theirs = resolve_run(run, "test", {name + "=1"});
    ASSERT_FALSE(theirs.ok()) << name;
    EXPECT_NE(theirs.error().message.find("unknown key; here it is "), std::string::npos) << name;
  }
}

TEST(KeyNames, StandInTheDocument) {
  std::ifstream file(FORETRAIN_SOURCE_DIR "/configs/README.md");
  const std::string document((std::istreambuf_iterator<char>(file)), {});
  const Json names = load_constants("key_names.json");
  for (const auto& [name, ours] : *member(names, "names").object()) {
    EXPECT_NE(document.find("`" + name + "`"), std::string::npos) << name;
    EXPECT_NE(document.find("| " + *ours.string() + " |"), std::string::npos) << *ours.string();
  }
}

}  // namespace
}  // namespace foretrain
