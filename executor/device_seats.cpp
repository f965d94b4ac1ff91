#include "executor/device_seats.h"

#include <map>

#include "executor/watch/life.h"

namespace foretrain {
namespace {

/// Texts as numbers, for `gather`: the length of each, then its characters.
std::vector<std::int64_t> characters_of(std::initializer_list<std::string> texts) {
  std::vector<std::int64_t> out;
  for (const std::string& text : texts) {
    out.push_back(static_cast<std::int64_t>(text.size()));
    out.insert(out.end(), text.begin(), text.end());
  }
  return out;
}

/// The text at `at`, which moves on behind it.
std::string text_at(const std::vector<std::int64_t>& values, std::size_t& at) {
  if (at >= values.size()) return "";
  const auto length = static_cast<std::size_t>(values[at++]);
  std::string out;
  for (std::size_t i = 0; i < length && at < values.size(); ++i) {
    out += static_cast<char>(values[at++]);
  }
  return out;
}

bool is_known(const std::string& uuid) {
  return uuid.starts_with("GPU-") && uuid.find_first_not_of("GPU-0") != std::string::npos;
}

/// Two ranks that share a device, or {-1, -1}, and which device.
struct Shared {
  std::int64_t first = -1, second = -1;
  std::string device;
};

Shared shared_device(std::span<const DeviceSeat> by_rank) {
  std::map<std::string, std::size_t> taken;
  for (std::size_t r = 0; r < by_rank.size(); ++r) {
    const DeviceSeat& seat = by_rank[r];
    const std::string place = seat.gpu.bus + " of " + seat.host;
    const std::string name = is_known(seat.gpu.uuid) ? seat.gpu.uuid
                             : seat.gpu.bus.empty()  ? ""
                                                     : place;
    if (name.empty()) continue;
    const auto [at, fresh] = taken.emplace(name, r);
    if (!fresh) {
      return {static_cast<std::int64_t>(at->second), static_cast<std::int64_t>(r),
              seat.gpu.bus.empty() ? name : place};
    }
  }
  return {};
}

Error sharing(std::int64_t first, std::int64_t second, const std::string& device) {
  return input_error("ranks " + std::to_string(first) + " and " + std::to_string(second) +
                     " have one CUDA device" + (device.empty() ? "" : ", " + device) +
                     "; NCCL refuses two ranks on one: start as many ranks on a machine as it has "
                     "devices, each with another one visible or all with all");
}

}  // namespace

Status check_apart(std::span<const DeviceSeat> by_rank) {
  const Shared shared = shared_device(by_rank);
  if (shared.first < 0) return ok_status();
  return sharing(shared.first, shared.second, shared.device);
}

Status take_seats(const CudaModule& cuda, RankId self, Transport& transport) {
  const Result<int> number = device_of(self, cuda.devices);
  if (!number.ok()) {
    transport.abort(number.error().message);
    return number.error();
  }
  const auto at = static_cast<std::size_t>(number.value());
  const GpuName own = at < cuda.gpus.size() ? cuda.gpus[at] : GpuName{};
  FT_ASSIGN(const auto all,
            transport.gather(self, characters_of({host_name(), own.bus, own.uuid})));
  Shared shared;
  if (self.value == 0) {
    std::vector<DeviceSeat> seats;
    for (const std::vector<std::int64_t>& one : all) {
      std::size_t next = 0;
      DeviceSeat seat;
      seat.host = text_at(one, next);
      seat.gpu.bus = text_at(one, next);
      seat.gpu.uuid = text_at(one, next);
      seats.push_back(std::move(seat));
    }
    shared = shared_device(seats);
  }
  std::vector<std::int64_t> found = {shared.first, shared.second};
  FT_TRY(transport.broadcast(self, found));
  if (found[0] < 0) return ok_status();
  // Rank 0 knows the device; all fail alike.
  return sharing(found[0], found[1], shared.device);
}

}  // namespace foretrain
