// Prices looked up among the samples of a profile.
#include <algorithm>
#include <array>
#include <cmath>
#include <cstdio>
#include <utility>

#include "hardware/profile.h"

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

std::string family_of_op(const std::string& op) {
  static const std::vector<std::string> communication = {
      "all-reduce", "all-gather", "reduce-scatter", "broadcast",
      "reduce",     "all-to-all", "send-receive"};
  if (op.starts_with("gemm")) return "gemm";
  if (op.starts_with("attention")) return "attention";
  if (op.starts_with("copy")) return "copy";
  static const std::vector<std::string> overheads = {kDispatchSample, kEventSample, kLaunchSample,
                                                     kGraphDispatchSample, kGraphLaunchSample};
  if (std::find(overheads.begin(), overheads.end(), op) != overheads.end()) return op;
  const bool talks =
      std::find(communication.begin(), communication.end(), op) != communication.end();
  return talks ? "communication" : "kernel";
}

double rate_of_sample(const Sample& s) { return s.size / (s.price_us() * 1e-6); }

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
  return out;
}

}  // namespace

ProfileTable::ProfileTable(Profile profile) : x_profile(std::move(profile)) {
  std::erase_if(x_profile.samples, [library = x_profile.about("blas")](const auto& entry) {
    const Sample& sample = entry.second;
    return sample.median_us <= 0 || (!sample.library.empty() && sample.library != library);
  });
  for (const auto& [key, sample] : x_profile.samples) {
    if (sample.size <= 0) continue;
    if (x_profile.priced_by(key) != &sample) continue;
    x_by_op[typed_name(key.op, type_in(key))].push_back(&sample);
    x_by_family[typed_name(family_of_op(key.op), type_in(key))].push_back(&sample);
  }
  x_of_device = x_by_op.contains(kLaunchSample);
  list_besides();
  for (auto* table : {&x_by_op, &x_by_family}) {
    for (auto& [name, samples] : *table) {
      std::stable_sort(samples.begin(), samples.end(),
                       [](const Sample* a, const Sample* b) { return a->size < b->size; });
    }
  }
}

