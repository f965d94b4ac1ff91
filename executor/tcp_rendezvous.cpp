#include "executor/tcp_rendezvous.h"

#include <poll.h>
#include <sys/random.h>
#include <sys/resource.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <set>
#include <thread>

namespace foretrain {
namespace {

constexpr std::array<char, 8> kGreeting = {'f', 'o', 'r', 'e', 't', 'r', 'n', '\n'};
constexpr std::uint32_t kProtocol = 2;
constexpr std::size_t kLongestRefusal = 2000;
/// For a stranger to say who it is, and for what all but comes at once.
constexpr double kSoon = 20;

/// What a rank says first, to rank 0 and to every rank below its own.
struct Hello {
  std::array<char, 8> magic = kGreeting;
  std::uint32_t protocol = kProtocol;
  std::uint32_t size = 0, rank = 0;
  std::uint32_t port = 0;      ///< where it listens
  std::uint64_t workload = 0;  ///< to rank 0
  std::uint64_t secret = 0;    ///< to others: what rank 0 told
};
static_assert(sizeof(Hello) == 40);

/// What rank 0 answers once all are there, before a Seat for every rank, or before a reason.
struct Answer {
  std::array<char, 8> magic = kGreeting;
  std::uint32_t refused = 0;
  std::uint32_t bytes = 0;  ///< that follow
  std::uint64_t secret = 0;
};
static_assert(sizeof(Answer) == 24);

struct Seat {
  std::array<char, 60> host{};  ///< "": on the machine of rank 0
  std::uint32_t port = 0;
};
static_assert(sizeof(Seat) == 64);

std::string place(const TcpJob& job) { return job.address + ":" + std::to_string(job.port); }

/// "ranks 2, 5, 6 and 9 more".
std::string list_of(const std::vector<std::int64_t>& ranks) {
  constexpr std::size_t kShown = 8;
  std::string out = ranks.size() == 1 ? "rank " : "ranks ";
  for (std::size_t i = 0; i < std::min(kShown, ranks.size()); ++i) {
    out += (i > 0 ? ", " : "") + std::to_string(ranks[i]);
  }
  if (ranks.size() > kShown) out += " and " + std::to_string(ranks.size() - kShown) + " more";
  return out;
}

void refuse(const Socket& socket, const std::string& reason) {
  Answer answer;
  answer.refused = 1;
  answer.bytes = static_cast<std::uint32_t>(std::min(reason.size(), kLongestRefusal));
  // Who does not read a refusal does without.
  const Deadline soon = in_seconds(1);
  if (send_all(socket, &answer, sizeof answer, soon).ok()) {
    (void)send_all(socket, reason.data(), answer.bytes, soon);
  }
}

/// Takes connections at a listener until each of the ranks `first`... has said who it is.
class Door {
 public:
  Door(const TcpJob& job, const Socket& listener, std::int64_t first, std::vector<Socket>& ranks)
      : x_job(job), x_listener(listener), x_first(first), x_ranks(ranks) {}

  std::uint64_t secret = 0;   ///< that a rank must tell; of ranks above 0
  std::vector<Hello> hellos;  ///< by rank, from `first` on
  Status open(Deadline deadline) {
    hellos.resize(static_cast<std::size_t>(x_job.size - x_first));
    x_missing = x_job.size - x_first;
    while (x_missing > 0) {
      const int wait = milliseconds_until(std::min(deadline, x_hopeless));
      if (wait == 0) return input_error(why_not(milliseconds_until(deadline) == 0));
      std::vector<pollfd> looks = {{x_listener.number(), POLLIN, 0}};
      for (const Guest& guest : x_guests) looks.push_back({guest.socket.number(), POLLIN, 0});
      const std::size_t guests = x_guests.size();
      for (const Socket& rank : x_ranks) looks.push_back({rank.number(), POLLIN, 0});
      poll(looks.data(), looks.size(), wait);
      for (std::size_t r = 0; r < x_ranks.size(); ++r) {
        // Rank 0 alone is not spoken to until it has answered.
        if (x_job.rank == 0 && looks[1 + guests + r].revents != 0) {
          return input_error(rank_name(static_cast<std::int64_t>(r)) +
                             " ended before all ranks had come");
        }
      }
      for (std::size_t g = 0; g < guests; ++g) {
        if (looks[1 + g].revents != 0) FT_TRY(listen_to(x_guests[g]));
      }
      const auto now = std::chrono::steady_clock::now();
      std::erase_if(x_guests,
                    [&](const Guest& guest) { return !guest.socket.open() || now > guest.until; });
      if (looks[0].revents != 0 && x_guests.size() < kMostGuests) {
        if (Socket next = accept_one(x_listener); next.open()) {
          x_guests.push_back({std::move(next), in_seconds(kSoon), {}, 0});
        }
      }
    }
    return ok_status();
  }

