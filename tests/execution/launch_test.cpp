// Are launchers recognised by what they leave, and do ranks get cores and devices of their own?
#include "executor/launch.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <map>
#include <thread>

#include "executor/device_seats.h"
#include "executor/job_variables.h"

namespace foretrain {
namespace {

using Variables = std::map<std::string, std::string>;
using By = JobVariables::By;

JobVariables job_of(const Variables& variables, bool mpi = true) {
  return job_variables(mpi, [&](const char* name) -> const char* {
    const auto at = variables.find(name);
    return at == variables.end() ? nullptr : at->second.c_str();
  });
}

Variables with(Variables a, const Variables& b) {
  a.insert(b.begin(), b.end());
  return a;
}

const Variables kMaster = {{"MASTER_ADDR", "node7"}, {"MASTER_PORT", "29500"}};
const Variables kTorchrun =
    with(kMaster, {{"RANK", "9"}, {"WORLD_SIZE", "16"}, {"LOCAL_RANK", "1"}});
const Variables kOpenMpi = {{"OMPI_COMM_WORLD_SIZE", "4"},
                            {"OMPI_COMM_WORLD_RANK", "2"},
                            {"OMPI_COMM_WORLD_LOCAL_RANK", "0"}};
const Variables kStep = {{"SLURM_PROCID", "3"},
                         {"SLURM_NTASKS", "8"},
                         {"SLURM_STEP_NUM_TASKS", "4"},
                         {"SLURM_STEP_ID", "0"},
                         {"SLURM_LOCALID", "1"}};

TEST(JobVariables, OfTorchrun) {
  const JobVariables job = job_of(kTorchrun);
  EXPECT_EQ(job.by, By::kTcp);
  EXPECT_EQ(job.rank, 9);
  EXPECT_EQ(job.size, 16);
  EXPECT_EQ(job.local, 1);
  EXPECT_EQ(job.address, "node7");
  EXPECT_EQ(job.port, 29500);
  EXPECT_EQ(job.problem, "");
  // Its own store has the port.
  EXPECT_EQ(job_of(with(kTorchrun, {{"TORCHELASTIC_USE_AGENT_STORE", "True"}})).port, 29501);
  EXPECT_EQ(job_of(with(kTorchrun, {{"TORCHELASTIC_USE_AGENT_STORE", "False"}})).port, 29500);
}

TEST(JobVariables, WhatIsWrongIsNamed) {
  EXPECT_EQ(job_of({{"RANK", "0"}, {"WORLD_SIZE", "2"}}).by, By::kNobody);
  const std::pair<Variables, std::string> wrong[] = {
      {{{"RANK", "two"}, {"WORLD_SIZE", "2"}}, "RANK is \"two\", expected 0 to 1"},
      {{{"RANK", "2"}, {"WORLD_SIZE", "2"}}, "RANK is \"2\", expected 0 to 1"},
      {{{"RANK", "0"}, {"WORLD_SIZE", "-3"}}, "WORLD_SIZE is \"-3\""},
      {{{"RANK", "0"}, {"WORLD_SIZE", "99999999999999999999"}}, "WORLD_SIZE is \"999"},
      {{{"RANK", "0"}, {"WORLD_SIZE", ""}}, "WORLD_SIZE is \"\""}};
  for (const auto& [variables, problem] : wrong) {
    const JobVariables job = job_of(with(kMaster, variables));
    EXPECT_EQ(job.by, By::kTcp);
    EXPECT_NE(job.problem.find(problem), std::string::npos) << job.problem;
  }
  Variables no_port = kTorchrun;
  no_port.erase("MASTER_PORT");
  EXPECT_NE(job_of(no_port).problem.find("MASTER_PORT is not set"), std::string::npos);
  no_port["MASTER_PORT"] = "70000";
  EXPECT_NE(job_of(no_port).problem.find("MASTER_PORT is \"70000\""), std::string::npos);
}

TEST(JobVariables, MpiComesFirstWhereItIs) {
  EXPECT_EQ(job_of(with(kTorchrun, kOpenMpi)).by, By::kMpi);
  EXPECT_EQ(job_of(with(kTorchrun, kOpenMpi)).size, 4);
  EXPECT_EQ(job_of(kOpenMpi, false).by, By::kMpi);  // to be told what is missing
  // A build without MPI meets at the address.
  const JobVariables without = job_of(with(kMaster, kOpenMpi), false);
  EXPECT_EQ(without.by, By::kTcp);
  EXPECT_EQ(without.rank, 2);
  EXPECT_EQ(without.local, 0);
  // torchrun within a step: one task a node, each starting several.
  const Variables inside =
      with(with(kTorchrun, kStep), {{"PMIX_RANK", "0"}, {"TORCHELASTIC_RUN_ID", "none"}});
  EXPECT_EQ(job_of(inside).by, By::kTcp);
  EXPECT_EQ(job_of(inside).size, 16);
  EXPECT_EQ(job_of(inside).local, 1);
}

TEST(JobVariables, OfSrun) {
  EXPECT_EQ(job_of(with(kStep, {{"PMIX_RANK", "3"}})).by, By::kMpi);
  EXPECT_EQ(job_of(with(kStep, {{"PMIX_RANK", "3"}})).size, 4);
  EXPECT_EQ(job_of(kStep).by, By::kNobody);  // nothing says where to meet
  const JobVariables job = job_of(with(kStep, kMaster));
  EXPECT_EQ(job.by, By::kTcp);
  EXPECT_EQ(job.rank, 3);
  EXPECT_EQ(job.size, 4);
  EXPECT_EQ(job.local, 1);
  EXPECT_EQ(job.size_name, "SLURM_STEP_NUM_TASKS");
  Variables tasks = with(kStep, kMaster);
  tasks.erase("SLURM_STEP_NUM_TASKS");
  EXPECT_EQ(job_of(tasks).size, 8);
  // The batch script itself is no rank.
  tasks.erase("SLURM_STEP_ID");
  EXPECT_EQ(job_of(tasks).by, By::kNobody);
}

TEST(Launch, RanksOnDevicesAreNotBoundToCores) {
  const std::vector<std::string> host = {"execute", "run", "--ranks", "2"};
  const auto line = [](std::int64_t ranks, const std::vector<std::string>& arguments) {
    std::string out;
    for (const std::string& word : mpirun_words("mpirun", ranks, 4, "foretrain", arguments)) {
      if (word != "--allow-run-as-root") out += (out.empty() ? "" : " ") + word;
    }
    return out;
  };
  EXPECT_EQ(line(2, host), "mpirun -np 2 --bind-to core foretrain execute run --ranks 2");
  EXPECT_EQ(line(8, host),
            "mpirun -np 8 --oversubscribe --bind-to none foretrain execute run --ranks 2");
  for (const std::vector<std::string>& device :
       {std::vector<std::string>{"--device", "cuda"}, std::vector<std::string>{"--device=cuda"}}) {
    std::vector<std::string> words = {"execute", "run"};
    words.insert(words.end(), device.begin(), device.end());
    const std::string out = line(2, words);
    EXPECT_NE(out.find("--bind-to none"), std::string::npos) << out;
    EXPECT_EQ(out.find("--bind-to core"), std::string::npos) << out;
  }
}

/// Variables of the environment, for a test.
class Environment {
 public:
  explicit Environment(const Variables& set) {
    for (const auto& [name, value] : set) {
      setenv(name.c_str(), value.c_str(), 1);
      x_names.push_back(name);
    }
  }
  ~Environment() {
    for (const std::string& name : x_names) unsetenv(name.c_str());
  }
  Environment(const Environment&) = delete;
  Environment& operator=(const Environment&) = delete;
  Environment(Environment&&) = delete;
  Environment& operator=(Environment&&) = delete;

