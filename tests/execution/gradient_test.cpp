// Are one rank's gradients the derivatives of its loss?
#include <gtest/gtest.h>

#include "executor/thread_run.h"
#include "models/lower.h"
#include "tests/execution/derivatives.h"
#include "tests/support/small_plans.h"

namespace foretrain {
namespace {

TEST(Gradients, Gpt) {
  Model model = probed(small_gpt());
  expect_derivatives(model, plan_of(model, AttentionKernel::kFlash, 0.1));
  model.tied_embeddings = true;
  model.embedding_norm = true;
  expect_derivatives(model, plan_of(model, AttentionKernel::kUnfused, 0.2));
}

TEST(Gradients, Llama) {
  Model model = probed(small_llama());
  expect_derivatives(model, plan_of(model, AttentionKernel::kFlash, 0));
  model.qk_norm = true;
  model.biases.qkv = true;
  model.sliding_window = 3;
  expect_derivatives(model, plan_of(model, AttentionKernel::kFlash, 0.1));
}

// Choices of the router, with room for every token, with room for half of them, and in turn;
// gradients reach it through the probabilities of what it chose.
TEST(Gradients, Experts) {
  for (const double factor : {4.0, 0.5, 0.0}) {
    for (const Dispatcher dispatcher : {Dispatcher::kAllToAll, Dispatcher::kAllGather}) {
      Model model = probed(small_moe());
      model.experts = Experts{8, 2, 6, 4, 1, 1, false};
      Plan plan = plan_of(model, AttentionKernel::kFlash, 0.1);
      plan.sequence_length = 8;
      plan.experts.dispatcher = dispatcher;
      plan.experts.routing = factor > 0 ? Routing::kCapacity : Routing::kBalanced;
      plan.experts.factor = factor > 0 ? factor : 1;
      expect_derivatives(model, plan);
    }
  }
}

// Norms behind the branches, with and without those before; a bias of the output matrix; no
// positions.
TEST(Gradients, NormsBehindBranchesAndABiasOfTheHead) {
  for (const bool before : {false, true}) {
    for (const Norm norm : {Norm::kRmsNorm, Norm::kLayerNorm}) {
      Model model = probed(small_llama());
      model.norm = norm;
      model.norms.after = true;
      model.norms.before = before;
      model.biases.head = before;
      if (before) model.position = Position::kNone;
      expect_derivatives(model, plan_of(model, AttentionKernel::kFlash, 0));
    }
  }
  Model sparse = probed(small_moe());
  sparse.experts = Experts{8, 2, 6, 4, 1, 1, false};
  sparse.norms.after = true;
  Plan plan = plan_of(sparse, AttentionKernel::kFlash, 0);
  plan.sequence_length = 8;
  plan.experts.routing = Routing::kCapacity;
  plan.experts.factor = 4;
  expect_derivatives(sparse, plan);
}

// Without weights, before and behind the branches; of queries and keys with weights of one head, of
// each head, or none.
TEST(Gradients, NormsWithOtherWeightsOrNone) {
  for (const Norm norm : {Norm::kRmsNorm, Norm::kLayerNorm}) {
    Model model = probed(small_llama());
    model.norm = norm;
    model.norms.weights = false;
    model.norms.after = norm == Norm::kRmsNorm;
    expect_derivatives(model, plan_of(model, AttentionKernel::kFlash, 0));
  }
  for (const HeadNorms heads :
       {HeadNorms::kOneHead, HeadNorms::kEachHead, HeadNorms::kWeightless}) {
    Model model = probed(small_llama());
    model.qk_norm = true;
    model.norms.heads = heads;
    expect_derivatives(model, plan_of(model, AttentionKernel::kFlash, 0));
  }
}

// Squared ReLUs and gelus in the gate, of an MLP and of experts.
TEST(Gradients, OtherActivationsOfGatesAndExperts) {
  for (const Activation activation : {Activation::kGeglu, Activation::kRelu2}) {
    Model model = probed(small_moe());
    model.experts = Experts{8, 2, 6, 4, 1, 1, false};
    model.activation = activation;
    Plan plan = plan_of(model, AttentionKernel::kFlash, 0);
    plan.sequence_length = 8;
    plan.experts.routing = Routing::kCapacity;
    plan.experts.factor = 4;
    expect_derivatives(model, plan);
  }
}

// An MLP that reads the stream through its own norm, with norms behind both or without; a router
// and experts with biases; shared experts whose result a number of each token weighs.
TEST(Gradients, WhatStandsBesideExperts) {
  Model model = probed(small_moe());
  model.experts = Experts{8, 2, 6, 4, 1, 1, false};
  Plan plan = plan_of(model, AttentionKernel::kFlash, 0);
  plan.sequence_length = 8;
  plan.experts.routing = Routing::kCapacity;
  plan.experts.factor = 4;
  model.experts.router_bias = model.experts.more.shared_gate = true;
  expect_derivatives(model, plan);
  model.experts.more = {};
  for (const Dispatcher dispatcher : {Dispatcher::kAllToAll, Dispatcher::kAllGather}) {
    model.experts.bias = true;
    plan.experts.dispatcher = dispatcher;
    expect_derivatives(model, plan);
  }
  model.experts.bias = false;
  model.experts.more.beside = true;
  for (const bool norms : {false, true}) {
    model.experts.more.norms_after = norms;
    expect_derivatives(model, plan);
  }
}

// What no kernel is written for is refused before anything starts.
TEST(Gradients, OtherNormsAndMixersAreRefused) {
  const auto refused = [](auto change, Model model) {
    change(model);
    const Status status =
        check_executable(lower(model, plan_of(model, AttentionKernel::kFlash, 0)));
    EXPECT_EQ(status.ok() ? ErrorKind::kInput : status.error().kind, ErrorKind::kUnsupported);
  };
  const Model llama = probed(small_llama());
  refused([](Model& m) { m.qk_norm = true, m.norms.heads = HeadNorms::kWidth; }, llama);
  refused([](Model& m) { m.ends.layer_rows = 10, m.ends.layer_width = 4; }, llama);
  refused([](Model& m) { m.attention.key_is_value = true; }, llama);
  refused([](Model& m) { m.ends.classes = 3; }, llama);
  refused([](Model& m) { m.attention.value_dim = m.head_dim / 2; }, llama);
  refused([](Model& m) { m.ends.embedding_width = m.hidden / 2; }, llama);
  refused(
      [](Model& m) {
        m.kv_heads = m.heads;
        m.hybrid.shared.blocks = 1;
        m.hybrid.layers.assign(static_cast<std::size_t>(m.layers), {Mixer::kMamba2});
        m.hybrid.layers[0].shared = 1;
        m.hybrid.layers[0].last_use = true;
        m.hybrid.state_space = {4, 8, 8, 1, 4, 4};
      },
      llama);
  const std::size_t layers = static_cast<std::size_t>(llama.layers);
  refused(
      [layers](Model& m) {
        m.hybrid.layers.assign(layers, {Mixer::kMamba1});
        m.hybrid.selective = {8, 4, 4, 2};
      },
      llama);
  refused(
      [layers](Model& m) {
        m.hybrid.layers.assign(layers, {Mixer::kBeside});
        m.hybrid.state_space = {4, 8, 8, 1, 4, 4};
      },
      llama);
}

TEST(Gradients, AlibiParallelBranchesOtherActivations) {
  for (const Activation activation : {Activation::kGelu, Activation::kRelu2}) {
    Model model = probed(small_gpt());
    model.position = Position::kAlibi;
    model.positions = 0;
    model.parallel_residual = true;
    model.shared_norm = activation == Activation::kRelu2;
    model.biases.norm = false;
    model.activation = activation;
    const double dropout = model.shared_norm ? 0.1 : 0;
    expect_derivatives(model, plan_of(model, AttentionKernel::kUnfused, dropout));
  }
}

TEST(Gradients, ParallelBranchesWithExperts) {
  Model model = probed(small_moe());
  model.experts = Experts{8, 2, 6, 4, 1, 1, false};
  model.parallel_residual = true;
  for (const bool shared : {false, true}) {
    model.shared_norm = shared;
    Plan plan = plan_of(model, AttentionKernel::kFlash, 0.1);
    plan.sequence_length = 8;
    plan.experts.routing = Routing::kCapacity;
    plan.experts.factor = 4;
    expect_derivatives(model, plan);
  }
}

}  // namespace
}  // namespace foretrain
