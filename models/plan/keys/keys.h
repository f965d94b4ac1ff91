// The keys of a RUN's plan, each declared once (sim/base/key.h): one file a section.
#pragma once

#include <string>
#include <vector>

#include "models/plan/request.h"
#include "sim/base/key.h"

namespace foretrain {

/// What the effect of a key depends on.
struct KeyContext {
  const Model& model;
  const Plan& plan;
  const Json& resolved;                ///< the RUN with all defaults
  const Json& usual;                   ///< what its system does where the RUN says nothing
  bool nvidia = false, torus = false;  ///< the device's maker; accelerators of a torus

  bool asks(const char* section, const char* key, const Json& value) const;
};

using PlanKey = Key<Request, KeyContext>;
using PlanKeys = std::vector<PlanKey>;

PlanKeys run_keys();  ///< of the file itself: name, model, cluster, system, profile, dropout
PlanKeys parallel_keys();
PlanKeys sharding_keys();
PlanKeys gradients_keys();
PlanKeys batch_keys();
PlanKeys precision_keys();
PlanKeys recompute_keys();
PlanKeys schedule_keys();
PlanKeys overlap_keys();
PlanKeys kernels_keys();
PlanKeys moe_keys();
PlanKeys offload_keys();
PlanKeys launch_keys();
PlanKeys allocator_keys();
PlanKeys host_keys();

/// All of them, in the order in which they are shown.
const PlanKeys& all_run_keys();

/// A section, and what it is about.
struct KeySection {
  std::string name, doc;
};
const std::vector<KeySection>& run_sections();

/// The default of every key that has one; a RUN's system and the RUN lie over it.
Json default_run();

/// Gives values at keys' former paths to the paths that the keys have now. Returns a note for each;
/// a file that has a key at both paths is an error.
Result<std::vector<std::string>> rename_former_keys(Json& run, const std::string& source);

/// The path that a key has now: of a former path, else as given.
std::string current_path(const std::string& path);

/// Reads all keys of a plan; every value that is wrong is an error.
void read_request(JsonReader& run, Request& out);

/// The path that a key had before. Files with the old path are read, with a note.
PlanKey formerly(std::string path, PlanKey key);

/// true, false or "auto".
PlanKey asked_key(const std::string& path, PlanKey::Setter<Asked> set);

// --- What keys share ---
inline constexpr double kMostCount = 1e9;
inline constexpr double kMostElements = 1125899906842624.0;  // 2^50

// Changes after which some keys matter.
inline const Sets kSharded = {"sharding.level=parameters", "parallel.pipeline=1"};
inline const Sets kShardedGradients = {"sharding.level=gradients", "parallel.pipeline=1"};
inline const Sets kOneRankOfTwo = {"parallel.tensor=1", "parallel.pipeline=1"};

/// `base` and then `more`.
Sets with(Sets base, const Sets& more);

// Reasons that several keys have.
PlanKey::Idle if_not_parameters(Sets base = {});
PlanKey::Idle if_not_by_units(Sets base = {});
PlanKey::Idle if_contiguous_passes(std::string value = "");
PlanKey::Idle if_no_tensor(Sets base = kOneRankOfTwo, std::string value = "");
PlanKey::Idle if_no_pipeline(Sets base = kOneRankOfTwo, std::string value = "");
PlanKey::Idle if_no_experts();
PlanKey::Idle if_by_units(Sets base = kShardedGradients);
/// What makes parameters travel by whole units although sharding.gather_elements is set.
enum class GatheredBy : std::uint8_t { kLevels, kSecondary, kInt4, kNarrow };
PlanKey::Idle if_gathered_by_units(GatheredBy what,
                                   Sets base = with(kSharded, {"sharding.gather_elements=10000"}));
PlanKey::Idle if_host_updates(Sets base);

}  // namespace foretrain
