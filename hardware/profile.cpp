#include "hardware/profile.h"

#include <algorithm>
#include <cmath>
#include <utility>

namespace foretrain {
namespace {

constexpr const char* kSchema = "foretrain/profile/1";

std::string family_of(const Work& work) {
  if (std::holds_alternative<Gemm>(work)) return "gemm";
  if (std::holds_alternative<Attention>(work)) return "attention";
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
  if (op == kDispatchSample || op == kEventSample || op == kLaunchSample) return op;
  const bool talks =
      std::find(communication.begin(), communication.end(), op) != communication.end();
  return talks ? "communication" : "kernel";
}

std::string first_word(const std::string& text) { return text.substr(0, text.find(' ')); }

double rate_of_sample(const Sample& s) { return s.size / (s.price_us() * 1e-6); }

double deviation_of(const Sample& s) {
  // The distance from the 10th to the 90th percentile of a normal distribution is 2.56 deviations.
  return s.median_us > 0 ? (s.p90_us - s.p10_us) / 2.56 / s.median_us : 0;
}

Json to_json(const Sample& s) {
  Json out{Json::Object{}};
  out.set("op", s.key.op);
  out.set("shape", s.key.shape);
  out.set("ranks", s.key.ranks);
  out.set("dtype", s.dtype);
  if (!s.library.empty()) out.set("library", s.library);
  out.set("size", s.size);
  out.set("count", s.count);
  out.set("median_us", s.median_us);
  out.set("p10_us", s.p10_us);
  out.set("p90_us", s.p90_us);
  if (s.mean_us > 0) out.set("mean_us", s.mean_us);
  out.set("clean", s.clean);
  out.set("stopped", s.stopped);
  return out;
}

Status read_sample(const Json& json, const std::string& source, const std::string& where,
                   Profile& out) {
  JsonReader reader(json, source, where);
  Sample s;
  constexpr double kLongest = 1e12;
  (void)reader.require("op", "the name of an operation");
  (void)reader.require("median_us", "a time");
  reader.read("op", s.key.op);
  reader.read("shape", s.key.shape);
  reader.read("ranks", s.key.ranks, {1, 1 << 20});
  reader.read("dtype", s.dtype);
  reader.read("library", s.library);
  reader.read("size", s.size, {0, 1e30});
  reader.read("count", s.count, {1, std::int64_t{1} << 40});
  reader.read("median_us", s.median_us, {0, kLongest});
  reader.read("p10_us", s.p10_us, {0, kLongest});
  reader.read("p90_us", s.p90_us, {0, kLongest});
  reader.read("mean_us", s.mean_us, {0, kLongest});
  reader.read("clean", s.clean);
  reader.read("stopped", s.stopped);
  FT_TRY(reader.finish());
  out.add(std::move(s));
  return ok_status();
}

}  // namespace

SampleKey sample_key(const Work& work, std::int64_t ranks) {
  if (const auto* gemm = std::get_if<Gemm>(&work)) {
    const std::string layout =
        std::string(gemm->transpose_a ? "t" : "n") + (gemm->transpose_b ? "t" : "n");
    return {"gemm " + layout, text_of(work), ranks};
  }
  if (const auto* attention = std::get_if<Attention>(&work)) {
    Attention plain = *attention;
    plain.heads_split_over = GroupSlot();
    plain.first_sequence = plain.head_part = 0;  // which they are costs nothing
    plain.head_parts = 1;
    plain.hops = 0;
    plain.more_kernels = 0;
    const std::string text = text_of(Work{plain});
    return {
        first_word(text) + (plain.causal ? " causal " : " ") + std::string(name_of(plain.kernel)),
        text, ranks};
  }
  if (const auto* kernel = std::get_if<Kernel>(&work)) {
    Kernel plain = *kernel;
    plain.split_over = GroupSlot();
    plain.launches = 1;
    return {std::string(name_of(plain.kind)), text_of(Work{plain}), ranks};
  }
  if (const auto* collective = std::get_if<Collective>(&work)) {
    Collective plain = *collective;
    plain.group = GroupSlot(std::size_t{0});
    return {std::string(name_of(plain.kind)), text_of(Work{plain}), ranks};
  }
  if (const auto* batch = std::get_if<P2PBatch>(&work)) {
    Bytes bytes = 0;
    for (const Message& message : batch->messages) bytes = std::max(bytes, message.bytes);
    return {"send-receive", std::to_string(bytes) + " B", 2};
  }
  if (std::holds_alternative<Copy>(work)) {
    return {"copy", text_of(work), ranks};
  }
  return {};
}

double sample_size(const Work& work) {
  if (std::holds_alternative<Gemm>(work) || std::holds_alternative<Attention>(work)) {
    return flops_of(work);
  }
  if (const auto* kernel = std::get_if<Kernel>(&work)) return static_cast<double>(kernel->bytes);
  if (const auto* c = std::get_if<Collective>(&work)) {
    return static_cast<double>(bytes_of(c->dtype, c->count));
  }
  if (const auto* copy = std::get_if<Copy>(&work)) return static_cast<double>(copy->bytes);
  double bytes = 0;
  if (const auto* batch = std::get_if<P2PBatch>(&work)) {
    for (const Message& m : batch->messages) bytes = std::max(bytes, static_cast<double>(m.bytes));
  }
  return bytes;
}

const Sample* Profile::find(const SampleKey& key) const {
  const auto it = samples.find(key);
  return it == samples.end() ? nullptr : &it->second;
}

std::string Profile::about(const char* name) const {
  const Json* value = machine.find(name);
  return value != nullptr && value->string() != nullptr ? *value->string() : "";
}

Json to_json(const Profile& profile) {
  Json out{Json::Object{}};
  out.set("schema", kSchema);
  out.set("machine", profile.machine);
  Json::Array samples;
  for (const auto& [key, sample] : profile.samples) samples.push_back(to_json(sample));
  out.set("samples", std::move(samples));
  out.set("fits", Json::Array{});
  return out;
}

Result<Profile> read_profile(const Json& json, const std::string& source) {
  Profile out;
  JsonReader reader(json, source, "");
  std::string schema;
  reader.read("schema", schema);
  if (const Json* machine = reader.require("machine", "an object: what was measured")) {
    out.machine = *machine;
  }
  const Json* samples = reader.require("samples", "a list of samples");
  reader.ignore("fits");
  reader.take("fits");
  FT_TRY(reader.finish());
  if (schema != kSchema) {
    return input_error(source + ": /schema: found \"" + schema + "\", expected \"" + kSchema +
                       "\": this is no profile that `foretrain calibrate` wrote");
  }
  if (samples->array() == nullptr) {
    return input_error(source + ": /samples: found " + describe(*samples) + ", expected a list");
  }
  for (std::size_t i = 0; i < samples->array()->size(); ++i) {
    FT_TRY(read_sample((*samples->array())[i], source, "/samples/" + std::to_string(i), out));
  }
  return out;
}

ProfileTable::ProfileTable(Profile profile) : x_profile(std::move(profile)) {
  const std::string library = x_profile.about("blas");
  for (const auto& [key, sample] : x_profile.samples) {
    if (sample.size <= 0 || sample.median_us <= 0) continue;
    if (!sample.library.empty() && sample.library != library) continue;
    x_by_op[key.op].push_back(&sample);
    x_by_family[family_of_op(key.op)].push_back(&sample);
  }
  for (auto* table : {&x_by_op, &x_by_family}) {
    for (auto& [name, samples] : *table) {
      std::stable_sort(samples.begin(), samples.end(),
                       [](const Sample* a, const Sample* b) { return a->size < b->size; });
    }
  }
}

ProfileTable::Samples ProfileTable::nearest_ranks(const Samples& samples,
                                                  std::int64_t ranks) const {
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
  const auto found = x_by_op.find(op);
  if (found == x_by_op.end()) return 0;
  return nearest_ranks(found->second, ranks).front()->price_us() * 1e-6;
}

MeasuredPrice ProfileTable::between(const Samples& samples, double size) const {
  const auto above = std::find_if(samples.begin(), samples.end(),
                                  [size](const Sample* s) { return s->size >= size; });
  MeasuredPrice out;
  out.provenance = Provenance::kInterpolated;
  if (above == samples.begin() || above == samples.end()) {
    const Sample& edge = above == samples.end() ? *samples.back() : **above;
    const double scale = above == samples.end() ? size / edge.size : 1;
    out.seconds = edge.price_us() * 1e-6 * scale;
    out.deviation = deviation_of(edge);
    out.from = edge.key.shape;
    return out;
  }
  const Sample& a = **std::prev(above);
  const Sample& b = **above;
  const double width = std::log(b.size / a.size);
  const double place = width > 0 ? std::log(size / a.size) / width : 1;
  out.seconds =
      std::exp((1 - place) * std::log(a.price_us()) + place * std::log(b.price_us())) * 1e-6;
  out.deviation = std::max(deviation_of(a), deviation_of(b));
  out.from = a.key.shape + " and " + b.key.shape;
  return out;
}

MeasuredPrice ProfileTable::gemm(const Samples& samples, const Gemm& work) const {
  double weights = 0;
  double sum = 0;
  MeasuredPrice out;
  for (const Sample* s : samples) {
    double m = 0;
    double n = 0;
    double k = 0;
    if (std::sscanf(s->key.shape.c_str(), "gemm %lfx%lfx%lf", &m, &n, &k) != 3) continue;
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
  out.from = std::to_string(samples.size()) + " samples of " + samples.front()->key.op;
  return out;
}

Result<MeasuredPrice> ProfileTable::price(const Work& work, std::int64_t ranks) const {
  const SampleKey key = sample_key(work, ranks);
  if (key.op.empty()) return unsupported("a profile has no prices for " + text_of(work));
  const double size = sample_size(work);
  if (const auto found = x_by_op.find(key.op); found != x_by_op.end()) {
    const Samples near = nearest_ranks(found->second, key.ranks);
    for (const Sample* s : near) {
      if (s->key.shape != key.shape) continue;
      return MeasuredPrice{s->price_us() * 1e-6, Provenance::kMeasured, deviation_of(*s),
                           "measured " + std::to_string(s->count) + " times"};
    }
    if (const auto* work_gemm = std::get_if<Gemm>(&work)) return gemm(near, *work_gemm);
    return between(near, size);
  }
  const auto family = x_by_family.find(family_of(work));
  if (family == x_by_family.end()) {
    return input_error("the profile has no sample of " + family_of(work) + " for " + text_of(work) +
                       "; run `foretrain calibrate` where MPI is installed");
  }
  double sum = 0;
  const Samples near = nearest_ranks(family->second, key.ranks);
  for (const Sample* s : near) sum += std::log(rate_of_sample(*s));
  const double rate = std::exp(sum / static_cast<double>(near.size()));
  return MeasuredPrice{size / rate, Provenance::kAnalytic, 0.5,
                       "the mean rate of " + family->first};
}

}  // namespace foretrain
