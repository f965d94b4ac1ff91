#include "tools/report/report.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdio>

#include "sim/base/rng.h"
#include "sim/cost/cost_model.h"
#include "tools/version.h"

namespace foretrain {
namespace {

std::string pad(std::string text, std::size_t width) {
  if (text.size() < width) text.append(width - text.size(), ' ');
  return text;
}

std::string pad_left(const std::string& text, std::size_t width) {
  return text.size() < width ? std::string(width - text.size(), ' ') + text : text;
}

std::string percent(double share) { return fixed(100 * share, 1) + " %"; }

/// Without the sign of what shows as zero.
double rounded_share(double share) { return std::fabs(share) < 5e-4 ? 0 : share; }

/// A bar of `share` of 30 characters.
std::string bar(double share) {
  const auto full = static_cast<std::size_t>(std::lround(std::clamp(share, 0.0, 1.0) * 30));
  std::string out;
  for (std::size_t i = 0; i < full; ++i) out += "\u2588";
  return out;
}

struct PartName {
  Part part;
  const char* text;
};
constexpr std::array<PartName, static_cast<std::size_t>(Part::kCount)> kParts = {{
    {Part::kGemm, "matrix multiplication"},
    {Part::kAttention, "attention"},
    {Part::kMemoryBound, "memory-bound kernels"},
    {Part::kRecompute, "recomputation"},
    {Part::kOptimizer, "optimizer"},
    {Part::kCopy, "copies to and from the host"},
    {Part::kExposedTensor, "exposed tensor communication"},
    {Part::kExposedData, "exposed data communication"},
    {Part::kExposedPipeline, "exposed pipeline transfers"},
    {Part::kExposedExpert, "exposed expert exchanges"},
    {Part::kExposedContext, "exposed context exchanges"},
    {Part::kStorage, "reads and writes of storage"},
    {Part::kHostUpdate, "host's update of offloaded states"},
    {Part::kBubble, "pipeline bubble and waiting"},
    {Part::kData, "data loading"},
    {Part::kHost, "host launches and waits"},
}};

/// Broken behind commas, so that no line is longer than 100 characters where that can be.
std::string wrapped(const std::string& text, const std::string& indent) {
  constexpr std::size_t kWidth = 100;
  std::string out = indent;
  std::size_t length = indent.size();
  for (std::size_t at = 0; at < text.size();) {
    const std::size_t comma = text.find(", ", at);
    const std::size_t end = comma == std::string::npos ? text.size() : comma + 2;
    if (length > indent.size() && length + (end - at) > kWidth) {
      out.back() = '\n';
      out += indent + "  ";
      length = indent.size() + 2;
    }
    out.append(text, at, end - at);
    length += end - at;
    at = end;
  }
  return out + "\n";
}

std::string least_text(const MemoryReport& m) {
  if (m.least_gib > m.peak_gib - 0.05) return "";
  return ", at least " + fixed(m.least_gib, 1) + " are needed";
}

std::string verdict_text(const MemoryReport& m, double likely) {
  constexpr double kSure = 0.9;
  const std::string odds = ", close to the edge: " + fixed(100 * likely, 0) + " % likely to fit";
  if (m.peak_gib > m.capacity_gib) {
    return (likely <= 1 - kSure ? "DOES NOT FIT" : "DOES NOT FIT" + odds) + least_text(m);
  }
  std::string fits = "fits, " + fixed(m.capacity_gib - m.peak_gib, 1) + " GiB left";
  if (m.fits) return likely < kSure ? fits + odds : fits;
  return fits + ", but " + (m.host_fits() ? "storage" : "the host") + " DOES NOT (below)";
}

std::string memory_text(const Run& run, const MemoryReport& m) {
  std::string out = "Memory      " + fixed(m.peak_gib, 1) + " of " + fixed(m.capacity_gib, 1) +
                    " GiB on rank " + std::to_string(m.peak_rank) + ": " +
                    verdict_text(m, odds_of(run, m).fits) + "\n";
  const auto line = [&out, &m](const std::string& name, double gib) {
    if (gib < 0.005) return;
    out += "  " + pad(name, 30) + pad_left(fixed(gib, 2), 9) + " GiB  " +
           bar(gib / std::max(m.peak_gib, 1e-9)) + "\n";
  };
  for (std::size_t k = 0; k < m.by_kind_gib.size(); ++k) {
    line(std::string(name_of(static_cast<BufferKind>(k))), m.by_kind_gib[k]);
  }
  line("NCCL buffers", m.communication_gib);
  line("BLAS workspace", m.workspace_gib);
  line("CUDA context", m.context_gib);
  line("allocator's fragments", m.fragments_gib());
  out += "  peak at " + m.peak_at + "\n";
  if (m.allocator_retries > 0) {
    const std::string times =
        m.allocator_retries == 1 ? "once" : std::to_string(m.allocator_retries) + " times";
    out += "  the allocator gives segments back " + times +
           " a step, which waits for the device and the driver\n";
  }
  const auto offloaded = [&out](const char* where, double gib, double capacity, bool fits) {
    if (gib <= 0) return;
    out += std::string("  ") + where + " for each rank " + fixed(gib, 2) + " GiB";
    if (capacity > 0) out += " of " + fixed(capacity, 1) + (fits ? "" : ": DOES NOT FIT");
    out += "\n";
  };
  offloaded("on the host", m.host_gib, m.host_capacity_gib, m.host_fits());
  offloaded("in storage", m.storage_gib, m.storage_capacity_gib, m.storage_fits());
  return out;
}

/// As a shell takes it.
std::string command_text(const std::vector<std::string>& sets) {
  std::string out;
  for (const std::string& set : sets) {
    const bool plain = set.find_first_of("{[\"'") == std::string::npos;
    out += (out.empty() ? "--set " : " --set ") + (plain ? set : "'" + set + "'");
  }
  return out;
}

/// The kinds of changes that were tried: all but those the system has nothing of.
std::string tried_text(const Fitting& f) {
  const std::pair<const char*, const char*> kinds[] = {{"recompute", "recompute"},
                                                       {"sharding", "sharding"},
                                                       {"batch", "microbatch"},
                                                       {"parallel.tensor", "tensor"},
                                                       {"parallel.pipeline", "pipeline"},
                                                       {"parallel.context", "context"},
                                                       {"offload", "offload"}};
  std::string out;
  for (const auto& kind : kinds) {  // a lambda captures no structured binding in clang 14
    const bool lacks = std::any_of(f.lacking.begin(), f.lacking.end(),
                                   [&kind](const auto& lacked) { return lacked == kind.first; });
    if (!lacks) out += (out.empty() ? "" : ", ") + std::string(kind.second);
  }
  return out + (f.stopped ? "" : ", in pairs");
}

std::string change_line(const Change& change, const Prediction& p) {
  const double more = change.iteration_time_s / p.iteration_time_s - 1;
  return "  " + pad_left(seconds_text(change.iteration_time_s), 9) +
         pad_left((more < 0 ? "" : "+") + percent(more), 10) +
         pad_left(fixed(change.peak_gib, 1), 7) + " GiB  " + command_text(change.sets) +
         (change.peak_gib > kRoomyShare * p.memory.capacity_gib ? "   (close to the edge)" : "") +
         "\n";
}

/// What would make it fit, the fastest first; of what fits, what would make it faster.
std::string fitting_text(const Run& run, const Prediction& p) {
  if (!p.fitting) return "";
  const Fitting& f = *p.fitting;
  if (p.memory.fits) {
    std::string out = f.changes.empty() ? "" : "Faster, one change at a time\n";
    for (const Change& change : f.changes) out += change_line(change, p);
    return out;
  }
  std::string out = "Would fit, of " + std::to_string(f.tried) + " changes tried" +
                    (f.stopped ? ", where the search stopped" : "") + "\n";
  if (!f.lacking.empty()) {
    std::string all;
    for (const std::string& lacked : f.lacking) all += (all.empty() ? "" : ", ") + lacked;
    out += "  not tried, as " + run.system + " has none of it: " + all + "\n";
  }
  if (f.changes.empty()) {
    return out + "  none: " + tried_text(f) + "\n";
  }
  for (std::size_t c = 0; c < f.changes.size() && c < 5; ++c) {
    out += change_line(f.changes[c], p);
  }
  return out;
}

Json fitting_json(const Fitting& fitting) {
  Json out{Json::Object{}};
  out.set("tried", fitting.tried);
  out.set("stopped", fitting.stopped);
  Json::Array changes;
  for (const Change& change : fitting.changes) {
    Json one{Json::Object{}};
    one.set("set", sets_json(change.sets));
    one.set("iteration_time_s", change.iteration_time_s);
    one.set("peak_gib", change.peak_gib);
    changes.push_back(std::move(one));
  }
  out.set("changes", std::move(changes));
  Json::Array lacking;
  for (const std::string& lacked : fitting.lacking) lacking.emplace_back(lacked);
  out.set("lacking", std::move(lacking));
  return out;
}

std::string time_text(const Prediction& p) {
  std::string out = "Time of rank " + std::to_string(p.critical_rank) + ", the busiest\n";
  for (const PartName& part : kParts) {
    const double seconds = p.breakdown[static_cast<std::size_t>(part.part)].seconds();
    if (seconds <= 0) continue;
    const double share = seconds / p.iteration_time_s;
    out += "  " + pad(part.text, 34) + pad_left(seconds_text(seconds), 9) +
           pad_left(percent(share), 9) + "  " + bar(share) + "\n";
  }
  return out;
}

std::string hash_text(const Json& json) {
  std::uint64_t hash = 0x9e3779b97f4a7c15ULL;
  for (const char c : dump_json(json, -1)) hash = hash_u64(hash ^ static_cast<unsigned char>(c));
  std::array<char, 17> text{};
  std::snprintf(text.data(), text.size(), "%016llx", static_cast<unsigned long long>(hash));
  return text.data();
}

/// What a prediction depends on: the resolved RUN, and what its presets say.
Json hashed(const Run& run) {
  Json out{Json::Object{}};
  out.set("run", run.resolved);
  out.set("cluster", to_json(run.cluster));
  out.set("parameters", parameter_count(run.model));
  Json::Array shape;
  const Model& m = run.model;
  for (const std::int64_t size :
       {m.layers, m.hidden, m.heads, m.kv_heads, m.head_dim, m.intermediate, m.vocabulary}) {
    shape.emplace_back(size);
  }
  if (m.is_network()) shape.emplace_back(forward_flops(m.network));
  out.set("shape", std::move(shape));
  return out;
}

Json memory_json(const Run& run, const MemoryReport& m) {
  Json kinds{Json::Object{}};
  for (std::size_t k = 0; k < m.by_kind_gib.size(); ++k) {
    kinds.set(name_of(static_cast<BufferKind>(k)), m.by_kind_gib[k]);
  }
  const auto add = [&kinds](BufferKind kind, double more) {
    Json& value = *kinds.find(name_of(kind));
    value = Json(value.number() + more);
  };
  add(BufferKind::kCommunication, m.communication_gib);
  add(BufferKind::kWorkspace, m.workspace_gib);
  kinds.set("framework", m.framework_gib());
  Json out{Json::Object{}};
  out.set("peak_gib", m.peak_gib);
  out.set("capacity_gib", m.capacity_gib);
  out.set("fits", m.fits);
  const MemoryOdds odds = odds_of(run, m);
  out.set("fits_probability", odds.fits);
  out.set("peak_interval_gib", Json::Array{odds.peak_gib.low, odds.peak_gib.high});
  if (m.least_gib > 0) out.set("least_gib", m.least_gib);
  out.set("by_kind_gib", std::move(kinds));
  out.set("peak_rank", m.peak_rank);
  out.set("peak_at", m.peak_at);
  out.set("allocated_gib", m.allocated_gib);
  out.set("reserved_gib", m.reserved_gib);
  out.set("allocator_retries", m.allocator_retries);
  out.set("theoretical_gib", m.theoretical_gib);
  out.set("host_gib", m.host_gib);
  if (m.host_capacity_gib > 0) out.set("host_capacity_gib", m.host_capacity_gib);
  out.set("storage_gib", m.storage_gib);
  if (m.storage_capacity_gib > 0) out.set("storage_capacity_gib", m.storage_capacity_gib);
  return out;
}

}  // namespace

std::string fixed(double value, int decimals) {
  std::array<char, 64> text{};
  std::snprintf(text.data(), text.size(), "%.*f", decimals, value);
  return text.data();
}

std::string sets_text(const std::vector<std::string>& sets) {
  std::string out;
  for (const std::string& set : sets) out += (out.empty() ? "" : " ") + set;
  return out;
}

Json sets_json(const std::vector<std::string>& sets) {
  return Json(Json::Array(sets.begin(), sets.end()));
}

std::string seconds_text(double seconds) {
  const double size = std::fabs(seconds);
  if (size >= 100) return fixed(seconds, 1) + " s";
  if (size >= 1) return fixed(seconds, 3) + " s";
  if (size >= 1e-3) return fixed(seconds * 1e3, 2) + " ms";
  return fixed(seconds * 1e6, 1) + " us";
}

std::string count_text(std::int64_t count) {
  std::string digits = std::to_string(count < 0 ? -count : count);
  for (std::size_t i = digits.size(); i > 3; i -= 3) digits.insert(i - 3, ",");
  return count < 0 ? "-" + digits : digits;
}

std::string coloured(std::string text) {
  constexpr std::string_view kEnd = "\x1b[0m";
  constexpr std::pair<std::string_view, std::string_view> kAll[] = {
      {"DOES NOT FIT", "\x1b[31m"}, {": fits", "\x1b[32m"}, {"\nNote:", "\x1b[33m"}};
  for (const auto& [words, colour] : kAll) {
    const std::size_t lead = words.find_first_not_of(": \n");
    for (std::size_t at = text.find(words); at != std::string::npos;
         at = text.find(words, at + words.size() + colour.size())) {
      text.insert(at + words.size(), kEnd);
      text.insert(at + lead, colour);
    }
  }
  return text;
}

std::string text_report(const Run& run, const Prediction& p) {
  std::string out = run.name + "\n";
  out += wrapped(run.model.name + ", " + count_text(p.parameters) + " parameters, on " +
                     count_text(p.ranks) + " " + device_names(run.cluster) + ", " + run.system +
                     " in " + precision_text(run),
                 "  ");
  out += wrapped(plan_text(run), "  ") + "\n";
  out += "Step        " + seconds_text(p.iteration_time_s) + "   (" +
         seconds_text(p.interval.low_s) + " to " + seconds_text(p.interval.high_s) +
         " in 90 % of runs like published ones)\n";
  if (!p.memory.fits) out += "            were there room for it, which there is not\n";
  out += "Throughput  " + count_text(std::llround(p.tokens_per_s)) +
         (run.model.is_network() ? " images/s, " : " tokens/s, ") +
         fixed(p.tokens_per_s / static_cast<double>(p.ranks), 1) + " per accelerator\n";
  out += "Efficiency  " + fixed(p.model_tflops_per_accelerator, 1) +
         " model TFLOP/s per accelerator, MFU " + percent(p.mfu) + ", HFU " + percent(p.hfu) +
         (run.plan.precision.low() ? " of the 16-bit peak" : "") + "\n\n";
  out += memory_text(run, p.memory) + fitting_text(run, p) + "\n" + time_text(p);
  if (!p.sensitivity.empty()) {
    out += "\nA step gains, if 10 % faster\n";
    for (const Sensitivity& s : p.sensitivity) {
      const double share = rounded_share(s.gain_s / p.iteration_time_s);
      const double gain = share == 0 ? std::max(0.0, s.gain_s) : s.gain_s;
      // A faster resource that another one waits for less well gains nothing.
      const bool none = share < 0;
      out += "  " + pad(s.resource, 30) + pad_left(none ? "none" : seconds_text(gain), 9) +
             (none ? std::string() : pad_left(percent(share), 9)) + "\n";
    }
  }
  out += "\nPrices: " + percent(p.provenance[0]) + " of the busy time measured, " +
         percent(p.provenance[1]) + " interpolated, " + percent(p.provenance[2]) + " analytic\n";
  out += "Simulated " + count_text(p.ranks) + " ranks as " + count_text(p.simulated.ranks) + ", " +
         count_text(p.operations) + " operations, in " + seconds_text(p.wall_s) + "\n";
  if (p.simulated.far_messages) {
    out +=
        "  each message to another node as far as the farthest: one by one there would be too "
        "many\n  operations. --full simulates every rank as it is.\n";
  }
  if (p.simulated.stages > 0) {
    out += "  by pipelines of " + count_text(p.simulated.stages / 2) + " and " +
           count_text(p.simulated.stages) +
           " stages, on whose line longer ones lie (docs/explanation/folding.md)\n";
  }
  if (p.simulated.less_advice) {
    out += "  what a step gains from faster resources was left out: --budget has no time for it\n";
  }
  for (const std::string& note : run.notes) out += "Note: " + note + "\n";
  return out;
}

Json json_report(const Run& run, const Prediction& p) {
  Json out{Json::Object{}};
  out.set("schema", "foretrain/prediction/1");
  out.set("name", run.name);
  out.set("system", run.system);
  out.set("precision", precision_text(run));
  out.set("accelerators", p.ranks);
  out.set("accelerator", device_names(run.cluster));
  out.set("iteration_time_s", p.iteration_time_s);
  out.set("iteration_time_interval_s", Json::Array{p.interval.low_s, p.interval.high_s});
  out.set("tokens_per_s", p.tokens_per_s);
  out.set("tokens_per_s_per_accelerator", p.tokens_per_s / static_cast<double>(p.ranks));
  out.set("model_tflops_per_accelerator", p.model_tflops_per_accelerator);
  out.set("mfu", p.mfu);
  out.set("hfu", p.hfu);
  out.set("parameters", p.parameters);
  out.set("memory", memory_json(run, p.memory));
  if (p.fitting) out.set(p.memory.fits ? "faster" : "would_fit", fitting_json(*p.fitting));
  Json parts{Json::Object{}};
  for (const PartName& part : kParts) {
    parts.set(name_of(part.part), p.breakdown[static_cast<std::size_t>(part.part)].seconds());
  }
  out.set("breakdown_s", std::move(parts));
  out.set("critical_rank", p.critical_rank);
  Json gains{Json::Object{}};
  for (const Sensitivity& s : p.sensitivity) gains.set(s.resource, s.gain_s);
  out.set("sensitivity", std::move(gains));
  Json provenance{Json::Object{}};
  for (std::size_t i = 0; i < p.provenance.size(); ++i) {
    provenance.set(name_of(static_cast<Provenance>(i)), p.provenance[i]);
  }
  out.set("provenance", std::move(provenance));
  Json simulation{Json::Object{}};
  simulation.set("ranks", p.ranks);
  simulation.set("ranks_simulated", p.simulated.ranks);
  simulation.set("far_messages", p.simulated.far_messages);
  simulation.set("stages_simulated", p.simulated.stages);
  simulation.set("estimated_s", p.simulated.estimated.seconds);
  simulation.set("estimated_gib", p.simulated.estimated.gib);
  simulation.set("advice_left_out", p.simulated.less_advice);
  simulation.set("operations", p.operations);
  simulation.set("events", p.simulated.events);
  simulation.set("wall_s", p.wall_s);
  simulation.set("seed", 0);
  simulation.set("revision", kRevision);
  simulation.set("config_hash", hash_text(hashed(run)));
  out.set("simulation", std::move(simulation));
  Json::Array notes;
  for (const std::string& note : run.notes) notes.emplace_back(note);
  out.set("notes", std::move(notes));
  return out;
}

}  // namespace foretrain
