// Threads and memory may be missing: the work is done by fewer, or not begun, and never half told.
#include "sim/base/threads.h"

#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <fstream>
#include <thread>
#include <vector>

#include "tests/support/sanitized.h"

namespace foretrain {
namespace {

TEST(Threads, DoEveryPartOnce) {
  for (const std::size_t threads : {0U, 1U, 2U, 7U, 32U}) {
    std::vector<int> done(100, 0);
    in_parallel(
        done.size(), [&](std::size_t i) { ++done[i]; }, threads);
    EXPECT_EQ(done, std::vector<int>(100, 1));
  }
}

// Cores that are busy with parts of the work do not get parts of these parts as well.
TEST(Threads, WithinAPartDoTheRestAlone) {
  std::atomic<int> elsewhere{0};
  const auto part = [&](std::size_t) {
    const std::thread::id here = std::this_thread::get_id();
    in_parallel(64, [&](std::size_t) { elsewhere += std::this_thread::get_id() != here; });
  };
  for (const std::size_t threads : {1U, 4U}) in_parallel(8, part, threads);
  ASSERT_TRUE(all_at_once(2, part).ok());
  EXPECT_EQ(elsewhere, 0);
}

// The only part of some work has the cores to itself.
TEST(Threads, OfTheOnlyPartAreSeveral) {
  if (own_cores() < 2) GTEST_SKIP() << "one core";
  std::atomic<int> there{0};
  const auto wait_for_another = [&](std::size_t) {
    ++there;
    while (there < 2) std::this_thread::yield();
  };
  in_parallel(1, [&](std::size_t) { in_parallel(2, wait_for_another); });
  EXPECT_EQ(there, 2);
}

// An exception in a thread would end the process.
TEST(Threads, CarryExceptionsBack) {
  for (const std::size_t threads : {1U, 8U}) {
    std::atomic<int> begun{0};
    const auto fail = [&](std::size_t i) {
      ++begun;
      if (i % 2 == 0) throw std::bad_alloc();
    };
    EXPECT_THROW(in_parallel(1000, fail, threads), std::bad_alloc);
    EXPECT_LT(begun, 1000);  // the others stop
  }
  EXPECT_THROW(static_cast<void>(all_at_once(4, [](std::size_t) { throw std::bad_alloc(); })),
               std::bad_alloc);
}

TEST(Threads, OfOneRunTogether) {
  std::atomic<std::size_t> there{0};
  const Status status = all_at_once(8, [&](std::size_t) {
    ++there;
    while (there < 8) std::this_thread::yield();
  });
  EXPECT_TRUE(status.ok());
  EXPECT_EQ(there, 8U);
}

TEST(Threads, AnswerErrorsWithoutMemory) {
  const Status status = or_want([]() -> Status { throw std::bad_alloc(); });
  ASSERT_FALSE(status.ok());
  EXPECT_EQ(status.error().message, kNoMemory);
}

/// What a child process answers that may map little more than it has.
int with_little_room(int (*work)()) {
  const pid_t child = fork();
  if (child == 0) {
    constexpr rlim_t kRoom = rlim_t{100} << 20;  // stacks of threads take 8 MiB each
    std::ifstream file("/proc/self/statm");
    rlim_t pages = 0;
    file >> pages;
    const rlim_t most = pages * static_cast<rlim_t>(sysconf(_SC_PAGESIZE)) + kRoom;
    const rlimit limit{most, most};
    setrlimit(RLIMIT_AS, &limit);
    _exit(work());
  }
  int status = 0;
  waitpid(child, &status, 0);
  return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

TEST(Threads, ThatTheSystemRefusesAreDoneWithout) {
  if (kSanitized) GTEST_SKIP() << "sanitizers map more than a limit lets them";
  EXPECT_EQ(with_little_room([] {
              std::atomic<std::size_t> sum{0};
              in_parallel(
                  10000, [&](std::size_t i) { sum += i; }, 1024);
              return sum == 9999 * 10000 / 2 ? 0 : 1;
            }),
            0);
}

TEST(Threads, ThatWaitForEachOtherDoNotBeginWithout) {
  if (kSanitized) GTEST_SKIP() << "sanitizers map more than a limit lets them";
  EXPECT_EQ(with_little_room([] {
              std::atomic<int> begun{0};
              const Status status = all_at_once(1024, [&](std::size_t) { ++begun; });
              const bool said =
                  !status.ok() && status.error().message.starts_with("1024 threads are needed");
              return said && begun == 0 ? 0 : 1;
            }),
            0);
}

}  // namespace
}  // namespace foretrain
