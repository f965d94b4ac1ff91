// Does every verb with a result give a page, whole, with the result in it?
#include <gtest/gtest.h>

#include <algorithm>
#include <map>

#include "tests/cli/run_command.h"
#include "tools/report/page.h"
#include "traces/timeline_json.h"

namespace foretrain {
namespace {

/// What the page keeps of the result.
Json kept_result(const std::string& page) {
  const std::string open = "<script type=\"application/json\" id=\"result\">\n";
  const std::size_t begin = page.find(open);
  const std::size_t end = page.find("\n</script>", begin);
  EXPECT_NE(begin, std::string::npos);
  EXPECT_NE(end, std::string::npos);
  const std::string text = page.substr(begin + open.size(), end - begin - open.size());
  const Result<Json> json = parse_json(text, "page");
  EXPECT_TRUE(json.ok());
  return json.ok() ? json.value() : Json();
}

/// One file that needs no other: nothing is fetched, nothing runs.
void expect_whole(const std::string& page) {
  EXPECT_TRUE(page.starts_with("<!DOCTYPE html>"));
  EXPECT_TRUE(page.ends_with("</html>\n"));
  for (const char* outside : {"http://", "https://", "src=", "@import", "url(", "<link"}) {
    EXPECT_EQ(page.find(outside), std::string::npos) << outside;
  }
  for (const char* element : {"table", "dl", "svg", "div", "pre", "h2"}) {
    std::size_t opened = 0;
    std::size_t closed = 0;
    for (const std::string& mark :
         {std::string("<") + element + ">", std::string("<") + element + " "}) {
      for (std::size_t i = page.find(mark); i != std::string::npos; i = page.find(mark, i + 1)) {
        ++opened;
      }
    }
    const std::string end = std::string("</") + element + ">";
    for (std::size_t i = page.find(end); i != std::string::npos; i = page.find(end, i + 1)) {
      ++closed;
    }
    EXPECT_EQ(opened, closed) << element;
  }
}

constexpr const char* kRun = R"({"name": "a </script> & <b>",
  "model": "llama-3-8b", "cluster": {"preset": "dgx-h100", "accelerators": 16},
  "parallel": {"tensor": 2, "pipeline": 2}, "batch": {"global": 32, "micro": 1, "sequence": 2048},
  "campaign": {"steps": 1000, "reliability": "llama-3-405b"}})";

TEST(Pages, OfASimulationShowsTheResultsNumbers) {
  const Workplace place;
  place.write("run.json", kRun);
  const CommandResult run = place.run(
      {"simulate", "run.json", "--report", "p.html", "--json", "r.json", "--no-advice", "--quiet"});
  ASSERT_EQ(run.exit_code, 0) << run.err;
  const std::string page = place.read("p.html");
  expect_whole(page);
  Json kept = kept_result(page);
  Json result = parse_json(place.read("r.json"), "r.json").value();
  for (Json* json : {&kept, &result}) json->erase("simulation");
  EXPECT_EQ(kept, result);
  const auto shows = [&page](const Json& number) {
    return page.find("<data value=\"" + dump_json(number, -1) + "\">") != std::string::npos;
  };
  EXPECT_TRUE(shows(*result.find("iteration_time_s")));
  EXPECT_TRUE(shows(*result.find("memory")->find("peak_gib")));
  for (const auto& [part, seconds] : *result.find("breakdown_s")->object()) {
    EXPECT_TRUE(seconds.number() == 0 || shows(seconds)) << part;
  }
  // The schedule is drawn, and names of the user's are text.
  EXPECT_NE(page.find("microbatch 3"), std::string::npos);
  EXPECT_NE(page.find("a &lt;/script&gt; &amp; &lt;b&gt;"), std::string::npos);
}

TEST(Pages, OfOtherVerbs) {
  const Workplace place;
  place.write("run.json", kRun);
  for (const std::vector<std::string>& command :
       {std::vector<std::string>{"search", "run.json", "--over", "sharding"},
        std::vector<std::string>{"goodput", "run.json"},
        std::vector<std::string>{"compare", "run.json", "run.json"},
        std::vector<std::string>{"score", std::string(FORETRAIN_SOURCE_DIR) + "/configs/published",
                                 "--only", "kor"}}) {
    std::vector<std::string> whole = command;
    whole.insert(whole.end(), {"--quiet", "--report", "p.html"});
    const CommandResult run = place.run(whole);
    ASSERT_EQ(run.exit_code, 0) << command.front() << ": " << run.err;
    const std::string page = place.read("p.html");
    expect_whole(page);
    EXPECT_NE(kept_result(page).object(), nullptr) << command.front();
    EXPECT_NE(page.find("<data value="), std::string::npos) << command.front();
    if (command.front() != "goodput") {  // cells of tables are numbers of the result, too
      EXPECT_NE(page.find("<td class=\"n\"><data value="), std::string::npos) << command.front();
    }
  }
}

