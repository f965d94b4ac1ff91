// How ranks start and find each other, as a user sees it: by torchrun's and srun's variables,
// without MPI, under Slurm; and whether `doctor` tells what `execute` does.
#include <gtest/gtest.h>

#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <map>
#include <string>

#include "executor/library_places.h"
#include "executor/tcp_socket.h"
#include "sim/base/file.h"
#include "tests/cli/run_command.h"

namespace foretrain {
namespace {

constexpr const char* kPair = R"({
  "name": "pair",
  "model": {"model_type": "gpt2", "n_layer": 2, "n_embd": 32, "n_head": 4, "n_positions": 16,
            "vocab_size": 96, "attn_pdrop": 0, "resid_pdrop": 0},
  "cluster": {"preset": "host", "accelerators": 2},
  "batch": {"global": 4, "micro": 1, "sequence": 16},
  "precision": "fp32",
  "parallel": {"tensor": 2},
  "kernels": {"attention": "unfused"}
})";

const std::string kExecute = std::string(FORETRAIN_BINARY) + " execute run.json --steps 3";

class Launching : public ::testing::Test {
 protected:
  Launching() { x_place.write("run.json", kPair); }

  /// Runs a script inside the workplace, without profiles of the user's own, and without the leaks
  /// that Open MPI's modules leave; its exit code.
  int shell(const std::string& script, const std::string& variables = "") const {
    x_place.write("script", script);
    const std::string command = "cd '" + x_place.path("in").string() +
                                "' && XDG_DATA_HOME=none OPENBLAS_NUM_THREADS=1 "
                                "ASAN_OPTIONS=detect_leaks=0 " +
                                variables + " /bin/sh ./script > out 2> err";
    const int status = std::system(command.c_str());
    return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
  }
  std::string err() const { return x_place.read("err"); }
  Json json(const std::string& name) const {
    const Result<Json> out = parse_json(x_place.read(name), name);
    EXPECT_TRUE(out.ok()) << err();
    return out.ok() ? out.value() : Json();
  }
  /// torchrun's variables of a rank.
  std::string as_rank(int rank, int size = 2) const {
    return "RANK=" + std::to_string(rank) + " LOCAL_RANK=" + std::to_string(rank) +
           " WORLD_SIZE=" + std::to_string(size) +
           " MASTER_ADDR=127.0.0.1 MASTER_PORT=" + std::to_string(x_port) + " ";
  }
  static int free_port() {
    const Result<Socket> socket = listen_at(true, 0);
    return socket.ok() ? own_end(socket.value()).port : 0;
  }
  std::vector<double> losses(const std::string& name) const {
    std::vector<double> out;
    const Json steps = at(json(name), "steps");
    if (steps.array() == nullptr) return out;
    for (const Json& step : *steps.array()) out.push_back(at(step, "loss").number());
    return out;
  }
  std::vector<double> of_threads() const {
    EXPECT_EQ(shell(kExecute + " --threads --json threads.json"), 0) << err();
    const std::vector<double> out = losses("threads.json");
    EXPECT_EQ(out.size(), 3);
    return out;
  }
  Workplace x_place;
  int x_port = free_port();
};

TEST_F(Launching, TorchrunsVariablesNeedNoMpi) {
  ASSERT_EQ(shell(as_rank(1) + kExecute + " --json other.json & " + as_rank(0) + kExecute +
                  " --json tcp.json && wait $!"),
            0)
      << err();
  EXPECT_EQ(at(json("tcp.json"), "transport"), Json("tcp"));
  EXPECT_EQ(losses("tcp.json"), of_threads());
  EXPECT_FALSE(x_place.has("other.json")) << "rank 0 alone writes";
}

TEST_F(Launching, WithoutMpirunRanksAreProcessesAllTheSame) {
  ASSERT_EQ(shell(kExecute + " --json tcp.json", "PATH=/none"), 0) << err();
  EXPECT_EQ(at(json("tcp.json"), "transport"), Json("tcp"));
  EXPECT_NE(err().find("TCP connects"), std::string::npos) << err();
  EXPECT_EQ(losses("tcp.json"), of_threads());
}

