#include "sim/base/temporaries.h"

#include <sys/types.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <cerrno>
#include <climits>
#include <csignal>
#include <cstddef>
#include <cstring>

namespace foretrain {
namespace {

enum class Use : int { kFree, kTaken, kNoted };

struct Note {
  std::atomic<Use> use{Use::kFree};
  pid_t maker = 0;  ///< a child that fork made must not remove its parent's files
  std::array<char, PATH_MAX> path{};
};

// A signal handler reads it: no allocation, and atomics that need no lock.
static_assert(std::atomic<Use>::is_always_lock_free);
std::array<Note, 64> notes;

constexpr std::array<int, 8> kEnding = {SIGHUP,  SIGINT,  SIGQUIT, SIGPIPE,
                                        SIGALRM, SIGTERM, SIGXCPU, SIGABRT};

void remove_and_end(int signal) {
  remove_temporaries();
  // The signal waits until this handler returns, and then finds its default.
  std::signal(signal, SIG_DFL);
  raise(signal);
}

bool watch_signals() {
  for (const int signal : kEnding) {
    struct sigaction now {};
    if (sigaction(signal, nullptr, &now) != 0 || now.sa_handler != SIG_DFL) continue;
    struct sigaction action {};
    action.sa_handler = remove_and_end;
    sigaction(signal, &action, nullptr);
  }
  return true;
}

}  // namespace

int note_temporary(const std::string& path) {
  [[maybe_unused]] static const bool watched = watch_signals();
  if (path.size() >= PATH_MAX) return -1;
  for (std::size_t i = 0; i < notes.size(); ++i) {
    Use free = Use::kFree;
    if (!notes.at(i).use.compare_exchange_strong(free, Use::kTaken)) continue;
    std::memcpy(notes.at(i).path.data(), path.c_str(), path.size() + 1);
    notes.at(i).maker = getpid();
    notes.at(i).use = Use::kNoted;
    return static_cast<int>(i);
  }
  return -1;
}

void forget_temporary(int place) {
  if (place >= 0) notes.at(static_cast<std::size_t>(place)).use = Use::kFree;
}

void remove_temporaries() {
  const int kept = errno;
  for (Note& note : notes) {
    if (note.use == Use::kNoted && note.maker == getpid()) unlink(note.path.data());
  }
  errno = kept;
}

}  // namespace foretrain
