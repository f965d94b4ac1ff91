// Do ranks that TCP connects find each other, exchange what threads exchange, and say who is amiss?
#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <ifaddrs.h>
#include <netdb.h>

#include <array>
#include <atomic>
#include <cstring>
#include <functional>
#include <numeric>
#include <thread>

#include "executor/tcp_transport.h"
#include "tests/support/hand_workload.h"

namespace foretrain {
namespace {

/// Groups of 1 to n ranks, and two channels between every two, one each way.
Workload world_of(std::size_t ranks) {
  Workload out;
  out.ranks.resize(ranks);
  for (std::size_t size = 1; size <= ranks; ++size) {
    out.groups.emplace_back();
    // Not in the order of ranks.
    for (std::size_t r = 0; r < size; ++r) out.groups.back().emplace_back(ranks - 1 - r);
  }
  for (std::size_t a = 0; a < ranks; ++a) {
    for (std::size_t b = 0; b < ranks; ++b) {
      if (a == b) continue;
      out.channels.push_back(Channel{RankId(a), RankId(b), ChannelSlot(), ChannelSlot()});
    }
  }
  return out;
}

/// A port of the loopback that listens, for rank 0.
struct Meeting {
  Meeting() {
    Result<Socket> made = listen_at(true, 0);
    EXPECT_TRUE(made.ok());
    listener = std::move(made).value();
    port = own_end(listener).port;
  }
  TcpJob job(std::size_t rank, std::size_t size) {
    TcpJob out;
    out.rank = static_cast<std::int64_t>(rank);
    out.size = static_cast<std::int64_t>(size);
    out.address = "127.0.0.1";
    out.port = port;
    out.seconds = 20;
    if (rank == 0) out.listener = std::move(listener);
    return out;
  }
  Socket listener;
  int port = 0;
};

/// Every rank in a thread of its own.
void on_ranks(std::size_t ranks, const std::function<void(std::size_t)>& part) {
  std::vector<std::thread> threads;
  for (std::size_t r = 0; r < ranks; ++r) threads.emplace_back([&part, r] { part(r); });
  for (std::thread& thread : threads) thread.join();
}

/// Ranks with their transports; `part` gets its own rank.
void on_tcp(const Workload& workload, const std::function<void(RankId, Transport&)>& part,
            bool finishes = true) {
  Meeting meeting;
  std::vector<TcpJob> jobs;
  for (std::size_t r = 0; r < workload.ranks.size(); ++r) {
    jobs.push_back(meeting.job(r, workload.ranks.size()));
  }
  on_ranks(jobs.size(), [&](std::size_t r) {
    Result<std::vector<Socket>> sockets = meet_by_tcp(std::move(jobs[r]));
    ASSERT_TRUE(sockets.ok()) << sockets.error().message;
    const auto mesh =
        std::make_shared<TcpMesh>(static_cast<std::int64_t>(r), std::move(sockets).value(), 0);
    const auto transport = make_tcp_transport(workload, mesh);
    part(RankId(r), *transport);
    const bool finished = finishes && mesh->finish().ok();
    EXPECT_EQ(finished, finishes);
  });
}

void on_threads(const Workload& workload, const std::function<void(RankId, Transport&)>& part) {
  const auto transport = make_thread_transport(workload);
  on_ranks(workload.ranks.size(), [&](std::size_t r) { part(RankId(r), *transport); });
}

/// Numbers that differ by rank and place, and whose sums depend on their order.
template <typename T>
std::vector<T> numbers(std::size_t count, std::size_t rank) {
  std::vector<T> out(count);
  for (std::size_t i = 0; i < count; ++i) {
    out[i] = static_cast<T>(1.0 / static_cast<double>(3 + (i * 7 + rank * 13) % 101)) -
             static_cast<T>(rank) / T{7};
  }
  return out;
}

/// What each rank has after every collective of a group, by kind, type, and in place or not.
template <typename T>
std::vector<std::vector<T>> collectives(const Workload& workload, GroupId group, bool tcp) {
  std::vector<std::vector<T>> out(workload.ranks.size());
  const std::size_t n = workload.groups[group.index()].size();
  const auto part = [&](RankId self, Transport& transport) {
    const auto& members = workload.groups[group.index()];
    const auto at = std::find(members.begin(), members.end(), self);
    if (at == members.end()) return;
    const auto place = static_cast<std::size_t>(at - members.begin());
    const std::size_t count = n * 5;
    for (const CollectiveKind kind :
         {CollectiveKind::kAllReduce, CollectiveKind::kAllGather, CollectiveKind::kReduceScatter,
          CollectiveKind::kBroadcast, CollectiveKind::kReduce, CollectiveKind::kAllToAll}) {
      for (const bool in_place : {false, true}) {
        CollectiveCall call;
        call.kind = kind;
        call.maximum = in_place && kind == CollectiveKind::kAllReduce;
        call.doubles = sizeof(T) == sizeof(double);
        // Of a sum the parts need not be equal.
        call.count =
            static_cast<std::int64_t>(count) + (kind == CollectiveKind::kAllReduce ? 1 : 0);
        call.root = static_cast<int>(n - 1);
        std::vector<T> send = numbers<T>(count + 1, self.index());
        std::vector<T> receive(count + 1, T{-5});
        const bool gathers = kind == CollectiveKind::kAllGather;
        if (in_place) receive = send;
        call.send = !in_place ? send.data() : receive.data() + (gathers ? place * 5 : 0);
        call.receive = receive.data();
        const Status done = transport.collective(self, group, call);
        EXPECT_TRUE(done.ok()) << done.error().message;
        out[self.index()].insert(out[self.index()].end(), receive.begin(), receive.end());
      }
    }
  };
  tcp ? on_tcp(workload, part) : on_threads(workload, part);
  return out;
}

TEST(Tcp, CollectivesAreThoseOfThreadsBitByBit) {
  for (const std::size_t ranks : {1U, 2U, 4U}) {
    const Workload workload = world_of(ranks);
    for (std::size_t g = 0; g < workload.groups.size(); ++g) {
      SCOPED_TRACE(std::to_string(g + 1) + " of " + std::to_string(ranks));
      EXPECT_EQ(collectives<float>(workload, GroupId(g), true),
                collectives<float>(workload, GroupId(g), false));
      EXPECT_EQ(collectives<double>(workload, GroupId(g), true),
                collectives<double>(workload, GroupId(g), false));
    }
  }
}

// Some are larger than what a connection holds, so that nobody could send all before receiving.
TEST(Tcp, MessagesOfAllChannelsProgressTogether) {
  const Workload workload = world_of(3);
  on_tcp(workload, [&](RankId self, Transport& transport) {
    for (int round = 0; round < 3; ++round) {
      std::vector<std::vector<std::int64_t>> arrays;
      std::vector<MessageCall> calls;
      arrays.reserve(workload.channels.size());
      for (std::size_t c = 0; c < workload.channels.size(); ++c) {
        const Channel& channel = workload.channels[c];
        if (channel.source != self && channel.destination != self) continue;
        const bool send = channel.source == self;
        // None, a few, and 4 MiB and a bit.
        const std::size_t count = c % 3 == 0 ? 0 : c % 3 == 1 ? 5 : (1 << 19) + 3;
        arrays.emplace_back(count, send ? static_cast<std::int64_t>(100 * c) + round : -1);
        calls.push_back({send, ChannelId(c), static_cast<Bytes>(count * sizeof(std::int64_t)),
                         arrays.back().data()});
      }
      Arrival there;
      const Status done = transport.exchange(self, calls, &there);
      ASSERT_TRUE(done.ok()) << done.error().message;
      EXPECT_TRUE(there.has_value());
      for (std::size_t i = 0; i < calls.size(); ++i) {
        const auto expected = static_cast<std::int64_t>(100 * calls[i].channel.index()) + round;
        EXPECT_EQ(std::count(arrays[i].begin(), arrays[i].end(), expected),
                  static_cast<std::ptrdiff_t>(arrays[i].size()));
      }
    }
  });
}

// As streams do: groups and channels at the same time, each in its own order.
TEST(Tcp, ThreadsOfOneRankDoNotMixUp) {
  Workload workload = world_of(2);
  workload.groups.push_back(workload.groups.back());
  workload.groups.push_back(workload.groups.back());
  on_tcp(workload, [&](RankId self, Transport& transport) {
    std::vector<std::thread> streams;
    for (std::size_t g = 1; g < workload.groups.size(); ++g) {
      streams.emplace_back([&, g] {
        for (int i = 0; i < 100; ++i) {
          std::vector<float> values(1 + g * 10, static_cast<float>(i + 1));
          CollectiveCall call;
          call.count = static_cast<std::int64_t>(values.size());
          call.send = call.receive = values.data();
          ASSERT_TRUE(transport.collective(self, GroupId(g), call).ok());
          ASSERT_EQ(values, std::vector<float>(values.size(), static_cast<float>(2 * i + 2)));
        }
      });
    }
    for (std::size_t c = 0; c < workload.channels.size(); ++c) {
      streams.emplace_back([&, c] {
        const bool send = workload.channels[c].source == self;
        for (std::int64_t i = 0; i < 100; ++i) {
          std::int64_t value = send ? i + static_cast<std::int64_t>(1000 * c) : -1;
          const MessageCall call = {send, ChannelId(c), sizeof value, &value};
          ASSERT_TRUE(transport.exchange(self, {&call, 1}).ok());
          ASSERT_EQ(value, i + static_cast<std::int64_t>(1000 * c));
        }
      });
    }
    for (std::thread& stream : streams) stream.join();
  });
}

TEST(Tcp, GatherBroadcastBarrier) {
  const Workload workload = world_of(3);
  std::atomic<int> arrived{0};
  on_tcp(workload, [&](RankId self, Transport& transport) {
    EXPECT_TRUE(transport.ranks_are_processes());
    ++arrived;
    ASSERT_TRUE(transport.barrier(self).ok());
    EXPECT_EQ(arrived, 3);
    // Rank 1 gives nothing.
    std::vector<std::int64_t> own(self.value == 1 ? 0 : self.index() + 1, 7 * self.value);
    const auto all = transport.gather(self, own);
    ASSERT_TRUE(all.ok());
    std::vector<std::vector<std::int64_t>> expected;
    if (self.value == 0) expected = {{0}, {}, {14, 14, 14}};
    EXPECT_EQ(all.value(), expected);
    std::vector<std::int64_t> said(3, self.value == 0 ? 42 : 0);
    ASSERT_TRUE(transport.broadcast(self, said).ok());
    EXPECT_EQ(said, (std::vector<std::int64_t>{42, 42, 42}));
  });
}

TEST(Tcp, AnAbortEndsEveryCallOfEveryRank) {
  const Workload workload = world_of(3);
  on_tcp(
      workload,
      [&](RankId self, Transport& transport) {
        if (self.value == 2) {
          transport.abort("the disk is full");
        }
        const Status waits = transport.barrier(self);
        ASSERT_FALSE(waits.ok());
        EXPECT_EQ(waits.error().message, "rank 2: the disk is full");
        std::int64_t value = 0;
        for (std::size_t c = 0; c < workload.channels.size(); ++c) {
          const Channel& channel = workload.channels[c];
          if (channel.source != self && channel.destination != self) continue;
          const MessageCall call = {channel.source == self, ChannelId(c), sizeof value, &value};
          EXPECT_FALSE(transport.exchange(self, {&call, 1}).ok());
        }
      },
      false);
}

// Peers that take no data, however many, hold the end up for no longer than one would.
TEST(Tcp, PeersThatDoNotListenHoldUpAnAbortOnce) {
  constexpr std::size_t kPeers = 3;
  std::vector<Socket> ranks(kPeers + 1);
  std::vector<Socket> others;
  for (std::size_t r = 1; r <= kPeers; ++r) {
    std::array<int, 2> ends{};
    ASSERT_EQ(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, ends.data()), 0);
    ranks[r] = Socket(ends[0]);
    others.emplace_back(ends[1]);
    const std::vector<char> noise(1 << 16, 'x');
    while (send(ends[0], noise.data(), noise.size(), 0) > 0) {
    }
  }
  TcpMesh mesh(0, std::move(ranks), 0);
  const auto begin = std::chrono::steady_clock::now();
  mesh.abort("the disk is full");
  EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(3));
  others.clear();
}

