// `schema` and `completion`: what is made from the declarations of keys.
#include <algorithm>

#include "tools/cli/completion.h"
#include "tools/cli/verbs.h"
#include "tools/predict/key_documents.h"

namespace foretrain {

Status schema(const SchemaArgs& args) {
  const std::vector<std::string>& kinds = schema_kinds();
  if (std::find(kinds.begin(), kinds.end(), args.kind) == kinds.end()) {
    std::string accepted;
    for (const std::string& kind : kinds) accepted += (accepted.empty() ? "" : ", ") + kind;
    return input_error("schema: found \"" + args.kind + "\", expected one of " + accepted);
  }
  if (!args.page) return print(false, dump_json(schema_of(args.kind)) + "\n");
  if (args.kind != "run") return input_error("schema --page: is of run, found " + args.kind);
  return print(false, keys_page());
}

Status completion(const CompletionArgs& args) {
  FT_ASSIGN(const std::string script, completion_script(args.shell, args.verbs));
  return write_output("-", script);
}

}  // namespace foretrain