// The page of a trace has every span of the timeline, to the picosecond.
TEST(Pages, OfATraceHasEverySpan) {
  const Workplace place;
  place.write("run.json", kRun);
  const CommandResult run = place.run({"simulate", "run.json", "--no-advice", "--quiet", "--trace",
                                       "t.html", "--timeline", "line.json"});
  ASSERT_EQ(run.exit_code, 0) << run.err;
  const std::string page = place.read("t.html");
  EXPECT_EQ(page.find("http"), std::string::npos);
  const std::string open = "id=\"trace\">";
  const std::size_t begin = page.find(open);
  ASSERT_NE(begin, std::string::npos);
  const std::size_t from = begin + open.size();
  const Json kept = parse_json(page.substr(from, page.find("</script>", from) - from), "t").value();
  EXPECT_EQ(*kept.find("name"), Json("a </script> & <b>"));
  const Timeline timeline = load_timeline(place.path("in/line.json").string()).value();
  EXPECT_DOUBLE_EQ(kept.find("end")->number(), timeline.end.us());
  std::size_t drawn = 0;
  std::map<std::string, int> kinds;
  for (const Json& row : *kept.find("rows")->array()) {
    ++kinds[*row.find("kind")->string()];
    if (*row.find("kind")->string() != "stream") continue;
    const Json::Array& numbers = *row.find("spans")->array();
    // The row of a stream has that stream's spans, which lie together.
    const auto is_here = [&](const Span& one) {
      const Track& track = timeline.tracks[static_cast<std::size_t>(one.track)];
      return track.name == *row.find("track")->string() &&
             track.streams[one.stream.index()] == *row.find("name")->string();
    };
    auto span = std::find_if(timeline.spans.begin(), timeline.spans.end(), is_here);
    for (std::size_t i = 0; i + 5 < numbers.size(); i += 6, ++span, ++drawn) {
      ASSERT_TRUE(span != timeline.spans.end() && is_here(*span));
      ASSERT_DOUBLE_EQ(numbers[i].number(), span->begin.us());
      ASSERT_DOUBLE_EQ(numbers[i + 2].number(), span->end.us());
      const std::string& name = timeline.infos[static_cast<std::size_t>(span->info)].name;
      const auto info = static_cast<std::size_t>(numbers[i + 3].number());
      ASSERT_EQ(*(*kept.find("infos")->array())[info].find("n"), Json(name));
    }
  }
  EXPECT_EQ(drawn, timeline.spans.size());
  EXPECT_EQ(kinds["schedule"], static_cast<int>(timeline.tracks.size()));
  EXPECT_EQ(kinds["host"], static_cast<int>(timeline.tracks.size()));
  EXPECT_EQ(kinds["memory"], static_cast<int>(timeline.tracks.size()));
  // A message goes from a span that sends to one that receives.
  const Json::Array& flows = *kept.find("flows")->array();
  ASSERT_EQ(flows.size(), 4 * timeline.flows.size());
  const auto name_at = [&kept, &flows](std::size_t at) {
    const auto row = static_cast<std::size_t>(flows[at].number());
    const auto span = static_cast<std::size_t>(flows[at + 1].number());
    const Json& of = (*kept.find("rows")->array())[row];
    const auto info = static_cast<std::size_t>((*of.find("spans")->array())[6 * span + 3].number());
    return *(*kept.find("infos")->array())[info].find("n")->string();
  };
  ASSERT_GT(flows.size(), 0U);
  for (std::size_t i = 0; i < flows.size(); i += 4) {
    EXPECT_TRUE(name_at(i).starts_with("send")) << name_at(i);
    EXPECT_TRUE(name_at(i + 2).starts_with("receive")) << name_at(i + 2);
  }
  const CommandResult weeks = place.run({"goodput", "run.json", "--trace", "t.html"});
  EXPECT_EQ(weeks.exit_code, 1);
  EXPECT_NE(weeks.err.find("is a page, which is of one step"), std::string::npos) << weeks.err;
}

}  // namespace
}  // namespace foretrain
