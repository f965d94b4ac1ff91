#include "sim/base/stop.h"

namespace foretrain {
namespace {

thread_local const std::atomic<bool>* stop_flag_here = nullptr;

}  // namespace

StopScope::StopScope(const std::atomic<bool>* flag) : x_before(stop_flag_here) {
  stop_flag_here = flag;
}
StopScope::~StopScope() { stop_flag_here = x_before; }

const std::atomic<bool>* stop_flag() { return stop_flag_here; }

bool stop_asked() {
  return stop_flag_here != nullptr && stop_flag_here->load(std::memory_order_relaxed);
}

}  // namespace foretrain
