// Where every operand of a step lies in one block of each memory, worked out before the first step:
// a device's queues run ahead of the host, so memory can be used again only where the Program
// itself orders the last use before the next.
#pragma once

#include <array>
#include <cstddef>
#include <vector>

#include "executor/memory_layout.h"
#include "executor/task_list.h"

namespace foretrain {

struct PlannedBlock {
  std::size_t offset = 0, bytes = 0;
  Memory memory = Memory::kDevice;
};

struct MemoryPlan {
  /// Of a verified Program. Buffers that live through the step come first.
  MemoryPlan(const TaskList& list, const MemoryLayout& layout);

  struct Space {
    std::size_t bytes = 0;       ///< of the whole
    std::size_t persistent = 0;  ///< of what lives through the step
  };
  std::array<Space, 3> spaces;  ///< by Memory
  const Space& space(Memory memory) const { return spaces[static_cast<std::size_t>(memory)]; }
  /// By buffer; only the persistent ones have one.
  std::vector<PlannedBlock> buffers;
  /// By place in issue order: where its reads, then its writes begin, and what it allocates.
  std::vector<std::vector<std::size_t>> operands;
  std::vector<std::vector<PlannedBlock>> allocates;
};

}  // namespace foretrain
