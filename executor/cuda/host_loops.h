// The launcher of device_view.h as loops on the host: what the host computes of a device's Program,
// with the same functors and the same types in memory.
#pragma once

#include <cmath>
#include <cstring>
#include <map>
#include <utility>
#include <vector>

#include "executor/cuda/device_view.h"
#include "executor/cuda/rope_table.h"

namespace foretrain::device {

/// Of one thread. Products are left to whoever has a library for them.
class HostLoops {
 public:
  template <typename F>
  void elements(std::int64_t n, const F& f) {
    for (std::int64_t i = 0; i < n; ++i) f(i);
  }
  template <typename F>
  void rows(std::int64_t n, const F& f, std::size_t floats = 0) {
    std::vector<float> memory(floats, std::nanf(""));
    SoloTeam team{memory.data()};
    for (std::int64_t i = 0; i < n; ++i) f(team, i);
  }
  void* scratch(std::size_t bytes) { return grow(x_scratch, bytes); }
  void* kept_scratch(std::size_t bytes) { return grow(x_kept, bytes); }
  void clear(const Operand& x) {
    std::memset(x.data, 0, static_cast<std::size_t>(bytes_of(x.buffer->dtype, x.count)));
  }
  const float* rope_table(std::int64_t length, std::int64_t head_dim) {
    std::vector<float>& table = x_tables[{length, head_dim}];
    if (table.empty()) table = make_rope_table(length, head_dim);
    return table.data();
  }

 private:
  /// NaN, so that what is read before it is written shows.
  static void* grow(std::vector<double>& memory, std::size_t bytes) {
    memory.assign(bytes / 8 + 1, std::nan(""));
    return memory.data();
  }

  std::vector<double> x_scratch, x_kept;
  std::map<std::pair<std::int64_t, std::int64_t>, std::vector<float>> x_tables;
};

}  // namespace foretrain::device
