// The types that a model is trained in.
#pragma once

#include "sim/program/dtype.h"

namespace foretrain {

/// Who shares the largest values that fp8's delayed scales are of.
enum class ScaleSharing : std::uint8_t {
  kNone,    ///< every rank has its own
  kTensor,  ///< the tensor ranks
  kStage,   ///< all ranks of a pipeline stage
};

struct Precision {
  DType compute = DType::kBf16;  ///< weights and activations
  DType gradients =
      DType::kFp32;    ///< the buffer that microbatches accumulate into, and its reduction
  bool master = true;  ///< fp32 copy of the weights beside them
  DType matrix =
      DType::kBf16;  ///< arithmetic of GEMMs: tf32 where compute is fp32 and it is asked for
  DType linear = DType::kBf16;   ///< operands of the layers' GEMMs: fp8 or fp4, else `matrix`
  bool current_scaling = false;  ///< low precision: a pass for the largest value before each cast
  bool blocks = false;           ///< low precision: scaled by blocks or rows, not by whole tensors
  bool cutlass = false;          ///< fp8 gradients of weights by CUTLASS
  bool one_copy = false;         ///< fp8 by tensor: products read one copy in either order
  bool fp8_primary_weights = false;  ///< fp8 by tensor: matrices of layers have no 16-bit values
  ScaleSharing scales = ScaleSharing::kNone;
  /// Parameters and the residual stream are in `compute`, fp32; linears, attention and what follows
  /// them in `matrix`, 16 bits: models/layers/autocast.h.
  bool autocast = false;
  /// Compiled under autocast: kernels beside linears read and write 16 bits in place of casts.
  bool fuses_casts = false;
  /// Of what linears give and take.
  DType branch() const { return autocast ? matrix : compute; }
  /// Of an attention: tf32 where that is what its products are to be multiplied in.
  DType attention() const { return matrix == DType::kTf32 ? matrix : branch(); }
  bool low() const { return bits_of(linear) < 16; }
  /// Quantisation-aware: forward products alone have 8-bit operands, of which nothing is kept; all
  /// backward products are in `matrix`.
  bool forward_only() const { return linear == DType::kInt8; }
  /// Backward passes read quantized copies in place of activations and gradients.
  bool keeps_copies() const { return low() && !forward_only(); }
  /// One scale for a whole matrix, so that a copy of it can be turned, divided and gathered.
  bool by_tensor() const { return linear == DType::kFp8 && !blocks; }
  /// A tensor's scale is of the largest values of earlier microbatches.
  bool delayed() const { return by_tensor() && !current_scaling; }
  bool operator==(const Precision&) const = default;
};

}  // namespace foretrain
