#include "tools/predict/parallel.h"

#include <algorithm>
#include <atomic>
#include <thread>
#include <vector>

namespace foretrain {

void in_parallel(std::size_t count, const std::function<void(std::size_t)>& work,
                 std::size_t threads) {
  if (threads == 0) threads = std::max(1U, std::thread::hardware_concurrency());
  std::atomic<std::size_t> next{0};
  const auto take = [&] {
    for (std::size_t i = next++; i < count; i = next++) work(i);
  };
  std::vector<std::jthread> others;
  for (std::size_t t = 1; t < std::min(threads, count); ++t) others.emplace_back(take);
  take();
}

}  // namespace foretrain
