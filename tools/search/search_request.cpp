#include "tools/search/search_request.h"

#include <algorithm>
#include <cstdlib>

namespace foretrain {
namespace {

constexpr double kUsualBudget = 60, kLongestBudget = 1e6;

void read_texts(JsonReader& reader, const char* key, std::vector<std::string>& out) {
  const Json* list = reader.take(key);
  if (list == nullptr) return;
  if (list->string() != nullptr) return out.push_back(*list->string());
  const char* const kExpected = ", expected a text or a list of texts";
  if (list->array() == nullptr) return reader.fail(key, "found " + describe(*list) + kExpected);
  for (const Json& item : *list->array()) {
    if (item.string() == nullptr) return reader.fail(key, "found " + describe(item) + kExpected);
    out.push_back(*item.string());
  }
}

void read_numbers(JsonReader& reader, const char* key, std::vector<std::int64_t>& out) {
  const Json* list = reader.take(key);
  if (list == nullptr) return;
  const Json::Array alone = {*list};
  for (const Json& item : list->array() == nullptr ? alone : *list->array()) {
    const auto* number = std::get_if<std::int64_t>(&item.value);
    if (number == nullptr || *number < 1) {
      return reader.fail(key, "found " + describe(item) + ", expected numbers of accelerators");
    }
    out.push_back(*number);
  }
}

bool read_number(const std::string& text, double& out) {
  char* end = nullptr;
  out = std::strtod(text.c_str(), &end);
  return !text.empty() && *end == '\0';
}

Result<KeyRange> read_range(const std::string& text) {
  const std::size_t equals = text.find('=');
  const std::size_t dots = text.find("..", equals == std::string::npos ? 0 : equals);
  KeyRange out;
  const bool whole = equals != std::string::npos && dots != std::string::npos && equals > 0;
  if (!whole || !read_number(text.substr(equals + 1, dots - equals - 1), out.low) ||
      !read_number(text.substr(dots + 2), out.high) || out.low > out.high) {
    return input_error("--range " + text + ": expected KEY=A..B, for example parallel.tensor=2..8");
  }
  out.key = text.substr(0, equals);
  return out;
}

Result<ClusterPrice> read_price(const std::string& text) {
  const std::size_t equals = text.find('=');
  ClusterPrice out;
  if (equals != std::string::npos) out.cluster = text.substr(0, equals);
  const std::string price = equals == std::string::npos ? text : text.substr(equals + 1);
  if (!read_number(price, out.per_gpu_hour) || out.per_gpu_hour <= 0) {
    return input_error("--price " + text +
                       ": expected a price of an accelerator's hour, for example 2.5 or "
                       "dgx-h100=2.5");
  }
  return out;
}

void append(std::vector<std::string>& to, const std::vector<std::string>& more) {
  to.insert(to.end(), more.begin(), more.end());
}

}  // namespace

Result<SearchRequest> take_section(Json& run, const std::string& source) {
  SearchRequest out;
  const Json* found = run.object() == nullptr ? nullptr : run.find("search");
  if (found == nullptr) return out;
  const Json section = *found;
  run.erase("search");
  if (section.is_null()) return out;
  if (section.object() == nullptr) {
    return input_error(source + ": /search: found " + describe(section) + ", expected an object");
  }
  JsonReader reader(section, source, "/search");
  read_texts(reader, "free", out.free);
  read_texts(reader, "fix", out.fix);
  read_texts(reader, "range", out.range);
  read_texts(reader, "where", out.where);
  read_texts(reader, "over", out.over);
  read_texts(reader, "clusters", out.clusters);
  read_texts(reader, "price", out.price);
  read_numbers(reader, "accelerators", out.accelerators);
  int objective = -1;
  if (reader.read_choice("objective", objective, kObjectiveNames)) {
    out.objective = kObjectiveNames[static_cast<std::size_t>(objective)];
  }
  reader.read("budget", out.budget, {0, kLongestBudget});
  reader.read("allow_numerics", out.allow_numerics);
  FT_TRY(reader.finish());
  return out;
}

SearchRequest merged(SearchRequest section, const SearchRequest& flags) {
  append(section.free, flags.free);
  append(section.fix, flags.fix);
  append(section.range, flags.range);
  append(section.where, flags.where);
  append(section.over, flags.over);
  append(section.price, flags.price);
  if (!flags.clusters.empty()) section.clusters = flags.clusters;
  if (!flags.accelerators.empty()) section.accelerators = flags.accelerators;
  if (!flags.objective.empty()) section.objective = flags.objective;
  if (flags.budget > 0) section.budget = flags.budget;
  section.allow_numerics = section.allow_numerics || flags.allow_numerics;
  section.resume = flags.resume;
  return section;
}

Result<SearchOptions> options_of(const SearchRequest& request) {
  SearchOptions out;
  out.state = request.resume;
  out.space.free = request.free;
  out.space.fixed = request.fix;
  out.space.over = request.over;
  out.space.numerics = request.allow_numerics;
  for (const std::string& text : request.range) {
    FT_ASSIGN(const KeyRange range, read_range(text));
    out.space.ranges.push_back(range);
  }
  for (const std::string& text : request.price) {
    FT_ASSIGN(const ClusterPrice price, read_price(text));
    out.prices.push_back(price);
  }
  out.conditions = request.where;
  out.clusters = request.clusters;
  out.accelerators = request.accelerators;
  out.budget_s = request.budget > 0 ? request.budget : kUsualBudget;
  for (std::size_t i = 0; i < kObjectiveNames.size(); ++i) {
    if (kObjectiveNames[i] == request.objective) out.objective = static_cast<Objective>(i);
  }
  return out;
}

}  // namespace foretrain