 private:
  static constexpr std::size_t kMostGuests = 4096;
  struct Guest {
    Socket socket;
    Deadline until;
    std::array<std::byte, sizeof(Hello)> said{};
    std::size_t bytes = 0;
  };

  /// Reads on; a guest that has said who it is becomes a rank, a stranger is closed.
  Status listen_to(Guest& guest) {
    const ssize_t got = recv(guest.socket.number(), guest.said.data() + guest.bytes,
                             guest.said.size() - guest.bytes, 0);
    if (got < 0 && (errno == EAGAIN || errno == EINTR)) return ok_status();
    if (got > 0) guest.bytes += static_cast<std::size_t>(got);
    Hello hello;
    const std::size_t known = std::min(guest.bytes, kGreeting.size());
    const bool stranger = got <= 0 || std::memcmp(guest.said.data(), kGreeting.data(), known) != 0;
    if (!stranger && guest.bytes < guest.said.size()) return ok_status();
    Socket socket = std::move(guest.socket);
    if (stranger) return ok_status();
    std::memcpy(&hello, guest.said.data(), sizeof hello);
    if (hello.secret != secret) return ok_status();
    if (const std::string why = fault(hello, other_end(socket).host); !why.empty()) {
      refuse(socket, why);
      note_refusal(hello, why);
      return ok_status();
    }
    x_ranks[hello.rank] = std::move(socket);
    hellos[static_cast<std::size_t>(hello.rank - x_first)] = hello;
    --x_missing;
    return ok_status();
  }

  /// A process of another job may have said it: the right one may still come. Once every rank that
  /// is missing has been refused there is little hope.
  void note_refusal(const Hello& hello, const std::string& why) {
    constexpr std::size_t kMostReasons = 8;
    const bool known = std::find(x_refused.begin(), x_refused.end(), why) != x_refused.end();
    if (!known && x_refused.size() < kMostReasons) x_refused.push_back(why);
    if (hello.rank < x_first || hello.rank >= x_job.size) return;
    x_wrong.insert(hello.rank);
    for (std::int64_t r = x_first; r < x_job.size; ++r) {
      if (!x_ranks[static_cast<std::size_t>(r)].open() && !x_wrong.contains(r)) return;
    }
    x_hopeless = std::min(x_hopeless, in_seconds(kSoon));
  }

  /// Whom it refused, and who did not come if time is over.
  std::string why_not(bool late) const {
    std::string out;
    for (const std::string& why : x_refused) out += (out.empty() ? "" : "; ") + why;
    if (late) out += (out.empty() ? "" : "; ") + missing();
    return out;
  }

