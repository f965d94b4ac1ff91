#include "executor/tcp_transport.h"

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <string_view>

#include "sim/base/check.h"

namespace foretrain {
namespace {

/// Seconds that a process may go on for after its job was ended: it may wait for a device.
constexpr double kEndsProcess = 3;

enum class Space : std::uint64_t { kControl, kGroup, kChannel };

/// Elements of a part of `count` among `n`: as equal as can be, the first ones larger.
struct Range {
  std::size_t begin = 0, count = 0;
};
Range range_of(std::size_t count, std::size_t n, std::size_t part) {
  const std::size_t each = count / n;
  const std::size_t rest = count % n;
  return {each * part + std::min(part, rest), each + (part < rest ? 1 : 0)};
}

std::vector<Range> equal_parts(std::size_t members, const CollectiveCall& call) {
  std::vector<Range> out(members);
  for (std::size_t m = 0; m < members; ++m) {
    out[m] = range_of(static_cast<std::size_t>(call.count), members, m);
  }
  return out;
}

template <typename T>
void combine(bool maximum, std::size_t count, const std::byte* from, std::byte* to) {
  const T* in = reinterpret_cast<const T*>(from);
  T* out = reinterpret_cast<T*>(to);
  for (std::size_t i = 0; i < count; ++i)
    out[i] = maximum ? std::max(out[i], in[i]) : out[i] + in[i];
}

void combine(const CollectiveCall& call, std::size_t count, const std::byte* from, std::byte* to) {
  call.doubles ? combine<double>(call.maximum, count, from, to)
               : combine<float>(call.maximum, count, from, to);
}

class TcpTransport : public Transport {
 public:
  TcpTransport(const Workload& workload, std::shared_ptr<TcpMesh> mesh)
      : x_workload(workload), x_mesh(std::move(mesh)), x_user(x_mesh->next_user()) {}

  Status collective(RankId self, GroupId group, const CollectiveCall& call,
                    Arrival* there) override {
    const Members members = members_of(self, group);
    FT_TRY(meet(members));
    if (there != nullptr) *there = there_now();
    const std::size_t bytes = static_cast<std::size_t>(call.count) * call.element();
    if (bytes == 0) return ok_status();
    switch (call.kind) {
      case CollectiveKind::kAllReduce:
        return all_reduce(members, call);
      case CollectiveKind::kAllGather:
        return all_gather(members, call, bytes / members.size());
      case CollectiveKind::kReduceScatter:
        return reduce_scatter(members, call);
      case CollectiveKind::kBroadcast:
        return broadcast(members, call, bytes);
      case CollectiveKind::kReduce:
        return reduce(members, call, bytes);
      case CollectiveKind::kAllToAll:
        return all_to_all(members, call, bytes / members.size());
    }
    return ok_status();
  }

  Status exchange(RankId self, std::span<const MessageCall> messages, Arrival* there) override {
    std::vector<TcpTransfer> transfers;
    for (const MessageCall& m : messages) {
      const Channel& channel = x_workload.channels[m.channel.index()];
      FT_CHECK((m.send ? channel.source : channel.destination) == self,
               "a rank uses a channel that it is no end of");
      const RankId partner = m.send ? channel.destination : channel.source;
      transfers.push_back({partner.value, tag(Space::kChannel, m.channel.index()), m.send, m.data,
                           static_cast<std::size_t>(m.bytes)});
    }
    return x_mesh->transfer(transfers, there);
  }

  Status barrier(RankId self) override { return meet(all(self)); }

