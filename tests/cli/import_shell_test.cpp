// Scripts are expanded as a shell would, and nothing in them is run.
#include <gtest/gtest.h>

#include "tools/import/shell.h"
#include "tools/import/shell_arithmetic.h"

namespace foretrain {
namespace {

/// The words of the last command of a script, joined by "|".
std::string last_words(const std::string& script) {
  Shell shell;
  const Status read = shell.read(script, "test.sh");
  if (!read.ok()) return "error: " + read.error().message;
  if (shell.commands.empty()) return "";
  std::string out;
  for (const ShellWord& word : shell.commands.back().words) {
    out += (out.empty() ? "" : "|") + word.text;
  }
  return out;
}

TEST(ImportShell, ExpandsVariablesAsAShellDoes) {
  EXPECT_EQ(last_words("A=1\nrun $A ${A} \"$A b\" '$A' \\$A"), "run|1|1|1 b|$A|$A");
  EXPECT_EQ(last_words("run ${X:-two words} \"${X:-two words}\""), "run|two|words|two words");
  EXPECT_EQ(last_words("A=\nrun ${A:-d} ${A-d}x ${A:+y}"), "run|d|x");
  EXPECT_EQ(last_words("B=2; A=${B:+y}; run $A"), "run|y");
  EXPECT_EQ(last_words("A=8\nB=\"--x $A\"\nB+=\" --y\"\nrun $B \"$B\""), "run|--x|8|--y|--x 8 --y");
  EXPECT_EQ(last_words(": ${N:=4}\nrun $N"), "run|4");
  EXPECT_EQ(last_words("export A=1 B=2\nrun $A$B"), "run|12");
  EXPECT_EQ(last_words("A=Fp8; run ${A,,} ${A^^} ${#A}"), "run|fp8|FP8|3");
}

TEST(ImportShell, ExpandsArrays) {
  const std::string array = "A=(\n  --x 1  # said\n  \"--y 2\"\n)\nA+=(--z)\n";
  EXPECT_EQ(last_words(array + "run \"${A[@]}\""), "run|--x|1|--y 2|--z");
  EXPECT_EQ(last_words(array + "run ${A[@]}"), "run|--x|1|--y|2|--z");
  EXPECT_EQ(last_words(array + "run ${A[1]} ${#A[@]} \"${A[*]}\""), "run|1|4|--x 1 --y 2 --z");
  EXPECT_EQ(last_words("A=()\nrun ${A[@]} b"), "run|b");
}

TEST(ImportShell, JoinsLinesAndLeavesOutCommentsAndHereDocuments) {
  EXPECT_EQ(last_words("run a \\\n  b # c\n# d \\\n"), "run|a|b");
  EXPECT_EQ(last_words("run a \\\r\n  b\r\n"), "run|a|b");
  EXPECT_EQ(last_words("run a > out.log 2>&1 &\n"), "run|a");
  EXPECT_EQ(last_words("run 1\ncat <<EOF\nrun 2\nEOF\n"), "cat");
}

/// What a script writes into a file, without being run.
std::string written(const std::string& script, const std::string& file) {
  Shell shell;
  const Status read = shell.read(script, "test.sh");
  if (!read.ok()) return "error: " + read.error().message;
  const auto found = shell.documents.find(file);
  return found == shell.documents.end() ? "nothing" : found->second.text;
}

TEST(ImportShell, KeepsHereDocumentsThatBecomeFiles) {
  EXPECT_EQ(written("A=2\ncat <<EOT > f.json\n{\"a\": $A, \"b\": '${A}'}\nEOT\nrun", "f.json"),
            "{\"a\": 2, \"b\": '2'}\n");
  EXPECT_EQ(written("F=g\ncat > $F.json <<-\"EOT\"\n\t$A\n\tEOT\n", "g.json"), "\t$A\n");
  EXPECT_EQ(written("tee h.json <<E\n\\$x $((1+2))\nE\n", "h.json"), "$x 3\n");
  EXPECT_EQ(written("cat <<E\nx\nE\n", "E"), "nothing");
  EXPECT_EQ(written("python <<E > f.json\nx\nE\n", "f.json"), "nothing");  // is a program's
  EXPECT_EQ(written("cat <<E > f\nx", "f"), "x");                          // nothing ends it
  EXPECT_EQ(last_words("cat <<A > f\n$(rm x)\nA\nrun a"), "run|a");
  EXPECT_EQ(last_words("(( x = 1 << 2 ))\nrun a\n2\nrun b"), "run|b");  // a shift is none
  EXPECT_EQ(written("( (a) )\ncat > f <<E\nx\nE\n", "f"), "x\n");
}

TEST(ImportShell, ComputesWholeNumbers) {
  EXPECT_EQ(last_words("A=8; B=4\nrun $((A*$B)) $(( (A + 2) / 3 ))"), "run|32|3");
  const auto none = [](const std::string&) { return std::optional<std::int64_t>(); };
  EXPECT_EQ(shell_arithmetic("1 + 2 * 3 ** 2", none), 19);
  EXPECT_EQ(shell_arithmetic("-(7 % 4) < 0", none), 1);
  EXPECT_EQ(shell_arithmetic("1 / 0", none), std::nullopt);
  EXPECT_EQ(shell_arithmetic("9223372036854775807 + 1", none), std::nullopt);
  EXPECT_EQ(shell_arithmetic("2 ** 64", none), std::nullopt);
  EXPECT_EQ(shell_arithmetic("unset", none), std::nullopt);
}

TEST(ImportShell, FollowsBranchesThatAreKnown) {
  const std::string text = "D=fp8\nif [[ \"$D\" == \"fp8\" && 2 -gt 1 ]]; then A=1; else A=2; fi\n";
  EXPECT_EQ(last_words(text + "run $A"), "run|1");
  EXPECT_EQ(last_words("N=3\nif [ $N -eq 2 ]; then A=1; elif [ $N -eq 3 ]; then A=2; fi\nrun $A"),
            "run|2");
  EXPECT_EQ(last_words("case llama-8b in\n gpt*) A=1 ;;\n *8b|x) A=2 ;;\n *) A=3 ;;\nesac\nrun $A"),
            "run|2");
  EXPECT_EQ(last_words("A=0\n[ x = x ] && A=1\n[ x = y ] && A=2\nrun $A"), "run|1");
  EXPECT_EQ(last_words("f() {\n  run $1 \"$@\"\n}\nf a b"), "run|a|a|b");
}

TEST(ImportShell, NamesWhatOnlyRunningItWouldTell) {
  Shell shell;
  ASSERT_TRUE(shell
                  .read("A=0\nif [ -f x ]; then A=1; fi\nfor i in 1 2; do A=3; done\n"
                        "if [ -z \"$B\" ]; then A=4; fi\nsource common.sh\nrun $A $(touch file) $C",
                        "test.sh")
                  .ok());
  ASSERT_EQ(shell.left_out.size(), 4U);
  EXPECT_NE(shell.left_out[0].find("test.sh:2"), std::string::npos);
  EXPECT_NE(shell.left_out[1].find("loop"), std::string::npos);
  EXPECT_NE(shell.left_out[2].find("B were not set"), std::string::npos);
  EXPECT_NE(shell.left_out[3].find("common.sh"), std::string::npos);
  const std::vector<ShellWord>& words = shell.commands.back().words;
  ASSERT_EQ(words.size(), 4U);
  EXPECT_EQ(words[1].text, "4");
  EXPECT_TRUE(words[2].missing.contains("$(touch file)"));
  EXPECT_TRUE(words[3].missing.contains("C"));
}

TEST(ImportShell, WhatIsMissingIsMissingWhereItStands) {
  Shell shell;
  ASSERT_TRUE(shell.read("ARGS=\"--save $1 --tp 8\"\nrun $ARGS", "test.sh").ok());
  const std::vector<ShellWord>& words = shell.commands.back().words;
  ASSERT_EQ(words.size(), 5U);
  EXPECT_TRUE(words[2].missing.contains("1"));
  EXPECT_TRUE(words[4].missing.empty());
  EXPECT_EQ(last_words("run a \"$@\" $@ b"), "run|a|b");  // started without arguments
}

TEST(ImportShell, RefusesWhatGrowsWithoutEnd) {
  std::string doubling = "X=0123456789abcdef\n";
  for (int i = 0; i < 40; ++i) doubling += "X=\"$X$X\"\n";
  EXPECT_NE(last_words(doubling).find("built of itself"), std::string::npos);
  std::string array = "A=(1 2)\n";
  for (int i = 0; i < 40; ++i) array += "A=(${A[@]} ${A[@]})\n";
  EXPECT_NE(last_words(array).find("built of itself"), std::string::npos);
  std::string calls = "f0() { run; }\n";
  for (int i = 1; i < 15; ++i) {
    const std::string below = "f" + std::to_string(i - 1);
    calls += "f" + std::to_string(i) + "() { ";
    for (int j = 0; j < 8; ++j) calls += below + "; ";
    calls += "}\n";
  }
  EXPECT_NE(last_words(calls + "f14").find("error"), std::string::npos);
  EXPECT_NE(last_words("f() { f; }\nf").find("nest"), std::string::npos);
  EXPECT_NE(last_words("run $(" + std::string(100, '(')).find("error"), std::string::npos);
  EXPECT_NE(last_words("run \"a").find("test.sh:1: a \" is not closed"), std::string::npos);
  EXPECT_NE(last_words("A=(1 2").find("has no end"), std::string::npos);
}

}  // namespace
}  // namespace foretrain