/// Samples of one number of SMs after another, each family's slowdowns multiplied.
void ProfileTable::list_besides() {
  std::map<std::string, std::map<std::int32_t, Beside>> all;
  for (const auto& [key, sample] : x_profile.samples) {
    if (key.sms == 0 || sample.alone_us <= 0) continue;
    Beside& one = all[family_of_op(key.op)][key.sms];
    one.sms = key.sms;
    one.slowdown *= sample.price_us() / sample.alone_us;
    ++one.samples;
  }
  for (const auto& [family, by_sms] : all) {
    double before = 1;
    std::vector<Beside>& out = x_beside[family];
    for (const auto& [sms, sum] : by_sms) {
      Beside one = sum;
      if (out.size() == kMostSlowdowns) break;
      one.slowdown = std::max(before, std::pow(one.slowdown, 1 / static_cast<double>(one.samples)));
      before = one.slowdown;
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

/// Those of the nearest number of ranks; of what a rank does on a device of its own, all.
ProfileTable::Samples ProfileTable::counting(const Work& work, const Samples& samples,
                                             std::int64_t ranks) const {
  const std::string family = family_of(work);
  const bool own = family == "gemm" || family == "attention" || family == "kernel";
  return x_of_device && own ? samples : nearest_ranks(samples, ranks);
}

double ProfileTable::overhead_seconds(const char* op, std::int64_t ranks) const {
  const auto found = x_by_op.find(op);
  if (found == x_by_op.end()) return 0;
  return nearest_ranks(found->second, ranks).front()->price_us() * 1e-6;
}

MeasuredPrice ProfileTable::between(const Samples& samples, double size) {
  const auto above = std::find_if(samples.begin(), samples.end(),
                                  [size](const Sample* s) { return s->size >= size; });
  MeasuredPrice out;
  out.provenance = Provenance::kInterpolated;
  if (above == samples.begin() || above == samples.end()) {
    const Sample& edge = above == samples.end() ? *samples.back() : **above;
    const double scale = above == samples.end() ? size / edge.size : 1;
    out.seconds = edge.price_us() * 1e-6 * scale;
    out.deviation = deviation_of(edge);
    out.from = edge.key.shape + states_of({&edge});
    return out;
  }
  const Sample& a = **std::prev(above);
  const Sample& b = **above;
  const double width = std::log(b.size / a.size);
  const double place = width > 0 ? std::log(size / a.size) / width : 1;
  out.seconds =
      std::exp((1 - place) * std::log(a.price_us()) + place * std::log(b.price_us())) * 1e-6;
  out.deviation = std::max(deviation_of(a), deviation_of(b));
  out.from = a.key.shape + " and " + b.key.shape + states_of({&a, &b});
  return out;
}

MeasuredPrice ProfileTable::gemm(const Samples& samples, const Gemm& work) {
  double weights = 0;
  double sum = 0;
  MeasuredPrice out;
  for (const Sample* s : samples) {
    const auto sizes = gemm_sizes(s->key.shape);
    if (!sizes) continue;
    const auto [m, n, k] = *sizes;
    const double d2 = std::pow(std::log(m / static_cast<double>(work.m)), 2) +
                      std::pow(std::log(n / static_cast<double>(work.n)), 2) +
                      std::pow(std::log(k / static_cast<double>(work.k)), 2);
    const double weight = 1 / (d2 + 0.01);
    weights += weight;
    sum += weight * std::log(rate_of_sample(*s));
    out.deviation = std::max(out.deviation, deviation_of(*s));
  }
  out.provenance = Provenance::kInterpolated;
  out.seconds = weights > 0 ? flops_of(Work{work}) / std::exp(sum / weights) : 0;
  out.from = std::to_string(samples.size()) + " samples of " + samples.front()->key.op +
             states_of(samples);
  return out;
}

Result<MeasuredPrice> ProfileTable::price(const Work& work, std::int64_t ranks) const {
  const SampleKey key = sample_key(work, ranks);
  if (key.op.empty()) return unsupported("a profile has no prices for " + text_of(work));
  const double size = sample_size(work);
  const std::string type = type_in(key);
  if (const auto found = x_by_op.find(typed_name(key.op, type)); found != x_by_op.end()) {
    const Samples near = counting(work, found->second, key.ranks);
    Samples own;
    for (const Sample* s : near) {
      if (s->key.shape == key.shape) own.push_back(s);
    }
    if (!own.empty()) {
      const Sample& s = *nearest_ranks(own, key.ranks).front();
      return MeasuredPrice{s.price_us() * 1e-6, Provenance::kMeasured, deviation_of(s),
                           measured_how(s)};
    }
    if (const auto* work_gemm = std::get_if<Gemm>(&work)) return gemm(near, *work_gemm);
    return between(near, size);
  }
  if (const auto* cut = std::get_if<Collective>(&work); cut != nullptr && !cut->runs.empty()) {
    Collective whole = *cut;
    whole.runs.clear();
    return price(Work{whole}, ranks);
  }
  const std::string name = typed_name(family_of(work), type);
  const auto family = x_by_family.find(name);
  if (family == x_by_family.end()) {
    return input_error("the profile has no sample of " + name + " for " + text_of(work) +
                       "; run `foretrain calibrate` where MPI is installed");
  }
  double sum = 0;
  const Samples near = counting(work, family->second, key.ranks);
  for (const Sample* s : near) sum += std::log(rate_of_sample(*s));
  const double rate = std::exp(sum / static_cast<double>(near.size()));
  return MeasuredPrice{size / rate, Provenance::kAnalytic, 0.5,
                       "the mean rate of " + family->first + states_of(near)};
}

}  // namespace foretrain
