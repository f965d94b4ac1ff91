// Does tensor parallelism on a grid move, hold and compute what Colossal-AI's table says?
//
// Its table counts, for one linear y = x W^T forward and backward, with rings, what is sent in hops
// that follow one another: with arrays x of [T, k], y of [T, n] and W of [n, k] elements
//   all-reduce of B over g ranks:      2 (g-1) hops of B/g
//   gather, reduce-scatter of B:         (g-1) hops of B/g
//   broadcast, reduce of a block b:      (g-1) hops of b, one rank to the next
// so that bandwidth is the sum over hops of their size. For x, y and W of one size, 1:
//   1d    one all-reduce                                        2 (P-1)/P
//   2d    q broadcasts of x/q^2 forward and for d_W, q reduces
//         for d_x; the same of W/q^2: 3 q (q-1) (x + W)/q^2  =  6 (q-1)/q
//   2.5d  x is cut d times more: 3 (q-1)/q (x/d + W)         =  3 (q-1)(d+1)/(d q)
//   3d    x, y, W gathered or scattered twice, arrays of /q^2:  6 (q-1)/q^3
// The hops themselves are the table's latency for 1d and 3d, 2 (P-1) and 6 (q-1); of 2d and 2.5d it
// states 6 (q-1), one broadcast for each of six forms, where there are q: blocks that follow each
// other around a ring fill it once. It leaves out the sum of d_W over depth, a bias, norms.
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <numeric>
#include <ostream>

#include "models/layers/tensor_grid.h"
#include "models/lower.h"
#include "models/layers/slots.h"
#include "sim/program/verify.h"
#include "tests/support/small_plans.h"

