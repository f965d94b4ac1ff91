// `schema` and `completion`: what is made from the declarations of keys.
#include <algorithm>

#include "tools/cli/completion.h"
#include "tools/cli/verbs.h"
#include "tools/predict/documents/key_documents.h"

namespace foretrain {

Status schema(const SchemaArgs& args) {
  const std::vector<std::string>& kinds = schema_kinds();
  if (std::find(kinds.begin(), kinds.end(), args.kind) == kinds.end()) {
    std::string accepted;
    for (const std::string& kind : kinds) accepted += (accepted.empty() ? "" : ", ") + kind;
    return input_error("schema: found \"" + args.kind + "\", expected one of " + accepted);
  }
  if (!args.page) {
    FT_TRY(check_outputs({{"--json", args.json}}, {}));
    const std::string text = dump_json(schema_of(args.kind)) + "\n";
    if (!args.json.empty()) FT_TRY(write_output(args.json, text));
    return print(args.quiet || args.json == "-", text);
  }
  if (args.kind != "run") return input_error("schema --page: is of run, found " + args.kind);
  return print(args.quiet, keys_page());
}

namespace {

/// All verbs with their options, as the scripts are made from them.
Json command_line_json(const CompletionArgs& args) {
  Json::Array verbs;
  for (const OfferedVerb& verb : args.verbs) {
    Json::Array options;
    for (const OfferedOption& option : verb.options) {
      Json one{Json::Object{}};
      one.set("name", option.name);
      one.set("help", option.help);
      one.set("takes_value", option.takes_value);
      one.set("choices", Json(Json::Array(option.choices.begin(), option.choices.end())));
      options.push_back(std::move(one));
    }
    Json one{Json::Object{}};
    one.set("name", verb.name);
    one.set("help", verb.help);
    one.set("options", Json(std::move(options)));
    verbs.push_back(std::move(one));
  }
  Json out{Json::Object{}};
  out.set("schema", "foretrain/command-line/1");
  out.set("verbs", Json(std::move(verbs)));
  return out;
}

}  // namespace

Status completion(const CompletionArgs& args) {
  FT_TRY(check_outputs({{"--json", args.json}}, {}));
  FT_ASSIGN(const std::string script, completion_script(args.shell, args.verbs));
  if (!args.json.empty()) {
    FT_TRY(write_output(args.json, dump_json(command_line_json(args)) + "\n"));
  }
  return args.quiet || args.json == "-" ? ok_status() : write_output("-", script);
}

}  // namespace foretrain
