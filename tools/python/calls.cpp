#include "tools/python/calls.h"

#include <utility>

#include "sim/base/printable.h"
#include "tools/cli/verbs.h"

namespace foretrain {
namespace {

constexpr JsonReader::IntRange kThreads{1, 1024};
constexpr std::int64_t kMostAccelerators = std::int64_t{1} << 24;

/// A list of texts, or one.
void read_texts(JsonReader& reader, const char* key, std::vector<std::string>& out) {
  const Json* value = reader.take(key);
  if (value == nullptr) return;
  if (const std::string* one = value->string()) {
    out.push_back(*one);
    return;
  }
  const Json::Array* list = value->array();
  for (const Json& item : list == nullptr ? Json::Array{Json()} : *list) {
    if (const std::string* text = item.string()) {
      out.push_back(*text);
    } else {
      reader.fail(key, "found " + describe(list == nullptr ? *value : item) +
                           ", expected a text or a list of texts");
    }
  }
}

/// A list of whole numbers, or one.
void read_counts(JsonReader& reader, const char* key, std::int64_t low,
                 std::vector<std::int64_t>& out) {
  const Json* value = reader.take(key);
  if (value == nullptr) return;
  const Json::Array one{*value};
  for (const Json& item : value->array() == nullptr ? one : *value->array()) {
    const auto* count = std::get_if<std::int64_t>(&item.value);
    if (count == nullptr || *count < low || *count > kMostAccelerators) {
      reader.fail(key, "found " + describe(item) + ", expected whole numbers from " +
                           std::to_string(low) + " to " + std::to_string(kMostAccelerators));
    } else {
      out.push_back(*count);
    }
  }
}

/// A flag that leaves something out, which stands here as what it leaves out.
void read_unless(JsonReader& reader, const char* key, bool& out) {
  bool wanted = !out;
  reader.read(key, wanted);
  out = !wanted;
}

/// Options that every verb has: nothing is printed, and keys of the RUN are set.
template <typename Args>
Args args_for(JsonReader& reader, Caller& caller) {
  Args args;
  args.quiet = true;
  args.caller = &caller;
  read_texts(reader, "sets", args.sets);
  return args;
}

Status run_simulate(JsonReader& reader, Caller& caller) {
  auto args = args_for<SimulateArgs>(reader, caller);
  reader.read("run", args.run);
  reader.read("trace", args.files.trace);
  reader.read("timeline", args.files.timeline);
  reader.read("report", args.files.report);
  read_counts(reader, "trace_ranks", 0, args.trace_ranks);
  reader.read("full", args.full);
  reader.read("verify", args.verify);
  read_unless(reader, "advice", args.no_advice);
  reader.read("require_fit", args.conditions.fit, {1e-6, 1.0});
  reader.read("max_step_s", args.conditions.max_step_s, {1e-300, 1e300});
  FT_TRY(reader.finish());
  return simulate(args);
}

Status run_search(JsonReader& reader, Caller& caller) {
  auto args = args_for<SearchArgs>(reader, caller);
  reader.read("run", args.run);
  Json section{Json::Object{}};
  if (const Json* asked = reader.take("search")) section.set("search", *asked);
  Result<SearchRequest> request = take_section(section, "search");
  if (request.ok()) args.request = std::move(request.value());
  if (!request.ok()) reader.adopt(request.error());
  reader.read("resume", args.request.resume);
  reader.read("threads", args.threads, kThreads);
  reader.read("out", args.out);
  reader.read("csv", args.csv);
  reader.read("report", args.report);
  FT_TRY(reader.finish());
  return search(args);
}

Status run_goodput(JsonReader& reader, Caller& caller) {
  auto args = args_for<GoodputArgs>(reader, caller);
  reader.read("run", args.run);
  read_texts(reader, "clusters", args.beside.clusters);
  read_texts(reader, "policies", args.beside.policies);
  reader.read("campaigns", args.campaigns, {1, 10'000'000});
  reader.read("seed", args.seed, {0, 9'000'000'000'000'000});
  reader.read("threads", args.threads, kThreads);
  read_unless(reader, "advice", args.no_advice);
  reader.read("trace", args.trace);
  reader.read("report", args.report);
  FT_TRY(reader.finish());
  return goodput(args);
}

Status run_compare(JsonReader& reader, Caller& caller) {
  auto args = args_for<CompareArgs>(reader, caller);
  reader.read("a", args.a);
  reader.read("b", args.b);
  reader.read("steps", args.steps, {1, 1'000'000});
  reader.read("step_name", args.step_name);
  reader.read("gpu_steps", args.gpu_steps);
  reader.read("trace", args.trace);
  reader.read("profile", args.profile);
  reader.read("report", args.report);
  FT_TRY(reader.finish());
  return compare(args);
}

Status run_import(JsonReader& reader, Caller& caller) {
  auto args = args_for<ImportArgs>(reader, caller);
  read_texts(reader, "files", args.files);
  reader.read("from", args.from);
  reader.read("cluster", args.cluster);
  reader.read("accelerators", args.accelerators, {1, std::int64_t{1} << 20});
  reader.read("out", args.out);
  reader.read("strict", args.strict);
  if (args.files.empty()) reader.fail("files", "is missing, expected a path or a list of paths");
  FT_TRY(reader.finish());
  return import_files(args);
}

Status run_export(JsonReader& reader, Caller& caller) {
  auto args = args_for<ExportArgs>(reader, caller);
  reader.read("run", args.run);
  reader.read("to", args.to);
  reader.read("out", args.out);
  reader.read("strict", args.strict);
  FT_TRY(reader.finish());
  return export_files(args);
}

struct Callable {
  const char* verb;
  Status (*run)(JsonReader&, Caller&);
};
constexpr Callable kCallables[] = {{"simulate", run_simulate}, {"search", run_search},
                                   {"goodput", run_goodput},   {"compare", run_compare},
                                   {"import", run_import},     {"export", run_export}};

Status run_verb(const std::string& verb, const std::string& request, Caller& caller) {
  FT_ASSIGN(const Json json, parse_json(request, verb));
  for (const Callable& one : kCallables) {
    if (verb != one.verb) continue;
    JsonReader reader(json, verb, "");
    return one.run(reader, caller);
  }
  return input_error("no verb \"" + verb + "\" that answers in JSON");
}

}  // namespace

CallResult call_verb(const std::string& verb, const std::string& request) {
  Caller caller;
  const Status status = run_verb(verb, request, caller);
  CallResult out;
  out.warnings = std::move(caller.warnings);
  if (!caller.result.is_null()) out.json = dump_json(caller.result, -1);
  if (status.ok()) return out;
  const Error& error = status.error();
  constexpr const char* kNames[] = {"input", "condition", "unsupported"};
  out.error = kNames[static_cast<std::size_t>(error.kind)];
  constexpr std::size_t kLongest = 4000;  // as on stderr
  out.messages.push_back(shortened(error.message, kLongest));
  for (const Error& one : error.more) out.messages.push_back(shortened(one.message, kLongest));
  return out;
}

}  // namespace foretrain
