#include "executor/tcp_mesh.h"

#include <linux/sockios.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <ctime>

#include "sim/base/printable.h"
#include "sim/base/temporaries.h"
#include "sim/base/threads.h"

namespace foretrain {
namespace {

constexpr std::uint32_t kFrameMagic = 0x46544d31;
constexpr std::size_t kFrameBytes = 1 << 20;  ///< bytes, so that arrays take turns
constexpr std::size_t kLongestReason = 4000;
constexpr std::size_t kMostLines = 1 << 20;
constexpr double kLinger = 2;  ///< seconds to say why a job ends

double seconds_since(std::chrono::steady_clock::time_point at) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - at).count();
}

Moment now() { return std::chrono::steady_clock::now(); }

/// Whether every rank is on this machine.
bool all_here(const std::vector<Socket>& ranks) {
  return std::all_of(ranks.begin(), ranks.end(), [](const Socket& rank) {
    return !rank.open() || own_end(rank).host == other_end(rank).host;
  });
}

/// Whether the other end's system has everything that was written.
bool has_taken_all(const Socket& socket) {
  int waiting = 0;
  return ioctl(socket.number(), SIOCOUTQ, &waiting) == 0 && waiting == 0;
}

Silence usual(Silence silence, const std::vector<Socket>& ranks) {
  if (silence.seconds < 0) {
    silence.seconds = all_here(ranks) ? kSilenceHere : kSilenceBetweenMachines;
  }
  return silence;
}

}  // namespace

AllThere there_now() {
  timespec cpu{};
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &cpu);
  return {std::chrono::steady_clock::now(),
          static_cast<double>(cpu.tv_sec) + 1e-9 * static_cast<double>(cpu.tv_nsec)};
}

/// A transfer of a call that is under way.
struct TcpMesh::Open {
  TcpTransfer what;
  std::uint64_t number = 0;  ///< among those of its tag and direction
  bool sent = false;
  Part part;  ///< of a receive
};

TcpMesh::TcpMesh(std::int64_t rank, std::vector<Socket> ranks, double ends_process, Silence silence)
    : x_rank(rank),
      x_ends_process(ends_process),
      x_peers(ranks.size()),
      x_watched(
          new Watched{PeerWatch(rank, ranks.size(), usual(silence, ranks), now()), {}, {}, {}}),
      x_wake(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) {
  for (std::size_t r = 0; r < ranks.size(); ++r) {
    x_peers[r].socket = std::move(ranks[r]);
    x_peers[r].closed = !x_peers[r].socket.open();
  }
  x_reader = std::thread([this] { read_all(); });
}

TcpMesh::~TcpMesh() {
  {
    std::unique_lock lock(x_mutex);
    if (!x_finished && !x_failed) {
      lock.unlock();
      abort("ended before the others");
    }
  }
  x_stop = true;
  eventfd_write(x_wake.number(), 1);
  x_reader.join();
}

Status TcpMesh::transfer(std::span<const TcpTransfer> transfers, Arrival* there) {
  const WaitsHere waits(ops());
  std::vector<Open> open(transfers.size());
  Status status = start(transfers, open);
  if (status.ok()) status = finish_transfers(open, there);
  if (!status.ok()) withdraw(open);
  return status;
}

Status TcpMesh::start(std::span<const TcpTransfer> transfers, std::vector<Open>& open) {
  for (std::size_t i = 0; i < transfers.size(); ++i) {
    const TcpTransfer& one = transfers[i];
    open[i].what = one;
    {
      const std::lock_guard lock(x_mutex);
      if (x_failed) return failure();
      Line& line = x_lines[{one.peer, one.tag}];
      open[i].number = one.send ? line.sends++ : line.receives++;
      if (!one.send) {
        open[i].part = {static_cast<std::byte*>(one.data), one.bytes, false};
        line.posted.push_back(&open[i].part);
      }
    }
    FT_TRY(
        write(one.peer, one.send ? Kind::kSends : Kind::kReceives, one.tag, one.bytes, nullptr, 0));
  }
  return ok_status();
}

