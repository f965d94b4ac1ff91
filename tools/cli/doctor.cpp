#include <cstdlib>
#include <filesystem>
#include <thread>

#include "executor/cuda_module.h"
#include "executor/kernels.h"
#include "executor/launch.h"
#include "executor/library_places.h"
#include "executor/module_file.h"
#include "executor/mpi_module.h"
#include "executor/onednn_module.h"
#include "sim/base/json.h"
#include "tools/cli/verbs.h"
#include "tools/version.h"

namespace foretrain {
namespace {

struct Finding {
  std::string what, found;
  std::string costs;   ///< of what is missing
  std::string get;     ///< how to come by it, or how to have it found
  bool build = false;  ///< of this build, else of this machine
};

/// The first of these paths that exists, or "".
std::string first_of(std::initializer_list<const char*> paths) {
  for (const char* path : paths) {
    std::error_code ignored;
    if (std::filesystem::exists(path, ignored)) return path;
  }
  return "";
}

Finding finding(bool build, const char* what, const std::string& path, const char* costs,
                const char* get) {
  if (path.empty()) return {what, "missing", costs, get, build};
  return {what, path, "", "", build};
}

/// A library of the machine, where programs find it or in a Python package.
Finding library(const LibraryPlaces& places, const char* what, const char* name, const char* costs,
                const char* get) {
  const FoundLibrary found = find_library(places, name);
  Finding out = finding(false, what, found.path, costs, get);
  if (!found.path.empty() && !found.by_loader) {
    out.get = "nothing to do: the CUDA backend looks there itself";
  }
  return out;
}

/// Looks for files only: no library is loaded, so that a broken driver cannot hang the answer.
std::vector<Finding> of_machine() {
  const LibraryPlaces places =
      library_places("", [](const char* name) { return std::getenv(name); });
  return {
      finding(false, "NVIDIA driver", first_of({"/proc/driver/nvidia/version", "/dev/dxg"}),
              "no CUDA device here: simulation is not affected",
              "install NVIDIA's driver; in a container start it with --gpus all, or --nv"),
      finding(false, "CUDA device",
              first_of({"/dev/nvidia0", "/dev/nvidiactl", "/dev/dxg", "/dev/nvhost-ctrl-gpu",
                        "/dev/nvgpu"}),
              "nothing can be executed or calibrated on a GPU", "a machine with one"),
      finding(false, "CUDA toolkit", first_of({"/usr/local/cuda/bin/nvcc", "/usr/bin/nvcc"}),
              "the CUDA backend cannot be built here",
              "install cuda-toolkit from NVIDIA's repository"),
      library(places, "cuBLASLt", "libcublasLt.so", "the CUDA backend cannot be loaded",
              "install libcublas-13-0 of NVIDIA's repository, or pip install nvidia-cublas"),
      library(places, "NCCL", "libnccl.so", "no collectives between GPUs",
              "install libnccl2 (to build: libnccl-dev), or pip install nvidia-nccl-cu13"),
      library(places, "cuDNN", "libcudnn.so", "no kernels.attention cudnn on a GPU",
              "install libcudnn9-cuda-13 (to build: libcudnn9-dev-cuda-13)"),
      library(places, "CUPTI", "libcupti.so",
              "times on a GPU are those of events, which queueing is part of",
              "install cuda-cupti of the toolkit's version"),
      library(places, "NVML", "libnvidia-ml.so",
              "profiles of GPUs lack clock, power and temperature", "it comes with the driver"),
      finding(false, "MPI", find_program("mpirun"),
              "ranks are not started by MPI, but as processes that TCP connects",
              "install openmpi-bin"),
  };
}

std::vector<Finding> of_build() {
  const std::string cuda = find_module(kCudaModuleFile);
  const auto inside = [&cuda](const char* bytes) {
    return !cuda.empty() && file_holds(cuda, bytes) ? cuda : "";
  };
  const std::string blas = blas_name();
  return {
      finding(true, "CUDA backend", cuda, "`execute --device cuda` is refused",
              "build with the CUDA toolkit and libnccl-dev, cmake -DFORETRAIN_CUDA=ON says what "
              "is missing"),
      finding(true, "CUDA with cuDNN", inside("libcudnn.so"),
              "runs on GPUs with kernels.attention cudnn are refused",
              "install libcudnn9-dev-cuda-13 and build again"),
      finding(true, "CUDA with CUPTI", inside("libcupti.so"),
              "`execute --records` has none, `calibrate --device cuda` times events",
              "install cuda-cupti-dev and build again"),
      finding(true, "MPI module", find_module(kMpiModuleFile),
              "ranks are processes that TCP connects, which is slower on the host",
              "install libopenmpi-dev and build again"),
      finding(true, "BLAS", blas == "plain loops" ? "" : blas,
              "the host multiplies matrices in plain loops, many times slower",
              "install libopenblas-dev and build again"),
      finding(true, "oneDNN module", find_module(kOneDnnModuleFile), "no `--blas onednn`",
              "install libdnnl-dev and build again"),
  };
}

std::string lines_of(const std::vector<Finding>& findings) {
  std::string out;
  for (const Finding& f : findings) {
    out += "  " + f.what + std::string(17 - f.what.size(), ' ') + f.found;
    if (!f.costs.empty()) out += " - " + f.costs;
    if (!f.get.empty()) out += "; " + f.get;
    out += "\n";
  }
  return out;
}

Json json_of(const std::vector<Finding>& machine, const std::vector<Finding>& build) {
  Json::Array out;
  for (const std::vector<Finding>* findings : {&machine, &build}) {
    for (const Finding& f : *findings) {
      Json one{Json::Object{}};
      one.set("what", f.what);
      one.set("found", f.found != "missing");
      one.set("where", f.found);
      one.set("costs", f.costs);
      one.set("get", f.get);
      one.set("of", f.build ? "build" : "machine");
      out.push_back(std::move(one));
    }
  }
  return out;
}

std::string words_of(const RankStart& start) {
  switch (start.by) {
    case RankStart::By::kMpi:
      return "this process is one of an MPI job";
    case RankStart::By::kTcp:
      return "this process is one of a job that TCP connects";
    case RankStart::By::kMpirun:
      return "under mpirun";
    case RankStart::By::kProcesses:
      return "as processes that TCP connects (" + start.note + ")";
    case RankStart::By::kThreads:
      break;
  }
  return "as threads";
}

}  // namespace

Status doctor(const DoctorArgs& args) {
  const std::vector<Finding> machine = of_machine();
  const std::vector<Finding> build = of_build();
  const RankStart start = rank_start(false);
  const Status cuda = check_cuda_files();
  const unsigned cores = std::thread::hardware_concurrency();
  if (!args.json.empty()) {
    Json json{Json::Object{}};
    json.set("version", kVersion);
    json.set("revision", kRevision);
    json.set("cores", static_cast<std::int64_t>(cores));
    json.set("findings", json_of(machine, build));
    Json ranks{Json::Object{}};
    ranks.set("transport", start.transport());
    ranks.set("how", words_of(start));
    json.set("several_ranks", std::move(ranks));
    Json device{Json::Object{}};
    device.set("possible", cuda.ok());
    device.set("why_not", cuda.ok() ? "" : cuda.error().message);
    json.set("device_cuda", std::move(device));
    return write_output(args.json, dump_json(json) + "\n");
  }
  std::string out = std::string("foretrain ") + kVersion + " (" + kRevision + "), " +
                    std::to_string(cores) + " cores\n";
  out += "This machine has\n" + lines_of(machine) + "This build has\n" + lines_of(build);
  out += "Several ranks of `execute` run " + words_of(start) + "\n";
  out += "`execute --device cuda` " +
         (cuda.ok() ? "finds what it needs, as far as files tell"
                    : "is refused: " + cuda.error().message) +
         "\n";
  out += "Simulating needs none of these; the host executes with or without MPI.\n";
  return print(args.quiet, out);
}

}  // namespace foretrain