  /// Why a rank of this protocol does not belong to the job; "" if it does.
  std::string fault(const Hello& hello, const std::string& host) const {
    const std::string who = "a process on " + host + " with rank " + std::to_string(hello.rank);
    if (hello.protocol != kProtocol) {
      return who + " is another version of foretrain: run the same on every machine";
    }
    if (hello.size != static_cast<std::uint64_t>(x_job.size)) {
      return who + " has " + x_job.size_name + " " + std::to_string(hello.size) + ", " +
             rank_name(x_job.rank) + " has " + std::to_string(x_job.size);
    }
    if (hello.rank < x_first || hello.rank >= hello.size) {
      return who + ", expected " + std::to_string(x_first) + " to " +
             std::to_string(x_job.size - 1);
    }
    if (x_ranks[hello.rank].open()) return "two processes have rank " + std::to_string(hello.rank);
    if (hello.workload != x_job.workload) {
      return who + " runs something else than " + rank_name(x_job.rank) +
             ": give all ranks the same RUN and options";
    }
    return "";
  }

  std::string missing() const {
    std::vector<std::int64_t> ranks;
    for (std::int64_t r = x_first; r < x_job.size; ++r) {
      if (!x_ranks[static_cast<std::size_t>(r)].open()) ranks.push_back(r);
    }
    return list_of(ranks) + " of " + std::to_string(x_job.size) + " did not come to " +
           place(x_job) + " within " + std::to_string(std::lround(x_job.seconds)) + " s";
  }

