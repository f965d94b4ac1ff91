// What launch files say, and the RUN that is drafted from it.
#pragma once

#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "sim/base/json.h"
#include "sim/base/result.h"

namespace foretrain {

/// One thing that a launch file says: a flag with its value, or a key of a document.
struct Setting {
  std::string key;                     ///< as tables write it: words joined by _, parts by .
  Json value;                          ///< true of a flag that stands alone
  std::string from;                    ///< as the file writes it: "--num-layers 96"
  std::string place;                   ///< "train.sh:12"
  std::set<std::string> missing = {};  ///< what the value depends on and nobody knows
};

/// All that the files of a launch say.
struct Launch {
  std::string framework;  ///< a table of configs/import; "" where nothing tells
  std::vector<Setting> settings;
  std::vector<Setting> engine;          ///< DeepSpeed's configuration beside Megatron's arguments
  std::vector<Json> models;             ///< what config.json files hold
  std::vector<std::string> programs;    ///< what the launch would run: "pretrain_gpt.py"
  std::vector<std::string> unresolved;  ///< what only running it would tell
};

struct Translation {
  std::string from, to;
  Json value;
  bool derived = false;  ///< from several settings, or from the absence of all
};
struct NotModelled {
  std::string from, why;
};

/// What an import gives. `run` holds keys of a RUN and, until it is finished, what tables call
/// `model.` and `job.`: facts that RUN keys are made of.
struct Draft {
  Json run{Json::Object{}};
  std::vector<Translation> translated;
  std::vector<std::string> no_effect;
  std::vector<NotModelled> not_modelled;
  std::vector<std::string> unresolved;
  std::set<std::string> defaults;  ///< keys whose value is the framework's default
  std::string software;            ///< the framework's release, as the user says it; "": today's
};

/// The value at a path such as "parallel.tensor"; null: none stands there.
const Json* find_path(const Json& json, std::string_view path);
/// Sets the value at a path; a preset's name on the way becomes an object that names it.
void set_path(Json& json, std::string_view path, Json value);
void erase_path(Json& json, std::string_view path);

/// Readings of what stands there, with what holds otherwise. Numbers end at 10^6 either way, so
/// that products of three of them are whole numbers, too.
std::int64_t whole_at(const Json& json, std::string_view path, std::int64_t otherwise);
bool true_at(const Json& json, std::string_view path);
/// What `job.fp16` and `job.bf16` choose, the first before the second; fp32 without both.
const char* precision_of_flags(const Json& run);
std::string text_at(const Json& json, std::string_view path, const std::string& otherwise = "");

/// Puts a value that follows from several settings, and says from which.
void conclude(Draft& draft, const std::string& from, const std::string& to, Json value);

/// A word as the value that it writes: a number, true or false, a list in brackets, or a text.
Json value_of_word(std::string_view word);

}  // namespace foretrain
