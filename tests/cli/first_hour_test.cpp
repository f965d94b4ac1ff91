// What stands in a newcomer's way does not stand here (docs/explanation/first-hour.md).
#include <gtest/gtest.h>

#include "sim/base/file.h"
#include "tests/cli/run_command.h"
#include "tools/report/report.h"

namespace foretrain {
namespace {

constexpr const char* kFirstRun = R"({"model": "llama-3-8b",
    "cluster": {"preset": "dgx-h100", "accelerators": 8},
    "batch": {"global": 8, "micro": 1, "sequence": 1024}})";

TEST(FirstHour, ASynonymWinsOverSpelling) {
  const Workplace place;
  place.write("run.json", kFirstRun);
  const CommandResult result =
      place.run({"simulate", "run.json", "--set", "kernels.attention=fused"});
  EXPECT_EQ(result.exit_code, 1);
  EXPECT_NE(result.err.find("fused is cudnn here"), std::string::npos) << result.err;
  EXPECT_EQ(result.err.find("unfused\"?"), std::string::npos) << result.err;
}

TEST(FirstHour, TheHeadSaysSystemAndPrecision) {
  const Workplace place;
  place.write("run.json", kFirstRun);
  const CommandResult result =
      place.run({"simulate", "run.json", "--no-advice", "--set", "system=transformers"});
  ASSERT_EQ(result.exit_code, 0) << result.err;
  EXPECT_NE(result.out.find("transformers in "), std::string::npos) << result.out;
}

TEST(FirstHour, OtherFilesAreAnsweredWithTheirVerb) {
  const Workplace place;
  place.write("run.json", kFirstRun);
  place.write("a.yaml", "num_layers: 2\n");
  place.write("a.toml", "[training]\nsteps = 1\n");
  place.write("a.sh", "#!/bin/bash\npython train.py\n");
  for (const char* file : {"a.yaml", "a.toml", "a.sh"}) {
    const CommandResult result = place.run({"simulate", file});
    EXPECT_EQ(result.exit_code, 1) << file;
    EXPECT_NE(result.err.find(std::string("`foretrain import ") + file), std::string::npos)
        << result.err;
  }
  place.write("trace.json", R"({"schemaVersion": 1, "traceEvents": []})");
  for (const std::vector<std::string>& command :
       {std::vector<std::string>{"simulate", "trace.json"},
        std::vector<std::string>{"simulate", "run.json", "--profile", "trace.json"}}) {
    const CommandResult result = place.run(command);
    EXPECT_EQ(result.exit_code, 1);
    EXPECT_NE(result.err.find("`foretrain compare trace.json`"), std::string::npos) << result.err;
  }
}

// A compressed profile prices what the plain one does.
TEST(FirstHour, ProfilesAreReadCompressed) {
  const Workplace place;
  place.write("run.json", kFirstRun);
  const std::string profile = R"({"schema": "foretrain/profile/2", "machine": {"device":
      "h100-sxm-80gb"}, "samples": [], "fits": []})";
  place.write("p.json", profile);
  ASSERT_TRUE(write_text_file(place.path("in/p.json.gz").string(), profile).ok());
  const auto with = [&place](const char* file) {
    return place.run(
        {"simulate", "run.json", "--no-advice", "--quiet", "--profile", file, "--json", "-"});
  };
  const CommandResult plain = with("p.json");
  const CommandResult packed = with("p.json.gz");
  EXPECT_EQ(plain.exit_code, packed.exit_code) << plain.err << packed.err;
  EXPECT_EQ(packed.exit_code, 0) << packed.err;
}

TEST(FirstHour, ColoursAreOfTheVerdict) {
  EXPECT_EQ(coloured("Memory 1 of 2 GiB: fits, 1 GiB left\n"),
            "Memory 1 of 2 GiB: \x1b[32mfits\x1b[0m, 1 GiB left\n");
  EXPECT_EQ(coloured("3 GiB: DOES NOT FIT\nNote: a\n"),
            "3 GiB: \x1b[31mDOES NOT FIT\x1b[0m\n\x1b[33mNote:\x1b[0m a\n");
  EXPECT_EQ(coloured("plain"), "plain");
  // Where output is no terminal there is none.
  const Workplace place;
  place.write("run.json", kFirstRun);
  const CommandResult result = place.run({"simulate", "run.json", "--no-advice"});
  EXPECT_EQ(result.out.find('\x1b'), std::string::npos);
}

}  // namespace
}  // namespace foretrain
