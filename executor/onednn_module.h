// The seam between the program and its oneDNN module, a shared library that is loaded for
// `--blas onednn`. Both are built together; nothing here is stable across versions.
#pragma once

#include <string>

#include "executor/kernels.h"

namespace foretrain {

inline constexpr const char* kOneDnnModuleFile = "libforetrain_onednn.so";
inline constexpr const char* kOpenOneDnnSymbol = "foretrain_open_onednn";

struct OneDnn {
  std::string name;
  Multiply multiply_fp32 = nullptr;
  /// Operands rounded to bf16, products added up in fp32; none where the library cannot.
  Multiply multiply_bf16 = nullptr;
  bool has_bf16 = false;  ///< the processor has AVX512_BF16 or AMX-BF16
};

using OpenOneDnn = void(OneDnn& out);

/// Loads the module; or says why not.
Result<OneDnn> open_onednn();

}  // namespace foretrain
