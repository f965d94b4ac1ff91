// Memory that runs out at a chosen allocation: this program's operator new.
#pragma once

namespace foretrain {

/// From now on the `nth` call of operator new fails (1: the next one), of all threads together;
/// with `lasting` all later ones too. 0: none fails, calls are counted.
void fail_allocation(long nth, bool lasting);

/// How many calls there were since.
long allocations();

/// Bytes that operator new has given and not been given back, and the most since `watch_bytes`.
void watch_bytes();
long bytes_now();
long most_bytes();

}  // namespace foretrain
