#include <filesystem>
#include <thread>

#include "executor/cuda_module.h"
#include "executor/module_file.h"
#include "sim/base/json.h"
#include "tools/foretrain/verbs.h"
#include "tools/version.h"

namespace foretrain {
namespace {

struct Finding {
  std::string what, found, costs;
};

/// The first of these paths that exists, or "".
std::string first_of(std::initializer_list<const char*> paths) {
  for (const char* path : paths) {
    std::error_code ignored;
    if (std::filesystem::exists(path, ignored)) return path;
  }
  return "";
}

/// Looks for files only: no library is loaded, so that a broken driver cannot hang the answer.
std::vector<Finding> examine() {
  std::vector<Finding> out;
  const auto add = [&out](const char* what, const std::string& path, const char* costs) {
    out.push_back({what, path.empty() ? "missing" : path, path.empty() ? costs : ""});
  };
  add("NVIDIA driver", first_of({"/proc/driver/nvidia/version"}),
      "no CUDA device here: simulation is not affected");
  add("CUDA device", first_of({"/dev/nvidia0"}), "nothing can be executed or calibrated on a GPU");
  add("CUDA toolkit", first_of({"/usr/local/cuda/bin/nvcc", "/usr/bin/nvcc"}),
      "CUDA programs cannot be built here");
  add("CUDA backend", find_module(kCudaModuleFile), "`execute --device cuda` is refused");
  add("NCCL",
      first_of({"/usr/local/cuda/lib64/libnccl.so.2", "/usr/local/cuda/lib/libnccl.so.2",
                "/usr/lib/x86_64-linux-gnu/libnccl.so.2"}),
      "no collectives between GPUs");
  add("NVML",
      first_of({"/usr/lib/x86_64-linux-gnu/libnvidia-ml.so.1", "/usr/lib64/libnvidia-ml.so.1",
                "/usr/local/nvidia/lib64/libnvidia-ml.so.1"}),
      "profiles of GPUs lack clock, power and temperature");
  add("MPI", first_of({"/usr/bin/mpirun", "/usr/local/bin/mpirun"}),
      "no programs of several processes");
  return out;
}

}  // namespace

Status doctor(const DoctorArgs& args) {
  const std::vector<Finding> findings = examine();
  const unsigned cores = std::thread::hardware_concurrency();
  if (!args.json.empty()) {
    Json json{Json::Object{}};
    json.set("version", kVersion);
    json.set("revision", kRevision);
    json.set("cores", static_cast<std::int64_t>(cores));
    Json::Array list;
    for (const Finding& f : findings) {
      Json one{Json::Object{}};
      one.set("what", f.what);
      one.set("found", f.found != "missing");
      one.set("where", f.found);
      one.set("costs", f.costs);
      list.push_back(std::move(one));
    }
    json.set("findings", std::move(list));
    return write_output(args.json, dump_json(json) + "\n");
  }
  std::string out = std::string("foretrain ") + kVersion + " (" + kRevision + "), " +
                    std::to_string(cores) + " cores\n";
  for (const Finding& f : findings) {
    out += "  " + f.what + std::string(16 - f.what.size(), ' ') + f.found;
    if (!f.costs.empty()) out += " - " + f.costs;
    out += "\n";
  }
  out += "Simulating needs none of these; the host executes with or without MPI.\n";
  return print(args.quiet, out);
}

}  // namespace foretrain