// validate joins a second time, for the operations that it measures.
TEST_F(Launching, ValidationMeasuresThroughTheSameConnections) {
  ASSERT_EQ(shell(std::string(FORETRAIN_BINARY) +
                      " validate run.json --steps 2 --seconds-per-op 0.002 --json v.json",
                  "PATH=/none"),
            0)
      << err();
  EXPECT_EQ(at(json("v.json"), "numerics/matches_one_rank"), Json(true));
}

// A rank that ends before another one is noticed by it, whichever they are.
TEST_F(Launching, RanksOfOtherLengthsEndTheJob) {
  const auto steps = [](const char* count) {
    return std::string("timeout 20 ") + FORETRAIN_BINARY + " execute run.json --steps " + count;
  };
  for (const auto& [first, second] : {std::pair{"4", "2"}, std::pair{"2", "4"}}) {
    const int code =
        shell(as_rank(1) + steps(second) + " 2> other & " + as_rank(0) + steps(first) +
              "; mine=$?; wait $!; other=$?; [ $mine -ne 124 ] && [ $other -ne 124 ] && "
              "[ $((mine + other)) -gt 0 ]");
    EXPECT_EQ(code, 0) << err();
    EXPECT_NE((err() + x_place.read("other")).find("the same RUN and options"), std::string::npos)
        << err();
  }
}

TEST_F(Launching, RanksOfAnotherRunAreRefused) {
  EXPECT_EQ(shell(as_rank(1) + kExecute + " --set batch.global=8 2> other & " +
                  "FORETRAIN_JOIN_SECONDS=2 " + as_rank(0) + kExecute +
                  "; code=$?; wait $! && exit 77; exit $code"),
            1);
  EXPECT_NE(err().find("rank 1 runs something else than rank 0"), std::string::npos) << err();
  EXPECT_NE(x_place.read("other").find("give all ranks the same RUN"), std::string::npos);
  EXPECT_EQ(shell(as_rank(0, 3) + kExecute), 1);
  EXPECT_NE(err().find("the run has 2 ranks, WORLD_SIZE is 3"), std::string::npos) << err();
  EXPECT_EQ(shell("FORETRAIN_JOIN_SECONDS=0.2 " + as_rank(0) + kExecute), 1);
  EXPECT_NE(err().find("rank 1 of 2 did not come"), std::string::npos) << err();
}

/// Starts ranks that would train for long, as `$job`, and waits until the first of them, `$child`,
/// trains.
const std::string kLongJob =
    "PATH=/none " + std::string(FORETRAIN_BINARY) +
    " execute run.json --steps 100000 & job=$!\n"
    "child=\nwhile [ -z \"$child\" ]; do\n"
    "  [ -r /proc/$job/task/$job/children ] || exit 78\n"
    "  read child rest < /proc/$job/task/$job/children; sleep 0.02\ndone\n"
    // It trains once it has threads: one that reads connections, and streams.
    "while set -- /proc/$child/task/* && [ $# -lt 3 ]; do\n"
    "  [ -e /proc/$child ] || exit 79\n  sleep 0.02\ndone\n";

// Its first rank is killed: the others end, and so does the starter.
TEST_F(Launching, ARankThatDiesEndsTheJobWithItsCode) {
  if (!std::filesystem::exists("/proc/self/task/")) GTEST_SKIP() << "no /proc";
  EXPECT_EQ(shell(kLongJob + "kill -9 $child; wait $job"), 1);
  EXPECT_NE(err().find("rank 0 is gone"), std::string::npos) << err();
  EXPECT_NE(err().find("the ranks ended with exit code 137"), std::string::npos) << err();
}

// What ends the starter ends its ranks.
TEST_F(Launching, SignalsReachTheRanks) {
  const int code = shell(kLongJob +
                         "kill -TERM $job; wait $job; code=$?\n"
                         "[ -e /proc/$child ] && exit 77; exit $code");
  EXPECT_EQ(code, 128 + 15) << err();
}

