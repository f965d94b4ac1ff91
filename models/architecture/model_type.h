// What the code of a model type fixes rather than its files: configs/model_types/NAME.json.
#pragma once

#include <string>
#include <vector>

#include "sim/base/json.h"
#include "sim/base/result.h"

namespace foretrain {

/// One type of models, with what it takes over from the type that it is `like`:
///   keys      by key here, other names that its files have for it
///   defaults  keys of files that stand for absent ones, as its configuration class has them
///   traits    what no file says: docs/reference/model-types.md
///   rules     `{"key", "is", "set", "traits"}`: where a file's key has the value `is` (default:
///             true), these keys and traits hold
///   experts   how it names and forms experts; absent: it has none
///   refused   keys whose presence is not modelled, and what they mean
///   nested    objects of files whose members are read as keys beside them
///   class_defaults  the same, where a publisher's file or a part of one leaves them out
///   counted   parameters beside those of the model's pieces: `what`, and the factors of their
///   `size` ignored   keys that change neither shapes nor costs; left_out: parts that no Program
///   has
struct ModelType {
  std::string name;
  Json::Object keys, defaults, class_defaults, traits, refused;
  Json::Array rules, counted;
  Json experts;  ///< null: none
  std::vector<std::string> ignored, left_out;
  std::vector<std::string> nested;  ///< objects whose members count as keys of the file
};

/// All types, and the type of a name. Unknown keys of a type's file are errors.
std::vector<std::string> model_type_names();
bool is_model_type(const std::string& name);
Result<ModelType> load_model_type(const std::string& name);
/// Of a document; the type that it is `like` is one of those.
Result<ModelType> read_model_type(const Json& json, const std::string& source);

/// Keys that change neither shapes nor costs in files of any type.
const Result<std::vector<std::string>>& harmless_keys();

}  // namespace foretrain