  const TcpJob& x_job;
  const Socket& x_listener;
  std::int64_t x_first;
  std::vector<Socket>& x_ranks;
  std::vector<Guest> x_guests;
  std::int64_t x_missing = 0;
  std::vector<std::string> x_refused;  ///< why, in the order of their coming
  std::set<std::int64_t> x_wrong;      ///< ranks that were refused
  Deadline x_hopeless = Deadline::max();
};

Status gather_all(TcpJob& job, std::vector<Socket>& ranks) {
  const bool loopback = is_loopback(job.address);
  if (!job.listener.open()) {
    Result<Socket> made = listen_for(job.address, job.port);
    if (!made.ok()) {
      return input_error("rank 0 cannot listen at MASTER_PORT " + std::to_string(job.port) + ": " +
                         made.error().message + "; choose another port, the same on all ranks");
    }
    job.listener = std::move(made).value();
  }
  Door door(job, job.listener, 1, ranks);
  Status all = door.open(in_seconds(job.seconds));
  Answer answer;
  std::vector<Seat> seats(ranks.size());
  answer.bytes = static_cast<std::uint32_t>(seats.size() * sizeof(Seat));
  if (getrandom(&answer.secret, sizeof answer.secret, 0) != sizeof answer.secret ||
      answer.secret == 0) {
    answer.secret =
        static_cast<std::uint64_t>(std::chrono::steady_clock::now().time_since_epoch().count());
  }
  for (std::size_t r = 1; all.ok() && r < ranks.size(); ++r) {
    const std::string host = other_end(ranks[r]).host;
    seats[r].port = door.hellos[r - 1].port;
    if (loopback || !is_loopback(host)) host.copy(seats[r].host.data(), seats[r].host.size() - 1);
  }
  for (std::size_t r = 1; r < ranks.size(); ++r) {
    if (!ranks[r].open()) continue;
    if (!all.ok()) {
      refuse(ranks[r], all.error().message);
      continue;
    }
    const Deadline soon = in_seconds(kSoon);
    all = send_all(ranks[r], &answer, sizeof answer, soon);
    if (all.ok()) all = send_all(ranks[r], seats.data(), answer.bytes, soon);
    if (!all.ok()) {
      all = input_error(rank_name(static_cast<std::int64_t>(r)) + ": " + all.error().message);
    }
  }
  return all;
}

/// Connects until it succeeds and says who this is.
Result<Socket> call(const TcpJob& job, const std::string& host, int port, const Hello& hello,
                    const std::string& whom, double seconds) {
  const Deadline deadline = in_seconds(seconds);
  std::string problem;
  for (int pause = 20;; pause = std::min(2 * pause, 500)) {
    Socket socket;
    const Tried tried = connect_once(host, port, socket, problem);
    if (tried == Tried::kReached) {
      const Status said = send_all(socket, &hello, sizeof hello, in_seconds(kSoon));
      if (said.ok()) return socket;
      problem = said.error().message;
    }
    const bool late = std::chrono::steady_clock::now() >= deadline;
    if (tried == Tried::kHopeless || late) {
      return input_error(
          rank_name(job.rank) + " cannot reach " + whom + " at " + host + ":" +
          std::to_string(port) +
          (late ? " within " + std::to_string(std::lround(seconds)) + " s: " : ": ") + problem);
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(pause));
  }
}

/// What rank 0 answers; kInput "closed" where it left without a word.
Result<std::vector<Seat>> hear(const TcpJob& job, const Socket& first, std::uint64_t& secret) {
  // Rank 0 began to wait later, maybe.
  const Deadline deadline = in_seconds(job.seconds + 2 * kSoon);
  Answer answer;
  FT_TRY(receive_all(first, &answer, sizeof answer, deadline));
  std::vector<Seat> seats(static_cast<std::size_t>(job.size));
  const std::size_t expected = answer.refused != 0 ? kLongestRefusal : seats.size() * sizeof(Seat);
  if (answer.magic != kGreeting || answer.bytes > expected ||
      (answer.refused == 0 && answer.bytes != expected)) {
    return input_error("what listens at " + place(job) + " is no rank 0 of foretrain");
  }
  if (answer.refused != 0) {
    std::string reason(answer.bytes, '\0');
    FT_TRY(receive_all(first, reason.data(), reason.size(), in_seconds(kSoon)));
    return input_error("rank 0 refuses: " + reason);
  }
  secret = answer.secret;
  FT_TRY(receive_all(first, seats.data(), answer.bytes, in_seconds(kSoon)));
  return seats;
}

Status join_all(const TcpJob& job, std::vector<Socket>& ranks) {
  FT_ASSIGN(Socket listener, listen_at(is_loopback(job.address), 0));
  Hello hello;
  hello.size = static_cast<std::uint32_t>(job.size);
  hello.rank = static_cast<std::uint32_t>(job.rank);
  hello.port = static_cast<std::uint32_t>(own_end(listener).port);
  hello.workload = job.workload;
  const Deadline deadline = in_seconds(job.seconds);
  std::vector<Seat> seats;
  while (seats.empty()) {
    FT_ASSIGN(ranks[0], call(job, job.address, job.port, hello, "rank 0", job.seconds));
    Result<std::vector<Seat>> heard = hear(job, ranks[0], hello.secret);
    if (heard.ok()) {
      seats = std::move(heard).value();
    } else if (heard.error().message != "closed" || std::chrono::steady_clock::now() >= deadline) {
      return input_error(heard.error().message == "closed"
                             ? "what listens at " + place(job) + " closed the connection"
                             : heard.error().message);
    } else {
      // The end of an earlier job, or a stranger.
      std::this_thread::sleep_for(std::chrono::milliseconds(200));
    }
  }
  const std::string first = other_end(ranks[0]).host;
  for (std::int64_t r = 1; r < job.rank; ++r) {
    Seat& seat = seats[static_cast<std::size_t>(r)];
    seat.host.back() = '\0';
    const std::string host = seat.host[0] == '\0' ? first : seat.host.data();
    FT_ASSIGN(ranks[static_cast<std::size_t>(r)],
              call(job, host, static_cast<int>(seat.port), hello, rank_name(r), kSoon));
  }
  Door door(job, listener, job.rank + 1, ranks);
  door.secret = hello.secret;
  return door.open(in_seconds(kSoon));
}

}  // namespace

Result<std::vector<Socket>> meet_by_tcp(TcpJob job) {
  std::vector<Socket> ranks(static_cast<std::size_t>(job.size));
  if (job.size == 1) return ranks;
  // A connection to every rank: as many files as this process may have.
  rlimit files{};
  if (getrlimit(RLIMIT_NOFILE, &files) == 0) {
    files.rlim_cur = files.rlim_max;
    setrlimit(RLIMIT_NOFILE, &files);
  }
  FT_TRY(job.rank == 0 ? gather_all(job, ranks) : join_all(job, ranks));
  return ranks;
}

}  // namespace foretrain
