#include "tools/predict/key_names.h"

#include <algorithm>
#include <string>

#include "sim/base/assets.h"
#include "sim/base/constants.h"

namespace foretrain {
namespace {

constexpr std::string_view kUnknown = ": unknown key";

/// As the file writes them: --micro-batch-size is micro_batch_size.
std::string spelt(std::string_view key) {
  std::string out;
  for (const char letter : key) {
    if (letter != '-') {
      out += letter >= 'A' && letter <= 'Z' ? static_cast<char>(letter - 'A' + 'a') : letter;
    } else if (!out.empty()) {
      out += '_';
    }
  }
  return out;
}

/// Whether a key of that pointer may stand for `ours`: at the top or in the section of `ours`; a
/// name of several words in any but those of machines and hosts.
bool may_stand_for(std::string_view pointer, std::string_view key, std::string_view ours) {
  const std::string_view section = pointer.substr(0, pointer.size() - key.size());
  if (section == "/") return true;
  if (ours.starts_with("not set")) return section == "/parallel/";
  const std::string own = "/" + std::string(ours.substr(0, ours.find_first_of(".: ,"))) + "/";
  if (section == own) return true;
  constexpr std::string_view kNever[] = {"/cluster/", "/host/", "/launch/"};
  const bool never = std::any_of(std::begin(kNever), std::end(kNever),
                                 [&](std::string_view one) { return section.starts_with(one); });
  return !never && key.find('_') != std::string_view::npos;
}

/// The pointer that ends at `end` of a message "file: /pointer: ...".
std::string_view pointer_before(std::string_view message, std::size_t end) {
  const std::size_t begin = message.rfind(": /", end);
  return begin == std::string_view::npos ? "" : message.substr(begin + 2, end - begin - 2);
}

void say_key(const Json& names, std::string& message) {
  const std::size_t end = message.rfind(kUnknown);
  if (end == std::string::npos) return;
  const std::string pointer(pointer_before(message, end));
  const std::string_view key = std::string_view(pointer).substr(pointer.rfind('/') + 1);
  const Json* ours = pointer.empty() ? nullptr : names.find(spelt(key));
  if (ours == nullptr || !may_stand_for(pointer, key, *ours->string())) return;
  message.insert(end + kUnknown.size(), "; here it is " + *ours->string());
}

void say_value(const Json& values, std::string& message) {
  for (const auto& [pointer, known] : *values.object()) {
    for (const std::string& where : {pointer + ": ", pointer + "/preset: "}) {
      const std::size_t at = message.find(": " + where);
      if (at == std::string::npos) continue;
      for (const auto& [theirs, ours] : *known.object()) {
        const bool text = message.find("\"" + theirs + "\"", at) != std::string::npos;
        const bool bare = message.find("found " + theirs + ",", at) != std::string::npos;
        if (!text && !bare) continue;
        const std::size_t near = message.find(" (did you mean", at);
        if (near != std::string::npos) message.erase(near, message.find("?)", near) + 2 - near);
        message += "; " + theirs + " is " + *ours.string() + " here";
        return;
      }
    }
  }
}

}  // namespace

Error with_our_name(Error error) {
  static const Json file = load_constants("key_names.json");
  say_key(member(file, "names"), error.message);
  say_value(member(file, "values"), error.message);
  return error;
}

std::string no_run(const std::string& name) {
  const auto is = [&name](const char* kind) {
    return !find_asset(std::string(kind) + "/" + name + ".json").empty();
  };
  const std::string one = is("models")     ? "model"
                          : is("clusters") ? "cluster"
                          : is("systems")  ? "system"
                                           : "";
  if (one.empty()) return "";
  const std::string model = one == "model" ? name : "MODEL";
  const std::string cluster = one == "cluster" ? name : "dgx-h100";
  const std::string system = one == "system" ? ", \"system\": \"" + name + "\"" : "";
  return "; it is a " + one + ", which a RUN names: {\"model\": {\"preset\": \"" + model +
         "\"}, \"cluster\": {\"preset\": \"" + cluster + "\", \"accelerators\": 64}" + system + "}";
}

}  // namespace foretrain