Status TcpMesh::finish_transfers(std::vector<Open>& open, Arrival* there) {
  std::unique_lock lock(x_mutex);
  while (true) {
    if (x_failed) return failure();
    bool all_there = true;
    bool all_done = true;
    std::int64_t left = -1;  // a peer that has ended and will not come
    Open* sendable = nullptr;
    for (Open& one : open) {
      const Line& line = x_lines[{one.what.peer, one.what.tag}];
      const bool is_there = (one.what.send ? line.other_receives : line.other_sends) > one.number;
      const bool done = one.what.send ? one.sent : one.part.done;
      all_there = all_there && (is_there || done);
      all_done = all_done && done;
      const bool coming = one.what.send && is_there;
      if (!done && !coming && x_peers[static_cast<std::size_t>(one.what.peer)].bye)
        left = one.what.peer;
      if (one.what.send && is_there && !done && sendable == nullptr) sendable = &one;
    }
    if (all_there && there != nullptr && !*there) *there = there_now();
    if (all_done) return ok_status();
    if (left >= 0) {
      lock.unlock();
      return left_alone_by(left);
    }
    if (sendable == nullptr) {
      x_changed.wait(lock);
      continue;
    }
    lock.unlock();
    FT_TRY(send_array(sendable->what));
    lock.lock();
    sendable->sent = true;
  }
}

/// Nothing refers to the call's memory any more.
void TcpMesh::withdraw(std::vector<Open>& open) {
  std::unique_lock lock(x_mutex);
  for (Open& one : open) {
    if (one.what.send) continue;
    x_changed.wait(lock, [&] { return x_filling != &one.part; });
    std::erase(x_lines[{one.what.peer, one.what.tag}].posted, &one.part);
  }
}

Status TcpMesh::send_array(const TcpTransfer& transfer) {
  const auto* at = static_cast<const std::byte*>(transfer.data);
  std::size_t left = transfer.bytes;
  do {
    const std::size_t part = std::min(left, kFrameBytes);
    FT_TRY(write(transfer.peer, Kind::kData, transfer.tag, part, at, part));
    at += part;
    left -= part;
  } while (left > 0);
  return ok_status();
}

Status TcpMesh::signal(std::int64_t peer, std::uint64_t tag) {
  return write(peer, Kind::kSignal, tag, 0, nullptr, 0);
}

Status TcpMesh::await(std::int64_t peer, std::uint64_t tag) {
  const WaitsHere waits(ops());
  std::unique_lock lock(x_mutex);
  Line& line = x_lines[{peer, tag}];
  const Peer& other = x_peers[static_cast<std::size_t>(peer)];
  x_changed.wait(lock, [&] { return x_failed || line.signals > 0 || other.bye; });
  if (x_failed) return failure();
  if (line.signals == 0) {
    lock.unlock();
    return left_alone_by(peer);
  }
  --line.signals;
  return ok_status();
}

/// This rank waits for one that has done all that it had to.
Error TcpMesh::left_alone_by(std::int64_t peer) {
  const std::string why = rank_name(peer) + " ended while " + rank_name(x_rank) +
                          " waits for it: give all ranks the same RUN and options";
  if (fail(why)) spread();
  const std::lock_guard lock(x_mutex);
  return failure();
}

void TcpMesh::abort(const std::string& reason) noexcept {
  try {
    const bool named = reason.starts_with("rank ");
    if (fail(named ? reason : rank_name(x_rank) + ": " + reason)) spread();
  } catch (const std::bad_alloc&) {
    fail("out of memory");  // the other ranks see this one end
  }
}

Status TcpMesh::finish() {
  x_watched->peers.ends();
  for (std::int64_t r = 0; r < size(); ++r) {
    if (r != x_rank) FT_TRY(write(r, Kind::kBye, 0, 0, nullptr, 0, true));
  }
  std::unique_lock lock(x_mutex);
  x_finished = true;
  x_changed.wait(lock, [&] {
    return x_failed || std::all_of(x_peers.begin(), x_peers.end(), [&](const Peer& peer) {
             return peer.bye || &peer == &x_peers[static_cast<std::size_t>(x_rank)];
           });
  });
  if (x_failed) return failure();
  return ok_status();
}

/// By `x_mutex`.
Error TcpMesh::failure() { return reason_or_want(x_end.reason.message.c_str()); }

