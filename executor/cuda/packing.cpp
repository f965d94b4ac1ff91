#include "executor/cuda/packing.h"

#include "executor/cuda/fp8.h"
#include "executor/cuda/storage.h"

namespace foretrain {
namespace {

template <typename To, typename Number, typename Convert>
std::vector<std::byte> converted(const std::vector<Number>& values, const Convert& convert) {
  std::vector<std::byte> out(values.size() * sizeof(To));
  auto* const to = reinterpret_cast<To*>(out.data());
  for (std::size_t i = 0; i < values.size(); ++i) to[i] = convert(values[i]);
  return out;
}

template <typename Number>
std::vector<std::byte> packed_as(const std::vector<Number>& values, DType type) {
  if (type == DType::kFp8) {
    return converted<std::uint8_t>(values, [](Number v) { return to_e4m3(static_cast<float>(v)); });
  }
  if (type == DType::kInt64) {
    return converted<std::int64_t>(values, [](Number v) { return static_cast<std::int64_t>(v); });
  }
  if (type == DType::kUint8) {
    return converted<std::uint8_t>(values, [](Number v) { return static_cast<std::uint8_t>(v); });
  }
  std::vector<std::byte> out;
  with_type(type, [&](auto tag) {
    using T = typename decltype(tag)::Type;
    out = converted<T>(values, [](Number v) { return stored<T>(static_cast<float>(v)); });
  });
  return out;
}

}  // namespace

std::vector<std::byte> pack(const std::vector<double>& values, DType type) {
  return packed_as(values, type);
}

std::vector<std::byte> pack(const std::vector<float>& values, DType type) {
  return packed_as(values, type);
}

std::vector<float> unpack(const std::vector<std::byte>& bytes, DType type) {
  std::vector<float> out;
  with_type(type, [&](auto tag) {
    using T = typename decltype(tag)::Type;
    const auto* const from = reinterpret_cast<const T*>(bytes.data());
    out.reserve(bytes.size() / sizeof(T));
    for (std::size_t i = 0; i < bytes.size() / sizeof(T); ++i) out.push_back(to_float(from[i]));
  });
  return out;
}

}  // namespace foretrain
