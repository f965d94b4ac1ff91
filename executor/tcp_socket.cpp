#include "executor/tcp_socket.h"

#include <fcntl.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <memory>

namespace foretrain {
namespace {

using Addresses = std::unique_ptr<addrinfo, decltype(&freeaddrinfo)>;
constexpr const char* kTaken = "taken by another program of this machine";

void set_flag(int number, int level, int name, int value) {
  setsockopt(number, level, name, &value, sizeof value);
}

/// Of a connection: no waiting for more to send, and a machine that vanished is noticed.
void set_up(int number) {
  fcntl(number, F_SETFL, fcntl(number, F_GETFL) | O_NONBLOCK);
  set_flag(number, IPPROTO_TCP, TCP_NODELAY, 1);
  set_flag(number, SOL_SOCKET, SO_KEEPALIVE, 1);
  set_flag(number, IPPROTO_TCP, TCP_KEEPIDLE, 30);
  set_flag(number, IPPROTO_TCP, TCP_KEEPINTVL, 10);
  set_flag(number, IPPROTO_TCP, TCP_KEEPCNT, 3);
  set_flag(number, IPPROTO_TCP, TCP_USER_TIMEOUT, 60'000);
}

Endpoint endpoint_of(const sockaddr_storage& address, socklen_t bytes) {
  std::array<char, 64> host{};
  std::array<char, 16> port{};
  if (getnameinfo(reinterpret_cast<const sockaddr*>(&address), bytes, host.data(), host.size(),
                  port.data(), port.size(), NI_NUMERICHOST | NI_NUMERICSERV) != 0) {
    return {};
  }
  std::string text = host.data();
  if (text.starts_with("::ffff:")) text.erase(0, 7);
  return {text, std::atoi(port.data())};
}

/// The message is kTaken where another socket listens there.
Status listen_with(const Socket& socket, const sockaddr* address, socklen_t bytes) {
  set_flag(socket.number(), SOL_SOCKET, SO_REUSEADDR, 1);
  if (bind(socket.number(), address, bytes) == 0 && listen(socket.number(), SOMAXCONN) == 0) {
    return ok_status();
  }
  return input_error(errno == EADDRINUSE ? kTaken : strerror(errno));
}

Result<Socket> socket_of(int family) {
  Socket out(socket(family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
  if (!out.open()) return input_error(std::string("no socket: ") + strerror(errno));
  return out;
}

Result<Socket> listen_on(int family, bool loopback, int port) {
  FT_ASSIGN(Socket out, socket_of(family));
  sockaddr_storage address{};
  socklen_t bytes = sizeof(sockaddr_in);
  if (family == AF_INET6) {
    set_flag(out.number(), IPPROTO_IPV6, IPV6_V6ONLY, 0);
    sockaddr_in6 six{};
    six.sin6_family = AF_INET6;
    six.sin6_addr = in6addr_any;
    six.sin6_port = htons(static_cast<std::uint16_t>(port));
    std::memcpy(&address, &six, sizeof six);
    bytes = sizeof six;
  } else {
    sockaddr_in four{};
    four.sin_family = AF_INET;
    four.sin_addr.s_addr = htonl(loopback ? INADDR_LOOPBACK : INADDR_ANY);
    four.sin_port = htons(static_cast<std::uint16_t>(port));
    std::memcpy(&address, &four, sizeof four);
  }
  FT_TRY(listen_with(out, reinterpret_cast<const sockaddr*>(&address), bytes));
  return out;
}

}  // namespace

Deadline in_seconds(double seconds) {
  return std::chrono::steady_clock::now() +
         std::chrono::milliseconds(static_cast<std::int64_t>(1000 * seconds));
}

int milliseconds_until(Deadline deadline) {
  const auto left = deadline - std::chrono::steady_clock::now();
  const std::int64_t whole = left / std::chrono::milliseconds(1) + 1;
  return static_cast<int>(std::clamp<std::int64_t>(left.count() <= 0 ? 0 : whole, 0, 1000));
}

std::string rank_name(std::int64_t rank) { return "rank " + std::to_string(rank); }

Socket::~Socket() {
  if (x_number >= 0) close(x_number);
}

Endpoint own_end(const Socket& socket) {
  sockaddr_storage address{};
  socklen_t bytes = sizeof address;
  getsockname(socket.number(), reinterpret_cast<sockaddr*>(&address), &bytes);
  return endpoint_of(address, bytes);
}

Endpoint other_end(const Socket& socket) {
  sockaddr_storage address{};
  socklen_t bytes = sizeof address;
  getpeername(socket.number(), reinterpret_cast<sockaddr*>(&address), &bytes);
  return endpoint_of(address, bytes);
}

bool is_loopback(const std::string& host) {
  return host == "localhost" || host == "::1" || host.starts_with("127.");
}

Result<Socket> listen_at(bool loopback, int port) {
  if (!loopback) {
    Result<Socket> both = listen_on(AF_INET6, false, port);
    if (both.ok()) return both;
  }
  return listen_on(AF_INET, loopback, port);
}

Result<Socket> listen_for(const std::string& address, int port) {
  if (is_loopback(address)) return listen_at(true, port);
  addrinfo hints{};
  hints.ai_flags = AI_NUMERICHOST;
  hints.ai_socktype = SOCK_STREAM;
  addrinfo* found = nullptr;
  const int failed = getaddrinfo(address.c_str(), std::to_string(port).c_str(), &hints, &found);
  const Addresses addresses(found, &freeaddrinfo);
  if (failed == 0 && found != nullptr) {
    FT_ASSIGN(Socket out, socket_of(found->ai_family));
    const Status bound = listen_with(out, found->ai_addr, found->ai_addrlen);
    if (bound.ok()) return out;
    if (bound.error().message == kTaken) return bound.error();
  }
  return listen_at(false, port);
}

Tried connect_once(const std::string& host, int port, Socket& out, std::string& problem) {
  addrinfo hints{};
  // What listens at the loopback listens at 127.0.0.1.
  hints.ai_family = is_loopback(host) ? AF_INET : AF_UNSPEC;
  hints.ai_socktype = SOCK_STREAM;
  addrinfo* found = nullptr;
  const std::string name = is_loopback(host) ? "127.0.0.1" : host;
  const int failed = getaddrinfo(name.c_str(), std::to_string(port).c_str(), &hints, &found);
  const Addresses addresses(found, &freeaddrinfo);
  if (failed != 0) {
    problem = "the name cannot be resolved (" + std::string(gai_strerror(failed)) + ")";
    return failed == EAI_AGAIN ? Tried::kLater : Tried::kHopeless;
  }
  for (const addrinfo* one = found; one != nullptr; one = one->ai_next) {
    Socket socket(::socket(one->ai_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
    if (!socket.open()) continue;
    int error = 0;
    if (connect(socket.number(), one->ai_addr, one->ai_addrlen) != 0) {
      error = errno;
      pollfd wait = {socket.number(), POLLOUT, 0};
      if (error == EINPROGRESS) {
        socklen_t bytes = sizeof error;
        error = ETIMEDOUT;
        if (poll(&wait, 1, 5000) == 1) {
          getsockopt(socket.number(), SOL_SOCKET, SO_ERROR, &error, &bytes);
        }
      }
    }
    const Endpoint own = own_end(socket);
    const Endpoint other = error == 0 ? other_end(socket) : Endpoint{};
    // A free port of this machine can be connected to itself.
    if (error == 0 && own.host == other.host && own.port == other.port) error = ECONNREFUSED;
    if (error == 0) {
      set_up(socket.number());
      out = std::move(socket);
      return Tried::kReached;
    }
    problem = strerror(error);
  }
  return Tried::kLater;
}

Socket accept_one(const Socket& listener) {
  Socket out(accept4(listener.number(), nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC));
  if (out.open()) set_up(out.number());
  return out;
}

Status send_all(const Socket& socket, const void* data, std::size_t bytes, Deadline deadline) {
  const auto* at = static_cast<const std::byte*>(data);
  while (bytes > 0) {
    const ssize_t sent = send(socket.number(), at, bytes, MSG_NOSIGNAL);
    if (sent > 0) {
      at += sent;
      bytes -= static_cast<std::size_t>(sent);
      continue;
    }
    if (errno == EINTR) continue;
    if (errno != EAGAIN) return input_error(strerror(errno));
    const int wait = milliseconds_until(deadline);
    if (wait == 0) return input_error("timeout");
    pollfd writable = {socket.number(), POLLOUT, 0};
    poll(&writable, 1, wait);
  }
  return ok_status();
}

Status receive_all(const Socket& socket, void* data, std::size_t bytes, Deadline deadline) {
  auto* at = static_cast<std::byte*>(data);
  while (bytes > 0) {
    const ssize_t got = recv(socket.number(), at, bytes, 0);
    if (got == 0) return input_error("closed");
    if (got > 0) {
      at += got;
      bytes -= static_cast<std::size_t>(got);
      continue;
    }
    if (errno == EINTR) continue;
    if (errno != EAGAIN) return input_error(errno == ECONNRESET ? "closed" : strerror(errno));
    const int wait = milliseconds_until(deadline);
    if (wait == 0) return input_error("timeout");
    pollfd readable = {socket.number(), POLLIN, 0};
    poll(&readable, 1, wait);
  }
  return ok_status();
}

}  // namespace foretrain
