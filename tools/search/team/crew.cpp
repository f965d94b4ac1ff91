#include "tools/search/team/crew.h"

#include <algorithm>
#include <atomic>

#include "sim/base/threads.h"

namespace foretrain {

Crew::Crew(const Answerer& answerer, SearchTeam* team, std::size_t threads)
    : x_answerer(answerer), x_team(team), x_threads(threads > 0 ? threads : own_cores()) {
  const std::size_t helpers = team == nullptr ? 0 : team->helpers();
  std::size_t next = 0;
  for (std::size_t thread = 0; thread < x_threads || next < helpers; ++thread) {
    if (thread < x_threads) x_lanes.push_back({true, 0});
    for (; next < helpers && team->thread_of(next) <= thread; ++next) {
      x_lanes.push_back({false, next});
    }
  }
}

Crew::~Crew() {
  if (x_team != nullptr) x_team->dismiss();
}

std::size_t Crew::threads() const { return fault().empty() ? x_lanes.size() : x_threads; }

std::size_t Crew::at_once(std::size_t alone) const {
  return x_team == nullptr ? alone : std::max(alone * x_team->ranks(), x_lanes.size());
}

std::string Crew::fault() const {
  const std::lock_guard lock(x_mutex);
  return x_fault;
}

std::vector<Answer> Crew::answers(const std::vector<Question>& questions) const {
  std::vector<Answer> out(questions.size());
  std::atomic<std::size_t> next = 0;
  const auto work = [&](std::size_t l) {
    const Lane& lane = x_lanes[l];
    // When the team is broken the threads of this process answer the rest.
    while (lane.here || fault().empty()) {
      const std::size_t i = next++;
      if (i >= questions.size()) return;
      out[i] = answer(lane, questions[i]);
    }
  };
  const std::size_t lanes = std::min(x_lanes.size(), questions.size());
  in_parallel(lanes, work, lanes);
  return out;
}

/// Where the team is broken this process answers what it asked.
Answer Crew::answer(const Lane& lane, const Question& question) const {
  if (lane.here) return x_answerer.answer(question);
  const Result<std::string> bytes = x_team->ask(lane.helper, packed(question));
  std::optional<Answer> known = bytes.ok() ? unpacked_answer(bytes.value()) : std::nullopt;
  if (known) return std::move(*known);
  {
    const std::lock_guard lock(x_mutex);
    x_fault = bytes.ok() ? "a rank's answer cannot be read" : bytes.error().message;
  }
  return x_answerer.answer(question);
}

}  // namespace foretrain
