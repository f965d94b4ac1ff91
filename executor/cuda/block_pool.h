// Blocks of memory that are used again instead of being given back and asked for anew.
#pragma once

#include <cstddef>
#include <functional>
#include <map>
#include <utility>

namespace foretrain {

/// Of one thread at a time. Content is what the last user left.
class BlockPool {
 public:
  /// `allocate` returns nothing where there is no room; `release` gives a block back for good. Once
  /// more than `most_free` bytes lie unused, all that is unused is released.
  BlockPool(std::function<void*(std::size_t)> allocate, std::function<void(void*)> release,
            std::size_t most_free)
      : x_allocate(std::move(allocate)), x_release(std::move(release)), x_most_free(most_free) {}
  BlockPool(const BlockPool&) = delete;
  BlockPool& operator=(const BlockPool&) = delete;
  BlockPool(BlockPool&&) = delete;
  BlockPool& operator=(BlockPool&&) = delete;
  /// Releases what is in use too.
  ~BlockPool() {
    clear();
    for (const auto& [block, size] : x_used) x_release(block);
  }

  /// The smallest unused block that is at most a quarter larger, else a new one. Where there is no
  /// room what is unused is released first. None where there is no room even then.
  void* take(std::size_t bytes) {
    const std::size_t size = (bytes + kGrain) / kGrain * kGrain;
    if (const auto found = x_free.lower_bound(size);
        found != x_free.end() && found->first <= size + size / 4) {
      void* const block = found->second;
      x_used[block] = found->first;
      x_free_bytes -= found->first;
      x_free.erase(found);
      return block;
    }
    void* block = x_allocate(size);
    if (block == nullptr && !x_free.empty()) {
      clear();
      block = x_allocate(size);
    }
    if (block != nullptr) x_used[block] = size;
    return block;
  }
  /// A block that `take` gave.
  void give_back(void* block) {
    const auto used = x_used.find(block);
    if (used == x_used.end()) return;
    x_free.emplace(used->second, block);
    x_free_bytes += used->second;
    x_used.erase(used);
    if (x_free_bytes > x_most_free) clear();
  }
  void clear() {
    for (const auto& [size, block] : x_free) x_release(block);
    x_free.clear();
    x_free_bytes = 0;
  }
  std::size_t free_bytes() const { return x_free_bytes; }

 private:
  static constexpr std::size_t kGrain = 512;

  std::function<void*(std::size_t)> x_allocate;
  std::function<void(void*)> x_release;
  std::size_t x_most_free;
  std::multimap<std::size_t, void*> x_free;
  std::map<void*, std::size_t> x_used;
  std::size_t x_free_bytes = 0;
};

}  // namespace foretrain
