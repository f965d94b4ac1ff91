// Ends a job where a process of it on this machine is stopped (SIGSTOP, a debugger): what neither
// MPI nor its launcher notices.
#pragma once

#include <condition_variable>
#include <functional>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "executor/watch/life.h"

namespace foretrain {

/// A rank's process.
struct RankProcess {
  std::int64_t rank = 0;
  std::int64_t process = 0;
};

class ProcWatch {
 public:
  /// After `silence` seconds, > 0, in which one of `others` was stopped `ends` is told why.
  ProcWatch(std::vector<RankProcess> others, double silence,
            std::function<void(const std::string&)> ends);
  ProcWatch(const ProcWatch&) = delete;
  ProcWatch& operator=(const ProcWatch&) = delete;
  ProcWatch(ProcWatch&&) = delete;
  ProcWatch& operator=(ProcWatch&&) = delete;
  ~ProcWatch();

 private:
  void watch(double silence);
  std::vector<RankProcess> x_others;
  std::function<void(const std::string&)> x_ends;
  std::mutex x_mutex;
  std::condition_variable x_changed;
  bool x_stop = false;
  std::thread x_thread;
};

}  // namespace foretrain
