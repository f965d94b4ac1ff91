#include "executor/state/saved_state.h"

#include <algorithm>
#include <array>
#include <bit>
#include <chrono>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <set>
#include <span>

#include "executor/host_rank.h"
#include "executor/state/state_map.h"
#include "sim/base/file.h"
#include "sim/base/json.h"
#include "sim/base/rng.h"

namespace foretrain {
namespace {

namespace fs = std::filesystem;
using StateClock = std::chrono::steady_clock;

constexpr const char* kStateSchema = "foretrain/state/3";
constexpr const char* kMapSchema = "foretrain/state-map/1";

double state_seconds(StateClock::time_point begin) {
  return std::chrono::duration<double>(StateClock::now() - begin).count();
}

constexpr std::uint64_t kOdd = 0x9e3779b97f4a7c15ULL;

/// Of bytes, in four lanes of eight bytes each, so that a processor works on four at a time.
std::uint64_t checksum_of(std::uint64_t before, std::span<const std::byte> bytes) {
  constexpr std::size_t kLanes = 4;
  constexpr std::size_t kWord = sizeof(std::uint64_t);
  std::array<std::uint64_t, kLanes> lanes = {before, before + 1, before + 2, before + 3};
  std::size_t at = 0;
  for (; at + kLanes * kWord <= bytes.size(); at += kLanes * kWord) {
    std::array<std::uint64_t, kLanes> words{};
    std::memcpy(words.data(), bytes.data() + at, sizeof words);
    for (std::size_t i = 0; i < kLanes; ++i) lanes[i] = hash_u64(lanes[i] ^ words[i]) + kOdd;
  }
  std::uint64_t out = bytes.size();
  for (const std::uint64_t lane : lanes) out = hash_u64(out ^ lane) + kOdd;
  for (; at < bytes.size(); ++at) {
    out = hash_u64(out ^ static_cast<std::uint64_t>(bytes[at])) + kOdd;
  }
  return out;
}

std::uint64_t hash_text(std::uint64_t before, const std::string& text) {
  return checksum_of(before, std::as_bytes(std::span(text.data(), text.size())));
}

/// A whole file, of any size.
Result<std::string> read_state_file(const fs::path& path) {
  std::error_code none;
  if (!fs::is_regular_file(path, none)) return input_error(path.string() + ": is no file");
  std::ifstream file(path, std::ios::binary | std::ios::ate);
  std::string out;
  if (file) out.resize(static_cast<std::size_t>(file.tellg()));
  file.seekg(0);
  if (!file.read(out.data(), static_cast<std::streamsize>(out.size()))) {
    return input_error(path.string() + ": cannot be read");
  }
  return out;
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
fs::path map_of(const StateFolder& folder, std::int64_t steps, std::size_t rank) {
  return folder_of(folder, steps) / ("rank-" + std::to_string(rank) + ".json");
}
fs::path list_of(const StateFolder& folder, std::int64_t steps) {
  return folder_of(folder, steps) / "state.json";
}

Result<HostRank<float>*> host_rank(RankRunner& runner) {
  auto* host = dynamic_cast<HostRank<float>*>(&runner);
  if (host != nullptr) return host;
  return unsupported("--checkpoint: states of devices are not saved yet; leave out --device");
}

/// Weights and optimizer states: gradients and activations begin anew with every step.
bool is_state(const Buffer& buffer) {
  return buffer.persistent && buffer.count > 0 &&
         (buffer.kind == BufferKind::kParameters || buffer.kind == BufferKind::kOptimizer);
}

/// The rank's states, in the order of the Program.
std::vector<std::span<std::byte>> state_of(HostRank<float>& host) {
  const Program& program = host.program();
  std::vector<std::span<std::byte>> out;
  for (std::size_t f = 0; f < program.frames.size(); ++f) {
    if (program.frames[f].alias_of.valid()) continue;
    const FrameLayout& layout = program.layouts[program.frames[f].layout.index()];
    Call call;
    call.frames = {FrameId(f)};
    for (std::size_t b = 0; b < layout.buffers.size(); ++b) {
      const Buffer& buffer = layout.buffers[b];
      if (!is_state(buffer)) continue;
      const View view{0, static_cast<std::int16_t>(b), 0, buffer.bytes(), 1, GroupSlot()};
      const Operand operand = host.memory().at(call, view);
      out.emplace_back(reinterpret_cast<std::byte*>(operand.data),
                       HostMemory<float>::size_of(operand));
    }
  }
  return out;
}

/// Which elements of tensors the bytes of the rank's file are.
Json map_json(HostRank<float>& host, const std::vector<std::span<std::byte>>& buffers) {
  const auto byte_of = [&buffers](const float* value) {
    const auto* data = reinterpret_cast<const std::byte*>(value);
    std::int64_t at = 0;
    for (const std::span<std::byte> buffer : buffers) {
      if (data >= buffer.data() && data < buffer.data() + buffer.size()) {
        return at + (data - buffer.data());
      }
      at += static_cast<std::int64_t>(buffer.size());
    }
    FT_CHECK(false, "a state that no buffer of states holds");
    return at;
  };
  std::vector<StateRun> runs;
  for (OwnRun& own : updated_runs(host)) {
    for (std::size_t p = 0; p < kStateParts; ++p) own.run.at[p] = byte_of(own.values[p]);
    runs.push_back(std::move(own.run));
  }
  Json out{Json::Object{}};
  out.set("schema", kMapSchema);
  out.set("runs", json_of(runs));
  return out;
}

/// Tokens of a step: every rank of a batch takes some.
struct StepBatch {
  std::int64_t sequences = 0, length = 0;
};
StepBatch batch_of(const Workload& workload) {
  const RankBinding& rank = workload.ranks.front();
  const Batch& batch = workload.programs[rank.program.index()].batch;
  std::int64_t takers = 1;
  if (batch.split_over.valid() && rank.groups[batch.split_over.index()].valid()) {
    const GroupId group = rank.groups[batch.split_over.index()];
    takers = static_cast<std::int64_t>(workload.groups[group.index()].size());
  }
  return {batch.sequences * batch.microbatches * takers, batch.length};
}

/// The number in the name of a state's folder; -1 where it is none.
std::int64_t steps_of(const fs::path& path) {
  const std::string name = path.filename().string();
  if (!name.starts_with("step-")) return -1;
  const std::string digits = name.substr(5);
  const bool number = !digits.empty() && digits.size() < 18 &&
                      digits.find_first_not_of("0123456789") == std::string::npos;
  return number ? std::stoll(digits) : -1;
}

/// Steps of the folders that have a list, the newest first.
std::vector<std::int64_t> saved_steps(const StateFolder& folder) {
  std::vector<std::int64_t> out;
  std::error_code ignored;
  for (const fs::directory_entry& entry : fs::directory_iterator(folder.path, ignored)) {
    const std::int64_t steps = steps_of(entry.path());
    if (steps >= 0 && fs::exists(entry.path() / "state.json", ignored)) out.push_back(steps);
  }
  std::sort(out.rbegin(), out.rend());
  return out;
}

/// What runs that were killed left behind: folders of earlier steps without a list, and in this
/// state's folder files that no rank of it wrote.
void remove_rests(const StateFolder& folder, std::int64_t steps, std::size_t ranks) {
  std::error_code ignored;
  std::set<fs::path> wanted = {list_of(folder, steps)};
  for (std::size_t r = 0; r < ranks; ++r) {
    wanted.insert({file_of(folder, steps, r), map_of(folder, steps, r)});
  }
  std::vector<fs::path> rests;
  for (const fs::directory_entry& entry :
       fs::directory_iterator(folder_of(folder, steps), ignored)) {
    const std::string name = entry.path().filename().string();
    const bool ours = name.starts_with("rank-") || name.starts_with(".foretrain-");
    if (ours && !wanted.contains(entry.path())) rests.push_back(entry.path());
  }
  for (const fs::directory_entry& entry : fs::directory_iterator(folder.path, ignored)) {
    const std::int64_t done = steps_of(entry.path());
    if (done < 0 || done >= steps || fs::exists(entry.path() / "state.json", ignored)) continue;
    rests.push_back(entry.path());
  }
  for (const fs::path& rest : rests) fs::remove_all(rest, ignored);
}

Status write_list(const StateFolder& folder, const Workload& workload, std::int64_t steps,
                  const std::vector<std::vector<std::int64_t>>& of_ranks) {
  Json json{Json::Object{}};
  json.set("schema", kStateSchema);
  json.set("steps", steps);
  const std::uint64_t print =
      folder.fingerprint != 0 ? folder.fingerprint : fingerprint_of(workload);
  json.set("fingerprint", hex_of(print));
  json.set("model", folder.model);
  const StepBatch batch = batch_of(workload);
  json.set("sequences", batch.sequences);
  json.set("length", batch.length);
  Json::Array tensors;
  for (const std::string& tensor : tensors_of(workload)) tensors.emplace_back(tensor);
  json.set("tensors", std::move(tensors));
  Json::Array files;
  for (const std::vector<std::int64_t>& of_rank : of_ranks) {
    Json file{Json::Object{}};
    file.set("bytes", of_rank[1]);
    file.set("checksum", hex_of(std::bit_cast<std::uint64_t>(of_rank[0])));
    file.set("map_checksum", hex_of(std::bit_cast<std::uint64_t>(of_rank[2])));
    files.push_back(std::move(file));
  }
  json.set("ranks", std::move(files));
  json.set("checksum", hex_of(hash_text(0, dump_json(json, -1))));
  FT_TRY(write_text_file(list_of(folder, steps).string(), dump_json(json) + "\n"));
  const std::vector<std::int64_t> all = saved_steps(folder);
  for (std::size_t i = static_cast<std::size_t>(folder.keep); i < all.size(); ++i) {
    std::error_code ignored;
    // The list first: without it the folder is no state.
    fs::remove(list_of(folder, all[i]), ignored);
    fs::remove_all(folder_of(folder, all[i]), ignored);
  }
  remove_rests(folder, steps, of_ranks.size());
  return ok_status();
}

/// What is wrong with a list itself; "" where nothing is.
std::string fault_of_list(const Json& list, std::int64_t steps) {
  const Json* schema = list.find("schema");
  if (schema == nullptr || !(*schema == Json(kStateSchema))) {
    return std::string("is no list of a state of this version (") + kStateSchema + ")";
  }
  Json rest = list;
  Json sum;
  if (const Json* found = rest.find("checksum"); found != nullptr) sum = *found;
  rest.erase("checksum");
  if (!(sum == Json(hex_of(hash_text(0, dump_json(rest, -1)))))) {
    return "its own checksum is another one: it is damaged";
  }
  const Json* said = list.find("steps");
  if (said == nullptr || !(*said == Json(steps))) {
    return "is of another step than its folder's name says";
  }
  const Json* ranks = list.find("ranks");
  if (ranks == nullptr || ranks->array() == nullptr || list.find("fingerprint") == nullptr) {
    return "is no list of a state";
  }
  return "";
}

/// What is wrong with the files of a list; "" where nothing is.
std::string fault_of(const StateFolder& folder, std::int64_t steps, const Json& list) {
  const Json* ranks = list.find("ranks");
  for (std::size_t r = 0; r < ranks->array()->size(); ++r) {
    for (const auto& [path, key] : {std::pair(file_of(folder, steps, r), "checksum"),
                                    std::pair(map_of(folder, steps, r), "map_checksum")}) {
      const Result<std::string> text = read_state_file(path);
      if (!text.ok()) return text.error().message;
      const std::uint64_t sum = hash_text(0, text.value());
      const Json* wanted = (*ranks->array())[r].find(key);
      if (wanted == nullptr || !(*wanted == Json(hex_of(sum)))) {
        return path.string() + ": its checksum is not that of state.json";
      }
    }
  }
  return "";
}

/// What the second list lacks of the first one, which are sorted; "" where nothing.
std::string first_missing(const std::vector<std::string>& wanted,
                          const std::vector<std::string>& has) {
  std::vector<std::string> out;
  std::set_difference(wanted.begin(), wanted.end(), has.begin(), has.end(),
                      std::back_inserter(out));
  return out.empty() ? "" : out.front();
}

/// Why another plan cannot go on from a state: it is of another model or another batch.
Status check_other_plan(const StateFolder& folder, const Workload& workload, const Json& list,
                        const std::string& path) {
  const std::string where = "--resume: " + path + ": ";
  const auto number = [&list](const char* key) {
    const Json* found = list.find(key);
    const auto* whole = found == nullptr ? nullptr : std::get_if<std::int64_t>(&found->value);
    return whole == nullptr ? std::int64_t{0} : *whole;
  };
  const Json* model = list.find("model");
  if (model == nullptr || !(*model == Json(folder.model))) {
    return input_error(where + "is of another model: " +
                       (model == nullptr || model->string() == nullptr ? "" : *model->string()) +
                       "; the RUN's is: " + folder.model);
  }
  std::vector<std::string> theirs;
  if (const Json* names = list.find("tensors"); names != nullptr && names->array() != nullptr) {
    for (const Json& name : *names->array()) {
      if (name.string() != nullptr) theirs.push_back(*name.string());
    }
  }
  const std::vector<std::string> ours = tensors_of(workload);
  const std::string of_us = first_missing(ours, theirs);
  const std::string of_them = first_missing(theirs, ours);
  if (!of_us.empty()) return input_error(where + "is of another model: it has no " + of_us);
  if (!of_them.empty()) {
    return input_error(where + "is of another model: the RUN has no " + of_them);
  }
  const StepBatch batch = batch_of(workload);
  if (number("sequences") == batch.sequences && number("length") == batch.length) {
    return ok_status();
  }
  return input_error(where + "has trained on " + std::to_string(number("sequences")) +
                     " sequences of " + std::to_string(number("length")) +
                     " tokens a step, and the RUN's steps have " + std::to_string(batch.sequences) +
                     " of " + std::to_string(batch.length) +
                     "; expected the same batch.global and batch.sequence");
}

/// The states as the rank's own file has them.
Status load_own(const fs::path& path, HostRank<float>& host, StateMeasure& out) {
  FT_ASSIGN(const std::string whole, read_state_file(path));
  for (const std::span<std::byte> bytes : state_of(host)) {
    if (static_cast<std::size_t>(out.bytes) + bytes.size() > whole.size()) {
      return input_error("--resume: " + path.string() + ": is too short");
    }
    std::memcpy(bytes.data(), whole.data() + out.bytes, bytes.size());
    out.bytes += static_cast<Bytes>(bytes.size());
  }
  if (static_cast<std::size_t>(out.bytes) == whole.size()) return ok_status();
  return input_error("--resume: " + path.string() + ": is too long");
}

Result<StateSource> source_of(const StateFolder& folder, std::int64_t steps) {
  FT_ASSIGN(const Json list, read_json_file(list_of(folder, steps).string()));
  const Json* ranks = list.find("ranks");
  const std::size_t count = ranks == nullptr || !ranks->array() ? 0 : ranks->array()->size();
  std::vector<fs::path> files;
  std::vector<std::vector<StateRun>> runs;
  for (std::size_t r = 0; r < count; ++r) {
    const std::string path = map_of(folder, steps, r).string();
    FT_ASSIGN(const Json map, read_json_file(path));
    const Json* found = map.find("runs");
    FT_ASSIGN(std::vector<StateRun> of_rank, read_state_runs(found ? *found : Json(), path));
    files.push_back(file_of(folder, steps, r));
    runs.push_back(std::move(of_rank));
  }
  return StateSource(std::move(files), runs);
}

/// The states from ranges of the files of all ranks that wrote.
Status load_ranges(const StateFolder& folder, std::int64_t steps, HostRank<float>& host,
                   StateMeasure& out) {
  FT_ASSIGN(const StateSource source, source_of(folder, steps));
  for (const OwnRun& own : held_weights(host)) {
    FT_TRY(source.read(own.run, kWeightPart, own.values[kWeightPart]));
  }
  for (const OwnRun& own : updated_runs(host)) {
    for (std::size_t p = kWeightPart + 1; p < kStateParts; ++p) {
      FT_TRY(source.read(own.run, p, own.values[p]));
    }
    if (own.master == nullptr) continue;
    std::copy_n(own.values[kWeightPart], own.run.count, own.master);
  }
  out.bytes = source.bytes();
  return ok_status();
}

/// Of all ranks, from what each of them gathered.
Bytes sum_at(const std::vector<std::vector<std::int64_t>>& gathered, std::size_t index) {
  Bytes sum = 0;
  for (const std::vector<std::int64_t>& one : gathered) sum += one[index];
  return sum;
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
  const std::string name = "write of the state after step " + std::to_string(steps);
  const OpUnderWay under_way(transport, rank, name);
  FT_ASSIGN(HostRank<float>* const host, host_rank(runner));
  const std::vector<std::span<std::byte>> buffers = state_of(*host);
  std::error_code error;
  fs::create_directories(folder_of(folder, steps), error);
  if (error) {
    return input_error("--checkpoint: " + folder_of(folder, steps).string() + ": " +
                       error.message());
  }
  FT_ASSIGN(AtomicFile file, AtomicFile::create(file_of(folder, steps, rank.index()).string()));
  std::string whole;  // checksums are of the file, wherever its buffers end
  std::size_t room = 0;
  for (const std::span<std::byte> bytes : buffers) room += bytes.size();
  whole.reserve(room);
  for (const std::span<std::byte> bytes : buffers) {
    whole.append(reinterpret_cast<const char*>(bytes.data()), bytes.size());
  }
  FT_TRY(file.append(whole));
  FT_TRY(file.commit());
  const std::string map = dump_json(map_json(*host, buffers), -1) + "\n";
  FT_TRY(write_text_file(map_of(folder, steps, rank.index()).string(), map));
  out.bytes = static_cast<Bytes>(whole.size());
  const auto sum_of = [](const std::string& text) {
    return std::bit_cast<std::int64_t>(hash_text(0, text));
  };
  // All files stand before the list that makes them a state.
  FT_ASSIGN(const auto gathered, transport.gather(rank, {sum_of(whole), out.bytes, sum_of(map)}));
  if (rank.value == 0) FT_TRY(write_list(folder, workload, steps, gathered));
  FT_TRY(transport.barrier(rank));
  out.seconds = state_seconds(begin);
  out.all_bytes = sum_at(gathered, 1);
  return out;
}

Result<SavedPoint> newest_state(const StateFolder& folder, const Workload& workload,
                                std::vector<std::string>& notes) {
  for (const std::int64_t steps : saved_steps(folder)) {
    const std::string path = list_of(folder, steps).string();
    const Result<Json> list = read_json_file(path);
    const std::string wrong =
        list.ok() ? fault_of_list(list.value(), steps) : "cannot be read: " + list.error().message;
    if (!wrong.empty()) {
      notes.push_back(path + ": " + wrong + "; it is left out");
      continue;
    }
    const Json* print = list.value().find("fingerprint");
    const bool other = !(*print == Json(hex_of(fingerprint_of(workload))));
    if (other) FT_TRY(check_other_plan(folder, workload, list.value(), path));
    const std::string fault = fault_of(folder, steps, list.value());
    if (fault.empty()) return SavedPoint{steps, other};
    notes.push_back(fault + "; the state after " + std::to_string(steps) + " steps is left out");
  }
  return SavedPoint{};
}

Result<StateMeasure> load_state(const StateFolder& folder, RankRunner& runner, RankId rank,
                                Transport& transport, std::int64_t steps) {
  const StateClock::time_point begin = StateClock::now();
  StateMeasure out;
  const std::string name = "read of the state after step " + std::to_string(steps);
  const OpUnderWay under_way(transport, rank, name);
  FT_ASSIGN(HostRank<float>* const host, host_rank(runner));
  if (folder.of_other_plan) {
    FT_TRY(load_ranges(folder, steps, *host, out));
  } else {
    FT_TRY(load_own(file_of(folder, steps, rank.index()), *host, out));
  }
  FT_ASSIGN(const auto gathered, transport.gather(rank, {out.bytes}));
  FT_TRY(transport.barrier(rank));
  out.all_bytes = sum_at(gathered, 0);
  out.seconds = state_seconds(begin);
  return out;
}

}  // namespace foretrain
