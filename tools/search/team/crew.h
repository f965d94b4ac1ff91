// Who answers a search's questions: threads of this process and, in a team, those of the others.
#pragma once

#include <mutex>
#include <string>
#include <vector>

#include "tools/search/team/questions.h"
#include "tools/search/team/search_team.h"

namespace foretrain {

class Crew {
 public:
  /// `team`: that this process leads, or null. `threads` of this process; 0: as many as it has
  /// cores.
  Crew(const Answerer& answerer, SearchTeam* team, std::size_t threads);
  Crew(const Crew&) = delete;
  Crew& operator=(const Crew&) = delete;
  Crew(Crew&&) = delete;
  Crew& operator=(Crew&&) = delete;
  ~Crew();

  std::size_t threads() const;  ///< of all processes that help
  /// Questions of a round, `alone` for one process whatever its threads: as many times more as
  /// there are ranks, and one at least for each of all their threads.
  std::size_t at_once(std::size_t alone) const;

  /// In the order of the questions. Who is free takes the next: give the longest first.
  std::vector<Answer> answers(const std::vector<Question>& questions) const;
  /// Why the others help no more, or "".
  std::string fault() const;

 private:
  /// A thread of this process, or one that waits for a helper.
  struct Lane {
    bool here = true;
    std::size_t helper = 0;
  };
  Answer answer(const Lane& lane, const Question& question) const;

  const Answerer& x_answerer;
  SearchTeam* x_team;
  std::size_t x_threads;
  std::vector<Lane> x_lanes;  ///< where fewer questions are than lanes each rank has some
  mutable std::mutex x_mutex;
  mutable std::string x_fault;
};

}  // namespace foretrain