// Who goes without a word is named by all that wait.
TEST(Tcp, ARankThatDiesIsNamed) {
  Meeting meeting;
  std::vector<TcpJob> jobs;
  for (std::size_t r = 0; r < 3; ++r) jobs.push_back(meeting.job(r, 3));
  const Workload workload = world_of(3);
  on_ranks(3, [&](std::size_t r) {
    Result<std::vector<Socket>> sockets = meet_by_tcp(std::move(jobs[r]));
    ASSERT_TRUE(sockets.ok()) << sockets.error().message;
    if (r == 1) return;  // its sockets close, as those of a process that was killed
    const auto mesh =
        std::make_shared<TcpMesh>(static_cast<std::int64_t>(r), std::move(sockets).value(), 0);
    const auto transport = make_tcp_transport(workload, mesh);
    const Status waits = transport->barrier(RankId(r));
    ASSERT_FALSE(waits.ok());
    EXPECT_TRUE(waits.error().message.starts_with("rank 1 is gone")) << waits.error().message;
  });
}

/// Bytes that a frame of data of no sound length begins with, and such that make no frame.
std::vector<std::string> hostile_bytes() {
  std::string huge(24, '\0');
  const std::uint32_t head[] = {0x46544d31, 3};
  const std::uint64_t tail[] = {0, ~std::uint64_t{0}};
  std::memcpy(huge.data(), head, sizeof head);
  std::memcpy(huge.data() + sizeof head, tail, sizeof tail);
  std::string unasked = huge;
  unasked[16] = 8;
  std::memset(unasked.data() + 17, 0, 7);
  return {huge, unasked, std::string(64, 'x')};
}

