#include "executor/cuda/cudnn_api.h"

#include "executor/cuda/open_library.h"

namespace foretrain {
namespace {

Result<CudnnApi> load_cudnn() {
  FT_ASSIGN(void* const library, open_library({"libcudnn.so.9"}, library_places()));
  CudnnApi out;
  const bool whole =
      find_function(library, "cudnnGetVersion", out.get_version) &&
      find_function(library, "cudnnCreate", out.create) &&
      find_function(library, "cudnnDestroy", out.destroy) &&
      find_function(library, "cudnnSetStream", out.set_stream) &&
      find_function(library, "cudnnGetErrorString", out.error_string) &&
      find_function(library, "cudnnGetLastErrorString", out.last_error_string) &&
      find_function(library, "cudnnBackendCreateDescriptor", out.create_descriptor) &&
      find_function(library, "cudnnBackendDestroyDescriptor", out.destroy_descriptor) &&
      find_function(library, "cudnnBackendSetAttribute", out.set_attribute) &&
      find_function(library, "cudnnBackendGetAttribute", out.get_attribute) &&
      find_function(library, "cudnnBackendFinalize", out.finalize) &&
      find_function(library, "cudnnBackendExecute", out.execute);
  if (!whole) return input_error("libcudnn.so.9 lacks a function: cuDNN 9 or newer is needed");
  return out;
}

const Result<CudnnApi>& loaded_cudnn() {
  static const Result<CudnnApi> only = load_cudnn();
  return only;
}

}  // namespace

Status open_cudnn() {
  const Result<CudnnApi>& loaded = loaded_cudnn();
  return loaded.ok() ? ok_status() : Status(loaded.error());
}

const CudnnApi& cudnn_api() { return loaded_cudnn().value(); }

}  // namespace foretrain
