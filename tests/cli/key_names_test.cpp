// Are the keys that other systems' names are said to be keys that a RUN has?
#include <gtest/gtest.h>

#include "tools/predict/key_names.h"
#include "tools/predict/run_file.h"

namespace foretrain {
namespace {

TEST(KeyNames, AreOfKeysThatExist) {
  const Json run = parse_json(R"({"model": "llama-3-8b",
      "cluster": {"preset": "dgx-h100", "accelerators": 8}})",
                              "test")
                       .value();
  for (const auto& [name, ours] : names_of_others()) {
    std::string key = ours.substr(0, ours.find_first_of(" ,:"));
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

}  // namespace
}  // namespace foretrain
