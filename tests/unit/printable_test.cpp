// Text of files is shown, and never obeyed by a terminal or computed by a spreadsheet.
#include "sim/base/printable.h"

#include <gtest/gtest.h>

#include <string>

#include "sim/base/json.h"

namespace foretrain {
namespace {

TEST(Printable, WritesOutWhatATerminalObeys) {
  EXPECT_EQ(printable("plain \xc3\xa9 \xe2\x96\x88 \xf0\x9f\x98\x80\nnext"),
            "plain \xc3\xa9 \xe2\x96\x88 \xf0\x9f\x98\x80\nnext");
  EXPECT_EQ(printable("a\x1b[2J\x07"
                      "b\x7f"),
            "a\\x1b[2J\\x07b\\x7f");
  EXPECT_EQ(printable("c1 \xc2\x9b"
                      "31m"),
            "c1 \\u009b31m");
  EXPECT_EQ(printable("turned \xe2\x80\xae"
                      "txt.exe \xe2\x81\xa6"),
            "turned \\u202etxt.exe \\u2066");
  EXPECT_EQ(printable("over\rwritten\t"), "over\\rwritten\\t");
  EXPECT_EQ(printable(std::string("zero\0", 5)), "zero\\x00");
}

TEST(Printable, WritesOutWhatIsNotUtf8) {
  EXPECT_EQ(printable("\xff"), "\\xff");
  EXPECT_EQ(printable("cut \xe2\x96"), "cut \\xe2\\x96");
  EXPECT_EQ(printable("long \xc0\xaf"), "long \\xc0\\xaf");                  // two bytes for '/'
  EXPECT_EQ(printable("half \xed\xa0\x80"), "half \\xed\\xa0\\x80");         // a surrogate
  EXPECT_EQ(printable("far \xf4\x90\x80\x80"), "far \\xf4\\x90\\x80\\x80");  // beyond U+10FFFF
}

TEST(Printable, ALineIsALine) { EXPECT_EQ(printable_line("a\nb"), "a\\nb"); }

TEST(Printable, LongTextsAreShortenedBetweenCharacters) {
  EXPECT_EQ(shortened("abc", 3), "abc");
  EXPECT_EQ(shortened("abcd", 3), "abc... (1 more bytes)");
  EXPECT_EQ(shortened("ab\xc3\xa9", 3), "ab... (2 more bytes)");
  EXPECT_LT(shortened(std::string(100000, '9'), 60).size(), 100U);
}

TEST(Printable, CellsAreTexts) {
  EXPECT_EQ(csv_cell("a \"b\", c"), "\"a \"\"b\"\", c\"");
  for (const char* formula : {"=1+1", "+1", "-1", "@SUM(A1)"}) {
    EXPECT_EQ(csv_cell(formula), "\"'" + std::string(formula) + "\"");
  }
  EXPECT_EQ(csv_cell("\t=1"), "\"'\\t=1\"");
  EXPECT_EQ(csv_cell("a\nb"), "\"a\\nb\"");
  EXPECT_EQ(csv_cell(""), "\"\"");
}

TEST(Printable, JsonMeansTheSame) {
  const Json json(std::string("\x1b[31m \xc2\x9b \xe2\x80\xae \x7f \xc3\xa9"));
  const std::string text = dump_json(json, -1);
  EXPECT_EQ(text, "\"\\u001b[31m \\u009b \\u202e \\u007f \xc3\xa9\"");
  EXPECT_EQ(parse_json(text, "t").value(), json);
}

TEST(Printable, LinesAreFoldedToAWidth) {
  EXPECT_EQ(folded("short\n  also short\n", 20), "short\n  also short\n");
  EXPECT_EQ(folded("  one two three four\n", 12), "  one two\n      three\n      four\n");
  EXPECT_EQ(folded("averyveryverylongword x", 8), "averyveryverylongword\n    x");
  EXPECT_EQ(folded("          deep words here", 12), "          deep\n      words\n      here");
  // Characters count, not bytes; spaces at an end never make a line longer.
  EXPECT_EQ(folded("\xe2\x96\x88\xe2\x96\x88\xe2\x96\x88 a b", 7),
            "\xe2\x96\x88\xe2\x96\x88\xe2\x96\x88 a b");
  EXPECT_EQ(folded("abc   \n", 3), "abc\n");
  EXPECT_EQ(folded("", 5), "");
  for (std::size_t width = 1; width < 60; ++width) {
    const std::string text = "  step  12.0 s   parallel.tensor=4 and more words than fit\n\n  end";
    std::string words = folded(text, width);
    std::string whole = text;
    const auto blank = [](char c) { return c == ' ' || c == '\n'; };
    std::erase_if(words, blank);
    std::erase_if(whole, blank);
    EXPECT_EQ(words, whole) << width;
  }
}

// What a document holds is quoted in messages, of which it decides neither the length nor more.
TEST(Printable, MessagesOfParsersAreShortAndPlain) {
  const auto message = [](const std::string& text) {
    const Result<Json> read = parse_json(text, "f.json");
    return read.ok() ? "read" : read.error().message;
  };
  const std::string nines(100000, '9');
  for (const std::string& text :
       {"{\"a\": [1, " + nines + "]}", "{\"a\": [1, -" + nines + "]}",
        "{\"a\": [1, 0." + nines + "e" + nines + "]}", "{\"a\": [1, \"" + nines + "\x01\"]}"}) {
    EXPECT_LT(message(text).size(), 500U);
    EXPECT_NE(message(text).find("/a"), std::string::npos) << message(text);
  }
  EXPECT_LT(message("{\"" + nines + "\": 1, \"" + nines + "\": 2}").size(), 500U);
  EXPECT_LT(message("{\"" + nines + "\": {\"b\": 1e999}}").size(), 500U);
  const std::string bad = message("{\"mod\xff\": 1}");
  EXPECT_EQ(bad.find('\xff'), std::string::npos) << bad;
}

}  // namespace
}  // namespace foretrain
