#include "models/layers/optimizer.h"

#include "sim/base/json.h"

namespace foretrain {
namespace {

constexpr std::int64_t kQuantizedBlock = 256;  // bitsandbytes, functional.py, blocksize

}  // namespace

std::vector<OptimizerState> optimizer_states(Optimizer optimizer, bool master) {
  std::vector<OptimizerState> out;
  switch (optimizer) {
    case Optimizer::kSgd:
      out = {{"momentum", DType::kFp32, 1, false}};
      break;
    case Optimizer::kAdafactor:
      out = {{"row and column means", DType::kFp32, 1, true}};
      break;
    case Optimizer::kAdam8bit:
      out = {{"momentum", DType::kUint8, 1, false},
             {"variance", DType::kUint8, 1, false},
             {"momentum scales", DType::kFp32, kQuantizedBlock, false},
             {"variance scales", DType::kFp32, kQuantizedBlock, false}};
      break;
    default:
      out = {{"momentum", DType::kFp32, 1, false}, {"variance", DType::kFp32, 1, false}};
  }
  if (master) out.push_back({"master weights", DType::kFp32, 1, false});
  return out;
}

bool is_adam(Optimizer optimizer) {
  return optimizer == Optimizer::kAdam || optimizer == Optimizer::kFusedAdam;
}

std::string update_name(Optimizer optimizer) {
  switch (optimizer) {
    case Optimizer::kLamb:
      return "optimizer.lamb";
    case Optimizer::kAdafactor:
      return "optimizer.adafactor";
    case Optimizer::kAdam8bit:
      return "optimizer.adam8bit";
    case Optimizer::kSgd:
      return "optimizer.sgd";
    default:
      return "optimizer.adam";
  }
}

Bytes update_bytes_beside(Optimizer optimizer) {
  switch (optimizer) {
    // Stage 1 writes the update (w4), norms read weights and update (r8), stage 2 reads both (r8).
    case Optimizer::kLamb:
      return 20;
    // torch/optim/adamw.py, _multi_tensor_adamw: decay r4 w4, lerp r8 w4, times beta r4 w4, addcmul
    // r8 w4, root, quotient and sum r4 w4 each, addcdiv r12 w4: 80, less the operands' 28.
    case Optimizer::kAdam:
      return 52;
    // Square and add r8 w8, means of rows and columns r8, their product w4, times the gradient r8
    // w4, its norm r4, quotient r4 w4, times the rate r4 w4, added r4: less what the operands
    // count.
    case Optimizer::kAdafactor:
      return 64;
    default:
      return 0;
  }
}

bool loops_over_tensors(Optimizer optimizer) {
  return optimizer != Optimizer::kFusedAdam && optimizer != Optimizer::kLamb;
}

double host_update_factor(Optimizer optimizer) {
  return optimizer == Optimizer::kAdam ? 14.76 / 2.57 : 1;
}

}  // namespace foretrain