  Result<std::vector<std::vector<std::int64_t>>> gather(
      RankId self, const std::vector<std::int64_t>& values) override {
    constexpr std::int64_t kMost = std::int64_t{1} << 31;
    const Members members = all(self);
    auto own = static_cast<std::int64_t>(values.size());
    std::vector<std::vector<std::int64_t>> out;
    if (self.value != 0) {
      const TcpTransfer sends[] = {
          to(members, 0, &own, sizeof own),
          to(members, 0, values.data(), values.size() * sizeof(std::int64_t))};
      FT_TRY(x_mesh->transfer({sends, values.empty() ? 1U : 2U}));
      return out;
    }
    std::vector<std::int64_t> counts(members.size());
    std::vector<TcpTransfer> receives;
    for (std::size_t m = 1; m < members.size(); ++m) {
      receives.push_back(from(members, m, &counts[m], sizeof counts[m]));
    }
    FT_TRY(x_mesh->transfer(receives));
    receives.clear();
    out.resize(members.size());
    out[0] = values;
    for (std::size_t m = 1; m < members.size(); ++m) {
      if (counts[m] < 0 || counts[m] > kMost) {
        return input_error("rank " + std::to_string(m) + " sent " + std::to_string(counts[m]) +
                           " values, more than can be");
      }
      out[m].resize(static_cast<std::size_t>(counts[m]));
      if (counts[m] == 0) continue;
      receives.push_back(from(members, m, out[m].data(), out[m].size() * sizeof(std::int64_t)));
    }
    FT_TRY(x_mesh->transfer(receives));
    return out;
  }

  Status broadcast(RankId self, std::vector<std::int64_t>& values) override {
    CollectiveCall call;
    call.send = call.receive = values.data();
    return broadcast(all(self), call, values.size() * sizeof(std::int64_t));
  }

  void abort(const std::string& reason) noexcept override { x_mesh->abort(reason); }
  OpsUnderWay* ops(RankId) override { return &x_mesh->ops(); }
  bool ranks_are_processes() const override { return true; }

 private:
  /// A group as this rank sees it.
  struct Members {
    std::vector<RankId> ranks;
    std::size_t place = 0;
    std::uint64_t tag = 0;
    std::size_t size() const { return ranks.size(); }
  };

  std::uint64_t tag(Space space, std::size_t number) const {
    return x_user << 44 | static_cast<std::uint64_t>(space) << 40 | number;
  }

  Members members_of(RankId self, GroupId group) const {
    Members out{x_workload.groups[group.index()], 0, tag(Space::kGroup, group.index())};
    const auto at = std::find(out.ranks.begin(), out.ranks.end(), self);
    FT_CHECK(at != out.ranks.end(), "a rank uses a group that it is no member of");
    out.place = static_cast<std::size_t>(at - out.ranks.begin());
    return out;
  }

  Members all(RankId self) const {
    Members out{{}, self.index(), tag(Space::kControl, 0)};
    for (std::int64_t r = 0; r < x_mesh->size(); ++r) {
      out.ranks.emplace_back(static_cast<std::size_t>(r));
    }
    return out;
  }

  static TcpTransfer to(const Members& members, std::size_t m, const void* data,
                        std::size_t bytes) {
    return {members.ranks[m].value, members.tag, true, const_cast<void*>(data), bytes};
  }
  static TcpTransfer from(const Members& members, std::size_t m, void* data, std::size_t bytes) {
    return {members.ranks[m].value, members.tag, false, data, bytes};
  }

  /// Returns when all are there: the first hears of everybody, and tells them.
  Status meet(const Members& members) {
    const std::int64_t first = members.ranks[0].value;
    if (members.place > 0) {
      FT_TRY(x_mesh->signal(first, members.tag));
      return x_mesh->await(first, members.tag);
    }
    for (std::size_t m = 1; m < members.size(); ++m) {
      FT_TRY(x_mesh->await(members.ranks[m].value, members.tag));
    }
    for (std::size_t m = 1; m < members.size(); ++m) {
      FT_TRY(x_mesh->signal(members.ranks[m].value, members.tag));
    }
    return ok_status();
  }

