// The plans among which a search looks: keys that it may change, the values of each, and every
// combination of them that the ranks and the batch divide into.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "tools/predict/run_file.h"

namespace foretrain {

/// A key that a search changes, and its values in the order in which they are tried. Null leaves
/// the key to its system or to what it follows from.
struct Dimension {
  std::string key;
  std::vector<Json> values;
  std::size_t usual = 0;  ///< index of the RUN's own value; their number where it is not among them
};

/// KEY=A..B.
struct KeyRange {
  std::string key;
  double low = 0, high = 0;
};

/// What a user says of the keys of a RUN.
struct SpaceOptions {
  std::vector<std::string> free, fixed;
  std::vector<KeyRange> ranges;
  std::vector<std::string> over;  ///< sections or keys that alone are free; empty: all that may be
  bool numerics = false;          ///< the types of arithmetic and of gradients too
};

/// Of a plan what says how many ranks do what.
struct Degrees {
  std::int64_t pipeline = 1, tensor = 1, context = 1, virtual_pipeline = 1, expert = 1,
               expert_tensor = 1, micro = 1;
  std::int64_t batch_ranks = 1;  ///< data-parallel ranks proper
  std::int64_t microbatches = 1;
  bool operator==(const Degrees&) const = default;
};

/// A combination of values: an index for each dimension.
using Point = const std::uint8_t*;

class Space {
 public:
  /// Of a RUN as it is written, `seed` being any plan of it that is legal. Keys that the RUN states
  /// have one value unless they are free.
  static Result<Space> of(Json run, const Run& seed, std::int64_t global_batch,
                          const SpaceOptions& options);

  std::size_t size() const { return x_points.size() / x_dimensions.size(); }
  Point at(std::size_t index) const { return &x_points[index * x_dimensions.size()]; }
  std::size_t index(Point point) const {
    return static_cast<std::size_t>(point - x_points.data()) / x_dimensions.size();
  }
  const std::vector<Dimension>& dimensions() const { return x_dimensions; }
  Degrees degrees(Point point) const;
  /// The plan with those values; where there is none the one that differs in what they leave idle
  /// or has one chunk a stage. Nothing where that is none either.
  std::optional<std::size_t> find(std::vector<std::uint8_t> point) const;
  /// The RUN with the values of a point where they are others than its own.
  Json run_of(Point point) const;
  /// Those values.
  std::vector<std::pair<std::string, Json>> changes(Point point) const;

 private:
  Status enumerate(const Run& seed);
  std::int64_t stage_ranks(const Degrees& degrees) const;
  bool divides(const Degrees& degrees, const Run& seed) const;
  static bool is_idle(const Dimension& dimension, const Degrees& degrees);

  Json x_run;
  std::int64_t x_accelerators = 1, x_global_batch = 1;
  /// Tensor degrees that the RUN's own stages have: all together, 0 where there are none; the most.
  std::int64_t x_stage_ranks = 0, x_stage_tensor = 1;
  std::vector<Dimension> x_dimensions;  ///< those of Degrees first
  std::vector<std::uint8_t> x_points;
  bool x_drops_stages = false;  ///< the RUN's own stages, which the search works out
};

/// The key of what each stage does otherwise, and whether the search works it out.
inline constexpr const char* kStagesKey = "pipeline_stages";
bool tunes_stages(const SpaceOptions& options);
/// Whether stages of a RUN, as it is written or resolved, have tensor degrees of their own.
bool has_stage_degrees(const Json& run);
/// Whether a user names the key itself, not only what it is about.
bool names_stages(const SpaceOptions& options);

/// What stands at "section.key" of a RUN; null if nothing.
const Json* value_of_key(const Json& run, const std::string& key);
/// Sets it, and the section where there is none.
void set_key(Json& run, const std::string& key, const Json& value);
/// The cluster of a RUN that has one; a preset's name becomes an object with that preset.
Json& cluster_object(Json& run);

/// Layers of the stage with most of them, of so many stages.
std::int64_t most_layers(const Model& model, std::int64_t stages);

}  // namespace foretrain
