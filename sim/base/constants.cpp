#include "sim/base/constants.h"

#include "sim/base/assets.h"
#include "sim/base/check.h"

namespace foretrain {

Json load_constants(std::string_view path) {
  Result<Json> json = parse_json(find_asset(path), std::string(path));
  FT_CHECK(json.ok(), "an embedded file of constants is missing or no JSON");
  return std::move(json).value();
}

const Json& member(const Json& object, std::string_view key) {
  const Json* found = object.find(key);
  FT_CHECK(found != nullptr, "an embedded file of constants lacks a key");
  return *found;
}

double number_at(const Json& object, std::string_view key) { return member(object, key).number(); }

std::int32_t count_at(const Json& object, std::string_view key) {
  return static_cast<std::int32_t>(number_at(object, key));
}

std::vector<double> numbers_at(const Json& object, std::string_view key) {
  std::vector<double> out;
  const Json::Array* items = member(object, key).array();
  FT_CHECK(items != nullptr, "an embedded file of constants lacks an array");
  for (const Json& item : *items) out.push_back(item.number());
  return out;
}

}  // namespace foretrain
