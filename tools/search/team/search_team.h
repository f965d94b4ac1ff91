// The processes of one search, as MPI or TCP connects them: the first leads, the others help.
//
// All read the same RUN and flags. The leader searches; what it asks about plans it asks its own
// threads and those of the others, each as soon as it is free.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "executor/execute.h"

namespace foretrain {

class SearchTeam {
 public:
  /// Joins the job that a launcher started this process in; null where none did. `threads`: that
  /// this process answers with, 0: as many as it has cores.
  static Result<std::unique_ptr<SearchTeam>> join(std::size_t threads);
  SearchTeam(const SearchTeam&) = delete;
  SearchTeam& operator=(const SearchTeam&) = delete;
  SearchTeam(SearchTeam&&) = delete;
  SearchTeam& operator=(SearchTeam&&) = delete;
  /// Returns when all ranks leave.
  ~SearchTeam();

  bool leads() const { return x_world.rank.value == 0; }
  std::size_t ranks() const { return x_workload.ranks.size(); }

  /// Every rank calls it before a search, with a text that says what is searched. Fails on all
  /// where texts differ or a rank leaves.
  Status agree(const std::string& question);

  /// Of the leader: threads of other ranks, from 0. One question at a time for each.
  std::size_t helpers() const { return x_helpers.size(); }
  std::size_t thread_of(std::size_t helper) const { return x_helpers[helper].thread; }
  Result<std::string> ask(std::size_t helper, const std::string& question);
  /// The others' `help` returns.
  void dismiss() noexcept;

  /// Of the others: answers what the leader asks until it dismisses them.
  using AnswerPacked = std::function<Result<std::string>(const std::string&)>;
  Status help(const AnswerPacked& answer);

 private:
  struct Helper {
    std::size_t rank = 0, thread = 0;
  };
  SearchTeam() = default;
  /// The last rank whose number is another than rank 0's; -1: none. Of all ranks.
  Result<std::int64_t> compare(std::int64_t sum);
  /// Of a helper's questions (`to_leader` false) and answers.
  ChannelId channel(const Helper& helper, bool to_leader) const;
  Status send(const Helper& helper, bool to_leader, const std::string& bytes);
  Result<std::string> receive(const Helper& helper, bool to_leader);
  Status help_on_thread(std::size_t thread, const AnswerPacked& answer);

  Workload x_workload;
  MpiWorld x_world;
  std::size_t x_threads = 1;
  std::vector<Helper> x_helpers;
  bool x_dismissed = true;
};

}  // namespace foretrain