// As below nohup: the terminal's end ends neither the starter nor its ranks.
TEST_F(Launching, IgnoredSignalsStayIgnored) {
  const int code = shell("trap '' HUP\n" + kLongJob +
                         "ignored() { while read name mask; do\n"
                         "  [ \"$name\" = SigIgn: ] && echo $mask\ndone < /proc/$1/status; }\n"
                         "for one in $job $child; do\n"
                         // SIGHUP is the lowest bit.
                         "  case $(ignored $one) in *[02468aceACE]) bad=1;; esac\ndone\n"
                         "kill -TERM $job; wait $job; code=$?\n"
                         "[ -n \"$bad\" ] && exit 77; exit $code");
  EXPECT_EQ(code, 128 + 15) << err();
}

// Ranks that are several decide by themselves how CUDA loads its kernels.
TEST_F(Launching, LazyLoadingIsNotPassedOn) {
  ASSERT_EQ(
      shell(kLongJob + "cp /proc/$child/environ seen; kill -TERM $job; wait $job; [ $? = 143 ]",
            "CUDA_MODULE_LOADING=LAZY OTHER=1"),
      0)
      << err();
  EXPECT_NE(x_place.read("seen").find("OTHER=1"), std::string::npos);
  EXPECT_EQ(x_place.read("seen").find("CUDA_MODULE_LOADING"), std::string::npos);
}

/// What a script asks of Slurm, by option.
std::string option_of(const std::string& script, const std::string& option) {
  const std::string line = "\n#SBATCH --" + option;
  const std::size_t at = script.find(line);
  if (at == std::string::npos) return "none";
  const std::size_t end = script.find('\n', at + 1);
  const std::string rest = script.substr(at + line.size(), end - at - line.size());
  return rest.starts_with("=") ? rest.substr(1) : rest;
}

constexpr const char* kSrun = R"(#!/bin/sh
# Stands for srun: as many tasks as the job has, all here.
while [ "${1#--}" != "$1" ]; do echo "$1" >> asked; shift; done
task=$((SLURM_NTASKS - 1))
tasks=
while [ $task -ge 0 ]; do
  SLURM_STEP_ID=0 SLURM_STEP_NUM_TASKS=$SLURM_NTASKS SLURM_PROCID=$task SLURM_LOCALID=$task "$@" &
  tasks="$tasks $!"
  task=$((task - 1))
done
code=0
for task in $tasks; do wait $task || code=$?; done
exit $code
)";

/// Launching within a job of Slurm that has two tasks, all here.
class Slurm : public Launching {
 protected:
  /// The lines before its batch script.
  std::string slurm_job() const {
    std::filesystem::create_directory(x_place.path("in") / "bin");
    x_place.write("bin/srun", kSrun);
    x_place.write("bin/scontrol", "#!/bin/sh\necho 127.0.0.1\necho elsewhere\n");
    return "chmod +x bin/*; export PATH=$PWD/bin:$PATH SLURM_JOB_ID=" + std::to_string(x_port) +
           " SLURM_JOB_NODELIST=n[1-2] SLURM_NTASKS=2 SLURM_PROCID=0 "
           "SLURM_LOCALID=0 SLURM_CPUS_PER_TASK=1 FORETRAIN=" FORETRAIN_BINARY "\n";
  }
};

// Its ranks search as one process does.
TEST_F(Slurm, TheScriptSearches) {
  const std::string path = FORETRAIN_SOURCE_DIR "/configs/slurm/search.sbatch";
  const std::string script = read_compressed_file(path).value();
  ASSERT_EQ(shell("bash -n " + path), 0) << err();
  EXPECT_EQ(option_of(script, "ntasks-per-node"), "1");
  EXPECT_GT(script.find("\nset -euo"), script.rfind("#SBATCH"));
  const std::string job = slurm_job();
  const std::string asked =
      " run.json --set cluster.preset=dgx-h100 --set cluster.accelerators=8 --quiet --json ";
  ASSERT_EQ(shell(job + "bash " + path + asked + "slurm.json"), 0) << err();
  ASSERT_EQ(shell(FORETRAIN_BINARY " search" + asked + "alone.json"), 0) << err();
  const auto best = [this](const char* name) {
    const Json plans = at(json(name), "plans");
    EXPECT_NE(plans.array(), nullptr) << name;
    return plans.array() == nullptr || plans.array()->empty() ? Json() : plans.array()->front();
  };
  EXPECT_FALSE(best("slurm.json").is_null());
  EXPECT_EQ(best("slurm.json"), best("alone.json"));
  EXPECT_EQ(at(json("slurm.json"), "certificate/complete"), Json(true));
}

