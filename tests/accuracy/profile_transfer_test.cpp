// Do samples of a GPU speak rightly of shapes that were not measured? The GPU is a roofline whose
// tiles go in whole waves, its times are without noise, and its constants are not the model's.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <set>

#include "executor/micro.h"
#include "hardware/hardware_cost_model.h"
#include "hardware/profile.h"
#include "models/lower.h"
#include "tools/calibrate/calibration.h"
#include "tools/predict/predict.h"
#include "tools/predict/run_file.h"

namespace foretrain {
namespace {

/// Products as a GPU of 132 SMs takes them: a tile of 128 x 256 or 256 x 128 an SM, whichever takes
/// fewer waves.
struct WaveGpu {
  double flop_per_s = 0;   ///< of all SMs
  double end_k = 0;        ///< of k, that the ends of a tile take
  double bytes_per_s = 0;  ///< of memory
  double launch_s = 0;
};

double seconds_on(const WaveGpu& gpu, const Gemm& w) {
  constexpr double kSms = 132;
  const auto real = [](std::int64_t x) { return static_cast<double>(x); };
  double waves = std::numeric_limits<double>::infinity();
  for (const auto& [rows, columns] : {std::pair{128.0, 256.0}, std::pair{256.0, 128.0}}) {
    const double tiles = std::ceil(real(w.m) / rows) * std::ceil(real(w.n) / columns);
    waves = std::min(waves, std::ceil(tiles * real(w.batch) / kSms));
  }
  const double tile_s = 2.0 * 128 * 256 * (real(w.k) + gpu.end_k) / (gpu.flop_per_s / kSms);
  const Bytes result = bytes_of(w.out, w.m * w.n) * (w.accumulate ? 2 : 1);
  const double bytes = real(w.batch) * real(bytes_of(w.in, w.m * w.k + w.k * w.n) + result);
  return std::max(waves * tile_s, bytes / gpu.bytes_per_s) + gpu.launch_s;
}

constexpr std::array kGpus = {WaveGpu{690e12, 64, 2.9e12, 4e-6}, WaveGpu{600e12, 200, 2.5e12, 8e-6},
                              WaveGpu{800e12, 0, 3.3e12, 2e-6}};

void add_sample(const WaveGpu& gpu, const Gemm& work, Profile& profile) {
  Sample out;
  out.key = sample_key(work, 1);
  out.key.state = kSustained;
  out.size = sample_size(work);
  out.count = 100;
  out.median_us = out.p10_us = out.p90_us = seconds_on(gpu, work) * 1e6;
  profile.add(out);
}

Profile profile_of_h100() {
  Profile out;
  out.machine = Json{Json::Object{}};
  out.machine.set("device", "h100-sxm-80gb");
  return out;
}

/// The products in 16 bits of the shipped runs on H100.
std::vector<Gemm> shapes_of_runs() {
  std::vector<Gemm> out;
  std::set<std::string> known;
  for (const char* name :
       {"llama-3-8b-8-h100", "llama-3.1-405b-16384-h100", "composer-mpt-7b-8-h100",
        "maxtext-llama-2-70b-64-h100", "nnscaler-llama-3-8b-128k-8-h100"}) {
    const auto run = load_run(name, {});
    EXPECT_TRUE(run.ok()) << run.error().message;
    const Workload workload = lower(run.value().model, run.value().plan);
    for (const Program& program : workload.programs) {
      for (const Work& work : program.works) {
        const auto* gemm = std::get_if<Gemm>(&work);
        if (gemm == nullptr || bits_of(gemm->in) != 16) continue;
        for (const Gemm& one : gemms_of(*gemm)) {
          if (known.insert(text_of(Work{one})).second) out.push_back(one);
        }
      }
    }
  }
  return out;
}

/// What `calibrate --device cuda` measures without a word of any run: the products in 16 bits.
Profile calibrated(const WaveGpu& gpu, bool quick) {
  Profile out = profile_of_h100();
  const auto ops = calibration_ops({1, quick, true, false, 132});
  EXPECT_TRUE(ops.ok());
  for (const MicroOp& op : ops.value()) {
    const auto* gemm = std::get_if<Gemm>(&op.work);
    if (gemm != nullptr && bits_of(gemm->in) == 16) add_sample(gpu, *gemm, out);
  }
  return out;
}

/// Named in the test's results, in percent.
void record(const std::string& name, double worst, double mean) {
  ::testing::Test::RecordProperty(name + "_worst", std::to_string(100 * worst));
  ::testing::Test::RecordProperty(name + "_mean", std::to_string(100 * mean));
}

struct ShapeErrors {
  double worst = 0, sum = 0;
  std::int64_t shapes = 0;
  double mean() const { return sum / static_cast<double>(shapes); }
};

/// Of the runs' shapes that the profile has not.
ShapeErrors errors_of(const Profile& profile, const WaveGpu& gpu) {
  const auto run = load_run("llama-3-8b-8-h100", {});
  const auto model = make_cost_model(run.value().cluster, PriceOptions{});
  const ProfileTable table(profile, PricesFor::kFramework, model.get());
  ShapeErrors out;
  for (const Gemm& shape : shapes_of_runs()) {
    const auto price = table.price(shape, 1);
    if (price.value().provenance == Provenance::kMeasured) continue;
    const double error = std::abs(price.value().seconds / seconds_on(gpu, shape) - 1);
    out.worst = std::max(out.worst, error);
    out.sum += error;
    ++out.shapes;
  }
  return out;
}

// Every product of the shipped runs on H100 within 5 %, though none of them was measured.
TEST(ProfileTransfer, ShapesLeftOutOfTheGridAreRight) {
  for (const WaveGpu& gpu : kGpus) {
    const ShapeErrors errors = errors_of(calibrated(gpu, false), gpu);
    const std::string at = std::to_string(std::lround(gpu.flop_per_s / 1e12));
    record("full_" + at, errors.worst, errors.mean());
    EXPECT_GT(errors.shapes, 50);
    EXPECT_LT(errors.worst, 0.05) << gpu.flop_per_s;
    EXPECT_LT(errors.mean(), 0.01) << gpu.flop_per_s;
    const ShapeErrors quick = errors_of(calibrated(gpu, true), gpu);
    record("quick_" + at, quick.worst, quick.mean());
    EXPECT_LT(quick.worst, 0.08) << gpu.flop_per_s;
    EXPECT_LT(quick.mean(), 0.02) << gpu.flop_per_s;
  }
}

// The shapes of one run tell of those of others.
TEST(ProfileTransfer, ShapesOfOneRunTellOfOthers) {
  for (const WaveGpu& gpu : kGpus) {
    Profile profile = profile_of_h100();
    const std::vector<Gemm> shapes = shapes_of_runs();
    for (std::size_t i = 0; i < shapes.size(); i += 2) add_sample(gpu, shapes[i], profile);
    const ShapeErrors errors = errors_of(profile, gpu);
    record("others_" + std::to_string(std::lround(gpu.flop_per_s / 1e12)), errors.worst,
           errors.mean());
    EXPECT_GT(errors.shapes, 25);
    EXPECT_LT(errors.mean(), 0.01) << gpu.flop_per_s;
    EXPECT_LT(errors.worst, 0.06) << gpu.flop_per_s;
  }
}

/// Seconds of a step of the shipped run, priced from the profile.
double step_seconds(const Profile* profile) {
  Result<Run> run = load_run("llama-3-8b-8-h100", {});
  EXPECT_TRUE(run.ok());
  if (profile != nullptr) run.value().profile = std::make_shared<const Profile>(*profile);
  PredictOptions how;
  how.sensitivity = how.verify = false;
  const auto out = predict(run.value(), how);
  EXPECT_TRUE(out.ok()) << out.error().message;
  return out.value().iteration_time_s;
}

/// What `calibrate` measures of one rank, so many times as long as modelled: what the vendor's
/// libraries compute, and all else.
Profile times_modelled(double vendor, double own) {
  Cluster cluster = load_run("llama-3-8b-8-h100", {}).value().cluster;
  cluster.device.slowest = 1;  // one device is measured
  const auto model = make_cost_model(cluster, PriceOptions{});
  Profile out = profile_of_h100();
  const auto ops = calibration_ops({1, true, true, false, 132});
  for (const MicroOp& op : ops.value()) {
    const Result<double> modelled = modelled_seconds(*model, op.work, 1);
    if (!modelled.ok()) continue;
    Sample sample;
    sample.key = op.key;
    sample.size = sample_size(op.work);
    sample.count = 1;
    sample.median_us = 1e6 * modelled.value() * (op.key.by == Maker::kVendor ? vendor : own);
    out.add(sample);
  }
  for (const char* overhead : {kLaunchSample, kDispatchSample, kEventSample}) {
    Sample sample;
    sample.key = {overhead, overhead, 1};
    sample.size = 1;
    sample.count = 1;
    sample.median_us = 10 * own;
    out.add(sample);
  }
  return out;
}

// Our own kernels, thirty times as slow as a framework's, and our own launches say nothing of a
// framework's step; the vendor's products do, as far as they were slower.
TEST(ProfileTransfer, AProfileMovesARunByWhatItMeasured) {
  const double modelled = step_seconds(nullptr);
  const Profile slow = times_modelled(1, 30);
  EXPECT_NEAR(step_seconds(&slow), modelled, 1e-6 * modelled);
  const Profile products = times_modelled(1.1, 30);
  const double step = step_seconds(&products);
  EXPECT_GT(step, 1.04 * modelled);
  EXPECT_LT(step, 1.1 * modelled);
}

}  // namespace
}  // namespace foretrain
