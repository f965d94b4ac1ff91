#include <algorithm>
#include <cstdio>
#include <filesystem>

#include "executor/kernels.h"
#include "tools/calibration.h"
#include "tools/foretrain/verbs.h"
#include "tools/report.h"
#include "tools/version.h"

namespace foretrain {
namespace {

CalibrateOptions options_of(const CalibrateArgs& args, const CudaModule& cuda) {
  CalibrateOptions out = cuda.devices > 0 ? options_on_device(cuda) : options_on_host();
  out.seconds = args.quick ? 0.05 : 0.25;
  out.spread = args.quick ? 0.1 : 0.03;
  out.interrupted = interrupted;
  return out;
}

/// Where to write, its folder made if it is the user's own.
Result<std::string> output_path(const CalibrateArgs& args) {
  if (!args.out.empty()) return args.out;
  const std::string folder = profile_folder();
  if (folder.empty()) {
    return input_error("neither XDG_DATA_HOME nor HOME is set; name a file with --out");
  }
  std::error_code error;
  std::filesystem::create_directories(folder, error);
  if (error) return input_error(folder + ": " + error.message());
  const std::string kind = args.device == "host" ? args.blas : "";
  return folder + "/" + args.device + (kind.empty() ? "" : "-" + kind) + ".json";
}

Json identity(const CalibrateArgs& args, const CudaModule& cuda, Bytes rotation) {
  Json out = cuda.devices > 0 ? device_identity(cuda, args.name) : machine_identity();
  out.set("command", std::string("foretrain calibrate") + (args.quick ? " --quick" : "") +
                         (args.blas.empty() ? "" : " --blas " + args.blas));
  out.set("foretrain", std::string(kVersion) + " (" + kRevision + ")");
  if (cuda.devices > 0) out.set("states", args.quick ? kBurst : "burst, sustained");
  out.set("rotation_kib", static_cast<std::int64_t>(rotation / 1024));
  return out;
}

/// What there is to go on from.
Result<Profile> begin_profile(const CalibrateArgs& args, const std::string& path,
                              const CudaModule& cuda, Bytes rotation) {
  std::error_code ignored;
  Profile fresh;
  fresh.machine = identity(args, cuda, rotation);
  if (!args.resume || !std::filesystem::exists(path, ignored)) return fresh;
  FT_ASSIGN(Profile old, load_profile(path, "--out"));
  if (!args.force && !same_machine(old.machine, fresh.machine)) {
    return input_error(path + ": is the profile of another machine (" + old.about("processor") +
                       " with " + old.about("blas") + ", here " + fresh.about("processor") +
                       " with " + fresh.about("blas") +
                       "); choose another file, or --force to mix them");
  }
  // Ranks that measure together go on with what one rank has just measured.
  const Json* const skipped = args.worker_ranks > 0 ? old.machine.find("skipped") : nullptr;
  if (skipped != nullptr) fresh.machine.set("skipped", *skipped);
  old.machine = fresh.machine;
  return old;
}

Status measure(const CalibrateArgs& args, std::int64_t ranks, const std::string& path,
               const CudaModule& cuda, CalibrateOptions options, Profile& profile) {
  FT_ASSIGN(const std::vector<MicroOp> ops, calibration_ops(scope_of(ranks, args.quick, cuda)));
  ProgressLine line(args.quiet);
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
Status measure_pair(const CalibrateArgs& args, const std::string& path, const CudaModule& cuda,
                    const CalibrateOptions& options, Profile& profile) {
  if (args.device == "cuda" && cuda.devices < 2) return ok_status();

  const Status mpi = check_mpi();
  if (args.threads || !mpi.ok()) {
    if (!mpi.ok() && !args.quiet) {
      std::fprintf(stderr, "foretrain: %s; going on with threads\n", mpi.error().message.c_str());
    }
    return measure(args, 2, path, cuda, options, profile);
  }
  std::vector<std::string> words = {"calibrate", "--worker-ranks", "2",      "--out",
                                    path,        "--resume",       "--force"};
  if (cuda.devices > 0) words.insert(words.end(), {"--device", "cuda"});
  if (!args.name.empty()) words.insert(words.end(), {"--name", args.name});
  if (!args.blas.empty()) words.insert(words.end(), {"--blas", args.blas});
  if (args.quick) words.emplace_back("--quick");
  if (args.quiet) words.emplace_back("--quiet");
  FT_ASSIGN(const int code, run_under_mpirun(2, words));
  if (code != 0 && !interrupted()) {
    return input_error("the MPI job that measures two ranks ended with exit code " +
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

}  // namespace

Status calibrate(const CalibrateArgs& args) {
  FT_TRY(choose_blas(args.blas));
  FT_ASSIGN(const CudaModule cuda, open_device(args.device));
  if (!args.name.empty() && cuda.devices == 0) {
    return input_error("--name: the host's profile is of device \"host\"; leave it out");
  }
  FT_ASSIGN(const std::string path, output_path(args));
  note_interrupts();
  const CalibrateOptions options = options_of(args, cuda);
  FT_ASSIGN(Profile profile, begin_profile(args, path, cuda, options.rotation));
  if (args.worker_ranks > 0) return measure(args, args.worker_ranks, path, cuda, options, profile);
  FT_TRY(measure(args, 1, path, cuda, options, profile));
  if (!interrupted()) FT_TRY(measure_pair(args, path, cuda, options, profile));
  if (interrupted()) {
    return input_error("interrupted; " + std::to_string(profile.samples.size()) +
                       " operations are in " + path + ", --resume goes on");
  }
  if (!args.json.empty()) FT_TRY(write_output(args.json, dump_json(to_json(profile)) + "\n"));
  if (args.json == "-") return ok_status();
  return print(args.quiet, summary(profile, path));
}

}  // namespace foretrain
