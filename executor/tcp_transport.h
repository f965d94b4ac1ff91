// Ranks as processes that TCP connects: what torchrun's variables, and srun's without MPI, lead to.
#pragma once

#include <memory>

#include "executor/execute.h"
#include "executor/job_variables.h"
#include "executor/tcp_mesh.h"
#include "executor/tcp_rendezvous.h"

namespace foretrain {

/// A rank's part. Sums are added up in the order of the group, as by threads. All ranks make theirs
/// on one mesh in the same order. The workload must outlive it.
std::unique_ptr<Transport> make_tcp_transport(const Workload& workload,
                                              std::shared_ptr<TcpMesh> mesh);

/// Seconds to wait for all ranks, of the environment: FORETRAIN_JOIN_SECONDS, else 300.
double join_seconds();

/// A sum that differs where ranks would not understand each other: their number, groups, channels
/// and the operations of their programs.
std::uint64_t sum_of(const Workload& workload);

/// One process of a job that its variables describe. May be called again for another Workload of as
/// many ranks, while the first world lives.
Result<MpiWorld> join_tcp(const Workload& workload, const JobVariables& job, Silence silence);

/// A listening socket that the starter of rank 0 left open for it: the number.
inline constexpr const char* kListenerVariable = "FORETRAIN_LISTENER";

}  // namespace foretrain
