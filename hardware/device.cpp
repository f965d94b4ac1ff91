#include "hardware/device.h"

#include <cmath>
#include <numbers>
#include <vector>

#include "hardware/kernel_constants.h"
#include "hardware/keys/device_keys.h"
#include "hardware/presets.h"

namespace foretrain {

const std::vector<std::string>& architecture_names() {
  static const std::vector<std::string> names = {"volta",     "ampere", "ada",    "hopper",
                                                 "blackwell", "cdna2",  "cdna3",  "cdna4",
                                                 "tpu",       "tpu-v6", "ascend", "cpu"};
  return names;
}

namespace {

std::string joined_architectures() {
  std::string text;
  for (const std::string& name : architecture_names()) text += (text.empty() ? "" : ", ") + name;
  return text;
}

void require_all(JsonReader& reader) {
  reader.require("architecture", "one of " + joined_architectures());
  reader.require("sm_count", "the number of SMs (compute units, AI cores, TensorCores)");
  reader.require("memory_gib", "the capacity in GiB");
  reader.require("memory_gb_per_s", "the memory bandwidth in GB/s");
  reader.require("scale_up_gb_per_s", "the rate to other devices of the node in GB/s");
}

/// What was measured on a device says nothing of one with other rates.
void rename_changed(const DeviceSpec& base, DeviceSpec& device) {
  DeviceSpec of_base_size = device;
  of_base_size.memory_gib = base.memory_gib;
  if (device.name == base.name && !(of_base_size == base)) device.name += " changed";
}

Json to_json(const RelativeRates& rates) {
  Json out{Json::Object{}};
  for (const DType type : kMultiplied) {
    if (rates.of(type) != 1) out.set(name_of(type), rates.of(type));
  }
  return rates == RelativeRates(rates.of(DType::kFp32)) ? Json(rates.of(DType::kFp32)) : out;
}

/// The fields of `json` over those of `base`; without one (no SMs) all that have no default.
Result<DeviceSpec> read_fields(const Json& json, const std::string& source,
                               const std::string& pointer, const DeviceSpec& base = {}) {
  DeviceSpec device = base;
  JsonReader reader(json, source, pointer);
  read_remarks(reader, "foretrain/device/1");
  if (base.sm_count == 0) require_all(reader);
  const bool nccl = reader.has("nccl_scale_up_gb_per_s");
  for (const DeviceKey& key : device_keys()) key.read(reader, device);
  const bool other_links = device.scale_up_gb_per_s != base.scale_up_gb_per_s;
  if (!nccl && (base.sm_count == 0 || other_links)) {
    device.nccl_scale_up_gb_per_s = shared_constants().nccl_share * device.scale_up_gb_per_s;
  }
  if (device.fp16_tflops <= 0 && device.bf16_tflops <= 0) {
    reader.fail("bf16_tflops", "a device needs bf16_tflops or fp16_tflops");
  }
  FT_TRY(reader.finish());
  if (base.sm_count > 0) rename_changed(base, device);
  return device;
}

Result<DeviceSpec> read_at_depth(const Json& json, const std::string& source,
                                 const std::string& pointer, const DeviceSpec& base, int depth) {
  if (const std::string* name = json.string()) {
    FT_ASSIGN(NamedJson preset, load_base("devices", *name, source, pointer, depth));
    return read_at_depth(preset.json, preset.source, "", {}, depth + 1);
  }
  if (json.object() == nullptr) {
    return input_error(place_in(source, pointer) + "found " + describe(json) +
                       "; accepted: a device's name, a path, or an object");
  }
  const Json* preset = json.find("preset");
  if (preset == nullptr) return read_fields(json, source, pointer, base);
  if (preset->string() == nullptr) {
    return input_error(source + ": " + pointer + "/preset: found " + describe(*preset) +
                       "; accepted: a device's name or a path");
  }
  FT_ASSIGN(const DeviceSpec named, read_at_depth(*preset, source, pointer + "/preset", {}, depth));
  return read_fields(json, source, pointer, named);
}

}  // namespace

std::string_view name_of(Architecture architecture) {
  return architecture_names().at(static_cast<std::size_t>(architecture));
}

double power_law(double power_w, double reference_w) {
  return std::pow(power_w / reference_w, shared_constants().power_exponent);
}

std::string types_of(const DeviceSpec& device) {
  std::string out;
  for (const DType type : kMultiplied) {
    if (peak_tflops(device, type) <= 0) continue;
    out += (out.empty() ? "" : ", ") + std::string(name_of(type));
  }
  return out;
}

double power_factor(const DeviceSpec& device) {
  if (device.power_limit_w <= 0 || device.power_limit_w >= device.power_w) return 1;
  return power_law(device.power_limit_w, device.power_w);
}

double sustained_factor(const DeviceSpec& device, DType type) {
  return device.slowest * device.relative_rate.of(type) * power_factor(device);
}

double slowest_rate(std::int64_t devices, double spread) {
  const auto n = static_cast<double>(devices);
  const double share = (n - 0.375) / (n + 0.25);
  double low = 0;
  double high = 10;
  for (int i = 0; i < 60; ++i) {
    const double z = (low + high) / 2;
    (0.5 * std::erfc(-z / std::numbers::sqrt2) < share ? low : high) = z;
  }
  return 1 - spread * low;
}

double peak_tflops(const DeviceSpec& device, DType type) {
  switch (type) {
    case DType::kFp32:
      return device.fp32_tflops;
    case DType::kTf32:
      return device.tf32_tflops;
    case DType::kBf16:
      return device.bf16_tflops;
    case DType::kFp16:
      return device.fp16_tflops;
    case DType::kFp8:
      return device.fp8_tflops;
    case DType::kFp4:
      return device.fp4_tflops;
    case DType::kInt8:
      return device.int8_tops;
    case DType::kInt32:
    case DType::kInt64:
    case DType::kUint8:
      return 0;
  }
  return 0;
}

Result<DeviceSpec> read_device(const Json& json, const std::string& source,
                               const std::string& pointer, const DeviceSpec& base) {
  return read_at_depth(json, source, pointer, base, 0);
}

Json to_json(const DeviceSpec& device) {
  Json out{Json::Object{}};
  out.set("name", device.name);
  out.set("architecture", name_of(device.architecture));
  out.set("sm_count", device.sm_count);
  out.set("clock_mhz", device.clock_mhz);
  const auto set_rate = [&out](std::string_view key, double rate) {
    if (rate > 0) out.set(key, rate);
  };
  set_rate("fp32_tflops", device.fp32_tflops);
  set_rate("tf32_tflops", device.tf32_tflops);
  set_rate("fp16_tflops", device.fp16_tflops);
  set_rate("bf16_tflops", device.bf16_tflops);
  set_rate("fp8_tflops", device.fp8_tflops);
  set_rate("fp4_tflops", device.fp4_tflops);
  set_rate("int8_tops", device.int8_tops);
  out.set("memory_gib", device.memory_gib);
  out.set("memory_gb_per_s", device.memory_gb_per_s);
  out.set("l2_mib", device.l2_mib);
  out.set("scale_up_links", device.scale_up_links);
  out.set("scale_up_gb_per_s", device.scale_up_gb_per_s);
  if (is_nvidia(device.architecture)) {
    out.set("nccl_scale_up_gb_per_s", device.nccl_scale_up_gb_per_s);
  }
  set_rate("pcie_gb_per_s", device.pcie_gb_per_s);
  out.set("power_w", device.power_w);
  set_rate("power_limit_w", device.power_limit_w);
  if (device.relative_rate != RelativeRates()) {
    out.set("relative_rate", to_json(device.relative_rate));
  }
  if (!device.rate_note.empty()) out.set("rate_note", device.rate_note);
  set_rate("exponentials_per_clock", device.exponentials_per_clock);
  return out;
}

}  // namespace foretrain
