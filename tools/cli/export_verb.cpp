// `export`: a RUN as the launch files of a training framework.
#include <cstdio>
#include <filesystem>

#include "sim/base/printable.h"
#include "tools/cli/verbs.h"
#include "tools/import/export.h"

namespace foretrain {

Status export_files(const ExportArgs& args) {
  std::error_code ignored;
  const bool folder = std::filesystem::is_directory(args.out, ignored);
  std::vector<Output> outputs = {{"--json", args.json}};
  if (!folder) outputs.push_back({"--out", args.out});
  FT_TRY(check_outputs(outputs, read_with(outputs, args.run, args.sets)));
  FT_ASSIGN(const Run run, load_run(args.run, args.sets));
  FT_ASSIGN(const Exported exported, export_run(run, args.to));
  FT_TRY(give_json(args.json, args.caller, [&exported] { return export_json(exported); }));
  if (!args.out.empty() && !folder && exported.files.size() > 1) {
    std::string names;
    for (const LaunchFile& file : exported.files) names += (names.empty() ? "" : ", ") + file.path;
    return input_error("--out: " + args.out + " is no folder; " + args.to + " takes " + names);
  }
  for (const LaunchFile& file : exported.files) {
    if (args.out.empty()) break;
    FT_TRY(write_output(folder ? args.out + "/" + file.path : args.out, file.text));
  }
  const bool elsewhere = !args.json.empty() || !args.out.empty() || args.caller != nullptr;
  if (!elsewhere) FT_TRY(write_output("-", exported.files.front().text));
  if (!args.quiet) {
    std::fputs(printable(export_text(exported)).c_str(), stderr);
    for (std::size_t i = 1; i < exported.files.size() && args.out.empty(); ++i) {
      const std::string path = printable_line(exported.files[i].path);
      std::fprintf(stderr, "%s goes with it: --out FOLDER writes all files\n", path.c_str());
    }
  }
  if (!args.strict || exported.not_expressed.empty()) return ok_status();
  return Error{run.source + ": " + std::to_string(exported.not_expressed.size()) +
                   " keys are not expressed, and --strict asks for all",
               ErrorKind::kCondition};
}

}  // namespace foretrain
