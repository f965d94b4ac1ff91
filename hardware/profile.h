// A Profile: what was measured on one machine, and prices looked up in it.
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "hardware/residuals.h"
#include "sim/base/json.h"
#include "sim/cost/cost_model.h"

namespace foretrain {

/// States of a device that is limited by power and heat: after a pause, a few launches; and busy
/// for so long that its clock and the op's time drift no more, as within a training step.
inline constexpr const char* kBurst = "burst";
inline constexpr const char* kSustained = "sustained";

/// Who computes what a sample measures. The vendor's libraries (cuBLASLt, cuDNN, NCCL, copies) are
/// what frameworks call too; the kernels, launches and gaps of `execute` are its own; a framework's
/// kernels and launches are its own.
enum class Maker : std::uint8_t { kOwn, kVendor, kFramework };
std::string_view name_of(Maker maker);

/// What a run's prices stand for: what `execute` runs, or what a framework does.
enum class PricesFor : std::uint8_t { kExecution, kFramework };
/// Whether samples of that maker tell: the vendor's always, else those of who runs.
constexpr bool counts(Maker maker, PricesFor what) {
  return maker == Maker::kVendor ||
         maker == (what == PricesFor::kExecution ? Maker::kOwn : Maker::kFramework);
}

/// The states of samples of one shape, from the one that prices before the others.
inline constexpr std::array<const char*, 3> kStatesByWorth = {kSustained, "", kBurst};

/// What a sample measures, the same for a work of any Program. Local work: alone on its rank while
/// `ranks` ranks do the same. Collectives: over `ranks` ranks.
struct SampleKey {
  std::string op;     ///< "gemm nt", "layer-norm", "all-reduce", ...: samples of one op interpolate
  std::string shape;  ///< exact: the text of the work without its groups and channels
  std::int64_t ranks = 1;
  std::string state = {};  ///< kBurst, kSustained; "": not told apart
  std::int32_t sms = 0;    ///< that a kernel held beside it
  Maker by = Maker::kOwn;
  bool spin = false;  ///< that kernel did not copy memory meanwhile
  bool operator==(const SampleKey&) const = default;
  auto operator<=>(const SampleKey&) const = default;
};

/// m, n, k of a GEMM's shape, "gemm 64x64x64 nt ..."; none of another text.
std::optional<std::array<double, 3>> gemm_sizes(const std::string& shape);

/// `by` is that of who computes it in `execute`: the vendor for products, cuDNN's attention,
/// communication and copies. Nothing for what takes no time of its own (host delays and
/// synchronisation) and for what cannot be measured (opaque work): an empty `op`. `ranks`: see
/// SampleKey.
SampleKey sample_key(const Work& work, std::int64_t ranks);

/// FLOPs of GEMMs and attention, bytes of all else.
double sample_size(const Work& work);

/// What a machine ran at; what is not there was not readable.
struct MachineState {
  std::optional<double> clock_mhz;  ///< of the SMs; of the host the core that asked
  std::optional<double> power_w;    ///< of the whole board
  std::optional<double> temperature_c;
  std::uint64_t throttle = 0;  ///< NVML's bits of why the clock was held back; idle is none
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
  double beside_gb_per_s = 0;  ///< that the kernel on the held SMs moved; 0: not known
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
  /// Whether it was measured on an accelerator, not on the host's cores.
  bool of_device() const;
  void add(Sample sample) { samples[sample.key] = std::move(sample); }
  /// The member of `machine` of that name, or "".
  std::string about(const char* name) const;
};

/// Medians over the samples that have them; of throttling all that was seen.
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
  double explained = 1;  ///< share of the price's variance that samples explain
  std::string from;      ///< which samples, how far from the shape, with which weights
};

/// Prices from a Profile, as residuals on modelled ones. The sample of that shape, else
///     modelled time * exp(r)
/// with r between the samples of its family (products and attention of a type, memory-bound
/// kernels, copies, communication), as in residuals.h; far from all samples r is 0. Only samples
/// count of whom the prices are for (`counts`). Products of another library than the profile's
/// machine names are no samples. Of samples with several `ranks` those nearest to what is asked for
/// (on devices, for products, attention and kernels, all: what a rank does alone on a device takes
/// no longer where others do the same), of several states those of `Profile::priced_by`.
///
/// Provenance: measured of its own sample, interpolated where the samples explain at least half of
/// the variance, else analytic. Left out: what samples of one family say of another.
class ProfileTable {
 public:
  /// `modelled` must outlive it; none: shapes without samples of their own have no price.
  explicit ProfileTable(Profile profile, PricesFor what = PricesFor::kExecution,
                        CostModel* modelled = nullptr);

