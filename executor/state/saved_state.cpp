#include "executor/state/saved_state.h"

#include <algorithm>
#include <bit>
#include <chrono>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <span>

#include "executor/host_rank.h"
#include "sim/base/file.h"
#include "sim/base/json.h"
#include "sim/base/rng.h"

namespace foretrain {
namespace {

namespace fs = std::filesystem;
using StateClock = std::chrono::steady_clock;

constexpr const char* kStateSchema = "foretrain/state/1";

double state_seconds(StateClock::time_point begin) {
  return std::chrono::duration<double>(StateClock::now() - begin).count();
}

/// Of bytes, eight at a time.
std::uint64_t checksum_of(std::uint64_t before, std::span<const std::byte> bytes) {
  std::uint64_t out = before;
  std::size_t at = 0;
  for (; at + sizeof(std::uint64_t) <= bytes.size(); at += sizeof(std::uint64_t)) {
    std::uint64_t word = 0;
    std::memcpy(&word, bytes.data() + at, sizeof word);
    out = hash_u64(out ^ word) + 0x9e3779b97f4a7c15ULL;
  }
  for (; at < bytes.size(); ++at) {
    out = hash_u64(out ^ static_cast<std::uint64_t>(bytes[at])) + 0x9e3779b97f4a7c15ULL;
  }
  return out;
}

std::uint64_t hash_text(std::uint64_t before, const std::string& text) {
  return checksum_of(before, std::as_bytes(std::span(text.data(), text.size())));
}

std::string hex_of(std::uint64_t value) {
  constexpr const char* kDigits = "0123456789abcdef";
  std::string out(16, '0');
  for (std::size_t i = 0; i < out.size(); ++i) out[15 - i] = kDigits[(value >> (4 * i)) & 15];
  return out;
}

fs::path folder_of(const StateFolder& folder, std::int64_t steps) {
  return fs::path(folder.path) / ("step-" + std::to_string(steps));
}
fs::path file_of(const StateFolder& folder, std::int64_t steps, std::size_t rank) {
  return folder_of(folder, steps) / ("rank-" + std::to_string(rank) + ".state");
}
fs::path list_of(const StateFolder& folder, std::int64_t steps) {
  return folder_of(folder, steps) / "state.json";
}

/// The rank's persistent buffers, in the order of the Program.
Result<std::vector<std::span<std::byte>>> state_of(const Workload& workload, RankRunner& runner,
                                                   RankId rank) {
  auto* host = dynamic_cast<HostRank<float>*>(&runner);
  if (host == nullptr) {
    return unsupported("--checkpoint: states of devices are not saved yet; leave out --device");
  }
  const Program& program = workload.programs[workload.ranks[rank.index()].program.index()];
  std::vector<std::span<std::byte>> out;
  for (std::size_t f = 0; f < program.frames.size(); ++f) {
    if (program.frames[f].alias_of.valid()) continue;
    const FrameLayout& layout = program.layouts[program.frames[f].layout.index()];
    Call call;
    call.frames = {FrameId(f)};
    for (std::size_t b = 0; b < layout.buffers.size(); ++b) {
      const Buffer& buffer = layout.buffers[b];
      if (!buffer.persistent || buffer.count == 0) continue;
      const View view{0, static_cast<std::int16_t>(b), 0, buffer.bytes(), 1, GroupSlot()};
      const Operand operand = host->memory().at(call, view);
      out.emplace_back(reinterpret_cast<std::byte*>(operand.data),
                       HostMemory<float>::size_of(operand));
    }
  }
  return out;
}

/// Steps of the folders that have a list, the newest first.
std::vector<std::int64_t> saved_steps(const StateFolder& folder) {
  std::vector<std::int64_t> out;
  std::error_code ignored;
  for (const fs::directory_entry& entry : fs::directory_iterator(folder.path, ignored)) {
    const std::string name = entry.path().filename().string();
    if (!name.starts_with("step-")) continue;
    const std::string digits = name.substr(5);
    const bool number = !digits.empty() && digits.size() < 18 &&
                        digits.find_first_not_of("0123456789") == std::string::npos;
    if (number && fs::exists(entry.path() / "state.json", ignored))
      out.push_back(std::stoll(digits));
  }
  std::sort(out.rbegin(), out.rend());
  return out;
}

Status write_list(const StateFolder& folder, const Workload& workload, std::int64_t steps,
                  const std::vector<std::vector<std::int64_t>>& of_ranks) {
  Json json{Json::Object{}};
  json.set("schema", kStateSchema);
  json.set("steps", steps);
  json.set("fingerprint", hex_of(fingerprint_of(workload)));
  Json::Array files;
  for (const std::vector<std::int64_t>& of_rank : of_ranks) {
    Json file{Json::Object{}};
    file.set("bytes", of_rank[1]);
    file.set("checksum", hex_of(std::bit_cast<std::uint64_t>(of_rank[0])));
    files.push_back(std::move(file));
  }
  json.set("ranks", std::move(files));
  FT_TRY(write_text_file(list_of(folder, steps).string(), dump_json(json) + "\n"));
  const std::vector<std::int64_t> all = saved_steps(folder);
  for (std::size_t i = static_cast<std::size_t>(folder.keep); i < all.size(); ++i) {
    std::error_code ignored;
    // The list first: without it the folder is no state.
    fs::remove(list_of(folder, all[i]), ignored);
    fs::remove_all(folder_of(folder, all[i]), ignored);
  }
  return ok_status();
}

/// What is wrong with the files of a list; "" where nothing is.
std::string fault_of(const StateFolder& folder, std::int64_t steps, const Json& list) {
  const Json* ranks = list.find("ranks");
  for (std::size_t r = 0; r < ranks->array()->size(); ++r) {
    const std::string path = file_of(folder, steps, r).string();
    const Result<std::string> text = read_text_file(path);
    if (!text.ok()) return text.error().message;
    const std::uint64_t sum = hash_text(0, text.value());
    const Json* wanted = (*ranks->array())[r].find("checksum");
    if (wanted == nullptr || !(*wanted == Json(hex_of(sum)))) {
      return path + ": its checksum is not that of state.json";
    }
  }
  return "";
}

}  // namespace

std::uint64_t fingerprint_of(const Workload& workload) {
  std::uint64_t out = workload.ranks.size();
  for (const Program& program : workload.programs) out = hash_text(out, text_of(program));
  for (const RankBinding& rank : workload.ranks) out = hash_u64(out ^ rank.program.index());
  return out;
}

Result<StateMeasure> save_state(const StateFolder& folder, const Workload& workload,
                                RankRunner& runner, RankId rank, Transport& transport,
                                std::int64_t steps) {
  const StateClock::time_point begin = StateClock::now();
  StateMeasure out;
  FT_ASSIGN(const auto buffers, state_of(workload, runner, rank));
  std::error_code error;
  fs::create_directories(folder_of(folder, steps), error);
  if (error) {
    return input_error("--checkpoint: " + folder_of(folder, steps).string() + ": " +
                       error.message());
  }
  FT_ASSIGN(AtomicFile file, AtomicFile::create(file_of(folder, steps, rank.index()).string()));
  std::string whole;  // checksums are of the file, wherever its buffers end
  for (const std::span<std::byte> bytes : buffers) {
    whole.append(reinterpret_cast<const char*>(bytes.data()), bytes.size());
  }
  FT_TRY(file.append(whole));
  FT_TRY(file.commit());
  out.bytes = static_cast<Bytes>(whole.size());
  const std::uint64_t sum = hash_text(0, whole);
  // All files stand before the list that makes them a state.
  FT_ASSIGN(const auto gathered,
            transport.gather(rank, {std::bit_cast<std::int64_t>(sum), out.bytes}));
  if (rank.value == 0) FT_TRY(write_list(folder, workload, steps, gathered));
  FT_TRY(transport.barrier(rank));
  out.seconds = state_seconds(begin);
  return out;
}

Result<std::int64_t> newest_state(const StateFolder& folder, const Workload& workload,
                                  std::vector<std::string>& notes) {
  for (const std::int64_t steps : saved_steps(folder)) {
    const std::string path = list_of(folder, steps).string();
    const Result<Json> list = read_json_file(path);
    const Json* schema = list.ok() ? list.value().find("schema") : nullptr;
    const Json* print = list.ok() ? list.value().find("fingerprint") : nullptr;
    const Json* ranks = list.ok() ? list.value().find("ranks") : nullptr;
    if (schema == nullptr || !(*schema == Json(kStateSchema)) || print == nullptr ||
        ranks == nullptr || ranks->array() == nullptr) {
      notes.push_back(path + ": is no list of a state; it is left out");
      continue;
    }
    if (!(*print == Json(hex_of(fingerprint_of(workload))))) {
      return input_error("--resume: " + path +
                         ": is of another plan; expected the RUN and the ranks that wrote it");
    }
    const std::string fault = fault_of(folder, steps, list.value());
    if (fault.empty()) return steps;
    notes.push_back(fault + "; the state after " + std::to_string(steps) + " steps is left out");
  }
  return std::int64_t{0};
}

Result<StateMeasure> load_state(const StateFolder& folder, const Workload& workload,
                                RankRunner& runner, RankId rank, std::int64_t steps) {
  const StateClock::time_point begin = StateClock::now();
  StateMeasure out;
  FT_ASSIGN(const auto buffers, state_of(workload, runner, rank));
  const std::string path = file_of(folder, steps, rank.index()).string();
  FT_ASSIGN(const std::string whole, read_text_file(path));
  for (const std::span<std::byte> bytes : buffers) {
    if (static_cast<std::size_t>(out.bytes) + bytes.size() > whole.size()) {
      return input_error("--resume: " + path + ": is too short");
    }
    std::memcpy(bytes.data(), whole.data() + out.bytes, bytes.size());
    out.bytes += static_cast<Bytes>(bytes.size());
  }
  if (static_cast<std::size_t>(out.bytes) != whole.size()) {
    return input_error("--resume: " + path + ": is too long");
  }
  out.seconds = state_seconds(begin);
  return out;
}

}  // namespace foretrain
