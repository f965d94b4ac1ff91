// What the documents tell a reader to type works.
#include <gtest/gtest.h>

#include <sstream>

#include "sim/base/file.h"
#include "tests/cli/run_command.h"
#include "tests/support/sanitized.h"

namespace foretrain {
namespace {

std::string document(const std::string& name) {
  const Result<std::string> text =
      read_compressed_file(std::string(FORETRAIN_SOURCE_DIR "/") + name);
  EXPECT_TRUE(text.ok());
  return text.ok() ? text.value() : "";
}

/// Words of a command line: at spaces, but not within '...'.
std::vector<std::string> words(const std::string& line) {
  std::vector<std::string> all(1);
  bool quoted = false;
  for (const char c : line) {
    if (c == '\'') {
      quoted = !quoted;
    } else if (c == ' ' && !quoted) {
      all.emplace_back();
    } else {
      all.back() += c;
    }
  }
  return all;
}

TEST(Documents, EveryCommandOfTheTutorialRuns) {
  if (kSanitized) GTEST_SKIP() << "the same verbs run elsewhere";
  const Workplace place;
  const std::string text = document("docs/tutorial/plan-a-run.md");
  const std::string open = "```json\n";
  const std::size_t begin = text.find(open);
  ASSERT_NE(begin, std::string::npos);
  const std::size_t from = begin + open.size();
  place.write("run.json", text.substr(from, text.find("```", from) - from));
  const std::string prompt = "    foretrain ";
  std::istringstream lines(text);
  int commands = 0;
  bool fenced = false;
  for (std::string line; std::getline(lines, line);) {
    if (line.starts_with("```")) fenced = !fenced;
    if (fenced || !line.starts_with(prompt)) continue;
    const CommandResult result = place.run(words(line.substr(prompt.size())));
    EXPECT_EQ(result.exit_code, 0) << line << "\n" << result.err;
    EXPECT_GT(result.out.size(), 100U) << line;
    ++commands;
  }
  EXPECT_GT(commands, 5);
}

TEST(Documents, VerbsAreThoseOfTheCommand) {
  const Workplace place;
  const std::string page = document("docs/reference/verbs.md");
  std::istringstream lines(page);
  int verbs = 0;
  for (std::string line; std::getline(lines, line);) {
    if (!line.starts_with("## ")) continue;
    const std::string verb = line.substr(3);
    const CommandResult help = place.run({verb, "--help"});
    EXPECT_EQ(help.exit_code, 0) << verb;
    EXPECT_NE(page.find("```\n" + help.out + "```\n"), std::string::npos)
        << verb << " --help prints something else: run tools/write_references";
    ++verbs;
  }
  const std::string all = place.run({"--help"}).out;
  const std::string heading = "Subcommands:\n";
  std::istringstream listed(all.substr(all.find(heading) + heading.size()));
  for (std::string line; std::getline(listed, line) && line.starts_with("  ");) {
    const std::string verb = line.substr(2, line.find(' ', 2) - 2);
    EXPECT_NE(page.find("\n## " + verb + "\n"), std::string::npos)
        << "docs/reference/verbs.md lacks " << verb << ": run tools/write_references";
    --verbs;
  }
  EXPECT_EQ(verbs, 0);
}

}  // namespace
}  // namespace foretrain