TEST(Tcp, WhatNobodyAskedForEndsTheJob) {
  for (const std::string& bytes : hostile_bytes()) {
    Meeting meeting;
    std::vector<TcpJob> jobs;
    for (std::size_t r = 0; r < 2; ++r) jobs.push_back(meeting.job(r, 2));
    const Workload workload = world_of(2);
    on_ranks(2, [&](std::size_t r) {
      Result<std::vector<Socket>> sockets = meet_by_tcp(std::move(jobs[r]));
      ASSERT_TRUE(sockets.ok()) << sockets.error().message;
      if (r == 1) {
        ASSERT_TRUE(send_all(sockets.value()[0], bytes.data(), bytes.size(), in_seconds(5)).ok());
        char last = 0;  // until the other end closes
        while (receive_all(sockets.value()[0], &last, 1, in_seconds(10)).ok()) {
        }
        return;
      }
      const auto mesh = std::make_shared<TcpMesh>(0, std::move(sockets).value(), 0);
      const Status waits = make_tcp_transport(workload, mesh)->barrier(RankId(0));
      ASSERT_FALSE(waits.ok());
      EXPECT_TRUE(waits.error().message.starts_with("rank 1 sent what rank 0 does not expect"))
          << waits.error().message;
    });
  }
}

/// What two ranks that differ are told.
std::vector<std::string> told(TcpJob first, TcpJob second) {
  std::vector<std::string> out(2);
  TcpJob* const jobs[] = {&first, &second};
  on_ranks(2, [&](std::size_t r) {
    const auto sockets = meet_by_tcp(std::move(*jobs[r]));
    out[r] = sockets.ok() ? "" : sockets.error().message;
  });
  return out;
}

