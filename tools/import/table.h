// Tables of what the settings of a framework are in a RUN: configs/import/NAME.json.
//
// `rows` has an entry for each setting: `to`, the key of a RUN, or `model.NAME` and `job.NAME`,
// facts that keys are made of; `values`, what the framework's values are here (null: nothing);
// `default`, what holds where the setting is absent; `was`, [{"before": "YYYY-MM", "default": V}],
// where an older release had another. `no_effect` lists settings, also as PREFIX*, that change
// neither speed nor memory; `not_modelled` says why others are left out. `like` names the table
// that another one builds on; `leaf` says that a dotted key is known by its last parts alone.
#pragma once

#include <string>
#include <vector>

#include "tools/import/draft.h"

namespace foretrain {

class Table {
 public:
  static Result<Table> load(const std::string& name);
  /// The names of all tables.
  static std::vector<std::string> names();

  /// Translates settings; each lands in one of the draft's lists. One without a row that is false,
  /// 0 or empty asks for nothing.
  void apply(const std::vector<Setting>& settings, Draft& draft) const;
  /// What the framework does where no setting says otherwise.
  void add_defaults(Draft& draft) const;

  /// The entry of a setting; null: none.
  const Json* row(const std::string& key) const;
  bool has_no_effect(const std::string& key) const;
  /// The number of settings that the table knows; recognises frameworks.
  std::size_t known(const std::vector<Setting>& settings) const;

  /// The key of a RUN that a row leads to: its own, or that of which its fact decides.
  std::string run_key(const std::string& to) const;

  /// The whole table.
  const Json& json() const { return x_json; }
  std::string framework() const { return text_at(x_json, "framework"); }
  std::string system() const { return text_at(x_json, "system"); }

 private:
  /// The names by which rows may know a setting.
  std::vector<std::string> names_of(const std::string& key) const;
  void apply_one(const Setting& setting, Draft& draft) const;
  Json default_of(const Json& row, const Draft& draft) const;

  Json x_json;
};

}  // namespace foretrain
