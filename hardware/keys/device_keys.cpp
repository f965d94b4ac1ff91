#include "hardware/keys/device_keys.h"

#include <string>
#include <string_view>
#include <utility>

namespace foretrain {
namespace {

DeviceKey number_of(const std::string& name, double DeviceSpec::*member, double low, double high) {
  return DeviceKey::number("cluster.device." + name,
                           [member](DeviceSpec& d, double v) { d.*member = v; })
      .range(low, high);
}

DeviceKey count_of(const std::string& name, std::int32_t DeviceSpec::*member, double low,
                   double high) {
  const auto set = [member](DeviceSpec& d, std::int64_t v) {
    d.*member = static_cast<std::int32_t>(v);
  };
  return DeviceKey::count("cluster.device." + name, set).range(low, high);
}

DeviceKey text_of(const std::string& name, std::string DeviceSpec::*member) {
  return DeviceKey::text("cluster.device." + name,
                         [member](DeviceSpec& d, const std::string& v) { d.*member = v; });
}

/// A peak of dense products, in TFLOP/s or TOP/s.
DeviceKey peak_of(const std::string& name, double DeviceSpec::*member, const std::string& type) {
  return number_of(name, member, 1e-6, 1e9)
      .says("Peak of dense products of " + type + "; left out where there are none.");
}

constexpr JsonReader::Range kRelative{0.01, 2};

/// One number for products of all types, or an object of numbers by type.
void read_relative_rate(JsonReader& reader, RelativeRates& out) {
  constexpr std::string_view kKey = "relative_rate";
  const Json* json = reader.take(kKey);
  if (json == nullptr) return;
  if (json->object() == nullptr) {
    double rate = 1;
    if (json->is_number()) {
      reader.read(kKey, rate, kRelative);
    } else {
      reader.fail(kKey, "found " + describe(*json) +
                            ", expected a number from 0.01 to 2, or an object of them by type");
    }
    out = RelativeRates(rate);
    return;
  }
  JsonReader types(*json, reader.source(), reader.pointer(kKey));
  for (const DType type : kMultiplied) {
    double rate = out.of(type);
    types.read(name_of(type), rate, kRelative);
    out.set(type, rate);
  }
  reader.adopt(types.finish());
}

/// A rate of one's own has none of the preset's doubts.
DeviceKey relative_rate() {
  return DeviceKey("cluster.device.relative_rate", KeyType::kAny,
                   [](const DeviceKey&, JsonReader& reader, DeviceSpec& d) {
                     const RelativeRates before = d.relative_rate;
                     read_relative_rate(reader, d.relative_rate);
                     if (d.relative_rate != before) d.rate_note.clear();
                   });
}

std::vector<DeviceKey> keys() {
  return {
      DeviceKey::elsewhere("cluster.device.preset", KeyType::kText)
          .says("A device preset or a path, whose fields the other keys override."),
      text_of("name", &DeviceSpec::name).says("A name for reports."),
      DeviceKey::choice<Architecture>("cluster.device.architecture", architecture_names(),
                                      [](DeviceSpec& d, Architecture v) { d.architecture = v; })
          .says("The generation, whose kernel rates hold (configs/kernels/)."),
      count_of("sm_count", &DeviceSpec::sm_count, 1, 4096)
          .says("SMs, compute units, AI cores, TensorCores or CPU cores."),
      number_of("clock_mhz", &DeviceSpec::clock_mhz, 1, 1e5).says("Clock; told, priced by no one."),
      peak_of("fp32_tflops", &DeviceSpec::fp32_tflops, "fp32"),
      peak_of("tf32_tflops", &DeviceSpec::tf32_tflops, "tf32"),
      peak_of("fp16_tflops", &DeviceSpec::fp16_tflops, "fp16"),
      peak_of("bf16_tflops", &DeviceSpec::bf16_tflops, "bf16"),
      peak_of("fp8_tflops", &DeviceSpec::fp8_tflops, "fp8"),
      peak_of("fp4_tflops", &DeviceSpec::fp4_tflops, "fp4"),
      peak_of("int8_tops", &DeviceSpec::int8_tops, "int8"),
      number_of("memory_gib", &DeviceSpec::memory_gib, 1e-3, 1e6)
          .says("Memory in GiB as the driver shows it."),
      number_of("memory_gb_per_s", &DeviceSpec::memory_gb_per_s, 1e-3, 1e7)
          .says("Bandwidth of the memory."),
      number_of("l2_mib", &DeviceSpec::l2_mib, 0, 1e6).says("Last level of cache, in MiB."),
      count_of("scale_up_links", &DeviceSpec::scale_up_links, 0, 4096)
          .says("Links to other devices of the node."),
      number_of("scale_up_gb_per_s", &DeviceSpec::scale_up_gb_per_s, 1e-3, 1e7)
          .says("Line rate of all these links, one direction."),
      number_of("nccl_scale_up_gb_per_s", &DeviceSpec::nccl_scale_up_gb_per_s, 1e-3, 1e7)
          .else_("a share of scale_up_gb_per_s")
          .says("The same rate as NCCL's topology search counts it."),
      number_of("pcie_gb_per_s", &DeviceSpec::pcie_gb_per_s, 1e-3, 1e6)
          .says("Rate to the host, one direction: PCIe, or NVLink-C2C."),
      number_of("power_w", &DeviceSpec::power_w, 0, 1e6).says("Power that the product may draw."),
      number_of("power_limit_w", &DeviceSpec::power_limit_w, 0, 1e6)
          .says("Power that an operator lets it draw; 0: all."),
      relative_rate().says(
          "Rate of products beside the architecture's, one number or an object by type."),
      text_of("rate_note", &DeviceSpec::rate_note).says("What is doubtful about the rates."),
      number_of("exponentials_per_clock", &DeviceSpec::exponentials_per_clock, 1, 1e4)
          .says("Exponentials of an SM in a clock, in fp32."),
      DeviceKey::elsewhere("cluster.device.cuda_names")
          .says("The names by which drivers know the device, a list."),
      DeviceKey::elsewhere("cluster.device.usual_cluster", KeyType::kText)
          .says("The cluster preset that a machine with this device is taken for."),
  };
}

}  // namespace

const std::vector<DeviceKey>& device_keys() {
  static const std::vector<DeviceKey> all = keys();
  return all;
}

}  // namespace foretrain
