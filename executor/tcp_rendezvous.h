// How processes that know an address find each other: rank 0 listens there, the others come, say
// who they are, and learn where all are. Then every pair has a connection.
//
// Left out: authentication and encryption. Who can reach the ports and knows the words can join;
// with a loopback address nobody else can reach them.
#pragma once

#include <vector>

#include "executor/tcp_socket.h"

namespace foretrain {

struct TcpJob {
  std::int64_t rank = 0, size = 1;
  std::string address;  ///< of rank 0, a name or a number
  int port = 0;
  std::uint64_t workload = 0;            ///< must be the same on all ranks: a sum of what they run
  double seconds = 300;                  ///< to wait for all
  Socket listener;                       ///< of rank 0: one that listens already, else it is made
  std::string size_name = "WORLD_SIZE";  ///< what told the size, for messages
};

/// A connection to every rank, by rank; closed to its own. Connections that do not speak this
/// protocol are closed and ignored. A rank of another protocol, size or workload, or a second one
/// of the same number, is refused at once; rank 0 waits on, as the right one may still come: 20 s
/// where every missing rank has been refused. A rank that does not come ends the job on all ranks;
/// the error names the rank and whom rank 0 has refused.
Result<std::vector<Socket>> meet_by_tcp(TcpJob job);

}  // namespace foretrain
