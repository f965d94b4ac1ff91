// Files that are damaged, missing or cannot be written, and misuse of the command line: one message
// that helps, nothing left behind.
#include <gtest/gtest.h>

#include <filesystem>

#include "tests/cli/run_command.h"
#include "tests/support/sanitized.h"

namespace foretrain {
namespace {

struct BadFile {
  const char* name;
  std::string text;
  std::vector<std::string> parts;
  std::size_t more = 0;  ///< x behind the text, written out only where the file is
};

std::vector<BadFile> bad_files() {
  const std::string small = kSmallRun;
  return {
      {"empty", "", {"run.json", "empty"}},
      {"blank", " \n\n", {"run.json", "empty"}},
      {"truncated", small.substr(0, small.size() / 2), {"run.json", "parse error"}},
      {"duplicate",
       R"({"model": "gpt2", "model": "gpt2"})",
       {"run.json", "duplicate key", "model"}},
      {"list", "[1, 2]", {"run.json", "an object"}},
      {"text", "hello", {"run.json"}},
      {"tail", small + "}", {"run.json", "parse error"}},
      {"no_model", R"({"cluster": "dgx-h100"})", {"run.json", "/model", "missing", "preset"}},
      {"no_cluster", R"({"model": "gpt2"})", {"run.json", "/cluster", "missing", "preset"}},
      {"deep_lists", std::string(100000, '['), {"run.json", "64 levels"}},
      {"binary", std::string("\x7f\x45\x4c\x46\0\1\2\3\xff\xfe", 10), {"run.json", "not a JSON"}},
      {"not_utf8", "{\"name\": \"\xff\xfe\"}", {"run.json"}},
      {"huge_number", R"({"batch": {"global": 1e999}})", {"run.json", "1e999", "overflow"}},
      {"garbage", "{\"name\": ", {"run.json", "parse"}, std::size_t{50} << 20},
  };
}

void PrintTo(const BadFile& bad, std::ostream* out) { *out << bad.name; }

class BadFiles : public testing::TestWithParam<BadFile> {};

TEST_P(BadFiles, AreRefused) {
  const Workplace place;
  place.write("run.json", GetParam().text + std::string(GetParam().more, 'x'));
  const CommandResult result = place.run({"simulate", "run.json", "--json", "out.json"});
  expect_refused(place, result, GetParam().parts);
  EXPECT_LT(result.cpu_s, cases(5, 60));
  EXPECT_LT(result.wall_s, cases(60, 300));
}
INSTANTIATE_TEST_SUITE_P(All, BadFiles, testing::ValuesIn(bad_files()),
                         [](const auto& one) { return std::string(one.param.name); });

// An output is refused where it would take the place of another, or of what is read.
TEST(BadOutputs, AreNotWrittenOverWhatIsRead) {
  const Workplace place;
  place.write("run.json", kSmallRun);
  std::filesystem::create_symlink("run.json", place.path("in/link.json"));
  const std::vector<std::string> files = {"link.json", "run.json"};
  const std::vector<std::string> simulate = {"simulate", "run.json", "--quiet"};
  const auto with = [&](std::vector<std::string> more) {
    more.insert(more.begin(), simulate.begin(), simulate.end());
    return place.run(more);
  };
  for (const char* option : {"--json", "--trace", "--timeline"}) {
    for (const char* path : {"run.json", "./run.json", "link.json"}) {
      expect_refused(place, with({option, path}), {option, path, "would be overwritten"}, files);
    }
    const CommandResult empty = with({option, ""});
    EXPECT_NE(empty.exit_code, 0);
    EXPECT_NE(empty.err.find("expected a path"), std::string::npos) << empty.err;
  }
  expect_refused(place, with({"--json", "a.json", "--trace", "./a.json"}),
                 {"--json, --trace", "both", "./a.json"}, files);
  expect_refused(place, with({"--json", "-", "--timeline", "-"}),
                 {"--json, --timeline", "only one of them can be -"}, files);
  expect_refused(place, place.run({"show", "run.json", "--json", "run.json"}),
                 {"--json", "run.json", "would be overwritten"}, files);
  expect_refused(place, place.run({"score", "run.json", "--csv", "run.json"}),
                 {"--csv", "run.json", "would be overwritten"}, files);
  const CommandResult fine = with({"--json", "/dev/null", "--trace", "/dev/null"});
  EXPECT_EQ(fine.exit_code, 0) << fine.err;
}

// Nor over what the RUN, or a --set, names, or what that names in turn.
TEST(BadOutputs, AreNotWrittenOverWhatIsNamed) {
  const Workplace place;
  place.write("model.json", R"({"preset": "gpt2", "n_layer": 2})");
  place.write("device.json", R"({"preset": "h100-sxm-80gb"})");
  place.write("cluster.json",
              R"({"preset": "dgx-h100", "accelerators": 8, "device": "device.json"})");
  place.write("run.json", R"({"model": {"preset": "model.json"}, "cluster": "cluster.json",
                              "batch": {"global": 8, "sequence": 64}})");
  place.write("system.json", R"({"defaults": {}})");
  place.write("rows.json", R"([{"id": "a", "run": {"model": "model.json", "cluster": "x"}}])");
  const std::vector<std::string> files = {"cluster.json", "device.json", "model.json",
                                          "rows.json",    "run.json",    "system.json"};
  for (const char* output : {"model.json", "cluster.json", "device.json", "./system.json"}) {
    const std::vector<std::string> parts = {"--json", output, "would be overwritten"};
    expect_refused(
        place, place.run({"simulate", "run.json", "--set", "system=system.json", "--json", output}),
        parts, files);
  }
  expect_refused(place, place.run({"show", "run.json", "--json", "cluster.json"}),
                 {"cluster.json", "would be overwritten"}, files);
  expect_refused(place, place.run({"execute", "run.json", "--timeline", "model.json"}),
                 {"--timeline", "model.json", "would be overwritten"}, files);
  for (const char* rows : {"rows.json", "."}) {
    expect_refused(place, place.run({"score", rows, "--csv", "model.json"}),
                   {"--csv", "model.json", "would be overwritten"}, files);
  }
  expect_refused(place,
                 place.run({"simulate", "run.json", "--set",
                            R"(cluster={"preset": "dgx-h100", "device": "device.json"})", "--trace",
                            "device.json"}),
                 {"--trace", "device.json", "would be overwritten"}, files);
}

// Names that are no files, texts that are none, and files that name each other.
TEST(BadOutputs, AreWrittenBesideWhatIsNot) {
  const Workplace place;
  place.write("run.json", R"({"name": "./run.json", "cluster": "dgx-h100",
                              "model": {"preset": "gpt2", "n_layer": 2, "name": "out.json"},
                              "batch": {"global": 8, "sequence": 64}})");
  place.write("loop.json", R"({"model": "./loop.json", "system": "../in/loop.json"})");
  std::filesystem::create_directories(place.path("in/gpt3-175b-1024-a100"));
  for (int twice = 0; twice < 2; ++twice) {
    const CommandResult out = place.run({"simulate", "run.json", "--quiet", "--json", "out.json"});
    EXPECT_EQ(out.exit_code, 0) << out.err;
    const CommandResult inside =
        place.run({"show", "gpt3-175b-1024-a100", "--json", "gpt3-175b-1024-a100/out.json"});
    EXPECT_EQ(inside.exit_code, 0) << inside.err;
  }
  const CommandResult loop = place.run({"simulate", "loop.json", "--json", "new.json"});
  EXPECT_EQ(loop.exit_code, 1);
  EXPECT_LT(loop.cpu_s, 5);
  EXPECT_LT(loop.wall_s, 60);
}

