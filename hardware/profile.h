// A Profile: what was measured on one machine, and prices looked up in it.
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "sim/base/json.h"
#include "sim/cost/cost_model.h"

namespace foretrain {

/// States of a device that is limited by power and heat: after a pause, a few launches; and busy
/// for so long that its clock and the op's time drift no more, as within a training step.
inline constexpr const char* kBurst = "burst";
inline constexpr const char* kSustained = "sustained";

/// What a sample measures, the same for a work of any Program. Local work: alone on its rank while
/// `ranks` ranks do the same. Collectives: over `ranks` ranks.
struct SampleKey {
  std::string op;     ///< "gemm nt", "layer-norm", "all-reduce", ...: samples of one op interpolate
  std::string shape;  ///< exact: the text of the work without its groups and channels
  std::int64_t ranks = 1;
  std::string state = {};  ///< kBurst, kSustained; "": not told apart
  std::int32_t sms = 0;    ///< that a kernel held which copied memory beside it
  bool operator==(const SampleKey&) const = default;
  auto operator<=>(const SampleKey&) const = default;
};

/// m, n, k of a GEMM's shape, "gemm 64x64x64 nt ..."; none of another text.
std::optional<std::array<double, 3>> gemm_sizes(const std::string& shape);

/// Nothing for what takes no time of its own (host delays and synchronisation) and for what cannot
/// be measured (opaque work): an empty `op`. `ranks`: see SampleKey.
SampleKey sample_key(const Work& work, std::int64_t ranks);

/// FLOPs of GEMMs and attention, bytes of all else.
double sample_size(const Work& work);

/// What a machine ran at; what is not there was not readable.
struct MachineState {
  std::optional<double> clock_mhz;  ///< of the SMs; of the host the core that asked
  std::optional<double> power_w;    ///< of the whole board
  std::optional<double> temperature_c;
  bool operator==(const MachineState&) const = default;
};

struct Sample {
  SampleKey key;
  std::string dtype;
  std::string library;     ///< that multiplied matrices, as in the machine's `blas`; or ""
  double size = 0;         ///< FLOPs or bytes
  std::int64_t count = 0;  ///< operations that were timed
  double median_us = 0, p10_us = 0, p90_us = 0;
  double mean_us = 0;   ///< of what took at most three times the median; 0: not known
  bool clean = true;    ///< nobody else used the core meanwhile (CPU over wall time >= 0.98)
  std::string stopped;  ///< the rule that ended it: "spread", "time" or "drifting"
  MachineState ran_at;  ///< medians of what was read meanwhile
  /// Of a sample beside held SMs: what the op took without them, measured in turns; 0: not known.
  double alone_us = 0;
  /// What one of many takes: a step adds up means.
  double price_us() const { return mean_us > 0 ? mean_us : median_us; }
};

/// Names of samples that are no works: host time from the end of one op to the begin of the next on
/// a stream, and on another stream that waits for its event.
inline constexpr const char* kDispatchSample = "dispatch";
inline constexpr const char* kEventSample = "event";
/// Host time to queue an op, of devices.
inline constexpr const char* kLaunchSample = "launch";
/// Of devices, where the ops of a step are one CUDA graph: the gap of kDispatchSample, and host
/// time an op to capture, update and launch it, as `execute` does every step.
inline constexpr const char* kGraphDispatchSample = "graph-dispatch";
inline constexpr const char* kGraphLaunchSample = "graph-launch";

struct Profile {
  Json machine;  ///< device, cores, libraries, date, command
  std::map<SampleKey, Sample> samples;

  const Sample* find(const SampleKey& key) const;
  /// The sample that prices the op: of its states the sustained one, else the one that is not told
  /// apart, else the burst. Never one beside held SMs. Nothing where there is none.
  const Sample* priced_by(const SampleKey& key) const;
  void add(Sample sample) { samples[sample.key] = std::move(sample); }
  /// The member of `machine` of that name, or "".
  std::string about(const char* name) const;
};

/// Medians over the samples that have them.
MachineState median_state(const Profile& profile);
MachineState median_state(const std::vector<MachineState>& readings);

/// Writes what is known as members `clock_mhz`, `power_w`, `temperature_c`.
void write_state(const MachineState& state, Json& to);

Json to_json(const Profile& profile);
Result<Profile> read_profile(const Json& json, const std::string& source);

struct MeasuredPrice {
  double seconds = 0;
  Provenance provenance = Provenance::kMeasured;
  double deviation = 0;  ///< relative
  std::string from;      ///< which samples, for `explain`
};

/// Prices from a Profile. The sample of that shape; else between samples of the op:
///   GEMM       FLOPs over the rate r, ln r = sum w_i ln r_i / sum w_i over samples of that layout
///              and type of operands, w = 1 / (d^2 + 0.01), d the distance in (ln m, ln n, ln k)
///   all else   linear in ln t over ln size between the neighbours; above the largest by its rate,
///              below the smallest its time; attention of its type
/// else (kAnalytic) at the mean rate of its family: GEMMs and attention of a type, memory-bound
/// kernels, communication. A family without samples is an error. Products of another library than
/// the profile's machine names are no samples. Of samples with several `ranks` those nearest to
/// what is asked for (on devices, where the profile has a launch, all GEMMs, attention and kernels:
/// what a rank does alone on a device takes no longer where others do the same), of several states
/// those of `Profile::priced_by`.
class ProfileTable {
 public:
  explicit ProfileTable(Profile profile);

  Result<MeasuredPrice> price(const Work& work, std::int64_t ranks) const;
  /// Of samples that are no works; 0 where they were not measured.
  double overhead_seconds(const char* op, std::int64_t ranks) const;
  /// How much longer works of the family of `work` (GEMMs, attention, memory-bound kernels) take
  /// beside held SMs: for every number of SMs the geometric mean over the family's samples, never
  /// less than for fewer SMs. By SMs, at most kMostSlowdowns of them; empty where none is measured.
  struct Beside {
    std::int32_t sms = 0;
    double slowdown = 1;
    std::int64_t samples = 0;
  };
  const std::vector<Beside>& beside(const Work& work) const;

 private:
  using Samples = std::vector<const Sample*>;
  static MeasuredPrice between(const Samples& samples, double size);
  static MeasuredPrice gemm(const Samples& samples, const Gemm& work);
  static Samples nearest_ranks(const Samples& samples, std::int64_t ranks);
  Samples counting(const Work& work, const Samples& samples, std::int64_t ranks) const;
  void list_besides();

  Profile x_profile;
  bool x_of_device = false;                             ///< not of a host
  std::map<std::string, Samples> x_by_op;               ///< by size
  std::map<std::string, Samples> x_by_family;           ///< likewise
  std::map<std::string, std::vector<Beside>> x_beside;  ///< by family
};

/// Of devices: the price of `base` scaled to what was measured, and the measured host time of a
/// launch, with `graphs` that within CUDA graphs (`base`'s where it was not measured); beside
/// communication works take what was measured beside held SMs, where it was, else what `base` says.
/// Of a host rank: those of the table, and beside them what the executor needs to hand ops to
/// streams. A rank's streams share one core, so a collective that is under way leaves half of it to
/// kernels. What the profile has no samples for, placements, ports and host delays are `base`'s.
/// Left out: a collective that waits for its partners takes less than half, one beside kernels
/// takes longer.
std::unique_ptr<CostModel> make_measured_cost_model(std::unique_ptr<CostModel> base,
                                                    const Profile& profile,
                                                    std::int64_t ranks_at_once,
                                                    bool graphs = false);

}  // namespace foretrain
