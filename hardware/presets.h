// Finding presets: a path wins over a name; names are those embedded from `configs/`.
#pragma once

#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "sim/base/constants.h"
#include "sim/base/json.h"
#include "sim/base/result.h"

namespace foretrain {

/// Names of the embedded files of one folder of `configs/`, without ".json", sorted.
std::vector<std::string> preset_names(std::string_view folder);

struct NamedJson {
  Json json;
  std::string source;  ///< for messages: the path, or "preset NAME"
};

/// Loads `name` as a file if one exists there or if it looks like a path, else as a preset of
/// `folder`. `source` and `pointer` say where the name stands; an unknown name offers the nearest
/// one.
Result<NamedJson> load_preset(std::string_view folder, const std::string& name,
                              const std::string& source, const std::string& pointer);

/// The same for what other files of the kind build on, `depth` of them so far: an error where there
/// are so many that one must build on itself.
Result<NamedJson> load_base(std::string_view folder, const std::string& name,
                            const std::string& source, const std::string& pointer, int depth);

/// Reads what a data file says of itself: `schema`, which must be `expected` ("foretrain/device/1")
/// where there is one. Marks `sources` and `figures_changed` as known.
void read_remarks(JsonReader& reader, const std::string& expected);

/// `figures_changed` of such a file, the month in which its figures were last read or changed
/// ("2026-11"); "" where it has none.
std::string figures_changed(const std::string& folder, const std::string& name);

/// The `sources` of a shipped file, by JSON pointer: "sm_count" becomes "/sm_count"; "peaks" stands
/// for every key that ends in _tflops.
std::map<std::string, std::string> preset_sources(const std::string& folder,
                                                  const std::string& name);

/// The shipped device that CUDA calls `name`, and a cluster of it; empty texts where none is.
struct NamedGpu {
  std::string device, cluster;
};
NamedGpu gpu_called(const std::string& name);

}  // namespace foretrain
