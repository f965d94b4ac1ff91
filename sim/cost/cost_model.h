// The seam where prices plug in. The engine asks; `hardware/` answers; neither knows the other.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "sim/base/result.h"
#include "sim/base/units.h"
#include "sim/program/program.h"

namespace foretrain {

/// Where a price comes from. Reports give the share of the predicted time that rests on each.
enum class Provenance : std::uint8_t { kMeasured, kInterpolated, kAnalytic };
std::string_view name_of(Provenance provenance);

/// Ports of a rank that other ranks or other streams may use at the same moment. Both directions of
/// a link are separate ports. The host link (PCIe) carries copies to and from the host and what
/// goes to NICs on it.
enum class Port : std::uint8_t { kScaleUpOut, kScaleUpIn, kNicOut, kNicIn, kHostOut, kHostIn };
inline constexpr int kPortCount = 6;
constexpr bool is_outgoing(Port port) { return static_cast<int>(port) % 2 == 0; }

/// Shares are in 1/65536 of the resource.
inline constexpr std::int32_t kWhole = 1 << 16;

/// How much longer work takes beside a kernel that holds so many SMs and copies memory, measured.
struct Slowdown {
  std::int32_t sms = 0;           ///< 0: none
  std::int32_t factor = 0;        ///< in 1/65536; kWhole: as long as alone
  std::int32_t spin = 0;          ///< the same beside one that copies nothing; 0: not known
  std::int32_t memory_share = 0;  ///< that the copies took, in 1/65536; 0: not known
  bool operator==(const Slowdown&) const = default;
};
inline constexpr std::size_t kMostSlowdowns = 8;

/// What one work costs on one rank: times when alone, and how it takes part in sharing.
///
/// Local work (kernels) yields: beside communication that holds `h` of `S` SMs and a share `b` of
/// the memory bandwidth it takes
///     latency + max(rounds * ceil(tiles / (S - h)) * tile / c,  compute / c,  memory / (1 - b))
/// where `compute` is scaled by S / (S - h) for work that has no tiles, and c = 1 - clock_loss is
/// what the power that communication draws leaves of the clock. Where slowdowns f(h) were
/// measured it takes, instead,
///     duration * f(h)
/// with f linear between f(0) = 1 and what was measured, and on along the last two beyond. What was
/// measured beside SMs that copied a share B and beside SMs that only spun is taken between them by
/// min(1, b / B); where one of them is not known b is in it as far as what copied takes what
/// communication takes.
/// Communication holds: it keeps its SMs from launch to end, and is slowed only by others on its
/// ports: its rate is min(1, 1 / sum of shares) over the ports it uses, and so are copies. Left
/// out: communication slowed by compute; two kernels of one rank on two streams.
struct Cost {
  Time launch;    ///< host time to issue it
  Time captured;  ///< the same within a graph of some operations
  Time latency;   ///< device time that sharing does not stretch
  Time duration;  ///< device time when alone, latency included; > 0 unless the work is free by
                  ///< nature

  // Yielding work.
  std::int64_t tiles = 0;       ///< output tiles, 0 if not tiled
  Time tile;                    ///< time of one wave of tiles
  std::int32_t rounds = 1;      ///< so many times `tiles`, one after another
  Time compute;                 ///< arithmetic time of untiled work
  Time memory;                  ///< time bound by device memory
  std::int32_t clock_loss = 0;  ///< of arithmetic beside communication that holds SMs, in 1/65536
  std::array<Slowdown, kMostSlowdowns> slowdowns{};  ///< by SMs, rising; the rest is none

  // Holding work.
  std::int32_t sms_held = 0;
  std::int32_t memory_share = 0;                      ///< of device memory bandwidth, in 1/65536
  std::array<std::int32_t, kPortCount> port_share{};  ///< in 1/65536 of each port
  bool uses_ports() const {
    for (const std::int32_t share : port_share) {
      if (share > 0 && duration.ps > 0) return true;
    }
    return false;
  }
  bool waits_idle = false;  ///< holds SMs and memory only once its partners are there (not NCCL)

  Provenance provenance = Provenance::kAnalytic;
  float deviation = 0;  ///< one standard deviation of the price, relative
  bool operator==(const Cost&) const = default;
};

/// Host time to issue an operation of this cost.
inline Time launch_of(const Op& op, const Cost& cost) {
  return op.captured ? cost.captured : cost.launch;
}

/// How a group (or a pair) lies on the machine, as far as prices can tell; equal ids, equal prices.
using PlacementId = Id<struct PlacementTag>;

class CostModel {
 public:
  virtual ~CostModel() = default;

  /// SMs of a device.
  virtual int sm_count() const = 0;

  /// The model of local work on that rank, and of its SMs. Where devices are of several kinds there
  /// is one for each; it lives as long as this.
  virtual const CostModel& on(RankId) const { return *this; }

  /// Classifies a group of ranks; a pair {source, destination} for a message. Called while
  /// preparing; interns, so not const.
  virtual Result<PlacementId> place(std::span<const RankId> ranks) = 0;

  /// Prices work. `placements` holds the placement of a collective's group, of each message of a
  /// P2PBatch in order, and is empty for local work. Unsupported work is an error: never a silent
  /// zero.
  virtual Result<Cost> price(const Work& work, std::span<const PlacementId> placements) const = 0;

  /// How that price came about, a line per step.
  virtual std::string explain(const Work& work, std::span<const PlacementId> placements) const = 0;

  /// The identity of a rank's port among the ports of that kind and direction: ranks that share a
  /// NIC name the same one.
  virtual std::int32_t port_of(RankId rank, Port port) const = 0;
};

/// Duration of yielding work beside communication that holds `sms_held` SMs and
/// `memory_share`/65536 of the bandwidth, by the equation above. Equals `cost.duration` for 0, 0.
/// Integers only.
Time duration_beside(const Cost& cost, int sm_count, std::int32_t sms_held,
                     std::int32_t memory_share);

}  // namespace foretrain
