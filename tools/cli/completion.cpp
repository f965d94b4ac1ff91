#include "tools/cli/completion.h"

#include "hardware/presets.h"
#include "tools/cli/verbs.h"
#include "tools/predict/documents/key_documents.h"

namespace foretrain {
namespace {

/// Words as a shell takes them, with spaces between.
std::string joined(const std::vector<std::string>& words) {
  std::string out;
  for (const std::string& word : words) out += (out.empty() ? "" : " ") + word;
  return out;
}

/// A text within '...' in all three shells.
std::string quoted(const std::string& text) {
  std::string out = "'";
  for (const char c : text) out += c == '\'' ? "'\\''" : std::string(1, c);
  return out + "'";
}

/// The first sentence of a key's documentation, short enough for a line.
std::string brief(const std::string& doc) {
  constexpr std::size_t kMost = 60;
  const std::size_t end = doc.find_first_of(".;:");
  std::string out = doc.substr(0, end);
  if (out.size() <= kMost) return out;
  const std::size_t space = out.rfind(' ', kMost);
  return out.substr(0, space == std::string::npos ? kMost : space) + " ...";
}

/// The values that may follow KEY=.
std::vector<std::string> values_of(const KeyFacts& key) {
  std::vector<std::string> out;
  if (key.type == KeyType::kFlag) out = {"true", "false"};
  for (const std::string& choice : key.choices) {
    // Makers of keys write a choice that is no word, such as a path, as a sentence.
    const bool word = choice.find(' ') == std::string::npos;
    if (word && key.type == KeyType::kChoice) out.push_back(choice);
  }
  if (key.or_auto) out.emplace_back("auto");
  return out;
}

/// What `list KIND` and `show NAME` may name.
std::vector<std::string> names_of(const std::string& kind) {
  if (kind == "kinds") return preset_kinds();
  if (kind != "all") return preset_names(kind);
  std::vector<std::string> out;
  for (const std::string& one : preset_kinds()) {
    for (const std::string& name : preset_names(one)) out.push_back(name);
  }
  return out;
}

std::string bash_script(const std::vector<OfferedVerb>& verbs) {
  std::string keys, values, names, options, choices, presets;
  for (const KeyFacts* key : every_key()) {
    keys += (keys.empty() ? "" : " ") + key->path() + "=";
    const std::string all = joined(values_of(*key));
    if (!all.empty()) values += "    " + key->path() + ") values=\"" + all + "\" ;;\n";
  }
  for (const OfferedVerb& verb : verbs) {
    names += (names.empty() ? "" : " ") + verb.name;
    std::vector<std::string> own;
    for (const OfferedOption& option : verb.options) {
      own.push_back(option.name);
      if (option.choices.empty()) continue;
      choices +=
          "    " + verb.name + option.name + ") choices=\"" + joined(option.choices) + "\" ;;\n";
    }
    options += "    " + verb.name + ") options=\"" + joined(own) + "\" ;;\n";
    if (verb.names.empty()) continue;
    presets += "    " + verb.name + ") names=\"" + joined(names_of(verb.names)) + "\" ;;\n";
  }
  return R"(# source <(foretrain completion bash)
_foretrain() {
  local word="${COMP_WORDS[COMP_CWORD]}" before="${COMP_WORDS[COMP_CWORD-1]}" key="" values=""
  local verb="${COMP_WORDS[1]}" options="" choices="" names=""
  # bash makes words of KEY, = and VALUE.
  if [ "$word" = "=" ]; then key="$before"; word=""; fi
  if [ "$before" = "=" ]; then key="${COMP_WORDS[COMP_CWORD-2]}"; fi
  case "$key" in
)" + values +
         R"(  esac
  case "$verb$before" in
)" + choices +
         R"(  esac
  if [ -n "$key" ]; then
    COMPREPLY=($(compgen -W "$values" -- "$word"))
  elif [ "$before" = "--set" ]; then
    compopt -o nospace 2> /dev/null
    COMPREPLY=($(compgen -W ")" +
         keys + R"(" -- "$word"))
  elif [ "$COMP_CWORD" = 1 ]; then
    COMPREPLY=($(compgen -W ")" +
         names + R"(" -- "$word"))
  elif [ -n "$choices" ]; then
    COMPREPLY=($(compgen -W "$choices" -- "$word"))
  elif [ "${word:0:1}" = "-" ]; then
    case "$verb" in
)" + options +
         R"(    esac
    COMPREPLY=($(compgen -W "$options" -- "$word"))
  else
    [ "${before:0:1}" = "-" ] || case "$verb" in
)" + presets +
         R"(    esac
    COMPREPLY=($(compgen -W "$names" -- "$word") $(compgen -f -- "$word"))
  fi
}
complete -F _foretrain foretrain
)";
}