/// Whether this was the first.
bool TcpMesh::fail(const std::string& reason) noexcept {
  {
    const std::lock_guard lock(x_mutex);
    if (x_failed) return false;
    x_end.reason = reason_or_want(reason.c_str());
    x_end.at = now();
    x_failed = true;
  }
  x_changed.notify_all();
  eventfd_write(x_wake.number(), 1);
  return true;
}

/// Tells all ranks why the job ended, those that take no data one after another within one time.
void TcpMesh::spread() {
  std::string reason;
  {
    const std::lock_guard lock(x_mutex);
    reason = x_end.reason.message.substr(0, kLongestReason);
  }
  const Deadline by = in_seconds(kLinger);
  for (std::int64_t r = 0; r < size(); ++r) {
    if (r == x_rank) continue;
    (void)write(r, Kind::kAbort, 0, reason.size(), reason.data(), reason.size(), true, by);
  }
}

/// One frame. `last`: nothing follows it. `by`: of kAbort, when it is given up.
Status TcpMesh::write(std::int64_t number, Kind kind, std::uint64_t tag, std::uint64_t said,
                      const void* data, std::size_t bytes, bool last, Deadline by) {
  Peer& peer = x_peers[static_cast<std::size_t>(number)];
  const Header header = {kFrameMagic, kind, tag, said};
  std::unique_lock writing(peer.writing, std::defer_lock);
  if (kind != Kind::kAbort) writing.lock();
  // Who tells why the job ends waits for the frame that is under way, but not for ever.
  while (!writing.owns_lock() && !writing.try_lock() && milliseconds_until(by) > 0) {
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  if (writing.owns_lock() && !peer.broken && (!x_failed || kind == Kind::kAbort)) {
    if (kind != Kind::kAbort) by = in_seconds(kLinger);
    const bool whole = write_bytes(peer, &header, sizeof header, bytes > 0, by) &&
                       write_bytes(peer, data, bytes, false, by);
    peer.broken = !whole || last;
    if (last && whole) shutdown(peer.socket.number(), SHUT_WR);
    if (whole) return ok_status();
  }
  if (writing.owns_lock()) writing.unlock();
  // The reader finds out why the peer does not take it, or has just said it.
  std::unique_lock lock(x_mutex);
  x_changed.wait_for(lock, std::chrono::seconds(1), [&] { return x_failed.load(); });
  if (x_failed) return failure();
  lock.unlock();
  const std::string why = x_watched->peers.gone(number, "it takes no data any more", now());
  if (fail(why)) spread();
  return input_error(why);
}

/// `more`: the rest of the frame follows. `by`: when it is given up, once the job has ended.
bool TcpMesh::write_bytes(const Peer& peer, const void* data, std::size_t bytes, bool more,
                          Deadline by) const {
  const auto* at = static_cast<const std::byte*>(data);
  while (bytes > 0) {
    const ssize_t sent =
        send(peer.socket.number(), at, bytes, MSG_NOSIGNAL | (more ? MSG_MORE : 0));
    if (sent > 0) {
      at += sent;
      bytes -= static_cast<std::size_t>(sent);
      continue;
    }
    if (errno == EINTR) continue;
    if (errno != EAGAIN) return false;
    // Once the job has ended a frame that was begun becomes whole, or not in time.
    if (x_failed && milliseconds_until(by) == 0) return false;
    pollfd writable = {peer.socket.number(), POLLOUT, 0};
    poll(&writable, 1, 100);
  }
  return true;
}

void TcpMesh::read_all() {
  std::vector<pollfd> looks(x_peers.size() + 1);
  std::chrono::steady_clock::time_point stopped{};
  while (true) {
    bool open = false;
    for (std::size_t r = 0; r < x_peers.size(); ++r) {
      looks[r] = {x_peers[r].closed ? -1 : x_peers[r].socket.number(), POLLIN, 0};
      open = open || !x_peers[r].closed;
    }
    looks.back() = {x_wake.number(), POLLIN, 0};
    const bool stop = x_stop;
    if (stop) {
      // What peers still say is read, so that they can read what was said to them.
      if (stopped.time_since_epoch().count() == 0) stopped = std::chrono::steady_clock::now();
      if (!open || !x_failed || seconds_since(stopped) > kLinger) return;
    }
    poll(looks.data(), looks.size(), x_failed || stop ? 50 : milliseconds_until(x_watched->next));
    eventfd_t ignored = 0;
    eventfd_read(x_wake.number(), &ignored);
    for (std::size_t r = 0; r < x_peers.size(); ++r) {
      if (looks[r].revents != 0) read_from(static_cast<std::int64_t>(r));
    }
    if (!stop && !x_failed && now() >= x_watched->next) look_at_lives(now());
    if (!stop && x_failed && x_ends_process > 0) look_at_end(now());
  }
}

void TcpMesh::look_at_end(Moment now) {
  const std::lock_guard lock(x_mutex);
  if (std::chrono::duration<double>(now - x_end.at).count() < x_ends_process) return;
  warn(x_end.reason.message);
  std::fflush(stderr);
  remove_temporaries();
  _exit(1);
}

/// Tells the others what this rank does, and finds out who says nothing.
void TcpMesh::look_at_lives(Moment now) {
  PeerWatch& peers = x_watched->peers;
  x_watched->next = now + peers.period();
  const OpsUnderWay::State state = ops().state();
  const Sign sign = own_sign(x_watched->life.look(state.changes, now), state);
  peers.told(x_rank, sign, now);
  const std::string text = text_of(sign);
  const Header header = {kFrameMagic, Kind::kAlive, sign.life, text.size()};
  const std::string frame =
      std::string(reinterpret_cast<const char*>(&header), sizeof header) + text;
  bool all_know = true;
  for (std::int64_t r = 0; r < size(); ++r) {
    Peer& peer = x_peers[static_cast<std::size_t>(r)];
    // Never waits: who writes to the peer now, or has written what it did not take yet, gives it a
    // sign of life as well.
    const std::unique_lock writing(peer.writing, std::try_to_lock);
    const bool free = writing.owns_lock();
    if (free && (peer.broken || peer.closed)) continue;
    if (!free || !has_taken_all(peer.socket)) {
      all_know = false;
      continue;
    }
    const ssize_t sent = send(peer.socket.number(), frame.data(), frame.size(), MSG_NOSIGNAL);
    peer.broken = sent >= 0 && static_cast<std::size_t>(sent) < frame.size();
  }
  // Who this is, all ranks learn soon.
  x_watched->known = x_watched->known || all_know;
  if (!x_watched->known) x_watched->next = now + std::chrono::milliseconds(10);
  const Verdict verdict = peers.verdict(now);
  if (verdict.why.empty()) return;
  // Nothing is read of it any more.
  if (verdict.silent >= 0) x_peers[static_cast<std::size_t>(verdict.silent)].closed = true;
  if (fail(verdict.why)) spread();
}

/// Reads what there is, some frames at most.
void TcpMesh::read_from(std::int64_t number) {
  Peer& peer = x_peers[static_cast<std::size_t>(number)];
  constexpr int kFrames = 16;
  for (int i = 0; i < kFrames && !peer.closed; ++i) {
    if (peer.payload > 0) {
      peer.header.kind == Kind::kData ? take_data(number) : take_payload(number);
      if (peer.payload > 0) return;
      continue;
    }
    auto* at = reinterpret_cast<std::byte*>(&peer.header) + peer.header_bytes;
    const ssize_t got = recv(peer.socket.number(), at, sizeof peer.header - peer.header_bytes, 0);
    if (!take(number, got)) return;
    peer.header_bytes += static_cast<std::size_t>(got);
    if (peer.header_bytes < sizeof peer.header) return;
    peer.header_bytes = 0;
    take_header(number);
  }
}

/// Whether anything came; notices that the peer is gone.
bool TcpMesh::take(std::int64_t number, ssize_t got) {
  if (got > 0) {
    x_watched->peers.heard(number, now());
    return true;
  }
  if (got < 0 && (errno == EAGAIN || errno == EINTR)) return false;
  Peer& peer = x_peers[static_cast<std::size_t>(number)];
  peer.closed = true;
  const std::string why = got == 0 ? "its connection closed" : strerror(errno);
  bool expected = false;
  {
    const std::lock_guard lock(x_mutex);
    expected = peer.bye;
  }
  if (!expected && fail(x_watched->peers.gone(number, why, now()))) spread();
  return false;
}

void TcpMesh::take_header(std::int64_t number) {
  Peer& peer = x_peers[static_cast<std::size_t>(number)];
  const Header& header = peer.header;
  const bool is_text = header.kind == Kind::kAbort || header.kind == Kind::kAlive;
  const bool has_payload = header.kind == Kind::kData || is_text;
  const std::size_t most = is_text ? kLongestReason : kFrameBytes;
  bool sound = header.magic == kFrameMagic && (!has_payload || header.bytes <= most);
  {
    const std::lock_guard lock(x_mutex);
    sound =
        sound && (x_lines.size() < kMostLines || x_lines.contains({number, header.tag}) || is_text);
    if (sound && header.kind < Kind::kAbort) {
      Line& line = x_lines[{number, header.tag}];
      if (header.kind == Kind::kSends) ++line.other_sends;
      if (header.kind == Kind::kReceives) ++line.other_receives;
      if (header.kind == Kind::kSignal) ++line.signals;
      if (header.kind == Kind::kData && !x_failed) {
        sound = !line.posted.empty() && header.bytes <= line.posted.front()->left;
      }
      if (sound && header.kind == Kind::kSends && line.other_sends <= line.receives) {
        const std::uint64_t behind = line.receives - line.other_sends;
        const std::size_t posted = line.posted.size();
        if (behind < posted) sound = line.posted[posted - 1 - behind]->left == header.bytes;
      }
    }
    if (header.kind == Kind::kBye) peer.bye = true;
    sound = sound && header.kind >= Kind::kSends && header.kind <= Kind::kAlive;
  }
  if (header.kind == Kind::kBye) x_watched->peers.left(number);
  x_changed.notify_all();
  if (!sound) {
    peer.closed = true;
    const std::string what = rank_name(number) + " sent what " + rank_name(x_rank) +
                             " does not expect: do all run the same RUN and version?";
    if (fail(what)) spread();
    return;
  }
  if (!has_payload) return;
  peer.payload = header.bytes;
  peer.text.clear();
  if (header.kind == Kind::kData && header.bytes == 0) take_data(number);
}

void TcpMesh::take_payload(std::int64_t number) {
  Peer& peer = x_peers[static_cast<std::size_t>(number)];
  std::array<char, 4096> text{};
  const ssize_t got =
      recv(peer.socket.number(), text.data(), std::min(text.size(), peer.payload), 0);
  if (!take(number, got)) return;
  peer.payload -= static_cast<std::size_t>(got);
  peer.text.append(text.data(), static_cast<std::size_t>(got));
  if (peer.payload > 0) return;
  if (peer.header.kind == Kind::kAlive) {
    Sign sign = read_sign(peer.text);
    sign.life = peer.header.tag;
    x_watched->peers.told(number, sign, now());
  }
  if (peer.header.kind == Kind::kAbort && fail(peer.text)) spread();
}

/// Into the memory of the receive that waits longest; nowhere once the job has ended.
void TcpMesh::take_data(std::int64_t number) {
  Peer& peer = x_peers[static_cast<std::size_t>(number)];
  Line* line = nullptr;
  Part* part = nullptr;
  {
    const std::lock_guard lock(x_mutex);
    line = &x_lines[{number, peer.header.tag}];
    if (!x_failed && !line->posted.empty()) part = x_filling = line->posted.front();
  }
  if (part == nullptr) return take_payload(number);
  if (peer.payload > 0) {
    const ssize_t got = recv(peer.socket.number(), part->at, peer.payload, 0);
    const bool some = take(number, got);
    if (some) {
      part->at += got;
      part->left -= static_cast<std::size_t>(got);
      peer.payload -= static_cast<std::size_t>(got);
    }
  }
  {
    const std::lock_guard lock(x_mutex);
    x_filling = nullptr;
    if (part->left == 0 && peer.payload == 0) {
      part->done = true;
      std::erase(line->posted, part);
    }
  }
  x_changed.notify_all();
}

}  // namespace foretrain
