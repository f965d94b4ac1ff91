#include "tests/robust/failing_allocator.h"

#include <malloc.h>

#include <atomic>
#include <cstdlib>
#include <new>

namespace foretrain {
namespace {

std::atomic<long> calls{0};
std::atomic<long> failing{0};
std::atomic<bool> goes_on{false};
std::atomic<long> bytes{0};
std::atomic<long> most{0};

bool fails() {
  const long call = ++calls;
  const long nth = failing;
  return nth > 0 && (goes_on ? call >= nth : call == nth);
}

void* counted(void* at) {
  const long now = bytes += static_cast<long>(malloc_usable_size(at));
  long before = most;
  while (now > before && !most.compare_exchange_weak(before, now)) {
  }
  return at;
}

void* allocate(std::size_t size, std::size_t alignment) {
  if (fails()) return nullptr;
  if (alignment <= __STDCPP_DEFAULT_NEW_ALIGNMENT__)
    return counted(std::malloc(size == 0 ? 1 : size));
  return counted(std::aligned_alloc(alignment, (size + alignment - 1) / alignment * alignment));
}

void give_back(void* at) {
  bytes -= static_cast<long>(malloc_usable_size(at));
  std::free(at);
}

void* allocate_or_throw(std::size_t size, std::size_t alignment) {
  void* const out = allocate(size, alignment);
  if (out == nullptr) throw std::bad_alloc();
  return out;
}

}  // namespace

void fail_allocation(long nth, bool lasting) {
  failing = 0;
  calls = 0;
  goes_on = lasting;
  failing = nth;
}

long allocations() { return calls; }

void watch_bytes() { most = bytes.load(); }
long bytes_now() { return bytes; }
long most_bytes() { return most; }

}  // namespace foretrain

using foretrain::allocate;
using foretrain::allocate_or_throw;
using foretrain::give_back;

void* operator new(std::size_t size) { return allocate_or_throw(size, 1); }
void* operator new[](std::size_t size) { return allocate_or_throw(size, 1); }
void* operator new(std::size_t size, std::align_val_t alignment) {
  return allocate_or_throw(size, static_cast<std::size_t>(alignment));
}
void* operator new[](std::size_t size, std::align_val_t alignment) {
  return allocate_or_throw(size, static_cast<std::size_t>(alignment));
}
void* operator new(std::size_t size, const std::nothrow_t&) noexcept { return allocate(size, 1); }
void* operator new[](std::size_t size, const std::nothrow_t&) noexcept { return allocate(size, 1); }
void operator delete(void* at) noexcept { give_back(at); }
void operator delete[](void* at) noexcept { give_back(at); }
void operator delete(void* at, std::size_t) noexcept { give_back(at); }
void operator delete[](void* at, std::size_t) noexcept { give_back(at); }
void operator delete(void* at, std::align_val_t) noexcept { give_back(at); }
void operator delete[](void* at, std::align_val_t) noexcept { give_back(at); }
void operator delete(void* at, std::size_t, std::align_val_t) noexcept { give_back(at); }
void operator delete[](void* at, std::size_t, std::align_val_t) noexcept { give_back(at); }
