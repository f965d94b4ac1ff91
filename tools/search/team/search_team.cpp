#include "tools/search/team/search_team.h"

#include <algorithm>
#include <new>

#include "executor/job_variables.h"
#include "executor/launch.h"
#include "executor/transport.h"
#include "sim/base/rng.h"
#include "sim/base/stop.h"
#include "sim/base/threads.h"

namespace foretrain {
namespace {

/// Threads of a process that may answer: each has two channels of its own.
constexpr std::size_t kMostThreads = 64;

/// In place of what is searched: nothing any more.
constexpr std::int64_t kLeaves = 0;

}  // namespace

Result<std::unique_ptr<SearchTeam>> SearchTeam::join(std::size_t threads) {
  const std::int64_t ranks = launched_ranks();
  if (ranks <= 1) return std::unique_ptr<SearchTeam>();
  std::unique_ptr<SearchTeam> out(new SearchTeam());
  Workload& workload = out->x_workload;
  workload.ranks.resize(static_cast<std::size_t>(ranks));
  for (std::size_t rank = 1; rank < workload.ranks.size(); ++rank) {
    for (std::size_t thread = 0; thread < kMostThreads; ++thread) {
      Channel channel;
      channel.source = RankId(std::size_t{0});
      channel.destination = RankId(rank);
      workload.channels.push_back(channel);
      std::swap(channel.source, channel.destination);
      workload.channels.push_back(channel);
    }
  }
  // A rank may work long without a word, so only its process is watched. When the job ends the
  // leader searches on alone.
  const JobVariables job = job_variables();
  Silence silence;
  silence.seconds = -1;
  silence.hangs = false;
  silence.ends_process = job.by != JobVariables::By::kTcp || job.rank != 0;
  FT_ASSIGN(out->x_world, join_job(workload, silence));
  out->x_threads = std::min(threads > 0 ? threads : own_cores(), kMostThreads);
  // Threads that wait for a message nap: others work on these cores.
  out->x_world.transport->kernel_begins(out->x_world.rank);
  return out;
}

SearchTeam::~SearchTeam() {
  dismiss();
  if (x_world.transport == nullptr) return;
  // Who leaves waits for the others: some may still ask for a search, which then fails.
  try {
    while (true) {
      const Result<std::int64_t> other = compare(kLeaves);
      if (!other.ok() || other.value() < 0) break;
    }
  } catch (const std::bad_alloc&) {
    x_world.transport->abort(kNoMemory);
  }
  x_world.transport->kernel_ends(x_world.rank);
  if (x_world.finish) x_world.finish();
}

Status SearchTeam::agree(const std::string& question) {
  std::uint64_t sum = 1;
  for (const char c : question) sum = mix_u64(sum, static_cast<std::uint8_t>(c));
  FT_ASSIGN(const std::int64_t other, compare(static_cast<std::int64_t>(sum)));
  x_dismissed = other >= 0 || !leads();
  if (other < 0) return ok_status();
  return input_error("rank " + std::to_string(other) +
                     " of the search searches something else than rank 0, or nothing: give all "
                     "ranks the same files, flags and version of foretrain");
}

Result<std::int64_t> SearchTeam::compare(std::int64_t sum) {
  const std::vector<std::int64_t> mine = {sum, static_cast<std::int64_t>(x_threads)};
  FT_ASSIGN(const auto all, x_world.transport->gather(x_world.rank, mine));
  x_helpers.clear();
  std::vector<std::int64_t> other = {-1};
  for (std::size_t rank = 1; rank < all.size(); ++rank) {
    if (all[rank][0] != sum) other = {static_cast<std::int64_t>(rank)};
    for (std::int64_t thread = 0; thread < all[rank][1]; ++thread) {
      x_helpers.push_back({rank, static_cast<std::size_t>(thread)});
    }
  }
  // Where fewer questions are than threads each rank has some.
  std::stable_sort(x_helpers.begin(), x_helpers.end(),
                   [](const Helper& a, const Helper& b) { return a.thread < b.thread; });
  FT_TRY(x_world.transport->broadcast(x_world.rank, other));
  return other[0];
}

ChannelId SearchTeam::channel(const Helper& helper, bool to_leader) const {
  return ChannelId(((helper.rank - 1) * kMostThreads + helper.thread) * 2 + (to_leader ? 1 : 0));
}

Status SearchTeam::send(const Helper& helper, bool to_leader, const std::string& bytes) {
  std::uint64_t size = bytes.size();
  MessageCall call;
  call.send = true;
  call.channel = channel(helper, to_leader);
  call.bytes = sizeof size;
  call.data = &size;
  FT_TRY(x_world.transport->exchange(x_world.rank, {&call, 1}));
  if (bytes.empty()) return ok_status();
  call.bytes = static_cast<Bytes>(bytes.size());
  call.data = const_cast<char*>(bytes.data());  // what is sent is not written
  return x_world.transport->exchange(x_world.rank, {&call, 1});
}

Result<std::string> SearchTeam::receive(const Helper& helper, bool to_leader) {
  std::uint64_t size = 0;
  MessageCall call;
  call.channel = channel(helper, to_leader);
  call.bytes = sizeof size;
  call.data = &size;
  FT_TRY(x_world.transport->exchange(x_world.rank, {&call, 1}));
  std::string out(size, '\0');
  if (size == 0) return out;
  call.bytes = static_cast<Bytes>(size);
  call.data = out.data();
  FT_TRY(x_world.transport->exchange(x_world.rank, {&call, 1}));
  return out;
}

Result<std::string> SearchTeam::ask(std::size_t helper, const std::string& question) {
  try {
    FT_TRY(send(x_helpers[helper], false, question));
    return receive(x_helpers[helper], true);
  } catch (const std::bad_alloc&) {
    // The helper would wait for ever to be heard.
    x_world.transport->abort(kNoMemory);
    return reason_or_want(kNoMemory);
  }
}

void SearchTeam::dismiss() noexcept {
  if (x_dismissed) return;
  x_dismissed = true;
  for (const Helper& helper : x_helpers) {
    if (!send(helper, false, "").ok()) return;  // who is gone needs no word
  }
}

Status SearchTeam::help_on_thread(std::size_t thread, const AnswerPacked& answer) {
  const Helper self{static_cast<std::size_t>(x_world.rank.value), thread};
  while (true) {
    FT_ASSIGN(const std::string question, receive(self, false));
    if (question.empty()) return ok_status();
    FT_ASSIGN(const std::string answered, answer(question));
    FT_TRY(send(self, true, answered));
  }
}

Status SearchTeam::help(const AnswerPacked& answer) {
  std::vector<Status> ends(x_threads, ok_status());
  const auto flag = stop_flag();
  const auto help_on_all = [&] {
    return all_at_once(x_threads, [&](std::size_t thread) {
      const StopScope stop(flag);
      ends[thread] = or_want([&] { return help_on_thread(thread, answer); });
      if (!ends[thread].ok()) x_world.transport->abort(ends[thread].error().message);
    });
  };
  const Status begun = or_want(help_on_all);
  if (!begun.ok()) x_world.transport->abort(begun.error().message);  // the leader would wait
  FT_TRY(begun);
  for (const Status& end : ends) FT_TRY(end);
  return ok_status();
}

}  // namespace foretrain
