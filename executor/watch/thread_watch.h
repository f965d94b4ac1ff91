// Ends a job of threads in which no rank does anything any more.
#pragma once

#include <condition_variable>
#include <deque>
#include <functional>
#include <mutex>
#include <thread>

#include "executor/watch/life.h"
#include "sim/program/program.h"

namespace foretrain {

class ThreadWatch {
 public:
  /// `silence` seconds without a sign of life, > 0 or nothing is watched: `ends` is told why. A
  /// process that is still here 1 s later exits, for nothing ends a thread that hangs.
  ThreadWatch(std::size_t ranks, double silence, std::function<void(const std::string&)> ends);
  ThreadWatch(const ThreadWatch&) = delete;
  ThreadWatch& operator=(const ThreadWatch&) = delete;
  ThreadWatch(ThreadWatch&&) = delete;
  ThreadWatch& operator=(ThreadWatch&&) = delete;
  ~ThreadWatch();

  OpsUnderWay& of(RankId rank) { return x_ranks[rank.index()]; }

 private:
  void watch(double silence, const std::function<void(const std::string&)>& ends);
  std::deque<OpsUnderWay> x_ranks;
  std::mutex x_mutex;
  std::condition_variable x_changed;
  bool x_stop = false;
  std::thread x_thread;
};

}  // namespace foretrain