TEST_F(Slurm, TheScriptTrains) {
  const std::string path = FORETRAIN_SOURCE_DIR "/configs/slurm/execute.sbatch";
  const std::string script = read_compressed_file(path).value();
  EXPECT_TRUE(script.starts_with("#!/usr/bin/env bash\n"));
  ASSERT_EQ(shell("bash -n " + path), 0) << err();
  // A rank for each GPU, and an end.
  EXPECT_EQ(option_of(script, "ntasks-per-node"), option_of(script, "gpus-per-node"));
  EXPECT_GT(std::atoi(option_of(script, "nodes").c_str()), 1);
  EXPECT_GT(std::atoi(option_of(script, "cpus-per-task").c_str()), 0);
  EXPECT_NE(option_of(script, "time"), "none");
  EXPECT_NE(option_of(script, "output").find("%j"), std::string::npos);
  // Slurm reads none after the first command.
  EXPECT_GT(script.find("\nset -euo"), script.rfind("#SBATCH"));

  const std::string job = slurm_job();
  ASSERT_EQ(shell(job + "bash " + path + " run.json --steps 3 --json slurm.json"), 0) << err();
  EXPECT_EQ(at(json("slurm.json"), "transport"), Json("tcp"));
  EXPECT_EQ(losses("slurm.json"), of_threads());
  EXPECT_NE(x_place.read("asked").find("--mpi=none"), std::string::npos);
  // A task that fails is the job's failure.
  EXPECT_NE(shell(job + "bash " + path + " none.json"), 0);
}

class Doctor : public Launching {
 protected:
  Json doctor(const std::string& variables) const {
    EXPECT_EQ(shell(std::string(FORETRAIN_BINARY) + " doctor --json -", variables), 0) << err();
    return json("out");
  }
  /// The finding of that name.
  static Json finding(const Json& doctor, const std::string& what) {
    const Json all = at(doctor, "findings");
    for (const Json& one : *all.array()) {
      if (at(one, "what") == Json(what)) return one;
    }
    ADD_FAILURE() << "nothing about " << what;
    return {};
  }
};

TEST_F(Doctor, TellsHowExecuteStartsItsRanks) {
  for (const char* variables : {"", "PATH=/none"}) {
    const Json said = doctor(variables);
    ASSERT_EQ(shell(kExecute + " --quiet --json e.json", variables), 0) << err();
    EXPECT_EQ(at(json("e.json"), "transport"), at(said, "several_ranks/transport")) << variables;
  }
  EXPECT_EQ(at(doctor(as_rank(0)), "several_ranks/transport"), Json("tcp"));
}

TEST_F(Doctor, TellsWhetherExecuteCanUseADevice) {
  const Json said = doctor("");
  if (at(said, "device_cuda/possible") == Json(true)) GTEST_SKIP() << "here is a device";
  const std::string why = *at(said, "device_cuda/why_not").string();
  EXPECT_NE(why, "");
  EXPECT_EQ(shell(kExecute + " --ranks 1 --set parallel.tensor=1 --device cuda"), 1);
  EXPECT_NE(err().find("--device cuda: " + why), std::string::npos) << err();
}

TEST_F(Doctor, KnowsTheLibrariesOfCuda) {
  const Json said = doctor("");
  for (const char* what : {"cuBLASLt", "NCCL", "cuDNN", "CUPTI", "NVML"}) {
    const Json one = finding(said, what);
    EXPECT_EQ(at(one, "of"), Json("machine"));
    EXPECT_EQ(at(one, "costs").string()->empty(), at(one, "found") == Json(true)) << what;
  }
}

