// Tensor parallelism in two, two and a half and three dimensions: how matrices lie on a grid of
// ranks, and the linears and norms over it.
//
// q is the side of the grid, T the tokens of a microbatch, y[T, out] = x[T, in] W[out, in]^T.
//
//   2d    SUMMA (van de Geijn and Watts 1997; Xu et al. 2021, arXiv 2104.05343). Rank (i, j) of
//         q x q holds block (i, j) of every activation and block (j, i) of W. Three products, of q
//         steps each, two of whose blocks are in flight:
//           y   = sum_t x_it W_jt^T      x_it is broadcast along row i, W_jt down column j
//           d_x_it = sum_j d_y_ij W_jt   W_jt is broadcast down column j, the sum reduced to (i, t)
//           d_W_jt = sum_i d_y_ij^T x_it x_it is broadcast along row i, the sum reduced to (t, j)
//         Tables of the vocabulary lie as block (i, j): the head's product is the second form, its
//         gradients are the first and the third.
//   2.5d  depth layers of q x q ranks, each with its part of the tokens and all of the weights,
//         whose gradients are summed over depth once a step (Wang et al. 2021, arXiv 2105.14500).
//   3d    Rank (i, j, l) of q x q x q (Bian et al. 2021, arXiv 2105.14450): x_il is gathered over
//         j, W_jl over i, the products x_il W_jl^T are reduce-scattered over l. What comes out lies
//         with j and l exchanged, so the second linear of a block leads back. Backward d_y_ij is
//         gathered over l, d_x reduce-scattered over j, d_W over i; what forward gathered is kept
//         for it, as Colossal-AI does.
//
// Whole sequences are cut among the parts of the tokens, heads among the q parts of the columns.
// Norms sum over the columns that other ranks hold: an all-reduce of one or two fp32 numbers a row,
// forward and backward. Vectors (norms, biases) and the table of positions are cut by column and
// held by all parts of the tokens; their gradients are summed over these at the end of the step.
// Left out: Colossal-AI's cut of vectors over all ranks (gathered wherever they are used), its two
// all-reduces in place of one in norms, the copies of blocks into the buffers of broadcasts.
#pragma once

#include <array>
#include <string>

#include "models/layers/layer.h"

namespace foretrain {

// Slots of groups, which are streams' names too: a communicator has a stream of its own.
inline constexpr const char* kGridRow = "tensor row";
inline constexpr const char* kGridColumn = "tensor column";
inline constexpr const char* kGridDepth = "tensor depth";
inline constexpr const char* kGridColumns = "tensor columns of all depths";
inline constexpr const char* kGridInput = "tensor input";    ///< 3d: ranks that differ in j
inline constexpr const char* kGridWeight = "tensor weight";  ///< in i
inline constexpr const char* kGridOutput = "tensor output";  ///< in l
inline constexpr const char* kGridInputWeight = "tensor input and weight";
inline constexpr const char* kGridOutputWeight = "tensor output and weight";

/// The groups by whose places an activation's tokens and columns are cut.
struct GridAxes {
  const char* tokens = nullptr;
  const char* columns = nullptr;
};
/// Of the residual stream; of what lies between the two linears of a block (heads, the MLP's width,
/// logits).
GridAxes residual_axes(const Plan& plan);
GridAxes inner_axes(const Plan& plan);

/// Into how many parts, by the places in which groups, a parameter is cut.
struct GridCut {
  std::int64_t row_parts = 1, col_parts = 1;
  const char* rows_over = nullptr;
  const char* cols_over = nullptr;
  bool matrix = false;  ///< else all parts of the tokens hold it alike
};
GridCut grid_cut(const Parameter& parameter, const Plan& plan);

/// A linear on one rank: y[rows, out] = x[rows, in] W[out, in]^T, where out and in are those of a
/// block.
struct GridMatrix {
  Ref weight, gradient;
  std::int64_t out = 0, in = 0;
  std::int64_t parts = 1;  ///< matrices of the weight, one above the other
  bool inner = false;      ///< from the inner axes to the residual ones
  bool table = false;      ///< of the vocabulary
};

/// What 3d gathers forward and reads backward; none in the other modes.
struct GridKept {
  Ref input, weight;
};

class TensorGrid {
 public:
  TensorGrid(ProgramBuilder& builder, const Model& model, const Plan& plan);

  /// Groups of more than one rank; else a rank multiplies alone.
  static bool used(const Plan& plan) { return plan.in_grid() && plan.side() > 1; }

  void forward(SegmentWriter& w, const std::string& name, const GridMatrix& m, const Ref& x,
               const GridKept& kept, const Ref& y) const;
  void backward(SegmentWriter& w, const std::string& name, const GridMatrix& m, const Ref& d_y,
                const Ref& x, const GridKept& kept, const Ref& d_x) const;
  /// Elements of what 3d keeps of a linear with `rows` local rows.
  std::int64_t kept_input(std::int64_t rows, std::int64_t in) const { return x_side * rows * in; }
  std::int64_t kept_weight(const GridMatrix& m) const { return m.out * m.in; }
  bool keeps() const { return x_plan.tensor_mode == TensorMode::k3D; }

  void norm(SegmentWriter& w, const std::string& name, const NormRefs& norm, const Ref& in,
            const Ref& out, const Ref& statistics) const;
  /// `d_residual` is added to the gradient where it is valid.
  void norm_backward(SegmentWriter& w, const std::string& name, const NormRefs& norm, const Ref& in,
                     const Ref& statistics, const Ref& d_out, const Ref& d_residual,
                     const Ref& d_in) const;

  /// A collective on the stream of its group; the event that it records.
  EventRef over(SegmentWriter& w, const char* group, const std::string& name,
                const Collective& work, const View& in, const View& out) const;
  Collective of(const char* group, CollectiveKind kind, std::int64_t count, DType type,
                std::int64_t root = 0) const;

 private:
  using Pair = std::array<Ref, 2>;
  Pair two(SegmentWriter& w, const std::string& name, std::int64_t count, DType type) const;
  EventRef broadcast(SegmentWriter& w, const char* group, const std::string& name, std::int64_t t,
                     const Ref& own, const Ref& to) const;
  /// c = sum_t a_t b_t: a along the row, b down the column.
  void both_broadcast(SegmentWriter& w, const std::string& name, Gemm gemm, const Ref& a,
                      const Ref& b, const Ref& c) const;
  /// Block t of `moving` is broadcast over a group, block t of the product reduced over the other.
  struct Reduced {
    Ref moving, fixed, result;
    bool moving_first = false;
    const char* broadcast = nullptr;
    const char* reduce = nullptr;
  };
  void reduced(SegmentWriter& w, const std::string& name, const Gemm& gemm,
               const Reduced& operands) const;
  void add_gradient(SegmentWriter& w, const std::string& name, const GridMatrix& m,
                    const Ref& part) const;
  void forward_3d(SegmentWriter& w, const std::string& name, const GridMatrix& m, const Ref& x,
                  const GridKept& kept, const Ref& y) const;
  void backward_3d(SegmentWriter& w, const std::string& name, const GridMatrix& m, const Ref& d_y,
                   const GridKept& kept, const Ref& d_x) const;
  Kernel columns_cut(Kernel kernel) const;

  ProgramBuilder& x_builder;
  const Model& x_model;
  const Plan& x_plan;
  std::int64_t x_side;
  DType x_type;
};

}  // namespace foretrain
