// Did the lowering of any plan change? Hashes of canonical Programs, and of what replays and memory
// make of them, for drawn plans, all shipped runs and a spread of published rows.
//
// tests/golden/renew rewrites the hashes that a change was meant to alter.
// FORETRAIN_CANONICAL=CASE prints the texts that the hashes of that case are of.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <functional>
#include <iostream>
#include <map>
#include <sstream>

#include "models/emit/emit.h"
#include "models/lower.h"
#include "tests/support/canonical.h"
#include "tests/support/sanitized.h"
#include "tests/support/small_plans.h"
#include "tests/support/test_prices.h"
#include "tools/predict/run_file.h"
#include "tools/score/score.h"

namespace foretrain {
namespace {

constexpr std::uint64_t kFirstSeed = 70260;
constexpr int kPlansOfAKind = 550;
constexpr std::size_t kEveryRow = 3;
/// Programs of more calls are left to the score: each takes seconds.
constexpr std::int64_t kMostPasses = 2500;

std::string hashes_path() {
  return std::string(FORETRAIN_SOURCE_DIR) + "/tests/golden/lowering.txt";
}

bool renews() {
  const char* update = std::getenv("FORETRAIN_UPDATE_GOLDEN");
  return update != nullptr && *update == '1';
}

/// FORETRAIN_CANONICAL asks for another case.
bool left_out(const std::string& name) {
  const char* wanted = std::getenv("FORETRAIN_CANONICAL");
  return wanted != nullptr && name != wanted;
}

/// By case: "PROGRAM TIMES".
using Hashes = std::map<std::string, std::string>;

Hashes read_hashes() {
  Hashes out;
  std::ifstream file(hashes_path());
  std::string name;
  for (std::string line; std::getline(file, line);) {
    const std::size_t space = line.find(' ');
    if (space != std::string::npos) out[line.substr(0, space)] = line.substr(space + 1);
  }
  return out;
}

std::string hex(std::uint64_t hash) {
  std::ostringstream out;
  out << std::hex << hash;
  return out.str();
}

/// Checks cases against the file; in the end writes those it has seen there, where it is renewed.
class Checked {
 public:
  ~Checked() {
    if (!renews()) return;
    Hashes all = read_hashes();
    for (const auto& [name, hashes] : x_now) all[name] = hashes;
    std::ofstream file(hashes_path(), std::ios::binary);
    for (const auto& [name, hashes] : all) file << name << " " << hashes << "\n";
  }

  void expect(const std::string& name, const std::string& program, const std::string& times) {
    const std::string now = hex(hash_of(program)) + " " + hex(hash_of(times));
    if (std::getenv("FORETRAIN_CANONICAL") != nullptr) std::cout << program << times;
    x_now[name] = now;
    if (renews()) return;
    const auto known = x_known.find(name);
    ASSERT_NE(known, x_known.end()) << name << ": no hashes; run tests/golden/renew";
    const std::string& before = known->second;
    const std::string of_program = before.substr(0, before.find(' '));
    EXPECT_EQ(now.substr(0, now.find(' ')), of_program) << name << ": another Program";
    EXPECT_EQ(now.substr(now.find(' ')), before.substr(before.find(' ')))
        << name << ": other times";
  }

  /// A case with hashes that is drawn, read or resolved no more would go by unseen.
  void expect_all_of(const std::string& kind) const {
    if (renews() || kSanitized || std::getenv("FORETRAIN_CANONICAL") != nullptr) return;
    for (const auto& [name, hashes] : x_known) {
      if (!name.starts_with(kind + ".")) continue;
      EXPECT_TRUE(x_now.contains(name)) << name << ": has hashes, but was not lowered";
    }
  }

