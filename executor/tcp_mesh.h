// A connection between every pair of ranks, and what goes through them: arrays that are told apart
// by a tag, and signals. A thread of its own reads all connections and sorts what comes; who sends
// writes itself, a frame at a time.
//
// An array travels once its receiver is there, straight into the receiver's memory: nothing is kept
// for those that come later.
#pragma once

#include <atomic>
#include <condition_variable>
#include <deque>
#include <map>
#include <mutex>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "executor/tcp_socket.h"
#include "executor/transport.h"
#include "executor/watch/peer_watch.h"

namespace foretrain {

/// This moment.
AllThere there_now();

/// One array on its way, by one end.
struct TcpTransfer {
  std::int64_t peer = 0;
  std::uint64_t tag = 0;  ///< arrays of one tag and direction arrive in the order of their sends
  bool send = false;
  void* data = nullptr;  ///< not written where `send`
  std::size_t bytes = 0;
};

class TcpMesh {
 public:
  /// `ranks`: connections by rank. `ends_process`: a process that is still here so many seconds
  /// after the job was ended exits, as one that waits for a device would for ever; 0: never.
  /// `silence`: ranks without a sign of life end the job; negative seconds: the usual time.
  TcpMesh(std::int64_t rank, std::vector<Socket> ranks, double ends_process, Silence silence = {});
  /// Ends the job, where `finish` has not been called.
  ~TcpMesh();
  TcpMesh(const TcpMesh&) = delete;
  TcpMesh& operator=(const TcpMesh&) = delete;
  TcpMesh(TcpMesh&&) = delete;
  TcpMesh& operator=(TcpMesh&&) = delete;

  std::int64_t size() const { return static_cast<std::int64_t>(x_peers.size()); }
  /// A number for what shares the mesh: the same on all ranks that ask as often.
  std::uint64_t next_user() { return x_users++; }
  /// What this rank does, which it tells the others.
  OpsUnderWay& ops() { return x_watched->ops; }

  /// All progress together; returns when all are done. Threads may call at the same time with
  /// different tags.
  Status transfer(std::span<const TcpTransfer> transfers, Arrival* there = nullptr);
  Status signal(std::int64_t peer, std::uint64_t tag);
  /// Takes one signal of the peer.
  Status await(std::int64_t peer, std::uint64_t tag);
  /// Every call on every rank returns the reason from now on.
  void abort(const std::string& reason) noexcept;
  /// The last call: waits for that of all ranks.
  Status finish();

 private:
  enum class Kind : std::uint32_t { kSends = 1, kReceives, kData, kSignal, kAbort, kBye, kAlive };
  struct Header {
    std::uint32_t magic = 0;
    Kind kind = Kind::kBye;
    std::uint64_t tag = 0;
    std::uint64_t bytes =
        0;  ///< of the array that is announced; of kData, kAbort, kAlive: that follow
  };
  /// A receive that is posted.
  struct Part {
    std::byte* at = nullptr;
    std::size_t left = 0;
    bool done = false;
  };
  /// What two ranks do under one tag. Numbers count since the start.
  struct Line {
    std::uint64_t sends = 0, receives = 0;       ///< that this rank began
    std::uint64_t other_sends = 0, signals = 0;  ///< that the peer announced; signals not taken
    std::uint64_t other_receives = 0;
    std::deque<Part*> posted;
  };
  struct Peer {
    Socket socket;
    std::mutex writing;
    bool broken = false;  ///< by `writing`: the last frame is not whole, or the last was sent
    // Of the reader alone:
    Header header;
    std::size_t header_bytes = 0;
    std::size_t payload = 0;  ///< bytes of the frame that are still to come
    std::string text;         ///< of kAbort and kAlive
    bool closed = false;
    // By `x_mutex`:
    bool bye = false;
  };
  using Key = std::pair<std::int64_t, std::uint64_t>;

  /// Signs of life, of this rank and of the others.
  struct Watched {
    PeerWatch peers;
    OpsUnderWay ops;
    OwnLife life;        // of the reader alone
    Moment next;         // likewise: when it looks again
    bool known = false;  // likewise: every rank was told who this is
  };

  struct Open;
  Status start(std::span<const TcpTransfer> transfers, std::vector<Open>& open);
  Status finish_transfers(std::vector<Open>& open, Arrival* there);
  void withdraw(std::vector<Open>& open);
  Status send_array(const TcpTransfer& transfer);
  Status write(std::int64_t peer, Kind kind, std::uint64_t tag, std::uint64_t said,
               const void* data, std::size_t bytes, bool last = false, Deadline by = {});
  bool write_bytes(const Peer& peer, const void* data, std::size_t bytes, bool more,
                   Deadline by) const;
  Error failure();
  Error left_alone_by(std::int64_t peer);
  bool fail(const std::string& reason) noexcept;
  void spread();

  void read_all();
  void look_at_lives(Moment now);
  void look_at_end(std::chrono::steady_clock::time_point now);
  void read_from(std::int64_t number);
  bool take(std::int64_t number, ssize_t got);
  void take_header(std::int64_t number);
  void take_payload(std::int64_t number);
  void take_data(std::int64_t number);

  const std::int64_t x_rank;
  const double x_ends_process;
  std::deque<Peer> x_peers;
  std::atomic<std::uint64_t> x_users{0};
  std::mutex x_mutex;
  std::condition_variable x_changed;
  std::map<Key, Line> x_lines;
  struct {
    Error reason;
    Moment at;
  } x_end;  ///< by `x_mutex`, once it has failed
  bool x_finished = false;
  Part* x_filling = nullptr;  ///< the reader writes to it without the mutex
  std::atomic<bool> x_failed{false}, x_stop{false};
  std::unique_ptr<Watched> x_watched;
  Socket x_wake;  ///< an event that ends the reader's wait
  std::thread x_reader;
};

}  // namespace foretrain