  /// The sample of that very shape; nothing where there is none.
  std::optional<MeasuredPrice> own(const Work& work, std::int64_t ranks) const;
  /// `modelled`: the model's price of the work, as this cluster would have it.
  MeasuredPrice corrected(const Work& work, std::int64_t ranks, const Cost& modelled) const;
  /// `own`, else `corrected` from the model's price of the work over ranks 0, 1, ...: an error
  /// where there is no model, or it refuses the work.
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
    double spin = 0;      ///< the same beside SMs that copy nothing; 0: not known
    double gb_per_s = 0;  ///< that was copied, in the mean; 0: not known
  };
  const std::vector<Beside>& beside(const Work& work) const;

 private:
  using Samples = std::vector<const Sample*>;
  struct Family {
    explicit Family(double apart) : residuals(apart) {}
    Residuals residuals;
    Samples samples;  ///< as `residuals` counts them
    std::int64_t most_ranks = 0;
  };
  static Samples nearest_ranks(const Samples& samples, std::int64_t ranks);
  /// Among samples of one shape the nearest `ranks`, then the state, then a framework's own.
  static const Sample& best(const Samples& samples, std::int64_t ranks);
  static double apart_in(const SampleKey& key);
  void learn(CostModel& modelled);
  ShapePoint point_of(const Work& work, std::int64_t ranks, const Cost& modelled) const;
  void learn_one(const Sample& sample, CostModel& modelled);
  void list_besides();

  Profile x_profile;
  CostModel* x_modelled;
  bool x_of_device = false;
  std::map<std::pair<std::string, std::string>, Samples> x_by_shape;  ///< op and shape
  std::map<std::string, Samples> x_overheads;
  std::map<std::string, Family> x_families;
  mutable std::map<std::string, std::int64_t> x_kinds;  ///< numbers of ops
  std::map<std::string, std::vector<Beside>> x_beside;  ///< by family
};

/// The model's price of a work over ranks 0, 1, ... of a cluster; an error where it refuses.
Result<Cost> modelled_cost(CostModel& model, const Work& work, std::int64_t ranks);
/// Its duration.
Result<double> modelled_seconds(CostModel& model, const Work& work, std::int64_t ranks);

/// How measured prices stand in for a model's.
struct MeasuredPricesOptions {
  PricesFor what = PricesFor::kFramework;
  std::int64_t ranks_at_once = 1;
  bool graphs = false;         ///< the ops of a step are CUDA graphs
  double memory_gb_per_s = 0;  ///< of the device; 0: not known
};

/// The prices of `base` with what was measured in their place (ProfileTable). `nominal` is the same
/// model without any change of rates ("what if"): a changed rate changes a measured price by as
/// much as it changes the modelled one; none: `base` has no change.
///
/// Of devices: times of `base` scaled to what was measured. Beside communication works take what
/// was measured beside held SMs, where it was, else what `base` says. A collective's sample counts
/// for groups that lie as ranks 0, 1, ... do. For `execute` also the measured gap between ops, and
/// the measured host time of a launch, with `graphs` that within CUDA graphs (`base`'s where it was
/// not measured). A work that `base` refuses is priced by its own sample, if there is one.
/// Of a host rank: those of the table, and beside them what the executor needs to hand ops to
/// streams. A rank's streams share one core, so a collective that is under way leaves half of it to
/// kernels. What the profile has no samples for, placements, ports and host delays are `base`'s.
/// Left out: a collective that waits for its partners takes less than half, one beside kernels
/// takes longer.
std::unique_ptr<CostModel> make_measured_cost_model(std::unique_ptr<CostModel> base,
                                                    const Profile& profile,
                                                    const MeasuredPricesOptions& options,
                                                    std::unique_ptr<CostModel> nominal = nullptr);

}  // namespace foretrain
