#include <algorithm>
#include <chrono>
#include <cstdio>
#include <filesystem>

#include "executor/kernels.h"
#include "executor/launch.h"
#include "hardware/presets.h"
#include "sim/base/printable.h"
#include "tools/calibrate/calibration.h"
#include "tools/calibrate/run_shapes.h"
#include "tools/cli/verbs.h"
#include "tools/report/report.h"
#include "tools/version.h"

namespace foretrain {
namespace {

CalibrateOptions options_of(const CalibrateArgs& args, const CudaModule& cuda) {
  CalibrateOptions out = cuda.devices > 0 ? options_on_device(cuda) : options_on_host();
  out.seconds = args.quick ? 0.05 : 0.25;
  out.spread = args.quick ? 0.1 : 0.03;
  if (cuda.devices > 0 && (args.quick || args.budget > 0)) {
    // One op after another keeps the device warm: less to wait for.
    out.settle = 0.15;
    out.window = 0.1;
    out.most_settle = 1.5;
  }
  out.interrupted = interrupted;
  if (args.budget > 0) {
    // Of a short one most goes to operations, not to the first one's warming up.
    constexpr double kOfHeat = 0.1, kOfOne = 0.02, kShortest = 0.02;
    out.heat = std::min(out.heat, kOfHeat * args.budget);
    out.seconds = std::min(out.seconds, std::max(kShortest, kOfOne * args.budget));
    out.deadline = std::chrono::steady_clock::now() +
                   std::chrono::duration_cast<std::chrono::steady_clock::duration>(
                       std::chrono::duration<double>(args.budget));
  }
  return out;
}

/// Where to write, its folder made if it is the user's own.
Result<std::string> output_path(const CalibrateArgs& args, const std::string& device) {
  if (!args.out.empty()) return args.out;
  const std::string folder = profile_folder();
  if (folder.empty()) {
    return input_error("neither XDG_DATA_HOME nor HOME is set; name a file with --out");
  }
  std::error_code error;
  std::filesystem::create_directories(folder, error);
  if (error) return input_error(folder + ": " + error.message());
  const std::string kind = args.device == "host" ? args.blas : "";
  return folder + "/" + device + (kind.empty() ? "" : "-" + kind) + ".json";
}

/// The device of clusters that the profile is of.
Result<std::string> device_name(const CalibrateArgs& args, const CudaModule& cuda) {
  if (cuda.devices == 0) return std::string("host");
  if (!args.name.empty()) return args.name;
  const std::string called = cuda.device_names.empty() ? "" : cuda.device_names.front();
  const NamedGpu known = gpu_called(called);
  if (!known.device.empty()) return known.device;
  return input_error("--device cuda: no shipped device is called \"" + called +
                     "\" by its driver; --name DEVICE says which device of clusters it is "
                     "(`foretrain list devices`, or a name of a file of your own)");
}

std::string command_of(const CalibrateArgs& args) {
  std::string out = "foretrain calibrate";
  if (args.device != "host") out += " --device " + args.device;
  if (args.quick) out += " --quick";
  if (!args.blas.empty()) out += " --blas " + args.blas;
  if (!args.shapes_of.empty()) out += " --shapes-of";
  for (const std::string& run : args.shapes_of) out += " " + run;
  return args.budget > 0 ? out + " --budget " + fixed(args.budget, 0) : out;
}

Json identity(const CalibrateArgs& args, const CudaModule& cuda, const std::string& device,
              Bytes rotation) {
  Json out = cuda.devices > 0 ? device_identity(cuda, device) : machine_identity();
  out.set("command", command_of(args));
  out.set("foretrain", std::string(kVersion) + " (" + kRevision + ")");
  if (cuda.devices > 0)
    out.set("states", args.quick || args.budget > 0 ? kSustained : "burst, sustained");
  out.set("rotation_kib", static_cast<std::int64_t>(rotation / 1024));
  return out;
}

/// What would be replaced stays beside it: minutes on a rented device are not lost by one word.
Status keep_beside(const std::string& path, bool quiet) {
  if (!std::filesystem::is_regular_file(path)) return ok_status();
  const std::string kept = path + ".before";
  std::error_code error;
  std::filesystem::copy_file(path, kept, std::filesystem::copy_options::overwrite_existing, error);
  if (error) return input_error(kept + ": " + error.message());
  if (!quiet) {
    warn(path + " is measured anew; the old one is " + kept + " (--resume goes on)");
  }
  return ok_status();
}

/// What there is to go on from.
Result<Profile> begin_profile(const CalibrateArgs& args, const std::string& path,
                              const Json& identity) {
  std::error_code ignored;
  Profile fresh;
  fresh.machine = identity;
  if (!std::filesystem::exists(path, ignored)) return fresh;
  if (!args.resume) {
    FT_TRY(keep_beside(path, args.quiet));
    return fresh;
  }
  FT_ASSIGN(Profile old, load_profile(path, "--out"));
  if (!args.force && !same_machine(old.machine, fresh.machine)) {
    const auto machine = [](const Profile& profile) {
      return profile.about("device") + ": " + profile.about("processor") + " with " +
             profile.about("blas");
    };
    return input_error(path + ": is the profile of another machine (" + machine(old) + ", here " +
                       machine(fresh) + "); choose another file, or --force to mix them");
  }
  // Ranks that measure together go on with what one rank has just measured.
  const Json* const skipped = args.worker_ranks > 0 ? old.machine.find("skipped") : nullptr;
  if (skipped != nullptr) fresh.machine.set("skipped", *skipped);
  old.machine = fresh.machine;
  return old;
}

Result<std::vector<MicroOp>> ops_of(const CalibrateArgs& args, const CalibrationScope& scope) {
  if (args.shapes_of.empty()) return calibration_ops(scope);
  FT_ASSIGN(std::vector<MicroOp> out, shapes_of_runs(args.shapes_of, scope));
  if (scope.on_device) tell_states_apart(true, out);
  return out;
}

Status measure(const CalibrateArgs& args, std::int64_t ranks, const std::string& path,
               const CudaModule& cuda, CalibrateOptions options, Profile& profile) {
  FT_ASSIGN(const std::vector<MicroOp> ops, ops_of(args, scope_of(ranks, args.quick, cuda)));
  if (ops.empty()) return ok_status();
  ProgressLine line(args.quiet, args.budget);
  options.progress = [&line](std::size_t done, std::size_t all, const std::string& what) {
    line.show(done, all, what);
  };
  options.save = [&] { return write_output(path, dump_json(to_json(profile)) + "\n"); };
  if (args.worker_ranks == 0) {
    FT_ASSIGN(const bool whole, calibrate_threads(ops, ranks, options, profile));
    (void)whole;
    return ok_status();
  }
  const Workload world = micro_ranks(ranks);
  FT_ASSIGN(MpiWorld mpi, join_job(world));
  FT_ASSIGN(const bool whole,
            calibrate_rank(ops, ranks, mpi.rank, *mpi.transport, options, profile));
  (void)whole;
  mpi.finish();
  return ok_status();
}

/// Two ranks at once: what they do to each other, and how they talk.
Status measure_pair(const CalibrateArgs& args, const std::string& path, CudaModule& cuda,
                    CalibrateOptions& options, Profile& profile) {
  if (args.device == "cuda" && (cuda.devices < 2 || !args.shapes_of.empty())) return ok_status();

  const RankStart start = rank_start(args.threads);
  const bool processes = start.by == RankStart::By::kProcesses;
  if (!processes && start.by != RankStart::By::kMpirun) {
    return measure(args, 2, path, cuda, options, profile);
  }
  // What this process holds of its device, the ranks need.
  cuda.make_rank = options.make_rank = {};
  std::vector<std::string> words = {"calibrate", "--worker-ranks", "2",      "--out",
                                    path,        "--resume",       "--force"};
  if (cuda.devices > 0) words.insert(words.end(), {"--device", "cuda"});
  if (!args.name.empty()) words.insert(words.end(), {"--name", args.name});
  if (!args.blas.empty()) words.insert(words.end(), {"--blas", args.blas});
  if (args.quick) words.emplace_back("--quick");
  if (args.quiet) words.emplace_back("--quiet");
  if (!args.shapes_of.empty()) words.emplace_back("--shapes-of");
  words.insert(words.end(), args.shapes_of.begin(), args.shapes_of.end());
  if (options.deadline) {
    const auto left = *options.deadline - std::chrono::steady_clock::now();
    const double seconds = std::chrono::duration<double>(left).count();
    if (seconds < 1) return ok_status();
    words.insert(words.end(), {"--budget", fixed(seconds, 3)});
  }
  FT_ASSIGN(const int code, processes ? run_as_processes(2, words) : run_under_mpirun(2, words));
  if (code != 0 && !interrupted()) {
    return input_error("the job that measures two ranks ended with exit code " +
                       std::to_string(code) + "; what was measured is in " + path);
  }
  FT_ASSIGN(profile, load_profile(path, "--out"));
  return ok_status();
}

/// ", at 1755 MHz, 690 W, 61 C": medians.
std::string ran_at(const Profile& profile) {
  const MachineState state = median_state(profile);
  std::string out;
  if (state.clock_mhz) out += ", at " + fixed(*state.clock_mhz, 0) + " MHz";
  if (state.power_w) out += ", " + fixed(*state.power_w, 0) + " W";
  if (state.temperature_c) out += ", " + fixed(*state.temperature_c, 0) + " C";
  return out;
}

/// What was left out, a line each.
std::string left_out(const Profile& profile) {
  std::string out;
  const Json* const skipped = profile.machine.find("skipped");
  if (skipped == nullptr || skipped->array() == nullptr) return out;
  for (const Json& one : *skipped->array()) {
    if (one.string() != nullptr) out += "left out: " + *one.string() + "\n";
  }
  return out;
}

std::string summary(const Profile& profile, const std::string& path) {
  std::size_t clean = 0;
  double spread = 0;
  for (const auto& [key, sample] : profile.samples) {
    if (sample.clean) ++clean;
    if (sample.median_us > 0) spread += (sample.p90_us - sample.p10_us) / sample.median_us;
  }
  const auto all = static_cast<double>(profile.samples.size());
  return path + ": " + std::to_string(profile.samples.size()) + " operations on " +
         profile.about("processor") + ", " + std::to_string(clean) + " undisturbed, mean spread " +
         fixed(100 * spread / std::max(1.0, all), 1) + " %" + ran_at(profile) + "\n" +
         left_out(profile);
}

/// Where more ranks measure together than this machine is asked for.
Status check_runs(const CalibrateArgs& args) {
  if (args.device != "host") return ok_status();
  for (const std::string& run : args.shapes_of) {
    FT_ASSIGN(const std::int64_t ranks, ranks_of_run(run));
    if (ranks <= 2) continue;
    return input_error("--shapes-of " + run + ": the run has " + std::to_string(ranks) +
                       " ranks, the host is measured with one and two; give a run of as many");
  }
  return ok_status();
}

bool measures_pair(const CalibrateArgs& args) {
  if (args.shapes_of.empty() || args.device != "host") return true;
  return std::any_of(args.shapes_of.begin(), args.shapes_of.end(), [](const std::string& run) {
    const Result<std::int64_t> ranks = ranks_of_run(run);
    return ranks.ok() && ranks.value() == 2;
  });
}

}  // namespace

Status calibrate(const CalibrateArgs& args) {
  FT_TRY(choose_blas(args.blas));
  FT_ASSIGN(CudaModule cuda, open_device(args.device));
  if (!args.name.empty() && cuda.devices == 0) {
    return input_error("--name: the host's profile is of device \"host\"; leave it out");
  }
  if (!args.blas.empty() && cuda.devices > 0) {
    return input_error("--blas: products on a device are cuBLASLt's; leave it out");
  }
  if (args.force && !args.resume) {
    return input_error("--force: goes with --resume, whose refusal it lifts");
  }
  const std::vector<std::string> known = preset_names("devices");
  if (!args.name.empty() && !args.quiet &&
      std::find(known.begin(), known.end(), args.name) == known.end()) {
    const std::string near = nearest_name(args.name, known);
    warn("--name " + args.name + " is no shipped device" +
         (near.empty() ? "" : " (did you mean " + near + "?)") +
         ": a device file of your own must have that name");
  }
  FT_TRY(check_runs(args));
  FT_ASSIGN(const std::string device, device_name(args, cuda));
  FT_ASSIGN(const std::string path, output_path(args, device));
  FT_TRY(check_outputs({{"--out", path}, {"--json", args.json}}, {}));
  note_interrupts();
  CalibrateOptions options = options_of(args, cuda);
  FT_ASSIGN(Profile profile,
            begin_profile(args, path, identity(args, cuda, device, options.rotation)));
  if (args.worker_ranks > 0) return measure(args, args.worker_ranks, path, cuda, options, profile);
  FT_TRY(measure(args, 1, path, cuda, options, profile));
  if (!interrupted() && measures_pair(args)) {
    FT_TRY(measure_pair(args, path, cuda, options, profile));
  }
  if (interrupted()) {
    return input_error("interrupted; " + std::to_string(profile.samples.size()) +
                       " operations are in " + path + ", --resume goes on");
  }
  if (!args.json.empty()) FT_TRY(write_output(args.json, dump_json(to_json(profile)) + "\n"));
  if (args.json == "-") return ok_status();
  const bool late = options.deadline && std::chrono::steady_clock::now() >= *options.deadline;
  return print(args.quiet,
               summary(profile, path) + (late ? "stopped at the budget; --resume goes on\n" : ""));
}

}  // namespace foretrain