void expect_both(const std::vector<std::string>& messages, const std::string& text) {
  for (const std::string& message : messages) {
    EXPECT_NE(message.find(text), std::string::npos) << text << " is not in: " << message;
  }
}

TEST(TcpRendezvous, RefusesByName) {
  // Rank 0 waits on for the right one.
  constexpr double kSeconds = 0.6;
  Meeting sizes;
  TcpJob one = sizes.job(0, 2);
  one.seconds = kSeconds;
  TcpJob other = sizes.job(1, 4);
  expect_both(told(std::move(one), std::move(other)), "with rank 1 has WORLD_SIZE 4, rank 0 has 2");
  Meeting runs;
  one = runs.job(0, 2);
  one.seconds = kSeconds;
  other = runs.job(1, 2);
  other.workload = 99;
  expect_both(told(std::move(one), std::move(other)), "with rank 1 runs something else");
  Meeting twins;
  one = twins.job(0, 3);
  one.seconds = kSeconds;
  std::vector<std::string> messages(3);
  on_ranks(3, [&](std::size_t r) {
    const auto sockets = meet_by_tcp(r == 0 ? std::move(one) : twins.job(1, 3));
    messages[r] = sockets.ok() ? "" : sockets.error().message;
  });
  expect_both(messages, "two processes have rank 1");
}

