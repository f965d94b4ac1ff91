#include "tools/search/team/crew.h"

#include <algorithm>
#include <atomic>

#include "sim/base/threads.h"

namespace foretrain {

Crew::Crew(const Answerer& answerer, SearchTeam* team, std::size_t threads)
    : x_answerer(answerer), x_team(team), x_threads(threads > 0 ? threads : own_cores()) {}

Crew::~Crew() {
  if (x_team != nullptr) x_team->dismiss();
}

std::size_t Crew::threads() const {
  return x_threads + (x_team == nullptr ? 0 : x_team->helpers());
}

std::string Crew::fault() const {
  const std::lock_guard lock(x_mutex);
  return x_fault;
}

std::vector<Answer> Crew::answers(const std::vector<Question>& questions) const {
  std::vector<Answer> out(questions.size());
  std::atomic<std::size_t> next = 0;
  const auto work = [&](std::size_t lane) {
    for (std::size_t i = next++; i < questions.size(); i = next++) {
      out[i] = answer(lane, questions[i]);
    }
  };
  const std::size_t lanes = std::min(threads(), questions.size());
  in_parallel(lanes, work, lanes);
  return out;
}

/// A lane is a thread of this process, or one that waits for a helper. Where the team is broken
/// this process answers what it asked.
Answer Crew::answer(std::size_t lane, const Question& question) const {
  if (lane < x_threads || !fault().empty()) return x_answerer.answer(question);
  const Result<std::string> bytes = x_team->ask(lane - x_threads, packed(question));
  std::optional<Answer> known = bytes.ok() ? unpacked_answer(bytes.value()) : std::nullopt;
  if (known) return std::move(*known);
  {
    const std::lock_guard lock(x_mutex);
    x_fault = bytes.ok() ? "a rank's answer cannot be read" : bytes.error().message;
  }
  return x_answerer.answer(question);
}

}  // namespace foretrain
