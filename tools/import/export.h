// `export`: a RUN as the launch files of a training framework.
#pragma once

#include <string>
#include <vector>

#include "tools/import/import.h"
#include "tools/import/table.h"
#include "tools/predict/run_file.h"

namespace foretrain {

struct Exported {
  std::vector<LaunchFile> files;        ///< the first is what starts the training, or tells it all
  std::vector<Translation> translated;  ///< `from` a key of the RUN `to` a setting
  std::vector<NotModelled> not_expressed;  ///< keys of which an import gives another value, and why
};

/// The launch files of `to`: megatron-lm, deepspeed, torchtitan, maxtext or composer. They are
/// imported again; where that gives another plan or model, the keys are named.
Result<Exported> export_run(const Run& run, const std::string& to);

/// The frameworks that there are files for.
std::vector<std::string> export_targets();

/// Settings that are to be written: keys as tables have them, each with its value.
struct Sheet {
  const Run& run;
  const Table& table;
  Json settings{Json::Object{}};
  std::vector<Translation> translated;
};

/// Writes a setting, and says from which key of the RUN.
void put(Sheet& sheet, const std::string& from, const std::string& key, Json value);

/// Settings of a framework that no row of its table gives. Each returns the files.
std::vector<LaunchFile> export_megatron(Sheet& sheet);
std::vector<LaunchFile> export_deepspeed(Sheet& sheet);
std::vector<LaunchFile> export_torchtitan(Sheet& sheet);
std::vector<LaunchFile> export_maxtext(Sheet& sheet);
std::vector<LaunchFile> export_composer(Sheet& sheet);

/// The model as a config.json: its preset's, or the keys of the RUN.
Json config_of(const Run& run);
/// What the table calls the model, where it is a preset that it has a name for; "": it is not.
std::string name_of_model(const Sheet& sheet);
/// Of a RUN's precision.
std::string compute_of(const Run& run);
/// "none", "selective", "full", or "" for modules of one's own.
std::string recompute_of(const Run& run);

/// Settings with dotted keys as documents.
std::string yaml_of(const Json& settings);
std::string toml_of(const Json& settings);
Json nested(const Json& settings);

Json export_json(const Exported& exported);
std::string export_text(const Exported& exported);

}  // namespace foretrain
