// `import`: launch files of training frameworks as a RUN.
#include <cstdio>

#include "sim/base/json.h"
#include "sim/base/printable.h"
#include "tools/cli/verbs.h"
#include "tools/import/import.h"

namespace foretrain {

Status import_files(const ImportArgs& args) {
  FT_TRY(check_outputs({{"--json", args.json}, {"--out", args.out}}, args.files));
  std::vector<LaunchFile> files;
  for (const std::string& path : args.files) {
    FT_ASSIGN(std::string text, read_text_file(path));
    files.push_back({path, std::move(text)});
  }
  const ImportOptions options{args.from, args.cluster, args.accelerators, args.sets};
  FT_ASSIGN(const Draft draft, import_launch(files, options));
  FT_TRY(give_json(args.json, args.caller, [&draft] { return import_json(draft); }));
  const std::string run = dump_json(draft.run) + "\n";
  if (!args.out.empty()) FT_TRY(write_output(args.out, run));
  const bool elsewhere = !args.json.empty() || !args.out.empty() || args.caller != nullptr;
  if (!elsewhere) FT_TRY(write_output("-", run));
  if (!args.quiet) std::fputs(printable(import_text(draft)).c_str(), stderr);
  if (!args.strict || draft.not_modelled.empty()) return ok_status();
  return Error{args.files.front() + ": " + std::to_string(draft.not_modelled.size()) +
                   " settings are not modelled, and --strict asks for all",
               ErrorKind::kCondition};
}

}  // namespace foretrain
