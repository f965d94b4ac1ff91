// Loading the oneDNN module, so that the program itself needs no oneDNN.
#include <dlfcn.h>

#include "executor/module_file.h"
#include "executor/onednn_module.h"

namespace foretrain {

Result<OneDnn> open_onednn() {
  const std::string path = find_module(kOneDnnModuleFile);
  if (path.empty()) {
    return input_error(std::string("--blas onednn: this build has no oneDNN (") +
                       kOneDnnModuleFile + "): install libdnnl-dev and build again");
  }
  void* const module = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (module == nullptr) {
    return input_error(std::string("--blas onednn: oneDNN cannot be loaded: ") + dlerror());
  }
  auto* const open = reinterpret_cast<OpenOneDnn*>(dlsym(module, kOpenOneDnnSymbol));
  if (open == nullptr) return input_error(path + " is not the oneDNN module of this version");
  OneDnn out;
  open(out);
  return out;
}

}  // namespace foretrain
