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

CalibrateOptions options_of(const CalibrateArgs& args) {
  CalibrateOptions out;
  out.seconds = args.quick ? 0.05 : 0.25;
  out.spread = args.quick ? 0.1 : 0.03;
  out.rotation = 4 * private_cache_bytes();
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
  return folder + "/host" + (args.blas.empty() ? "" : "-" + args.blas) + ".json";
}

Json identity(const CalibrateArgs& args) {
  Json out = machine_identity();
  out.set("command", std::string("foretrain calibrate") + (args.quick ? " --quick" : "") +
                         (args.blas.empty() ? "" : " --blas " + args.blas));
  out.set("foretrain", std::string(kVersion) + " (" + kRevision + ")");
  out.set("rotation_kib", static_cast<std::int64_t>(options_of(args).rotation / 1024));
  return out;
}

/// What there is to go on from.
Result<Profile> begin_profile(const CalibrateArgs& args, const std::string& path) {
  std::error_code ignored;
  Profile fresh;
  fresh.machine = identity(args);
  if (!args.resume || !std::filesystem::exists(path, ignored)) return fresh;
  FT_ASSIGN(Profile old, load_profile(path, "--out"));
  if (!args.force && !same_machine(old.machine, fresh.machine)) {
    return input_error(path + ": is the profile of another machine (" + old.about("processor") +
                       " with " + old.about("blas") + ", here " + fresh.about("processor") +
                       " with " + fresh.about("blas") +
                       "); choose another file, or --force to mix them");
  }
  old.machine = fresh.machine;
  return old;
}

Status measure(const CalibrateArgs& args, std::int64_t ranks, const std::string& path,
               Profile& profile) {
  FT_ASSIGN(const std::vector<MicroOp> ops, calibration_ops(ranks, args.quick));
  ProgressLine line(args.quiet);
  CalibrateOptions options = options_of(args);
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
  FT_ASSIGN(MpiWorld mpi, join_mpi(world));
  FT_ASSIGN(const bool whole,
            calibrate_rank(ops, ranks, mpi.rank, *mpi.transport, options, profile));
  (void)whole;
  mpi.finish();
  return ok_status();
}

/// Two ranks at once: what they do to each other, and how they talk.
Status measure_pair(const CalibrateArgs& args, const std::string& path, Profile& profile) {
  const Status mpi = check_mpi();
  if (args.threads || !mpi.ok()) {
    if (!mpi.ok() && !args.quiet) {
      std::fprintf(stderr, "foretrain: %s; going on with threads\n", mpi.error().message.c_str());
    }
    return measure(args, 2, path, profile);
  }
  std::vector<std::string> words = {"calibrate", "--worker-ranks", "2",      "--out",
                                    path,        "--resume",       "--force"};
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
         fixed(100 * spread / std::max(1.0, all), 1) + " %\n";
}

}  // namespace

Status calibrate(const CalibrateArgs& args) {
  FT_TRY(choose_blas(args.blas));
  FT_TRY(check_device(args.device, "calibrate"));
  FT_ASSIGN(const std::string path, output_path(args));
  note_interrupts();
  FT_ASSIGN(Profile profile, begin_profile(args, path));
  if (args.worker_ranks > 0) return measure(args, args.worker_ranks, path, profile);
  FT_TRY(measure(args, 1, path, profile));
  if (!interrupted()) FT_TRY(measure_pair(args, path, profile));
  if (interrupted()) {
    return input_error("interrupted; " + std::to_string(profile.samples.size()) +
                       " operations are in " + path + ", --resume goes on");
  }
  if (!args.json.empty()) FT_TRY(write_output(args.json, dump_json(to_json(profile)) + "\n"));
  if (args.json == "-") return ok_status();
  return print(args.quiet, summary(profile, path));
}

}  // namespace foretrain
