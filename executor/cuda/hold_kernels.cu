// The kernel that holds SMs, and its launcher.
#include "executor/cuda/hold_launch.h"

namespace foretrain::device {
namespace {

__device__ std::uint64_t now_ns() {
  std::uint64_t out = 0;
  asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(out));
  return out;
}

/// Before anything that follows, for the host too.
__device__ void tell(int* flag) {
  *static_cast<volatile int*>(flag) = 1;
  __threadfence_system();
}

/// Where blocks leave their parts of HoldFlags.
struct Places {
  int* running;
  std::uint64_t* moved;
  std::uint64_t* ran_ns;
};

__global__ void hold(HoldCopy copy, HoldFlags* flags, Places places, std::uint64_t most_ns) {
  extern __shared__ int decided[];  // the rest of the memory is what fills the SM
  const std::uint64_t begin = now_ns();
  std::uint64_t moved = 0;
  if (threadIdx.x == 0) tell(places.running + blockIdx.x);
  for (std::int64_t round = 0;; ++round) {
    // Asked for before the copy, so that its way over the bus goes on beside it.
    int stop = 0;
    if (threadIdx.x == 0) stop = *static_cast<volatile int*>(&flags->stop);
    std::int64_t count = 0;
    const std::int64_t first = copy.chunk_begin(blockIdx.x, gridDim.x, round, count);
    for (std::int64_t i = threadIdx.x; i < count; i += blockDim.x) {
      const HoldCopy::Word word = copy.from[first + i];
      copy.to[first + i] = word;
    }
    if (threadIdx.x == 0) {
      const bool late = stop == 0 && now_ns() - begin > most_ns;
      if (late) tell(&flags->late);
      decided[0] = stop != 0 || late ? 1 : 0;
      moved += 2 * sizeof(HoldCopy::Word) * static_cast<std::uint64_t>(count);
    }
    __syncthreads();
    const bool over = decided[0] != 0;
    __syncthreads();  // before the next round decides
    if (over) break;
  }
  if (threadIdx.x != 0) return;
  places.moved[blockIdx.x] = moved;
  places.ran_ns[blockIdx.x] = now_ns() - begin;
}

}  // namespace

cudaError_t launch_hold(cudaStream_t stream, const HoldCopy& copy, HoldFlags* flags, int blocks,
                        int shared_bytes, std::uint64_t most_ns) {
  constexpr int kThreads = 512;
  const cudaError_t room =
      cudaFuncSetAttribute(hold, cudaFuncAttributeMaxDynamicSharedMemorySize, shared_bytes);
  if (room != cudaSuccess) return room;
  const Places places{flags->running.data(), flags->moved.data(), flags->ran_ns.data()};
  hold<<<static_cast<unsigned>(blocks), kThreads, static_cast<std::size_t>(shared_bytes), stream>>>(
      copy, flags, places, most_ns);
  return cudaGetLastError();
}

}  // namespace foretrain::device
