#include "sim/base/threads.h"

#include <sched.h>

#include <algorithm>
#include <atomic>
#include <exception>
#include <mutex>
#include <optional>
#include <string>
#include <system_error>
#include <thread>
#include <utility>
#include <vector>

#include "sim/base/stop.h"

namespace foretrain {
namespace {

/// The first exception of several threads.
class FirstException {
 public:
  void take() {
    const std::lock_guard lock(x_mutex);
    if (!x_first) x_first = std::current_exception();
    x_any = true;
  }
  bool any() const { return x_any; }
  void throw_again() const {
    if (x_first) std::rethrow_exception(x_first);
  }

 private:
  std::mutex x_mutex;
  std::exception_ptr x_first;
  std::atomic<bool> x_any{false};
};

/// Whether threads may begin what they were made for.
class Gate {
 public:
  /// Opens the gate at its end, however that comes: threads that wait are joined behind it.
  class Keeper {
   public:
    explicit Keeper(Gate& gate) : x_gate(gate) {}
    ~Keeper() {
      x_gate.x_state = x_go ? State::kGo : State::kStop;
      x_gate.x_state.notify_all();
    }
    Keeper(const Keeper&) = delete;
    Keeper& operator=(const Keeper&) = delete;
    Keeper(Keeper&&) = delete;
    Keeper& operator=(Keeper&&) = delete;
    void let_go() { x_go = true; }

   private:
    Gate& x_gate;
    bool x_go = false;
  };
  bool pass() const {
    x_state.wait(State::kClosed);
    return x_state == State::kGo;
  }

 private:
  enum class State : int { kClosed, kGo, kStop };
  std::atomic<State> x_state{State::kClosed};
};

/// Whether this thread is one of several that share the cores, or was asked to work alone.
thread_local bool t_shares = false;

class Sharing {
 public:
  explicit Sharing(bool shares) : x_before(std::exchange(t_shares, t_shares || shares)) {}
  ~Sharing() { t_shares = x_before; }
  Sharing(const Sharing&) = delete;
  Sharing& operator=(const Sharing&) = delete;
  Sharing(Sharing&&) = delete;
  Sharing& operator=(Sharing&&) = delete;

 private:
  bool x_before;
};

}  // namespace

std::size_t own_cores() {
  cpu_set_t set;
  CPU_ZERO(&set);
  if (sched_getaffinity(0, sizeof set, &set) == 0) {
    return static_cast<std::size_t>(std::max(1, CPU_COUNT(&set)));
  }
  return std::max(1U, std::thread::hardware_concurrency());
}

Error reason_or_want(const char* reason) noexcept {
  static_assert(sizeof("out of memory") <= 16, "a std::string holds this text in itself");
  try {
    return input_error(reason);
  } catch (const std::bad_alloc&) {
    return input_error("out of memory");
  }
}

void in_parallel(std::size_t count, const std::function<void(std::size_t)>& work,
                 std::size_t threads) {
  const bool asked = threads > 0;
  if (!asked) threads = t_shares ? 1 : own_cores();
  const bool shares = asked || std::min(threads, count) > 1;
  std::atomic<std::size_t> next{0};
  FirstException first;
  const std::atomic<bool>* const stop = stop_flag();
  const auto take = [&] {
    const StopScope scope(stop);
    const Sharing sharing(shares);
    try {
      for (std::size_t i = next++; i < count && !first.any(); i = next++) work(i);
    } catch (...) {
      first.take();
    }
  };
  {
    std::vector<std::jthread> others;
    others.reserve(std::min(threads, count));
    try {
      while (others.size() + 1 < std::min(threads, count)) others.emplace_back(take);
    } catch (const std::system_error&) {
      // The threads that have been made share the work.
    } catch (const std::bad_alloc&) {
    }
    take();
  }
  first.throw_again();
}

Status all_at_once(std::size_t count, const std::function<void(std::size_t)>& work) {
  Gate gate;
  FirstException first;
  std::optional<Error> error;
  {
    std::vector<std::jthread> threads;
    threads.reserve(count);
    Gate::Keeper keeper(gate);
    try {
      for (std::size_t i = 0; i < count; ++i) {
        threads.emplace_back([&, i] {
          if (!gate.pass()) return;
          const Sharing sharing(true);
          try {
            work(i);
          } catch (...) {
            first.take();
          }
        });
      }
      keeper.let_go();
    } catch (const std::system_error& reason) {
      error = Error{std::to_string(count) + " threads are needed and the system gives " +
                    std::to_string(threads.size()) + ": " + reason.code().message()};
    } catch (const std::bad_alloc&) {
      error = reason_or_want(kNoMemory);
    }
  }
  if (error) return *error;
  first.throw_again();
  return ok_status();
}

}  // namespace foretrain