TEST(BadInput, ADeepObjectIsRefused) {
  const Workplace place;
  std::string deep;
  for (int i = 0; i < 100000; ++i) deep += "{\"a\":";
  place.write("run.json", deep);
  expect_refused(place, place.run({"simulate", "run.json"}), {"run.json", "64 levels"});
}

TEST(BadInput, FilesThatCannotBeReadAreNamed) {
  const Workplace place;
  place.write("run.json", kSmallRun);
  expect_refused(place, place.run({"simulate", "absent.json"}), {"absent.json", "no such file"});
  expect_refused(place, place.run({"simulate", "/"}), {"/", "directory"});
  expect_refused(place, place.run({"simulate", ""}), {"RUN", "no run \"\""});
  expect_refused(place, place.run({"simulate", "run.json", "--set", "model=/"}),
                 {"/model", "directory"});
  expect_refused(place, place.run({"simulate", "llama-3-8b-8-h10"}),
                 {"did you mean \"llama-3-8b-8-h100\""});
  expect_refused(place, place.run({"score", "absent.json"}), {"absent.json"});
  expect_refused(place, place.run({"show", "dgx-h10"}), {"did you mean \"dgx-h100\""});
  expect_refused(place, place.run({"list", "model"}), {"\"model\"", "did you mean \"models\""});
}

TEST(BadInput, OutputsThatCannotBeWrittenAreNamed) {
  const Workplace place;
  place.write("run.json", kSmallRun);
  for (const char* flag : {"--json", "--trace", "--timeline"}) {
    const auto write_to = [&](const std::string& path) {
      return place.run({"simulate", "run.json", flag, path});
    };
    expect_refused(place, write_to("absent/out.json"), {"absent/out.json", "No such file"});
    expect_refused(place, write_to("/dev/full"), {"/dev/full", "No space left"});
    expect_refused(place, write_to("/"), {"/", "directory"});
  }
}

TEST(BadInput, AStepThatTimeCannotHoldIsRefused) {
  const Workplace place;
  const CommandResult result =
      place.run({"simulate", "llama-3-8b-8-h100", "--set", "batch.sequence=67108864"});
  expect_refused(place, result, {"11 days", "out of proportion"}, {});
}

TEST(BadInput, TraceRanksMustExist) {
  const Workplace place;
  place.write("run.json", kSmallRun);
  for (const char* rank : {"8", "-1", "0,99"}) {
    expect_refused(place,
                   place.run({"simulate", "run.json", "--trace", "t.json", "--trace-ranks", rank}),
                   {"--trace-ranks", "8"});
  }
  expect_refused(place, place.run({"show", "run.json", "--program", "8"}), {"--program 8", "8"});
}

TEST(BadUsage, ExitsWithTwo) {
  const Workplace place;
  const std::vector<std::vector<std::string>> wrong = {
      {},
      {"simulat", "x"},
      {"simulate"},
      {"simulate", "a", "b"},
      {"simulate", "a", "--foo"},
      {"simulate", "a", "--trace-ranks", "x"},
      {"score"},
      {"score", "a", "--threads", "0"},
      {"show"},
      {"show", "a", "--program", "-1"},
      {"show", "a", "--program", "0", "--json", "b.json"},
      {"show", "a", "--why", "mlp.up", "--json", "b.json"},
      {"show", "a", "--step", "--json", "b.json"},
  };
  for (const std::vector<std::string>& arguments : wrong) {
    const CommandResult result = place.run(arguments);
    EXPECT_EQ(result.exit_code, 2) << result.err;
    EXPECT_EQ(result.out, "");
    EXPECT_NE(result.err.find("--help"), std::string::npos) << result.err;
  }
  EXPECT_NE(place.run({"simulat", "x"}).err.find("\"simulate\""), std::string::npos);
}

}  // namespace
}  // namespace foretrain