  /// The sum of a part, whose owner this rank is: `parts` says which part each member owns.
  Status reduce_part(const Members& members, const CollectiveCall& call,
                     const std::vector<Range>& parts, std::vector<std::byte>& sum) {
    const std::size_t element = call.element();
    const auto* send = static_cast<const std::byte*>(call.send);
    const Range own = parts[members.place];
    const std::size_t bytes = own.count * element;
    std::vector<std::byte> others(bytes * members.size());
    std::vector<TcpTransfer> transfers;
    for (std::size_t m = 0; m < members.size(); ++m) {
      if (m == members.place) continue;
      const Range part = parts[m];
      if (part.count > 0) {
        transfers.push_back(to(members, m, send + part.begin * element, part.count * element));
      }
      if (bytes > 0) transfers.push_back(from(members, m, others.data() + m * bytes, bytes));
    }
    FT_TRY(x_mesh->transfer(transfers));
    if (bytes == 0) return ok_status();
    std::memcpy(others.data() + members.place * bytes, send + own.begin * element, bytes);
    sum.assign(others.begin(), others.begin() + static_cast<std::ptrdiff_t>(bytes));
    for (std::size_t m = 1; m < members.size(); ++m) {
      combine(call, own.count, others.data() + m * bytes, sum.data());
    }
    return ok_status();
  }

  Status all_reduce(const Members& members, const CollectiveCall& call) {
    const std::vector<Range> parts = equal_parts(members.size(), call);
    const std::size_t element = call.element();
    std::vector<std::byte> sum;
    FT_TRY(reduce_part(members, call, parts, sum));
    auto* out = static_cast<std::byte*>(call.receive);
    if (!sum.empty()) {
      std::memcpy(out + parts[members.place].begin * element, sum.data(), sum.size());
    }
    std::vector<TcpTransfer> transfers;
    for (std::size_t m = 0; m < members.size(); ++m) {
      if (m == members.place) continue;
      const Range part = parts[m];
      if (!sum.empty()) transfers.push_back(to(members, m, sum.data(), sum.size()));
      if (part.count > 0) {
        transfers.push_back(from(members, m, out + part.begin * element, part.count * element));
      }
    }
    return x_mesh->transfer(transfers);
  }

  Status all_gather(const Members& members, const CollectiveCall& call, std::size_t part) {
    auto* out = static_cast<std::byte*>(call.receive);
    std::byte* own = out + members.place * part;
    if (own != call.send) std::memmove(own, call.send, part);
    std::vector<TcpTransfer> transfers;
    for (std::size_t m = 0; m < members.size(); ++m) {
      if (m == members.place) continue;
      transfers.push_back(to(members, m, own, part));
      transfers.push_back(from(members, m, out + m * part, part));
    }
    return x_mesh->transfer(transfers);
  }

  Status reduce_scatter(const Members& members, const CollectiveCall& call) {
    std::vector<std::byte> sum;
    FT_TRY(reduce_part(members, call, equal_parts(members.size(), call), sum));
    std::memcpy(call.receive, sum.data(), sum.size());
    return ok_status();
  }

  Status reduce(const Members& members, const CollectiveCall& call, std::size_t bytes) {
    const auto root = static_cast<std::size_t>(call.root);
    std::vector<Range> parts(members.size());
    parts[root] = {0, static_cast<std::size_t>(call.count)};
    std::vector<std::byte> sum;
    FT_TRY(reduce_part(members, call, parts, sum));
    if (members.place == root) std::memcpy(call.receive, sum.data(), bytes);
    return ok_status();
  }

  Status broadcast(const Members& members, const CollectiveCall& call, std::size_t bytes) {
    const auto root = static_cast<std::size_t>(call.root);
    if (bytes == 0) return ok_status();
    if (members.place != root) {
      const TcpTransfer receive = from(members, root, call.receive, bytes);
      return x_mesh->transfer({&receive, 1});
    }
    std::vector<TcpTransfer> transfers;
    for (std::size_t m = 0; m < members.size(); ++m) {
      if (m != root) transfers.push_back(to(members, m, call.send, bytes));
    }
    FT_TRY(x_mesh->transfer(transfers));
    // In place the root only reads, and other work of it may read beside.
    if (call.send != call.receive) std::memmove(call.receive, call.send, bytes);
    return ok_status();
  }

