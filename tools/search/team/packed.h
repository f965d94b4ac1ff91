// Values as bytes, for another process of the same build: no byte order, no versions.
//
// A type says by `auto fields(T&)`, a tuple of references, what it is made of; one that can be
// copied as bytes needs nothing.
#pragma once

#include <cstdint>
#include <cstring>
#include <map>
#include <optional>
#include <string>
#include <tuple>
#include <type_traits>
#include <utility>
#include <variant>
#include <vector>

#include "sim/base/json.h"

namespace foretrain {

template <typename T>
concept CopiedAsBytes = std::is_trivially_copyable_v<T> && !std::is_pointer_v<T>;

class Packer {
 public:
  template <typename T>
  Packer& add(const T& value) {
    if constexpr (CopiedAsBytes<T>) {
      x_bytes.append(reinterpret_cast<const char*>(&value), sizeof value);
    } else {
      std::apply([this](const auto&... each) { (this->add(each), ...); },
                 fields(const_cast<T&>(value)));  // `fields` is written once for both ways
    }
    return *this;
  }
  Packer& add(const std::string& text) {
    add(text.size());
    x_bytes += text;
    return *this;
  }
  template <typename T>
  Packer& add(const std::vector<T>& list) {
    add(list.size());
    for (const T& one : list) add(one);
    return *this;
  }
  template <typename K, typename V>
  Packer& add(const std::map<K, V>& map) {
    add(map.size());
    for (const auto& [key, value] : map) add(key).add(value);
    return *this;
  }
  template <typename A, typename B>
  Packer& add(const std::pair<A, B>& pair) {
    return add(pair.first).add(pair.second);
  }
  template <typename T>
  Packer& add(const std::optional<T>& maybe) {
    add(maybe.has_value());
    return maybe ? add(*maybe) : *this;
  }
  template <typename... Ts>
  Packer& add(const std::variant<Ts...>& one) {
    add(one.index());
    std::visit([this](const auto& held) { this->add(held); }, one);
    return *this;
  }
  Packer& add(const Json& json) { return add(static_cast<const Json::Alternatives&>(json.value)); }
  Packer& add(std::nullptr_t) { return *this; }

  std::string take() && { return std::move(x_bytes); }

 private:
  std::string x_bytes;
};

/// Reads what a Packer wrote. Where bytes are missing or make no value `ok` is false from then on.
class Unpacker {
 public:
  explicit Unpacker(const std::string& bytes) : x_bytes(bytes) {}

  template <typename T>
  Unpacker& read(T& value) {
    if constexpr (CopiedAsBytes<T>) {
      if (!has(sizeof value)) return *this;
      std::memcpy(&value, x_bytes.data() + x_at, sizeof value);
      x_at += sizeof value;
    } else {
      std::apply([this](auto&... each) { (this->read(each), ...); }, fields(value));
    }
    return *this;
  }
  Unpacker& read(std::string& text) {
    const std::size_t size = read_size();
    text.assign(x_bytes, x_at, size);
    x_at += size;
    return *this;
  }
  template <typename T>
  Unpacker& read(std::vector<T>& list) {
    list.clear();
    for (std::size_t left = read_size(); left > 0 && x_ok; --left) {
      list.push_back(empty(static_cast<const T*>(nullptr)));
      read(list.back());
    }
    return *this;
  }
  template <typename K, typename V>
  Unpacker& read(std::map<K, V>& map) {
    map.clear();
    for (std::size_t left = read_size(); left > 0 && x_ok; --left) {
      K key{};
      read(key).read(map[key]);
    }
    return *this;
  }
  template <typename A, typename B>
  Unpacker& read(std::pair<A, B>& pair) {
    return read(pair.first).read(pair.second);
  }
  template <typename T>
  Unpacker& read(std::optional<T>& maybe) {
    bool has_value = false;
    read(has_value);
    maybe.reset();
    if (!has_value) return *this;
    T value{};
    read(value);
    maybe = std::move(value);
    return *this;
  }
  template <typename... Ts>
  Unpacker& read(std::variant<Ts...>& one) {
    std::size_t index = 0;
    read(index);
    if (index >= sizeof...(Ts)) x_ok = false;
    read_alternative(one, index, std::index_sequence_for<Ts...>());
    return *this;
  }
  Unpacker& read(Json& json) { return read(static_cast<Json::Alternatives&>(json.value)); }
  Unpacker& read(std::nullptr_t&) { return *this; }

  /// Whether all of it was read, to the last byte.
  bool done() const { return x_ok && x_at == x_bytes.size(); }

 private:
  /// A value to read into. Clang does not make pairs of Json without their parts.
  template <typename T>
  static T empty(const T*) {
    return T{};
  }
  template <typename A, typename B>
  static std::pair<A, B> empty(const std::pair<A, B>*) {
    return {A{}, B{}};
  }
  bool has(std::size_t bytes) {
    x_ok = x_ok && bytes <= x_bytes.size() - x_at;
    return x_ok;
  }
  /// A number of things that take a byte each at least.
  std::size_t read_size() {
    std::size_t size = 0;
    read(size);
    return has(size) ? size : 0;
  }
  template <typename... Ts, std::size_t... Is>
  void read_alternative(std::variant<Ts...>& one, std::size_t index, std::index_sequence<Is...>) {
    (void)((index == Is && (read_into<Is>(one), true)) || ...);
  }
  template <std::size_t I, typename Variant>
  void read_into(Variant& one) {
    std::variant_alternative_t<I, Variant> held{};
    read(held);
    one = std::move(held);
  }

  const std::string& x_bytes;
  std::size_t x_at = 0;
  bool x_ok = true;
};

}  // namespace foretrain
