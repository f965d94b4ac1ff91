#include "hardware/profile.h"

#include <algorithm>
#include <array>
#include <cstdio>
#include <utility>

#include "hardware/local_cost.h"

namespace foretrain {
namespace {

constexpr const char* kSchema = "foretrain/profile/2";
constexpr const char* kOldSchema = "foretrain/profile/1";  // without makers

std::string first_word(const std::string& text) { return text.substr(0, text.find(' ')); }

Json to_json(const Sample& s) {
  Json out{Json::Object{}};
  out.set("op", s.key.op);
  out.set("shape", s.key.shape);
  out.set("ranks", s.key.ranks);
  if (!s.key.state.empty()) out.set("state", s.key.state);
  if (s.key.sms > 0) out.set("sms_beside", static_cast<std::int64_t>(s.key.sms));
  if (s.key.spin) out.set("spin_beside", true);
  out.set("by", name_of(s.key.by));
  out.set("dtype", s.dtype);
  if (!s.library.empty()) out.set("library", s.library);
  out.set("size", s.size);
  out.set("count", s.count);
  out.set("median_us", s.median_us);
  out.set("p10_us", s.p10_us);
  out.set("p90_us", s.p90_us);
  if (s.mean_us > 0) out.set("mean_us", s.mean_us);
  if (s.alone_us > 0) out.set("alone_us", s.alone_us);
  if (s.beside_gb_per_s > 0) out.set("beside_gb_per_s", s.beside_gb_per_s);
  out.set("clean", s.clean);
  out.set("stopped", s.stopped);
  write_state(s.ran_at, out);
  return out;
}

/// Name and place of what a state is made of.
constexpr std::array<std::pair<const char*, std::optional<double> MachineState::*>, 3> kStates = {
    {{"clock_mhz", &MachineState::clock_mhz},
     {"power_w", &MachineState::power_w},
     {"temperature_c", &MachineState::temperature_c}}};

/// NVML's bits of why a clock is held back (nvml.h, nvmlClocksEventReason*) that are no idleness.
constexpr std::array<std::pair<std::uint64_t, const char*>, 8> kThrottles = {
    {{0x2, "application clocks"},
     {0x4, "power cap"},
     {0x8, "hardware slowdown"},
     {0x10, "sync boost"},
     {0x20, "software thermal"},
     {0x40, "hardware thermal"},
     {0x80, "power brake"},
     {0x100, "display clocks"}}};

void read_throttle(JsonReader& reader, MachineState& out) {
  const Json* const list = reader.take("throttle");
  if (list == nullptr || list->array() == nullptr) return;
  for (const Json& one : *list->array()) {
    for (const auto& [bit, name] : kThrottles) {
      if (one == Json(name)) out.throttle |= bit;
    }
  }
}

void read_state(JsonReader& reader, MachineState& out) {
  read_throttle(reader, out);
  constexpr double kMost = 1e6;
  for (const auto& [name, member] : kStates) {
    if (!reader.has(name)) continue;
    double value = 0;
    reader.read(name, value, {-kMost, kMost});
    out.*member = value;
  }
}

/// Of profiles that do not say: as `sample_key` has it.
Maker maker_of(const std::string& op) {
  const bool cudnn = op.starts_with("attention") && op.ends_with(" cudnn");
  for (const char* vendor :
       {"gemm", "copy", "all-", "reduce-scatter", "broadcast", "send-receive"}) {
    if (op.starts_with(vendor)) return Maker::kVendor;
  }
  return cudnn || op == "reduce" || op.starts_with("reduce in ") ? Maker::kVendor : Maker::kOwn;
}

void read_maker(JsonReader& reader, SampleKey& out) {
  std::string by(name_of(maker_of(out.op)));
  reader.read("by", by);
  for (const Maker maker : {Maker::kOwn, Maker::kVendor, Maker::kFramework}) {
    if (name_of(maker) != by) continue;
    out.by = maker;
    return;
  }
  reader.fail("by", "found \"" + by + "\", expected \"own\", \"vendor\" or \"framework\"");
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
  reader.read("state", s.key.state);
  reader.read("sms_beside", s.key.sms, {0, 1 << 20});
  reader.read("spin_beside", s.key.spin);
  read_maker(reader, s.key);
  reader.read("dtype", s.dtype);
  reader.read("library", s.library);
  reader.read("size", s.size, {0, 1e30});
  reader.read("count", s.count, {1, std::int64_t{1} << 40});
  reader.read("median_us", s.median_us, {0, kLongest});
  reader.read("p10_us", s.p10_us, {0, kLongest});
  reader.read("p90_us", s.p90_us, {0, kLongest});
  reader.read("mean_us", s.mean_us, {0, kLongest});
  reader.read("alone_us", s.alone_us, {0, kLongest});
  reader.read("beside_gb_per_s", s.beside_gb_per_s, {0, kLongest});
  reader.read("clean", s.clean);
  reader.read("stopped", s.stopped);
  read_state(reader, s.ran_at);
  if (!s.key.state.empty() && s.key.state != kBurst && s.key.state != kSustained) {
    reader.fail("state", "found \"" + s.key.state + "\", expected \"" + kBurst + "\" or \"" +
                             kSustained + "\"");
  }
  if (s.key.op.starts_with("gemm") && !gemm_sizes(s.key.shape)) {
    reader.fail("shape",
                "found \"" + s.key.shape + "\", expected \"gemm MxNxK ...\" of sizes above 0");
  }
  FT_TRY(reader.finish());
  out.add(std::move(s));
  return ok_status();
}

}  // namespace

std::string_view name_of(Maker maker) {
  constexpr std::array<std::string_view, 3> kNames = {"own", "vendor", "framework"};
  return kNames.at(static_cast<std::size_t>(maker));
}

std::optional<std::array<double, 3>> gemm_sizes(const std::string& shape) {
  std::array<double, 3> out{};
  if (std::sscanf(shape.c_str(), "gemm %lfx%lfx%lf", &out[0], &out[1], &out[2]) != 3) {
    return std::nullopt;
  }
  const bool sane =
      std::all_of(out.begin(), out.end(), [](double size) { return size >= 1 && size <= 1e12; });
  return sane ? std::optional(out) : std::nullopt;
}

SampleKey sample_key(const Work& work, std::int64_t ranks) {
  if (const auto* gemm = std::get_if<Gemm>(&work)) {
    const std::string layout =
        std::string(gemm->transpose_a ? "t" : "n") + (gemm->transpose_b ? "t" : "n");
    return {"gemm " + layout, text_of(Work{alone(*gemm)}), ranks, "", 0, Maker::kVendor};
  }
  if (const auto* attention = std::get_if<Attention>(&work)) {
    Attention plain = *attention;
    plain.heads_split_over = GroupSlot();
    plain.first_sequence = plain.head_part = 0;  // which they are costs nothing
    plain.head_parts = 1;
    // But the first block of ring self-attention, which starts what others add to.
    plain.hops = plain.step == AttentionStep::kWhole ? 0 : std::min(plain.hops, 1);
    plain.more.kernels = 0;
    plain.score = {};
    const std::string text = text_of(Work{plain});
    const bool vendor = plain.kernel == AttentionKernel::kCudnn;
    return {
        first_word(text) + (plain.causal ? " causal " : " ") + std::string(name_of(plain.kernel)),
        text,
        ranks,
        "",
        0,
        vendor ? Maker::kVendor : Maker::kOwn};
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
    plain.runs.clear();
    // Apart from whole ones: they take the time of as many collectives where no library joins them.
    const std::string runs =
        collective->runs.empty() ? "" : " in " + std::to_string(collective->runs.size()) + " runs";
    return {std::string(name_of(plain.kind)) + runs,
            text_of(Work{plain}),
            ranks,
            "",
            0,
            Maker::kVendor};
  }
  if (const auto* batch = std::get_if<P2PBatch>(&work)) {
    Bytes bytes = 0;
    for (const Message& message : batch->messages) bytes = std::max(bytes, message.bytes);
    return {"send-receive", std::to_string(bytes) + " B", 2, "", 0, Maker::kVendor};
  }
  if (std::holds_alternative<Copy>(work)) {
    return {"copy", text_of(work), ranks, "", 0, Maker::kVendor};
  }
  return {};
}

double sample_size(const Work& work) {
  if (const auto* a = std::get_if<Attention>(&work); a && a->step == AttentionStep::kSoftmax) {
    const std::int64_t scores = a->batch * a->q_heads * a->q_len * a->kv_len;
    const std::int64_t moved = (a->backward ? 3 : 2) + (a->dropout > 0 ? 2 : 0);
    return static_cast<double>(bytes_of(a->dtype, scores * moved));
  }
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

MachineState median_state(const std::vector<MachineState>& readings) {
  MachineState out;
  for (const auto& [name, member] : kStates) {
    std::vector<double> values;
    for (const MachineState& reading : readings) {
      if (reading.*member) values.push_back(*(reading.*member));
    }
    if (values.empty()) continue;
    std::sort(values.begin(), values.end());
    out.*member = values[(values.size() - 1) / 2];
  }
  for (const MachineState& reading : readings) out.throttle |= reading.throttle;
  return out;
}

MachineState median_state(const Profile& profile) {
  std::vector<MachineState> all;
  for (const auto& [key, sample] : profile.samples) all.push_back(sample.ran_at);
  return median_state(all);
}

void write_state(const MachineState& state, Json& to) {
  for (const auto& [name, member] : kStates) {
    if (state.*member) to.set(name, *(state.*member));
  }
  Json::Array reasons;
  for (const auto& [bit, name] : kThrottles) {
    if ((state.throttle & bit) != 0) reasons.emplace_back(name);
  }
  if (!reasons.empty()) to.set("throttle", std::move(reasons));
}

const Sample* Profile::priced_by(const SampleKey& key) const {
  for (const char* state : kStatesByWorth) {
    SampleKey one = key;
    one.state = state;
    one.sms = 0;
    one.spin = false;
    if (const Sample* found = find(one)) return found;
  }
  return nullptr;
}

bool Profile::of_device() const {
  const std::string device = about("device");
  return !device.empty() && device != "host";
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
    if (machine->object() == nullptr) {
      reader.fail("machine",
                  "found " + describe(*machine) + ", expected an object: what was measured");
    }
  }
  const Json* samples = reader.require("samples", "a list of samples");
  reader.ignore("fits");
  reader.take("fits");
  FT_TRY(reader.finish());
  if (schema != kSchema && schema != kOldSchema) {
    return input_error(
        source + ": /schema: found \"" + schema + "\", expected \"" + kSchema + "\" (or \"" +
        kOldSchema +
        "\"): this is no profile that this version reads; `foretrain calibrate --out "
        "FILE` writes a new one");
  }
  if (samples->array() == nullptr) {
    return input_error(source + ": /samples: found " + describe(*samples) + ", expected a list");
  }
  for (std::size_t i = 0; i < samples->array()->size(); ++i) {
    FT_TRY(read_sample((*samples->array())[i], source, "/samples/" + std::to_string(i), out));
  }
  return out;
}

}  // namespace foretrain