namespace foretrain {
namespace {

/// 1d has `depth` ranks.
struct Grid {
  TensorMode mode;
  std::int64_t side, depth;
  std::int64_t ranks() const { return (mode == TensorMode::k3D ? side : depth) * side * side; }
};

void PrintTo(const Grid& grid, std::ostream* out) {
  *out << name_of(grid.mode) << " " << grid.side << " x " << grid.depth;
}

/// Tokens of a sequence, hidden size, width of the MLP.
struct Sizes {
  std::int64_t length, hidden, width;
};

Model model_of(const Sizes& sizes) {
  Model model = small_gpt();
  model.layers = 2;
  model.hidden = sizes.hidden;
  model.intermediate = sizes.width;
  model.heads = model.kv_heads = 12;
  model.head_dim = sizes.hidden / 12;
  model.vocabulary = 4096 * 9;
  model.positions = sizes.length;
  return model;
}

/// One microbatch of as many sequences as the tokens have parts.
Plan plan_of(const Model& model, const Grid& grid, const Sizes& sizes) {
  Plan plan = small_plan(model, {grid.ranks(), 1, 1, 1}, 1);
  plan.tensor_mode = grid.mode;
  plan.tensor_depth = plan.in_grid() ? grid.depth : 1;
  plan.sequence_length = sizes.length;
  plan.micro_batch = plan.global_batch = plan.token_parts();
  return plan;
}

/// What the ops of a rank whose name begins with a module's move and compute.
struct Moved {
  std::int64_t hops = 0, elements = 0;  ///< elements: sum over hops of their size
  double flops = 0;
};

Moved moved_by(const Workload& workload, const std::string& module, std::int32_t layer) {
  Moved out;
  const Program& program = workload.programs[0];
  for (const Call& call : program.calls) {
    if (call.layer != layer) continue;
    for (const Op& op : program.segments[call.segment.index()].ops) {
      if (op.name != module && !op.name.starts_with(module + ".")) continue;
      const Work& work = program.works[op.work.index()];
      out.flops += flops_of(work);
      const auto* c = std::get_if<Collective>(&work);
      if (c == nullptr) continue;
      const GroupId group = workload.ranks[0].groups[c->group.index()];
      const auto g = static_cast<std::int64_t>(workload.groups[group.index()].size());
      const bool rooted =
          c->kind == CollectiveKind::kBroadcast || c->kind == CollectiveKind::kReduce;
      const std::int64_t hops = (c->kind == CollectiveKind::kAllReduce ? 2 : 1) * (g - 1);
      out.hops += hops;
      out.elements += hops * (rooted ? c->count : c->count / g);
    }
  }
  return out;
}

std::int64_t count_of(const Program& program, const std::string& layout,
                      const std::string& buffer) {
  for (const FrameLayout& l : program.layouts) {
    if (l.name != layout) continue;
    for (const Buffer& b : l.buffers) {
      if (b.name == buffer) return b.count;
    }
  }
  ADD_FAILURE() << "no buffer " << buffer << " in a layout " << layout;
  return 0;
}

Workload lowered(const Model& model, const Plan& plan) {
  Workload workload = lower(model, plan);
  const Status status = verify(workload);
  EXPECT_TRUE(status.ok()) << status.error().message;
  return workload;
}

class OnGrid : public testing::TestWithParam<Grid> {};

/// The table's rows as fractions: numerator, denominator.
struct Term {
  std::int64_t over, under;
};
Term bandwidth_of(const Grid& g) {
  const std::int64_t q = g.side;
  switch (g.mode) {
    case TensorMode::k1D:
      return {2 * (g.ranks() - 1), g.ranks()};
    case TensorMode::k2D:
      return {6 * (q - 1), q};
    case TensorMode::k25D:
      return {3 * (q - 1) * (g.depth + 1), g.depth * q};
    case TensorMode::k3D:
      return {6 * (q - 1), q * q * q};
  }
  return {0, 1};
}
std::int64_t latency_of(const Grid& g) {
  return g.mode == TensorMode::k1D ? 2 * (g.ranks() - 1) : 6 * (g.side - 1);
}

// Arrays of one size: T = k = n.
TEST_P(OnGrid, ALinearIsTheTablesRow) {
  const Grid grid = GetParam();
  const std::int64_t n = 144 * grid.ranks();
  Plan plan = plan_of(model_of({n, n, n}), grid, {n, n, n});
  const std::int64_t length = n / plan.token_parts();  // a microbatch has n tokens
  const Model model = model_of({length, n, n});
  plan.sequence_length = length;
  const Workload workload = lowered(model, plan);
  const Program& program = workload.programs[0];
  const Term bandwidth = bandwidth_of(grid);
  for (const char* linear : {"mlp.up", "mlp.down"}) {
    // 1d: the first linear of a block reduces d_x, the second y, which is a collective of its own.
    const bool alone = grid.mode == TensorMode::k1D && std::string(linear) == "mlp.down";
    const Moved moved = moved_by(workload, alone ? "mlp.reduce" : linear, 1);
    EXPECT_EQ(moved.elements * bandwidth.under, bandwidth.over * n * n) << linear;
    const bool summa = grid.mode == TensorMode::k2D || grid.mode == TensorMode::k25D;
    EXPECT_EQ(moved.hops, latency_of(grid) * (summa ? grid.side : 1)) << linear;
    const double flops = moved_by(workload, linear, 1).flops;
    EXPECT_EQ(flops * static_cast<double>(grid.ranks()),
              6.0 * static_cast<double>(n) * static_cast<double>(n) * static_cast<double>(n));
  }
  const std::int64_t held = grid.ranks() / (grid.mode == TensorMode::k25D ? grid.depth : 1);
  EXPECT_EQ(count_of(program, "layer weights", "mlp.up.weight") * held, n * n);
  EXPECT_EQ(count_of(program, "layer weights", "mlp.down.weight") * held, n * n);
  const std::int64_t stream = grid.mode == TensorMode::k1D ? 1 : grid.ranks();
  EXPECT_EQ(count_of(program, "hidden", "hidden") * stream, n * n);
  EXPECT_EQ(count_of(program, "saved", "mlp up") * grid.ranks(), n * n);
}

// 3 (q-1)/q (x/d + W) and 2 (q-1)/q^3 (x + y + W) for any sizes; the head's product moves y in
// place of x where it is a SUMMA.
TEST_P(OnGrid, ClosedFormsHoldForAnySizes) {
  const Grid grid = GetParam();
  if (grid.mode == TensorMode::k1D) return;
  const std::int64_t q = grid.side;
  const bool cube = grid.mode == TensorMode::k3D;
  for (const Sizes& sizes : {Sizes{16, 144, 288}, Sizes{40, 288, 72}, Sizes{8, 432, 1152}}) {
    const Model model = model_of(sizes);
    const Plan plan = plan_of(model, grid, sizes);
    const Workload workload = lowered(model, plan);
    const auto check = [&](const char* module, std::int32_t layer, std::int64_t in,
                           std::int64_t out) {
      const std::int64_t x = plan.tokens() * in;
      const std::int64_t y = plan.tokens() * out;
      const std::int64_t w = in * out;
      const Moved moved = moved_by(workload, module, layer);
      const std::int64_t along = layer < 0 ? y : x;
      const std::int64_t over =
          cube ? 2 * (q - 1) * (x + y + w) : 3 * (q - 1) * (along + grid.depth * w);
      EXPECT_EQ(moved.elements * (cube ? q * q * q : grid.depth * q), over) << module;
      EXPECT_EQ(moved.hops, cube ? 6 * (q - 1) : 6 * q * (q - 1)) << module;
    };
    check("attention.qkv", 0, sizes.hidden, 3 * sizes.hidden);
    check("attention.projection", 0, sizes.hidden, sizes.hidden);
    check("mlp.up", 0, sizes.hidden, sizes.width);
    check("mlp.down", 0, sizes.width, sizes.hidden);
    const std::int64_t unit = 128 * plan.tensor;
    check("head.output", -1, sizes.hidden, (model.vocabulary + unit - 1) / unit * unit);
  }
}

// Vectors are held by all parts of the tokens, matrices by the layers of depth: their gradients are
// summed once a step. 3d keeps what it gathers forward, x/q^2 and W/q^2 of every linear.
TEST_P(OnGrid, WhatSeveralHoldIsSummedOnce) {
  const Grid grid = GetParam();
  if (grid.mode == TensorMode::k1D) return;
  const Sizes sizes{16, 144, 288};
  const Model model = model_of(sizes);
  const Plan plan = plan_of(model, grid, sizes);
  const Program program = lowered(model, plan).programs[0];
  std::int64_t vectors = 0;
  std::int64_t matrices = 0;
  for (const auto& list :
       {layer_parameters(model), embedding_parameters(model), head_parameters(model)}) {
    const bool layer = list.front().name == "attention.norm.weight";
    for (const Parameter& p : list) {
      const GridCut cut = grid_cut(p, plan);
      const bool table = p.name == "embedding.tokens" || p.name == "head.output";
      const std::int64_t unit = 128 * plan.tensor;
      const std::int64_t rows = table ? (p.rows + unit - 1) / unit * unit : p.rows;
      (cut.matrix ? matrices : vectors) +=
          rows * p.cols / (cut.row_parts * cut.col_parts) * (layer ? model.layers : 1);
    }
  }
  std::map<std::string, std::int64_t> summed;
  for (const Call& call : program.calls) {
    for (const Op& op : program.segments[call.segment.index()].ops) {
      if (op.name != "gradients.shared.reduce") continue;
      const auto& c = std::get<Collective>(program.works[op.work.index()]);
      summed[program.group_slots[c.group.index()]] += c.count;
    }
  }
  EXPECT_EQ(summed[kGridDepth], grid.depth > 1 ? matrices : 0);
  EXPECT_EQ(std::accumulate(summed.begin(), summed.end(), std::int64_t{0},
                            [](std::int64_t sum, const auto& one) { return sum + one.second; }),
            vectors + (grid.depth > 1 ? matrices : 0));
  if (grid.mode != TensorMode::k3D) return;
  const std::int64_t face = grid.side * grid.side;
  EXPECT_EQ(count_of(program, "saved", "up input gathered") * face, plan.tokens() * sizes.hidden);
  EXPECT_EQ(count_of(program, "saved", "up weight gathered") * face, sizes.width * sizes.hidden);
}

INSTANTIATE_TEST_SUITE_P(Grids, OnGrid,
                         testing::Values(Grid{TensorMode::k1D, 1, 4}, Grid{TensorMode::k2D, 2, 1},
                                         Grid{TensorMode::k2D, 3, 1}, Grid{TensorMode::k2D, 4, 1},
                                         Grid{TensorMode::k25D, 2, 2}, Grid{TensorMode::k25D, 3, 2},
                                         Grid{TensorMode::k25D, 2, 4}, Grid{TensorMode::k3D, 2, 1},
                                         Grid{TensorMode::k3D, 3, 1}));

/// The ops of a module in a segment: "broadcast row 64 root 1", "gemm accumulate", ...
std::vector<std::string> ops_of(const Program& program, const std::string& segment,
                                const std::string& module) {
  std::vector<std::string> out;
  for (const Segment& s : program.segments) {
    if (s.name != segment) continue;
    for (const Op& op : s.ops) {
      if (op.name != module && !op.name.starts_with(module + ".")) continue;
      const Work& work = program.works[op.work.index()];
      if (const auto* c = std::get_if<Collective>(&work)) {
        const std::string& group = program.group_slots[c->group.index()];
        EXPECT_EQ(program.streams[op.stream.index()], group);
        out.push_back(std::string(name_of(c->kind)) + " " + group + " " + std::to_string(c->count) +
                      " root " + std::to_string(c->root));
      } else if (const auto* gemm = std::get_if<Gemm>(&work)) {
        out.push_back("gemm " + std::to_string(gemm->m) + "x" + std::to_string(gemm->n) + "x" +
                      std::to_string(gemm->k) + (gemm->accumulate ? " accumulate" : ""));
      } else {
        out.emplace_back(name_of(std::get<Kernel>(work).kind));
      }
    }
    break;
  }
  return out;
}

using Lines = std::vector<std::string>;

TEST(Roots, StandInTheText) {
  Collective work{CollectiveKind::kBroadcast, GroupSlot(3), 96, DType::kBf16, false};
  work.root = 1;
  EXPECT_EQ(text_of(Work(work)), "broadcast group 3 96 bf16 root 1");
  work.kind = CollectiveKind::kReduce;
  EXPECT_EQ(text_of(Work(work)), "reduce group 3 96 bf16 root 1");
  work.kind = CollectiveKind::kAllReduce;
  EXPECT_EQ(text_of(Work(work)), "all-reduce group 3 96 bf16");
}

// 4 ranks, 2 x 2; 2 sequences of 8 tokens, hidden 24, MLP 48: blocks of 8 x 12, 8 x 24 and 24 x 12.
// The broadcasts of the second step are issued before the first product, the reduction of a
// product before the next.
TEST(SummaMechanism, OpByOp) {
  const Sizes sizes{8, 24, 48};
  const Model model = model_of(sizes);
  const Workload workload = lowered(model, plan_of(model, {TensorMode::k2D, 2, 1}, sizes));
  const Program& program = workload.programs[0];
  const Lines forward = {"broadcast tensor row 96 root 0",
                         "broadcast tensor column 288 root 0",
                         "broadcast tensor row 96 root 1",
                         "broadcast tensor column 288 root 1",
                         "gemm 8x24x12",
                         "gemm 8x24x12 accumulate"};
  EXPECT_EQ(ops_of(program, "layer forward", "mlp.up"), forward);
  const Lines to_input = {"broadcast tensor column 288 root 0",
                          "broadcast tensor column 288 root 1",
                          "gemm 8x12x24",
                          "reduce tensor row 96 root 0",
                          "gemm 8x12x24",
                          "reduce tensor row 96 root 1"};
  EXPECT_EQ(ops_of(program, "layer backward", "mlp.up.input_gradient"), to_input);
  const Lines to_weight = {"broadcast tensor row 96 root 0",
                           "broadcast tensor row 96 root 1",
                           "gemm 24x12x8",
                           "reduce tensor column 288 root 0",
                           "gemm 24x12x8",
                           "reduce tensor column 288 root 1"};
  EXPECT_EQ(ops_of(program, "layer backward", "mlp.up.weight_gradient"), to_weight);
  const Lines norm = {"norm-sums", "all-reduce tensor row 16 root 0", "layer-norm"};
  EXPECT_EQ(ops_of(program, "layer forward", "mlp.norm"), norm);
}

Lines members(const Workload& workload, const char* slot) {
  Lines out;
  const std::vector<std::string>& slots = workload.programs[0].group_slots;
  const auto at =
      static_cast<std::size_t>(std::find(slots.begin(), slots.end(), slot) - slots.begin());
  for (const RankBinding& rank : workload.ranks) {
    std::string text;
    for (const RankId id : workload.groups[rank.groups.at(at).index()]) {
      text += std::to_string(id.value);
    }
    if (std::find(out.begin(), out.end(), text) == out.end()) out.push_back(text);
  }
  return out;
}

// Rank j + q (i + q k), and i + q (j + q l) of a cube.
TEST(GridGroups, AreColossalAIs) {
  const Sizes sizes{8, 144, 288};
  const Model model = model_of(sizes);
  const Workload flat = lowered(model, plan_of(model, {TensorMode::k2D, 2, 1}, sizes));
  EXPECT_EQ(members(flat, kGridRow), (Lines{"01", "23"}));
  EXPECT_EQ(members(flat, kGridColumn), (Lines{"02", "13"}));
  const Workload deep = lowered(model, plan_of(model, {TensorMode::k25D, 2, 2}, sizes));
  EXPECT_EQ(members(deep, kGridRow), (Lines{"01", "23", "45", "67"}));
  EXPECT_EQ(members(deep, kGridColumn), (Lines{"02", "13", "46", "57"}));
  EXPECT_EQ(members(deep, kGridDepth), (Lines{"04", "15", "26", "37"}));
  EXPECT_EQ(members(deep, kGridColumns), (Lines{"0246", "1357"}));
  const Workload cube = lowered(model, plan_of(model, {TensorMode::k3D, 2, 1}, sizes));
  EXPECT_EQ(members(cube, kGridInput), (Lines{"02", "13", "46", "57"}));
  EXPECT_EQ(members(cube, kGridWeight), (Lines{"01", "23", "45", "67"}));
  EXPECT_EQ(members(cube, kGridOutput), (Lines{"04", "15", "26", "37"}));
  EXPECT_EQ(members(cube, kGridInputWeight), (Lines{"0123", "4567"}));
  EXPECT_EQ(members(cube, kGridOutputWeight), (Lines{"0145", "2367"}));
}

// 3d: x over j, W over i, y over l; backward the other way round.
TEST(CubeMechanism, OpByOp) {
  const Sizes sizes{8, 144, 288};
  const Model model = model_of(sizes);
  const Workload workload = lowered(model, plan_of(model, {TensorMode::k3D, 2, 1}, sizes));
  const Program& program = workload.programs[0];
  // 4 sequences of 8 tokens: x 32 x 144, W 288 x 144, y 32 x 288, each over 4 once gathered.
  const Lines forward = {"all-gather tensor input 1152 root 0",
                         "all-gather tensor weight 10368 root 0", "gemm 16x144x72",
                         "reduce-scatter tensor output 2304 root 0"};
  EXPECT_EQ(ops_of(program, "layer forward", "mlp.up"), forward);
  const Lines backward = {"bias-grad",
                          "all-gather tensor output 2304 root 0",
                          "gemm 16x72x144",
                          "reduce-scatter tensor input 1152 root 0",
                          "gemm 144x72x16",
                          "reduce-scatter tensor weight 10368 root 0",
                          "add"};
  EXPECT_EQ(ops_of(program, "layer backward", "mlp.up"), backward);
  const Lines back = {"all-gather tensor output 2304 root 0",
                      "all-gather tensor weight 10368 root 0", "gemm 16x72x144",
                      "reduce-scatter tensor input 1152 root 0"};
  EXPECT_EQ(ops_of(program, "layer forward", "mlp.down"), back);
}

}  // namespace
}  // namespace foretrain
