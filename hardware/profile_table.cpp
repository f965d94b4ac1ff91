// Prices looked up among the samples of a profile.
#include <algorithm>
#include <array>
#include <cmath>
#include <cstdlib>
#include <iomanip>
#include <sstream>
#include <utility>

#include "hardware/profile.h"
#include "sim/program/read_work.h"

namespace foretrain {
namespace {

std::string family_of(const Work& work) {
  if (std::holds_alternative<Gemm>(work)) return "gemm";
  if (const auto* attention = std::get_if<Attention>(&work)) {
    return attention->step == AttentionStep::kSoftmax ? "kernel" : "attention";
  }
  if (std::holds_alternative<Kernel>(work)) return "kernel";
  if (std::holds_alternative<Copy>(work)) return "copy";
  return "communication";
}

bool is_overhead(const std::string& op) {
  static const std::vector<std::string> all = {kDispatchSample, kEventSample, kLaunchSample,
                                               kGraphDispatchSample, kGraphLaunchSample};
  return std::find(all.begin(), all.end(), op) != all.end();
}

std::string family_of_op(const std::string& op) {
  static const std::vector<std::string> communication = {
      "all-reduce", "all-gather", "reduce-scatter", "broadcast",
      "reduce",     "all-to-all", "send-receive"};
  if (op.starts_with("gemm")) return "gemm";
  if (op.starts_with("attention")) return "attention";
  if (op.starts_with("copy")) return "copy";
  const bool talks =
      std::find(communication.begin(), communication.end(), op) != communication.end();
  return talks ? "communication" : "kernel";
}

double deviation_of(const Sample& s) {
  // The distance from the 10th to the 90th percentile of a normal distribution is 2.56 deviations.
  return s.median_us > 0 ? (s.p90_us - s.p10_us) / 2.56 / s.median_us : 0;
}

/// Of the operands, where samples of other types say nothing: a GEMM's ("gemm 64x64x64 nt
/// bf16->fp32"), an attention's ("... flash bf16"). Memory-bound kernels go by bytes.
std::string type_in(const SampleKey& key) {
  const std::string& text = key.shape;
  if (key.op.starts_with("attention")) return text.substr(text.rfind(' ') + 1);
  if (!key.op.starts_with("gemm")) return "";
  const std::size_t arrow = text.find("->");
  if (arrow == std::string::npos) return "";
  const std::size_t begin = text.rfind(' ', arrow) + 1;
  return text.substr(begin, arrow - begin);
}

std::string typed_name(const std::string& name, const std::string& type) {
  return type.empty() ? name : name + " of " + type;
}

/// Samples of one such name tell of each other: attention that one kernel computes, ...
std::string family_name(const SampleKey& key) {
  std::string family = family_of_op(key.op);
  if (family == "attention") family += key.op.substr(key.op.rfind(' '));
  return typed_name(family, type_in(key));
}

/// The work that a sample is of, over ranks 0, 1, ...
Result<Work> work_of(const SampleKey& key) {
  if (key.op != "send-receive") return read_work(key.shape);
  Message message;
  message.send = true;
  message.channel = ChannelSlot(std::size_t{0});
  message.bytes = std::atoll(key.shape.c_str());
  return Work{P2PBatch{{message}}};
}

/// ", 3 of them sustained, 1 burst"; nothing where states are not told apart.
std::string states_of(const std::vector<const Sample*>& samples) {
  std::string out;
  for (const char* state : {kSustained, kBurst}) {
    const auto count = std::count_if(samples.begin(), samples.end(),
                                     [state](const Sample* s) { return s->key.state == state; });
    if (count == 0) continue;
    out += ", " +
           (count == static_cast<std::ptrdiff_t>(samples.size()) ? std::string()
                                                                 : std::to_string(count) + " ") +
           state;
  }
  return out;
}

/// "measured 240 times, sustained, at 1755 MHz, 690 W, 62 C".
std::string measured_how(const Sample& s) {
  std::string out = "measured " + std::to_string(s.count) + " times" + states_of({&s});
  const auto add = [&out](const char* before, const std::optional<double>& value,
                          const char* unit) {
    if (value) out += before + std::to_string(std::lround(*value)) + unit;
  };
  add(", at ", s.ran_at.clock_mhz, " MHz");
  add(", ", s.ran_at.power_w, " W");
  add(", ", s.ran_at.temperature_c, " C");
  if (s.key.by == Maker::kFramework) out += ", by " + s.library;
  return out;
}

/// Extents that time goes by: of products m, n, k, their number and what becomes of the result; of
/// attention its heads, lengths and the size of a head; of all else bytes, and of kernels their
/// columns.
ShapePoint extents_of(const Work& work) {
  const auto ln = [](double extent) { return std::log(std::max(extent, 1.0)); };
  // What matters less than an extent is nearer.
  constexpr double kOfBatch = 0.5, kOfColumns = 0.3, kOfResult = 0.5;
  ShapePoint out;
  if (const auto* g = std::get_if<Gemm>(&work)) {
    out.x = {ln(static_cast<double>(g->m)), ln(static_cast<double>(g->n)),
             ln(static_cast<double>(g->k)), kOfBatch * ln(static_cast<double>(g->batch))};
    out.x[5] = kOfResult * (bits_of(g->out) / bits_of(g->in) + (g->accumulate ? 1 : 0));
  } else if (const auto* a = std::get_if<Attention>(&work);
             a != nullptr && a->step != AttentionStep::kSoftmax) {
    out.x = {kOfBatch * ln(static_cast<double>(a->batch * a->q_heads)),
             ln(static_cast<double>(a->q_len)), ln(static_cast<double>(a->kv_len)),
             ln(static_cast<double>(a->head_dim))};
  } else {
    out.x[0] = ln(sample_size(work));
    if (const auto* k = std::get_if<Kernel>(&work)) {
      out.x[1] = kOfColumns * ln(static_cast<double>(k->cols));
    }
  }
  return out;
}

}  // namespace

ProfileTable::ProfileTable(Profile profile, PricesFor what, CostModel* modelled)
    : x_profile(std::move(profile)), x_modelled(modelled), x_of_device(x_profile.of_device()) {
  std::erase_if(x_profile.samples, [&](const auto& entry) {
    const auto& [key, sample] = entry;
    const bool other = !sample.library.empty() && sample.library != x_profile.about("blas");
    return sample.median_us <= 0 || !counts(key.by, what) || (other && key.by != Maker::kFramework);
  });
  for (const auto& [key, sample] : x_profile.samples) {
    if (sample.size <= 0 || x_profile.priced_by(key) != &sample) continue;
    if (is_overhead(key.op)) {
      x_overheads[key.op].push_back(&sample);
    } else {
      x_by_shape[{key.op, key.shape}].push_back(&sample);
    }
  }
  list_besides();
  if (x_modelled != nullptr) learn(*x_modelled);
}

/// How far kinds of one family are from each other: layouts of a product differ little, kernels by
/// what they compute.
double ProfileTable::apart_in(const SampleKey& key) {
  constexpr double kLayouts = 1.5, kKernels = 8, kOther = 3;
  const std::string family = family_of_op(key.op);
  if (family == "gemm" || family == "attention") return kLayouts;
  return family == "kernel" ? kKernels : kOther;
}

/// Residuals of all samples whose shape the model prices.
void ProfileTable::learn(CostModel& modelled) {
  for (const auto& [name, samples] : x_by_shape) {
    for (const Sample* s : samples) learn_one(*s, modelled);
  }
}

/// Nothing of a sample whose name and shape do not agree, or that is off by more than any device.
void ProfileTable::learn_one(const Sample& s, CostModel& modelled) {
  constexpr double kLeastNoise = 0.01;
  constexpr double kMostOff = 1000;
  constexpr double kMostOffOnDevices = 5;  // beyond it something else was measured
  const Result<Work> work = work_of(s.key);
  if (!work.ok()) return;
  const SampleKey key = sample_key(work.value(), s.key.ranks);
  if (key.op != s.key.op || key.shape != s.key.shape) return;
  const Result<Cost> cost = modelled_cost(modelled, work.value(), s.key.ranks);
  if (!cost.ok() || cost.value().duration.ps <= 0) return;
  const double off = std::log(s.price_us() * 1e-6 / cost.value().duration.seconds());
  if (!(std::abs(off) <= std::log(kMostOff))) return;
  const double most = std::log(kMostOffOnDevices);
  Family& family = x_families.try_emplace(family_name(s.key), apart_in(s.key)).first->second;
  (void)x_kinds.emplace(s.key.op, static_cast<std::int64_t>(x_kinds.size()));
  family.residuals.add(point_of(work.value(), s.key.ranks, cost.value()),
                       x_of_device ? std::clamp(off, -most, most) : off,
                       std::max(kLeastNoise, deviation_of(s)));
  family.samples.push_back(&s);
  family.most_ranks = std::max(family.most_ranks, s.key.ranks);
}

/// Where a work lies among its family's samples. On a device what a rank does alone lies there
/// whatever the others do.
ShapePoint ProfileTable::point_of(const Work& work, std::int64_t ranks,
                                  const Cost& modelled) const {
  ShapePoint out = extents_of(work);
  if (modelled.duration.ps > 0) {
    out.latency = std::min(1.0, modelled.latency.seconds() / modelled.duration.seconds());
  }
  const SampleKey key = sample_key(work, ranks);
  const auto kind = x_kinds.find(key.op);
  out.kind = kind == x_kinds.end() ? -1 : kind->second;
  const bool alone = family_of(work) != "communication" && family_of(work) != "copy";
  if (!x_of_device || !alone)
    out.x[4] = std::log(static_cast<double>(std::max<std::int64_t>(1, key.ranks)));
  return out;
}

/// Samples of one number of SMs after another, each family's slowdowns multiplied. What spinning
/// SMs do is linear between the numbers of them that were measured.
void ProfileTable::list_besides() {
  struct Sums {
    double log_copies = 0, log_spins = 0, gb_per_s = 0;
    std::int64_t copies = 0, spins = 0, rates = 0;
  };
  std::map<std::string, std::map<std::int32_t, Sums>> all;
  for (const auto& [key, sample] : x_profile.samples) {
    if (key.sms == 0 || sample.alone_us <= 0) continue;
    Sums& sums = all[family_of_op(key.op)][key.sms];
    const double log = std::log(sample.price_us() / sample.alone_us);
    (key.spin ? sums.log_spins : sums.log_copies) += log;
    ++(key.spin ? sums.spins : sums.copies);
    if (key.spin || sample.beside_gb_per_s <= 0) continue;
    sums.gb_per_s += sample.beside_gb_per_s;
    ++sums.rates;
  }
  for (const auto& each : all) {
    const auto& by_sms = each.second;  // a lambda captures no structured binding in clang 14
    const auto spin_at = [&by_sms](std::int32_t sms) {
      std::pair<double, double> below{0, 1};
      for (const auto& [held, sums] : by_sms) {
        if (sums.spins == 0) continue;
        const double spin = std::exp(sums.log_spins / static_cast<double>(sums.spins));
        if (held < sms) {
          below = {held, spin};
          continue;
        }
        const double place = (sms - below.first) / (held - below.first);
        return below.second + place * (spin - below.second);
      }
      return below.first > 0 ? below.second : 0;
    };
    std::vector<Beside>& out = x_beside[each.first];
    for (const auto& [sms, sums] : by_sms) {
      if (sums.copies == 0) continue;
      if (out.size() == kMostSlowdowns) break;
      Beside one{sms, std::exp(sums.log_copies / static_cast<double>(sums.copies)), sums.copies, 0,
                 0};
      one.slowdown = std::max(out.empty() ? 1 : out.back().slowdown, one.slowdown);
      if (const double spin = spin_at(sms); spin > 0) {
        one.spin = std::clamp(spin, out.empty() ? 1 : out.back().spin, one.slowdown);
      }
      if (sums.rates > 0) one.gb_per_s = sums.gb_per_s / static_cast<double>(sums.rates);
      out.push_back(one);
    }
  }
}

const std::vector<ProfileTable::Beside>& ProfileTable::beside(const Work& work) const {
  static const std::vector<Beside> none;
  const auto found = x_beside.find(family_of(work));
  return found == x_beside.end() ? none : found->second;
}

ProfileTable::Samples ProfileTable::nearest_ranks(const Samples& samples, std::int64_t ranks) {
  std::int64_t best = -1;
  for (const Sample* s : samples) {
    if (best < 0 || std::abs(s->key.ranks - ranks) < std::abs(best - ranks)) best = s->key.ranks;
  }
  Samples out;
  for (const Sample* s : samples) {
    if (s->key.ranks == best) out.push_back(s);
  }
  return out;
}

double ProfileTable::overhead_seconds(const char* op, std::int64_t ranks) const {
  const auto found = x_overheads.find(op);
  if (found == x_overheads.end()) return 0;
  return nearest_ranks(found->second, ranks).front()->price_us() * 1e-6;
}

const Sample& ProfileTable::best(const Samples& samples, std::int64_t ranks) {
  const auto place = [](const Sample* s) {
    const auto* const state = std::find(kStatesByWorth.begin(), kStatesByWorth.end(), s->key.state);
    return std::pair(state - kStatesByWorth.begin(), s->key.by == Maker::kFramework ? 0 : 1);
  };
  const Samples near = nearest_ranks(samples, ranks);
  return **std::min_element(near.begin(), near.end(), [&place](const Sample* a, const Sample* b) {
    return place(a) < place(b);
  });
}

std::optional<MeasuredPrice> ProfileTable::own(const Work& work, std::int64_t ranks) const {
  const SampleKey key = sample_key(work, ranks);
  const auto found = x_by_shape.find({key.op, key.shape});
  if (found == x_by_shape.end()) {
    const auto* cut = std::get_if<Collective>(&work);
    if (cut == nullptr || cut->runs.empty()) return std::nullopt;
    Collective whole = *cut;
    whole.runs.clear();
    return own(Work{whole}, ranks);
  }
  const Sample& s = best(found->second, key.ranks);
  const bool talks = family_of(work) == "communication";
  if (x_of_device && talks && s.key.ranks != key.ranks) return std::nullopt;
  return MeasuredPrice{s.price_us() * 1e-6, Provenance::kMeasured, deviation_of(s), 1,
                       measured_how(s)};
}

MeasuredPrice ProfileTable::corrected(const Work& work, std::int64_t ranks,
                                      const Cost& cost) const {
  const double modelled = cost.duration.seconds();
  constexpr double kInterpolated = 0.5;
  constexpr std::size_t kNamed = 3;
  constexpr double kLeastDeviation = 0.01;
  const double doubt = static_cast<double>(cost.deviation);
  MeasuredPrice out{modelled, Provenance::kAnalytic, doubt, 0, ""};
  const SampleKey asked = sample_key(work, ranks);
  const std::string name = family_name(asked);
  const auto found = x_families.find(name);
  const bool talks = x_of_device && family_of(work) == "communication";
  if (found == x_families.end() || (talks && asked.ranks > found->second.most_ranks)) {
    out.from = "the profile has no sample of " + name;
    return out;
  }
  const Family& family = found->second;
  const Residuals::Estimate estimate = family.residuals.at(point_of(work, ranks, cost));
  out.seconds = modelled * std::exp(estimate.log_ratio);
  out.explained = estimate.explained;
  out.deviation = std::max(kLeastDeviation, doubt * std::sqrt(1 - estimate.explained));
  if (estimate.explained >= kInterpolated) out.provenance = Provenance::kInterpolated;
  std::ostringstream from;
  from << std::exp(estimate.log_ratio) << " times the modelled " << modelled * 1e6 << " us, by "
       << family.samples.size() << (family.samples.size() == 1 ? " sample of " : " samples of ")
       << name << states_of(family.samples) << ", explaining "
       << std::lround(100 * estimate.explained) << " % of it";
  for (std::size_t i = 0; i < std::min(kNamed, estimate.neighbours.size()); ++i) {
    const Residuals::Neighbour& one = estimate.neighbours[i];
    const SampleKey& key = family.samples[one.sample]->key;
    from << "\n  "
         << (key.op.starts_with("gemm") || key.shape.starts_with(key.op) ? "" : key.op + " ")
         << key.shape << ": weight " << std::setprecision(2) << one.weight << ", "
         << "extents " << std::exp(one.distance) << " times off";
  }
  out.from = from.str();
  return out;
}

Result<MeasuredPrice> ProfileTable::price(const Work& work, std::int64_t ranks) const {
  const SampleKey key = sample_key(work, ranks);
  if (key.op.empty()) return unsupported("a profile has no prices for " + text_of(work));
  if (const std::optional<MeasuredPrice> sample = own(work, ranks)) return *sample;
  if (x_modelled == nullptr) {
    return input_error("the profile has no sample of " + key.shape +
                       "; `foretrain calibrate --shapes-of RUN` measures what a run needs");
  }
  FT_ASSIGN(const Cost cost, modelled_cost(*x_modelled, work, key.ranks));
  return corrected(work, ranks, cost);
}

Result<double> modelled_seconds(CostModel& model, const Work& work, std::int64_t ranks) {
  FT_ASSIGN(const Cost cost, modelled_cost(model, work, ranks));
  return cost.duration.seconds();
}

Result<Cost> modelled_cost(CostModel& model, const Work& work, std::int64_t ranks) {
  std::vector<PlacementId> placements;
  const auto place = [&](std::int64_t count) -> Status {
    std::vector<RankId> members;
    for (std::int64_t r = 0; r < count; ++r) members.emplace_back(static_cast<std::size_t>(r));
    FT_ASSIGN(const PlacementId id, model.place(members));
    placements.push_back(id);
    return ok_status();
  };
  if (std::holds_alternative<Collective>(work)) {
    if (ranks < 2 || ranks > (1 << 16)) return unsupported("a collective of one rank");
    FT_TRY(place(ranks));
  }
  if (const auto* batch = std::get_if<P2PBatch>(&work)) {
    for (std::size_t i = 0; i < batch->messages.size(); ++i) FT_TRY(place(2));
  }
  return model.price(work, placements);
}

}  // namespace foretrain
