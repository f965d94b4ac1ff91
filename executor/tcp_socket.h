// Sockets that close themselves, and what a rendezvous does with them until a deadline.
#pragma once

#include <sys/socket.h>

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>

#include "sim/base/result.h"

namespace foretrain {

using Deadline = std::chrono::steady_clock::time_point;
Deadline in_seconds(double seconds);
/// For `poll`: 0 where the deadline is past, at most 1 s.
int milliseconds_until(Deadline deadline);

/// "rank 3".
std::string rank_name(std::int64_t rank);

class Socket {
 public:
  Socket() = default;
  explicit Socket(int number) : x_number(number) {}
  Socket(Socket&& other) noexcept : x_number(std::exchange(other.x_number, -1)) {}
  Socket& operator=(Socket&& other) noexcept {
    std::swap(x_number, other.x_number);
    return *this;
  }
  Socket(const Socket&) = delete;
  Socket& operator=(const Socket&) = delete;
  ~Socket();
  int number() const { return x_number; }
  bool open() const { return x_number >= 0; }

 private:
  int x_number = -1;
};

/// Where a socket is bound, or whom it is connected to: "10.0.0.2" or "fe80::1", and the port.
struct Endpoint {
  std::string host;
  int port = 0;
};
Endpoint own_end(const Socket& socket);
Endpoint other_end(const Socket& socket);

/// Whether a name or number means this machine's loopback: 127.0.0.1, ::1, localhost.
bool is_loopback(const std::string& host);

/// Listens at a port (0: a free one) of the loopback, or of every address of this machine.
Result<Socket> listen_at(bool loopback, int port);
/// Listens where those connect who are told this address: at a number that is this machine's own,
/// else (a name may mean something else elsewhere, a number may be forwarded) at every address.
Result<Socket> listen_for(const std::string& address, int port);

enum class Tried : std::uint8_t { kReached, kLater, kHopeless };
/// One try, of at most 5 s. `problem` says why not; kHopeless: another try would not help.
Tried connect_once(const std::string& host, int port, Socket& out, std::string& problem);

/// The next connection, or a closed Socket where none waits.
Socket accept_one(const Socket& listener);

/// All of the bytes, or why not: "closed", "timeout", or what the system says.
Status send_all(const Socket& socket, const void* data, std::size_t bytes, Deadline deadline);
Status receive_all(const Socket& socket, void* data, std::size_t bytes, Deadline deadline);

}  // namespace foretrain
