// The keys of a cluster and of its network, each declared once (sim/base/key.h).
#pragma once

#include <string>
#include <vector>

#include "hardware/cluster.h"
#include "sim/base/key.h"

namespace foretrain {

using ClusterKey = Key<Cluster, Cluster>;
using ClusterKeys = std::vector<ClusterKey>;

/// Keys of sections `cluster` and `cluster.network`, as a RUN and a cluster's file have them.
const ClusterKeys& cluster_keys();

/// Reads all keys of a section. Keys that are read elsewhere are taken, no more.
void read_cluster_keys(JsonReader& reader, const std::string& section, Cluster& out);

/// As files name them, in the order of the enumerators.
const std::vector<std::string>& scale_up_names();
const std::vector<std::string>& cpu_names();
const std::vector<std::string>& fabric_names();

}  // namespace foretrain