 private:
  std::vector<std::string> x_names;
};

TEST(Devices, EachTaskSeesItsOwnOrAll) {
  // Threads of one process.
  EXPECT_EQ(device_of(RankId(1), 2).value(), 1);
  EXPECT_FALSE(device_of(RankId(1), 1).ok());
  Variables task = with(kStep, kMaster);
  task["SLURM_LOCALID"] = "3";
  {
    const Environment here(task);
    EXPECT_EQ(device_of(RankId(11), 1).value(), 0);  // srun --gpus-per-task=1
    EXPECT_EQ(device_of(RankId(11), 8).value(), 3);
    const Result<int> few = device_of(RankId(11), 2);
    ASSERT_FALSE(few.ok());
    EXPECT_NE(few.error().message.find("rank 11 is number 4 on this machine, which has 2"),
              std::string::npos);
  }
  // The innermost launcher knows the place: each node has one task, which starts several.
  const Environment inside(with(kTorchrun, {{"SLURM_LOCALID", "0"}}));
  EXPECT_EQ(device_of(RankId(9), 8).value(), 1);
}

TEST(Devices, TwoRanksOnOneAreFoundByIdentifier) {
  const GpuName a = {"0000:1b:00.0", "GPU-00010203-0405-0607-0809-0a0b0c0d0e0f"};
  const GpuName b = {"0000:1c:00.0", "GPU-10010203-0405-0607-0809-0a0b0c0d0e0f"};
  const GpuName nameless = {"0000:1b:00.0", "GPU-00000000-0000-0000-0000-000000000000"};
  EXPECT_TRUE(check_apart({}).ok());
  const DeviceSeat apart[] = {{"x", a}, {"x", b}};
  EXPECT_TRUE(check_apart(apart).ok());
  const DeviceSeat same[] = {{"x", b}, {"x", a}, {"x", a}};
  const Status shared = check_apart(same);
  ASSERT_FALSE(shared.ok());
  EXPECT_TRUE(shared.error().message.starts_with(
      "ranks 1 and 2 have one CUDA device, 0000:1b:00.0 of x; NCCL refuses two ranks on one"))
      << shared.error().message;
  // Containers of one machine, with host names of their own, and of two machines with one name.
  const DeviceSeat containers[] = {{"c1", a}, {"c2", a}};
  EXPECT_FALSE(check_apart(containers).ok());
  GpuName elsewhere = b;
  elsewhere.bus = a.bus;
  const DeviceSeat namesakes[] = {{"x", a}, {"x", elsewhere}};
  EXPECT_TRUE(check_apart(namesakes).ok());
  // Without an identifier the place on the bus tells.
  const DeviceSeat places[] = {{"x", nameless}, {"y", nameless}};
  EXPECT_TRUE(check_apart(places).ok());
  const DeviceSeat place[] = {{"x", nameless}, {"x", nameless}};
  EXPECT_FALSE(check_apart(place).ok());
  const DeviceSeat unknown[] = {{"x", {}}, {"x", {}}};
  EXPECT_TRUE(check_apart(unknown).ok());
}

/// What two tasks that see one device each are told.
std::vector<std::string> seated(const std::vector<GpuName>& gpus) {
  const Environment tasks(with(kStep, kMaster));
  Workload workload;
  workload.ranks.resize(gpus.size());
  const auto transport = make_thread_transport(workload);
  std::vector<std::string> out(gpus.size());
  std::vector<std::thread> ranks;
  for (std::size_t r = 0; r < gpus.size(); ++r) {
    ranks.emplace_back([&, r] {
      CudaModule cuda;
      cuda.devices = 1;
      cuda.gpus = {gpus[r]};
      const Status status = take_seats(cuda, RankId(r), *transport);
      out[r] = status.ok() ? "" : status.error().message;
    });
  }
  for (std::thread& rank : ranks) rank.join();
  return out;
}

TEST(Devices, AllRanksLearnWhoShares) {
  const GpuName a = {"0000:1b:00.0", ""};
  const GpuName b = {"0000:1c:00.0", ""};
  EXPECT_EQ(seated({a, b}), std::vector<std::string>(2));
  const std::vector<std::string> told = seated({a, b, a});
  for (const std::string& message : told) {
    EXPECT_TRUE(message.starts_with("ranks 0 and 2 have one CUDA device")) << message;
  }
  EXPECT_NE(told[0].find(a.bus), std::string::npos);
}

}  // namespace
}  // namespace foretrain