  /// What is sent may overlap what is received.
  Status all_to_all(const Members& members, const CollectiveCall& call, std::size_t part) {
    const auto* send = static_cast<const std::byte*>(call.send);
    std::vector<std::byte> received(part * members.size());
    std::vector<TcpTransfer> transfers;
    for (std::size_t m = 0; m < members.size(); ++m) {
      if (m == members.place) {
        std::memcpy(received.data() + m * part, send + m * part, part);
        continue;
      }
      transfers.push_back(to(members, m, send + m * part, part));
      transfers.push_back(from(members, m, received.data() + m * part, part));
    }
    FT_TRY(x_mesh->transfer(transfers));
    std::memcpy(call.receive, received.data(), received.size());
    return ok_status();
  }

  const Workload& x_workload;
  std::shared_ptr<TcpMesh> x_mesh;
  std::uint64_t x_user;
};

}  // namespace

std::unique_ptr<Transport> make_tcp_transport(const Workload& workload,
                                              std::shared_ptr<TcpMesh> mesh) {
  return std::make_unique<TcpTransport>(workload, std::move(mesh));
}

double join_seconds() {
  const char* const text = std::getenv("FORETRAIN_JOIN_SECONDS");
  const double seconds = text == nullptr ? 0 : std::atof(text);
  return seconds > 0 ? std::min(seconds, 1e6) : 300;
}

std::uint64_t sum_of(const Workload& workload) {
  std::uint64_t out = 1469598103934665603U;
  const auto add = [&out](std::size_t value) { out = (out ^ value) * 1099511628211U; };
  add(workload.ranks.size());
  for (const std::vector<RankId>& group : workload.groups) {
    add(group.size());
    for (const RankId rank : group) add(rank.index());
  }
  for (const Channel& channel : workload.channels) {
    add(channel.source.index());
    add(channel.destination.index());
  }
  for (const Program& program : workload.programs) {
    for (const Segment& segment : program.segments) add(segment.ops.size());
    for (const Call& call : program.calls) add(call.segment.index());
    for (const FrameLayout& layout : program.layouts) {
      for (const Buffer& buffer : layout.buffers) add(static_cast<std::size_t>(buffer.bytes()));
    }
  }
  return out;
}

Result<MpiWorld> join_tcp(const Workload& workload, const JobVariables& job, Silence silence) {
  // Another Workload goes through the connections of the first.
  static std::weak_ptr<TcpMesh> joined;
  if (!job.problem.empty()) return input_error("the variables of this job: " + job.problem);
  if (job.size != static_cast<std::int64_t>(workload.ranks.size())) {
    return input_error("the run has " + std::to_string(workload.ranks.size()) + " ranks, " +
                       job.size_name + " is " + std::to_string(job.size));
  }
  std::shared_ptr<TcpMesh> mesh = joined.lock();
  if (mesh == nullptr) {
    TcpJob tcp;
    tcp.rank = job.rank;
    tcp.size = job.size;
    tcp.address = job.address;
    tcp.port = job.port;
    tcp.workload = sum_of(workload);
    tcp.seconds = join_seconds();
    tcp.size_name = job.size_name;
    if (const char* listener = std::getenv(kListenerVariable); listener != nullptr) {
      if (job.rank == 0) tcp.listener = Socket(std::atoi(listener));
      unsetenv(kListenerVariable);
    }
    FT_ASSIGN(std::vector<Socket> ranks, meet_by_tcp(std::move(tcp)));
    mesh = std::make_shared<TcpMesh>(job.rank, std::move(ranks),
                                     silence.ends_process ? kEndsProcess : 0, silence);
    joined = mesh;
  }
  MpiWorld world;
  world.rank = RankId(static_cast<std::size_t>(job.rank));
  world.size = job.size;
  world.transport = make_tcp_transport(workload, mesh);
  world.finish = [mesh] { (void)mesh->finish(); };
  return world;
}

}  // namespace foretrain
