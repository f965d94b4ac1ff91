// Numbers as a device's buffers store them.
#pragma once

#include <cstddef>
#include <vector>

#include "sim/program/dtype.h"

namespace foretrain {

/// As a buffer of that type stores them: fp8 as e4m3, whole numbers cut off. Not of fewer than 8
/// bits.
std::vector<std::byte> pack(const std::vector<double>& values, DType type);
std::vector<std::byte> pack(const std::vector<float>& values, DType type);

/// Back, of a real type of 16 or 32 bits.
std::vector<float> unpack(const std::vector<std::byte>& bytes, DType type);

}  // namespace foretrain
