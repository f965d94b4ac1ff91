#include "tests/execution/device_plans.h"

#include <gtest/gtest.h>

#include <cmath>
#include <map>
#include <thread>

#include "executor/thread_run.h"
#include "models/lower.h"
#include "sim/program/verify.h"
#include "tests/support/small_plans.h"

namespace foretrain {
namespace {

constexpr int kSteps = 3;

/// By rank, tensor and layer.
using Weights = std::map<std::string, std::vector<double>>;

template <typename ValuesOf>
void collect(const std::vector<TensorSlice>& slices, std::size_t rank, const ValuesOf& values_of,
             Weights& out) {
  for (const TensorSlice& slice : slices) {
    std::vector<double>& to =
        out[std::to_string(rank) + " " + slice.tensor->name + " " + std::to_string(slice.layer)];
    const auto values = values_of(slice.owner);
    to.clear();
    for (std::int64_t i = slice.begin; i < slice.end; ++i) {
      to.push_back(static_cast<double>(values[static_cast<std::size_t>(slice.element + i)]));
    }
  }
}

struct Outcome {
  std::vector<double> losses;
  Weights before, after;
};

Outcome on_host(const Workload& workload) {
  Outcome out;
  const auto run = ThreadRun<float>::create(workload, options_for_tests());
  EXPECT_TRUE(run.ok()) << run.error().message;
  if (!run.ok()) return out;
  const auto read = [&](Weights& to) {
    for (std::size_t r = 0; r < run.value()->ranks().size(); ++r) {
      HostMemory<float>& memory = run.value()->ranks()[r]->memory();
      collect(
          memory.slices(), r, [&](FrameId frame) { return memory.values(frame); }, to);
    }
  };
  read(out.before);
  for (int step = 0; step < kSteps; ++step) {
    const Result<double> loss = run.value()->step();
    EXPECT_TRUE(loss.ok()) << loss.error().message;
    if (!loss.ok()) return out;
    out.losses.push_back(loss.value());
  }
  read(out.after);
  return out;
}

using Ranks = std::vector<std::unique_ptr<DeviceRank>>;

/// Every rank in a thread of its own.
bool all(const Ranks& ranks, const std::function<Status(DeviceRank&)>& act) {
  std::vector<Status> results(ranks.size(), ok_status());
  std::vector<std::thread> threads;
  for (std::size_t r = 0; r < ranks.size(); ++r) {
    threads.emplace_back([&, r] { results[r] = act(*ranks[r]); });
  }
  for (std::thread& thread : threads) thread.join();
  bool good = true;
  for (const Status& status : results) {
    if (status.ok()) continue;
    ADD_FAILURE() << status.error().message;
    good = false;
  }
  return good;
}

Outcome on_device(const Workload& workload, const MakeDevice& make, bool graphs) {
  Outcome out;
  const auto transport = make_thread_transport(workload);
  Ranks ranks;
  for (std::size_t r = 0; r < workload.ranks.size(); ++r) {
    auto device = make(workload, RankId(r), *transport);
    if (!device.ok()) {
      ADD_FAILURE() << device.error().message;
      return out;
    }
    HostOptions options = options_for_tests();
    options.graphs = graphs;
    ranks.push_back(std::make_unique<DeviceRank>(workload, RankId(r), *transport, options,
                                                 std::move(device).value()));
  }
  const auto read = [&](Weights& to) {
    for (std::size_t r = 0; r < ranks.size(); ++r) {
      collect(
          ranks[r]->layout().slices(), r,
          [&](FrameId frame) {
            auto values = ranks[r]->values(frame);
            EXPECT_TRUE(values.ok());
            return values.ok() ? std::move(values).value() : std::vector<float>();
          },
          to);
    }
  };
  if (!all(ranks, [](DeviceRank& rank) { return rank.set_up(); })) return out;
  read(out.before);
  for (int step = 0; step < kSteps; ++step) {
    if (!all(ranks, [](DeviceRank& rank) { return rank.step(); })) return out;
    for (const auto& rank : ranks) {
      if (std::isnan(rank->loss())) continue;
      out.losses.push_back(rank->loss());
      break;
    }
  }
  read(out.after);
  return out;
}

double distance(const std::vector<double>& a, const std::vector<double>& b) {
  double sum = 0;
  for (std::size_t i = 0; i < a.size(); ++i) sum += (a[i] - b[i]) * (a[i] - b[i]);
  return std::sqrt(sum);
}

void expect_close(const Outcome& host, const Outcome& device, const DeviceTolerance& tolerance) {
  ASSERT_EQ(host.losses.size(), device.losses.size());
  for (std::size_t s = 0; s < host.losses.size(); ++s) {
    EXPECT_NEAR(device.losses[s] / host.losses[s], 1.0, tolerance.loss) << "loss of step " << s;
  }
  ASSERT_EQ(host.after.size(), device.after.size());
  for (const auto& [name, values] : host.after) {
    const std::vector<double>& other = device.after.at(name);
    ASSERT_EQ(values.size(), other.size()) << name;
    const double least = 1e-4 * std::sqrt(static_cast<double>(values.size()));
    const double moved = std::max(least, distance(values, host.before.at(name)));
    const double size = distance(values, std::vector<double>(values.size(), 0.0));
    EXPECT_LE(distance(values, other), tolerance.weights * moved + tolerance.rounding * size)
        << name << ", moved " << moved;
  }
}

}  // namespace

HostOptions options_for_tests() {
  HostOptions options;
  options.training.learning_rate = 0.01;
  options.training.epsilon = 1e-3;
  options.check = true;
  return options;
}

Workload lowered(const DeviceCase& device_case, DType type) {
  Plan plan = device_case.plan;
  if (type != DType::kFp32) {
    plan.precision.compute = plan.precision.matrix = plan.precision.linear = type;
    plan.precision.master = true;
  }
  return lower(device_case.model, plan);
}

void expect_trains_like_host(const DeviceCase& device_case, DType type, const MakeDevice& make,
                             const DeviceTolerance& tolerance, bool graphs) {
  SCOPED_TRACE(device_case.name);
  const Workload reference = lower(device_case.model, device_case.plan);
  const Workload workload = lowered(device_case, type);
  const Status well_formed = verify(workload);
  ASSERT_TRUE(well_formed.ok()) << well_formed.error().message;
  const Status possible = check_device_executable(workload);
  ASSERT_TRUE(possible.ok()) << possible.error().message;
  expect_close(on_host(reference), on_device(workload, make, graphs), tolerance);
}

}  // namespace foretrain
