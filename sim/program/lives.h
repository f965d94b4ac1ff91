// Where the buffers of a Program are allocated and freed.
#pragma once

#include "sim/program/program.h"

namespace foretrain {

/// Sets what the ops of `program` allocate and free. A buffer that is not persistent is allocated
/// by the op that touches it first and freed by the one that touches it last, in issue order. A
/// view of an alias touches the buffer that the alias lies in; its call must bind the owner too
/// (checked). Calls of one segment that differ in this get copies of it.
void derive_lives(Program& program);

}  // namespace foretrain