TEST_F(Doctor, KnowsTheBuild) {
  const Json said = doctor("");
  const Json executed_by = at(finding(said, "BLAS"), "where");
  ASSERT_EQ(shell(kExecute + " --ranks 1 --set parallel.tensor=1 --quiet --json e.json"), 0);
  const bool plain = at(json("e.json"), "machine/blas") == Json("plain loops");
  EXPECT_EQ(at(finding(said, "BLAS"), "found"), Json(!plain));
  const bool onednn =
      shell(kExecute + " --ranks 1 --set parallel.tensor=1 --quiet --blas onednn") == 0;
  EXPECT_EQ(at(finding(said, "oneDNN module"), "found"), Json(onednn));
  for (const char* what : {"CUDA backend", "CUDA with cuDNN", "CUDA with CUPTI", "MPI module"}) {
    const Json one = finding(said, what);
    EXPECT_EQ(at(one, "of"), Json("build"));
    // What is missing costs something, and can be had.
    const bool found = at(one, "found") == Json(true);
    EXPECT_EQ(at(one, "costs").string()->empty(), found) << what;
    EXPECT_EQ(at(one, "get").string()->empty(), found) << what;
  }
  const CommandResult text = x_place.run({"doctor"});
  EXPECT_NE(text.out.find("This build has"), std::string::npos) << text.out;
}

TEST_F(Doctor, LooksWherePipAndCondaInstall) {
  namespace fs = std::filesystem;
  const fs::path root = x_place.path("root");
  const auto put = [&](const std::string& file) {
    fs::create_directories((root / file).parent_path());
    std::ofstream(root / file) << "a library";
  };
  put("venv/lib/python3.11/site-packages/nvidia/nccl/lib/libnccl.so.2");
  put("home/.local/lib/python3.12/site-packages/nvidia/cudnn/lib/libcudnn.so.9");
  put("usr/lib/python3/dist-packages/nvidia/cuda_cupti/lib/libcupti.so.13");
  put("python/bin/python3");
  put("python/lib/python3.10/site-packages/nvidia/cublas/lib/libcublasLt.so.13");
  put("given/libgiven.so.1");
  put("asked/libasked.so.1");
  put("etc/ld.so.conf.d/cuda.conf");
  put("listed/liblisted.so");
  std::ofstream(root / "etc/ld.so.conf.d/cuda.conf") << "# a comment\n/listed\n";
  const std::map<std::string, std::string> variables = {
      {"VIRTUAL_ENV", root / "venv"},
      {"HOME", root / "home"},
      {"PATH", "/none:" + (root / "python/bin").string()},
      {"LD_LIBRARY_PATH", (root / "given").string() + ":"},
      {kLibraryPath, (root / "asked").string()}};
  const LibraryPlaces places = library_places(root, [&](const char* name) -> const char* {
    const auto at = variables.find(name);
    return at == variables.end() ? nullptr : at->second.c_str();
  });
  for (const char* name : {"libnccl.so", "libcudnn.so", "libcupti.so", "libcublasLt.so"}) {
    const FoundLibrary found = find_library(places, name);
    EXPECT_TRUE(found.path.ends_with(std::string("lib/") + name +
                                     fs::path(found.path).extension().string()))
        << name << found.path;
    EXPECT_FALSE(found.by_loader) << name;
  }
  for (const char* name : {"libgiven.so", "liblisted.so"}) {
    const FoundLibrary found = find_library(places, name);
    EXPECT_NE(found.path, "") << name;
    EXPECT_TRUE(found.by_loader) << name;
  }
  EXPECT_NE(find_library(places, "libasked.so").path, "");
  EXPECT_FALSE(find_library(places, "libasked.so").by_loader);
  EXPECT_EQ(find_library(places, "libnone.so").path, "");
  EXPECT_EQ(find_library(places, "libncc").path, "");
  // What is in a file is read, not run.
  EXPECT_TRUE(file_holds(root / "given/libgiven.so.1", "libr"));
  EXPECT_FALSE(file_holds(root / "given/libgiven.so.1", "libs"));
  EXPECT_FALSE(file_holds(root / "none", "libs"));
}

}  // namespace
}  // namespace foretrain
