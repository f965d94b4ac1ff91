// Typed indices: a RankId is not a GroupId.
#pragma once

#include <compare>
#include <cstddef>
#include <cstdint>
#include <vector>

namespace foretrain {

/// An index into one table. -1 means "none".
template <typename Tag>
struct Id {
  std::int32_t value = -1;

  constexpr Id() = default;
  constexpr explicit Id(std::int32_t v) : value(v) {}
  constexpr explicit Id(std::size_t v) : value(static_cast<std::int32_t>(v)) {}

  constexpr bool valid() const { return value >= 0; }
  constexpr std::size_t index() const { return static_cast<std::size_t>(value); }

  constexpr bool operator==(const Id&) const = default;
  constexpr std::strong_ordering operator<=>(const Id&) const = default;
};

/// Adds `item` to `table` and returns the Id of its place.
template <typename IdType, typename T>
IdType push_id(std::vector<T>& table, T item) {
  const IdType id(table.size());
  table.push_back(static_cast<T&&>(item));
  return id;
}

}  // namespace foretrain
