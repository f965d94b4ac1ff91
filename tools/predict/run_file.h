// RUN files: what the user writes, merged with the defaults of its system, with the origin of every
// value.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "hardware/cluster.h"
#include "hardware/hardware_cost_model.h"
#include "hardware/profile.h"
#include "models/architecture/model.h"
#include "models/plan/plan.h"
#include "sim/base/json.h"

namespace foretrain {

/// The preset of a cluster that a user has yet to name: what `import` writes in its place.
inline constexpr std::string_view kOpenCluster = "SET-A-CLUSTER";

/// Host time of one operation, and of one in a graph of several.
struct Dispatch {
  Time each, captured;
  bool operator==(const Dispatch&) const = default;
};

/// A RUN, resolved and read.
struct Run {
  std::string name;
  std::string source;  ///< file or preset, for messages
  std::string system;
  std::vector<std::string> devices;            ///< makers whose devices its system runs on
  std::string framework = "PyTorch";           ///< whose kernels its system calls
  std::vector<std::string> lacking;            ///< keys, or KEY=VALUE, that its system has not
  Json usual;                                  ///< what its system does where the RUN says nothing
  Json resolved;                               ///< all defaults filled in
  std::map<std::string, std::string> origins;  ///< by JSON pointer: "default", "system NAME", ...
  Model model;
  Cluster cluster;
  Plan plan;
  Dispatch dispatch;
  bool graphs = false, graphs_by_layer = false;  ///< launch.cuda_graph: full, layer
  /// Measured prices of the cluster's device, from `profile_source`; may be none.
  std::shared_ptr<const Profile> profile;
  std::string profile_source;
  /// Those of the devices of a cluster of pools, by pool; each may be none.
  std::vector<std::shared_ptr<const Profile>> pool_profiles;
  /// What its measured prices stand for: on the host what `execute` runs, since nothing else does.
  PricesFor prices_for = PricesFor::kFramework;
  std::vector<std::string> notes;  ///< what was ignored or is not modelled
};

/// What stands at "/key/inner"; null if nothing.
const Json* value_at(const Json& json, const std::string& pointer);

/// Of an entry of `Run::origins`: whether the value is the user's own, not a default.
bool is_users(const std::string& origin);

/// As the RUN, or its system, names its precision; of parts, what computes.
std::string precision_text(const Run& run);

/// Whether the value at the pointer, wherever it is from, is this one.
bool asks(const Run& run, const char* pointer, const Json& value);

/// Sets the profile of a run in place of what the RUN says, before anything that depends on prices
/// is decided.
using ChoosePrices = std::function<Status(Run&)>;

/// Whether it is a RUN itself, an object as JSON, and no path or name of one.
bool is_inline_run(const std::string& run);
/// What messages call it: "RUN" where it is one itself.
std::string source_of_run(const std::string& run);

/// Loads a RUN: a path, the name of a shipped one, or the object itself. `sets` are
/// "pointer.path=value" overrides, applied last; the value is JSON, or else a text.
Result<Run> load_run(const std::string& name_or_path, const std::vector<std::string>& sets,
                     const ChoosePrices& prices = {});

/// What RUNs that differ in their plans have alike, so that it is read once; null: it is read.
struct KnownParts {
  const Model* model = nullptr;
  const Cluster* cluster = nullptr;
};

/// The same from a value; `source` names it in messages.
Result<Run> resolve_run(const Json& json, const std::string& source,
                        const std::vector<std::string>& sets, const ChoosePrices& prices = {},
                        const KnownParts& known = {});

/// A RUN as it is written, nothing filled in: a path, the name of a shipped one, or the object
/// itself; files beside it by their paths, keys by their names of today, `sets` laid over it.
Result<Json> read_run(const std::string& name_or_path, const std::vector<std::string>& sets);

/// The folder of the user's profiles: $XDG_DATA_HOME/foretrain/profiles, else below ~/.local/share;
/// "" where the environment names neither.
std::string profile_folder();

/// Where the profile of that path, or of that name in the user's folder, lies; "" if nowhere.
std::string profile_path(const std::string& name_or_path);

/// A profile by path, or by name in the user's folder. `where` stands in messages.
Result<Profile> load_profile(const std::string& name_or_path, const std::string& where);

/// Prices the run from a profile; its cluster must be of the device that was measured.
Status use_profile(Run& run, const std::string& name_or_path, const std::string& where);
/// The same from the shipped profile of the cluster's device, where there is one.
Status use_shipped_profile(Run& run);

/// What the run says of the host; nothing faster or slower than it is.
PriceOptions price_options(const Run& run);

/// Prices of the run's cluster and profile.
std::unique_ptr<CostModel> cost_model_of(const Run& run, const PriceOptions& options);

/// A preset by name, or the file at a path; a path that exists wins.
Result<Json> load_preset(const std::string& kind, const std::string& name_or_path,
                         const std::string& where);

}  // namespace foretrain