 private:
  Hashes x_known = read_hashes();
  Hashes x_now;
};

void expect_drawn(const std::string& kind, std::uint64_t seed, Drawn (*draw)(Rng&)) {
  Checked checked;
  for (int i = 0; i < cases(kPlansOfAKind, 40); ++i) {
    const std::string name = kind + "." + std::to_string(i);
    if (left_out(name)) continue;
    Rng rng(seed + static_cast<std::uint64_t>(i));
    Drawn drawn = draw(rng);
    add_rare(rng, drawn);
    SCOPED_TRACE(describe(drawn.model, drawn.plan));
    const Workload workload = lower(drawn.model, drawn.plan);
    const Rates rates[] = {plain_rates(), holding_rates(), sharing_rates()};
    TestPrices prices(rates[i % 3]);
    checked.expect(name, canonical_text(workload), replayed_text(workload, prices));
  }
  checked.expect_all_of(kind);
}

TEST(LoweringHashes, Drawn) { expect_drawn("drawn", kFirstSeed, draw_plan); }
TEST(LoweringHashes, DrawnGrid) {
  expect_drawn("grid", kFirstSeed + 10'000, [](Rng& rng) { return draw_grid_plan(rng, 32); });
}
TEST(LoweringHashes, DrawnSharded) {
  expect_drawn("sharded", kFirstSeed + 20'000, draw_sharded_plan);
}
TEST(LoweringHashes, DrawnSparse) { expect_drawn("sparse", kFirstSeed + 30'000, draw_sparse_plan); }

/// Layer passes of a stage's step.
std::int64_t passes(const Run& run) {
  return run.plan.microbatches() * (run.model.layers / run.plan.pipeline + 1);
}

/// The first, a middle and the last stage of a run.
void expect_stages(Checked& checked, const std::string& name, const Run& run) {
  std::vector<std::int64_t> stages = {0, run.plan.pipeline / 2, run.plan.pipeline - 1};
  stages.erase(std::unique(stages.begin(), stages.end()), stages.end());
  std::string programs;
  std::string memory;
  for (const std::int64_t stage : stages) {
    const Program program = write_stage(run.model, run.plan, stage);
    programs += canonical_text(program);
    memory += memory_text(program);
  }
  checked.expect(name, programs, memory);
}

TEST(LoweringHashes, ShippedRuns) {
  Checked checked;
  std::vector<std::string> names;
  const std::string folder = std::string(FORETRAIN_SOURCE_DIR) + "/configs/runs";
  for (const auto& entry : std::filesystem::directory_iterator(folder)) {
    names.push_back(entry.path().stem().string());
  }
  std::sort(names.begin(), names.end());
  for (const std::string& name : names) {
    if (left_out("run." + name)) continue;
    const Result<foretrain::Run> run =
        load_run(folder + "/" + name + ".json", {}, use_shipped_profile);
    ASSERT_TRUE(run.ok()) << run.error().message;
    if (kSanitized && passes(run.value()) > 200) continue;
    expect_stages(checked, "run." + name, run.value());
  }
  checked.expect_all_of("run");
}

TEST(LoweringHashes, PublishedRows) {
  if (kSanitized) GTEST_SKIP() << "the drawn plans reach the same code";
  Checked checked;
  const Result<std::vector<Row>> rows =
      read_rows({std::string(FORETRAIN_SOURCE_DIR) + "/configs/published"});
  ASSERT_TRUE(rows.ok()) << rows.error().message;
  int seen = 0;
  for (std::size_t i = 0; i < rows.value().size(); i += kEveryRow) {
    const Row& row = rows.value()[i];
    if (left_out("row." + row.id)) continue;
    const Result<foretrain::Run> run = resolve_run(row.run, row.id, {}, use_shipped_profile);
    if (!run.ok() || passes(run.value()) > kMostPasses) continue;
    ++seen;
    expect_stages(checked, "row." + row.id, run.value());
  }
  checked.expect_all_of("row");
  EXPECT_GT(seen, std::getenv("FORETRAIN_CANONICAL") != nullptr ? 0 : 60);
}

}  // namespace
}  // namespace foretrain