TEST(TcpRendezvous, SaysWhoIsMissing) {
  Meeting meeting;
  TcpJob one = meeting.job(0, 4);
  TcpJob other = meeting.job(2, 4);
  one.seconds = 1;
  expect_both(told(std::move(one), std::move(other)), "ranks 1, 3 of 4 did not come to 127.0.0.1:");
}

TEST(TcpRendezvous, SaysWhatIsWrongWithTheAddress) {
  Meeting meeting;
  TcpJob taken = meeting.job(1, 2);
  taken.rank = 0;
  taken.listener = Socket();
  const auto listens = meet_by_tcp(std::move(taken));
  ASSERT_FALSE(listens.ok());
  EXPECT_NE(listens.error().message.find("taken by another program"), std::string::npos);
  EXPECT_NE(listens.error().message.find("MASTER_PORT " + std::to_string(meeting.port)),
            std::string::npos);
  TcpJob nowhere = meeting.job(1, 2);
  nowhere.address = "no such host.invalid";
  nowhere.seconds = 0.1;
  const auto unknown = meet_by_tcp(std::move(nowhere));
  ASSERT_FALSE(unknown.ok());
  EXPECT_NE(unknown.error().message.find("cannot be resolved"), std::string::npos)
      << unknown.error().message;
  TcpJob alone = meeting.job(1, 2);
  meeting.listener = Socket();
  alone.seconds = 0.1;
  const auto late = meet_by_tcp(std::move(alone));
  ASSERT_FALSE(late.ok());
  EXPECT_NE(late.error().message.find("rank 1 cannot reach rank 0 at 127.0.0.1:"),
            std::string::npos)
      << late.error().message;
}

// Strangers that talk, say half a word, or nothing at all.
TEST(TcpRendezvous, StrangersDoNotDisturb) {
  Meeting meeting;
  TcpJob one = meeting.job(0, 2);
  std::vector<Socket> strangers(3);
  std::string problem;
  for (Socket& stranger : strangers) {
    ASSERT_EQ(connect_once("127.0.0.1", meeting.port, stranger, problem), Tried::kReached);
  }
  const std::string web = "GET / HTTP/1.1\r\nHost: here\r\nAccept: everything\r\n\r\n";
  ASSERT_TRUE(send_all(strangers[0], web.data(), web.size(), in_seconds(1)).ok());
  ASSERT_TRUE(send_all(strangers[1], "fore", 4, in_seconds(1)).ok());
  expect_both(told(std::move(one), meeting.job(1, 2)), "");
  char last = 0;
  EXPECT_FALSE(receive_all(strangers[0], &last, 1, in_seconds(1)).ok());
}

