// CUDA graphs of layers and of parts of them.
#pragma once

#include "sim/base/units.h"

namespace foretrain {

class JsonReader;
class ProgramBuilder;
struct Model;
struct Segment;

/// What of a layer graphs hold (Megatron Core's --cuda-graph-scope): each run of such operations
/// between others is one graph.
struct Captured {
  bool attention = false, mlp = false, moe = false, router = false, preprocess = false;
  Time launch;  ///< host time to launch one
  bool any() const { return attention || mlp || moe || router || preprocess; }
  bool operator==(const Captured&) const = default;
};

/// Without `launch.graph_modules` graphs `by_layer` hold all of a layer.
void derive_captured(JsonReader& run, bool by_layer, const Model& model, Captured& out);

/// Marks the operations of a layer's segment that `captured` names, and puts the host's launch
/// before each run of them. Left out: copies of a graph's inputs into memory of its own, and the
/// memory that graphs keep.
void capture(const Captured& captured, bool sparse, ProgramBuilder& builder, Segment& segment);

}  // namespace foretrain