/// Of a text between [ and ] or behind : in zsh.
std::string without_marks(std::string text) {
  for (char& c : text) {
    if (c == '[' || c == ']' || c == ':' || c == '\\' || c == '`') c = ' ';
  }
  return text;
}

std::string zsh_options(const OfferedVerb& verb) {
  std::string out;
  for (const OfferedOption& option : verb.options) {
    const std::string action = option.name == "--set"    ? "KEY=VALUE:_foretrain_sets"
                               : !option.choices.empty() ? "value:(" + joined(option.choices) + ")"
                               : option.takes_value      ? "value:_files"
                                                         : "";
    out += " \\\n        " + quoted("*" + option.name + "[" + without_marks(option.help) + "]" +
                                    (action.empty() ? "" : ":" + action));
  }
  return out;
}

std::string zsh_script(const std::vector<OfferedVerb>& verbs) {
  std::string keys, values, names, cases;
  for (const KeyFacts* key : every_key()) {
    keys += "    " + quoted(key->path() + ":" + without_marks(brief(key->doc))) + "\n";
    const std::string all = joined(values_of(*key));
    if (!all.empty()) values += "      " + key->path() + ") compadd -- " + all + " ;;\n";
  }
  for (const OfferedVerb& verb : verbs) {
    names += "    " + quoted(verb.name + ":" + without_marks(verb.help)) + "\n";
    const std::string presets = verb.names.empty() ? "" : joined(names_of(verb.names));
    cases += "    " + verb.name + ")\n      presets=(" + presets + ")\n      _arguments -S" +
             zsh_options(verb) + " \\\n        '*:name:_foretrain_names' ;;\n";
  }
  return R"(#compdef foretrain
# Written by `foretrain completion zsh`; source <(foretrain completion zsh) after compinit.
_foretrain_sets() {
  local -a keys=(
)" + keys +
         R"(  )
  if compset -P '*='; then
    case "${IPREFIX%=}" in
)" + values +
         R"(    esac
  else
    _describe -t keys key keys -S =
  fi
}
_foretrain_names() {
  (( $#presets )) && compadd -- $presets
  _files
}
_foretrain() {
  local -a presets verbs=(
)" + names +
         R"(  )
  if (( CURRENT == 2 )); then
    _describe -t verbs verb verbs
    return
  fi
  local verb=$words[2]
  shift words
  (( CURRENT-- ))
  case $verb in
)" + cases +
         R"(  esac
}
if [ "$funcstack[1]" = _foretrain ]; then _foretrain "$@"; else compdef _foretrain foretrain; fi
)";
}

std::string fish_script(const std::vector<OfferedVerb>& verbs) {
  std::string keys, values, lines;
  for (const KeyFacts* key : every_key()) {
    keys += "      printf '%s\\t%s\\n' " + quoted(key->path() + "=") + " " +
            quoted(brief(key->doc)) + "\n";
    const std::vector<std::string> all = values_of(*key);
    if (all.empty()) continue;
    values += "    case " + quoted(key->path() + "=*") + "\n      printf '%s\\n'";
    for (const std::string& value : all) values += " " + quoted(key->path() + "=" + value);
    values += "\n";
  }
  for (const OfferedVerb& verb : verbs) {
    lines += "complete -c foretrain -n __fish_use_subcommand -f -a " + verb.name + " -d " +
             quoted(verb.help) + "\n";
    const std::string seen =
        "complete -c foretrain -n '__fish_seen_subcommand_from " + verb.name + "'";
    for (const OfferedOption& option : verb.options) {
      lines += seen + " -l " + option.name.substr(2) + " -d " + quoted(option.help);
      if (option.name == "--set") {
        lines += " -x -a '(__foretrain_sets)'";
      } else if (!option.choices.empty()) {
        lines += " -x -a " + quoted(joined(option.choices));
      } else if (option.takes_value) {
        lines += " -r";
      }
      lines += "\n";
    }
    if (verb.names.empty()) continue;
    lines += seen + " -a " + quoted(joined(names_of(verb.names))) + "\n";
  }
  return R"(# Written by `foretrain completion fish`; foretrain completion fish | source
function __foretrain_sets
  switch (commandline -ct)
)" + values +
         R"(    case '*'
)" + keys +
         R"(  end
end
)" + lines;
}

}  // namespace

Result<std::string> completion_script(const std::string& shell,
                                      const std::vector<OfferedVerb>& verbs) {
  if (shell == "bash") return bash_script(verbs);
  if (shell == "zsh") return zsh_script(verbs);
  if (shell == "fish") return fish_script(verbs);
  return input_error("completion: found \"" + shell + "\", expected bash, zsh or fish");
}

}  // namespace foretrain