// One that greets rightly, as a rank of another job does, is refused by name; the right one may
// come after it.
TEST(TcpRendezvous, RanksOfAnotherJobDoNotDisturb) {
  Meeting meeting;
  TcpJob one = meeting.job(0, 2);
  TcpJob right = meeting.job(1, 2);
  TcpJob wrong = meeting.job(1, 2);
  wrong.workload = 99;
  std::vector<std::string> messages(2, "none");
  on_ranks(2, [&](std::size_t r) {
    if (r == 1) {
      const auto refused = meet_by_tcp(std::move(wrong));
      ASSERT_FALSE(refused.ok());
      EXPECT_NE(refused.error().message.find("rank 0 refuses: "), std::string::npos);
      EXPECT_NE(refused.error().message.find("runs something else"), std::string::npos);
    }
    const auto sockets = meet_by_tcp(std::move(r == 0 ? one : right));
    messages[r] = sockets.ok() ? "" : sockets.error().message;
  });
  EXPECT_EQ(messages, std::vector<std::string>(2));
}

/// An address of this machine that is none of the loopback, or "".
std::string own_address() {
  ifaddrs* all = nullptr;
  if (getifaddrs(&all) != 0) return "";
  std::string out;
  for (const ifaddrs* one = all; one != nullptr && out.empty(); one = one->ifa_next) {
    if (one->ifa_addr == nullptr || one->ifa_addr->sa_family != AF_INET) continue;
    std::array<char, 64> text{};
    getnameinfo(one->ifa_addr, sizeof(sockaddr_in), text.data(), text.size(), nullptr, 0,
                NI_NUMERICHOST);
    if (!is_loopback(text.data())) out = text.data();
  }
  freeifaddrs(all);
  return out;
}

TEST(TcpRendezvous, ListensWhereTheAddressPoints) {
  const auto end_of = [](const std::string& address) {
    const Result<Socket> made = listen_for(address, 0);
    EXPECT_TRUE(made.ok()) << address;
    return made.ok() ? own_end(made.value()).host : "";
  };
  EXPECT_EQ(end_of("localhost"), "127.0.0.1");
  EXPECT_EQ(end_of("127.0.1.1"), "127.0.0.1");
  const std::string everywhere = own_end(listen_at(false, 0).value()).host;
  // Of no machine (RFC 5737), and a name.
  EXPECT_EQ(end_of("192.0.2.1"), everywhere);
  EXPECT_EQ(end_of("node7"), everywhere);
  const std::string own = own_address();
  if (own.empty()) GTEST_SKIP() << "this machine has the loopback only";
  EXPECT_EQ(end_of(own), own);
  const Result<Socket> first = listen_for(own, 0);
  ASSERT_TRUE(first.ok());
  const Result<Socket> second = listen_for(own, own_end(first.value()).port);
  ASSERT_FALSE(second.ok());
  EXPECT_NE(second.error().message.find("taken"), std::string::npos);
}

// Who comes first waits for rank 0.
TEST(TcpRendezvous, Rank0MayComeLast) {
  Meeting meeting;
  const int port = meeting.port;
  meeting.listener = Socket();
  std::vector<std::string> messages(2, "none");
  on_ranks(2, [&](std::size_t r) {
    if (r == 0) std::this_thread::sleep_for(std::chrono::milliseconds(150));
    TcpJob job;
    job.rank = static_cast<std::int64_t>(r);
    job.size = 2;
    // As Debian names a machine to itself.
    job.address = r == 0 ? "localhost" : "127.0.1.1";
    job.port = port;
    job.seconds = 10;
    const auto sockets = meet_by_tcp(std::move(job));
    messages[r] = sockets.ok() ? "" : sockets.error().message;
  });
  EXPECT_EQ(messages, std::vector<std::string>(2));
}

TEST(TcpRendezvous, AnotherRunHasAnotherSum) {
  const Workload two = world_of(2);
  Workload other = two;
  EXPECT_EQ(sum_of(two), sum_of(other));
  other.groups.pop_back();
  EXPECT_NE(sum_of(two), sum_of(other));
  EXPECT_NE(sum_of(two), sum_of(world_of(3)));
}

}  // namespace
}  // namespace foretrain
