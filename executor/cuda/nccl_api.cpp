#include "executor/cuda/nccl_api.h"

#include "executor/cuda/open_library.h"

namespace foretrain {
namespace {

Result<NcclApi> load_nccl() {
  FT_ASSIGN(void* const library, open_library({"libnccl.so.2", "libnccl.so"}, library_places()));
  NcclApi out;
  const bool whole = find_function(library, "ncclGetVersion", out.get_version) &&
                     find_function(library, "ncclGetUniqueId", out.get_unique_id) &&
                     find_function(library, "ncclCommInitRank", out.comm_init_rank) &&
                     find_function(library, "ncclCommSplit", out.comm_split) &&
                     find_function(library, "ncclCommDestroy", out.comm_destroy) &&
                     find_function(library, "ncclCommAbort", out.comm_abort) &&
                     find_function(library, "ncclGetErrorString", out.error_string) &&
                     find_function(library, "ncclGetLastError", out.last_error) &&
                     find_function(library, "ncclGroupStart", out.group_start) &&
                     find_function(library, "ncclGroupEnd", out.group_end) &&
                     find_function(library, "ncclAllReduce", out.all_reduce) &&
                     find_function(library, "ncclAllGather", out.all_gather) &&
                     find_function(library, "ncclReduceScatter", out.reduce_scatter) &&
                     find_function(library, "ncclBroadcast", out.broadcast) &&
                     find_function(library, "ncclReduce", out.reduce) &&
                     find_function(library, "ncclSend", out.send) &&
                     find_function(library, "ncclRecv", out.receive);
  if (!whole) return input_error("libnccl.so.2 lacks a function: NCCL 2.18 or newer is needed");
  return out;
}

}  // namespace

Result<const NcclApi*> nccl_api() {
  static const Result<NcclApi> loaded = load_nccl();
  if (!loaded.ok()) return loaded.error();
  return &loaded.value();
}

}  // namespace foretrain
