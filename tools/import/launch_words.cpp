#include "tools/import/launch_words.h"

#include <algorithm>

namespace foretrain {
namespace {

constexpr std::size_t kLeastSettings = 3;
constexpr std::size_t kLongestWritten = 100;

bool starts_flag(char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_'; }

bool is_flag(const std::string& word) {
  return word.size() > 2 && word.starts_with("--") && starts_flag(word[2]);
}

/// NAME=VALUE or ++part.name=VALUE, as Hydra, MaxText and Composer take them.
bool is_override(const std::string& word) {
  const std::size_t begin = word.find_first_not_of('+');
  const std::size_t equals = word.find('=');
  if (begin == std::string::npos || equals == std::string::npos || equals <= begin) return false;
  return starts_flag(word[begin]) &&
         std::all_of(word.begin() + static_cast<std::ptrdiff_t>(begin),
                     word.begin() + static_cast<std::ptrdiff_t>(equals), [](char c) {
                       return starts_flag(c) || (c >= '0' && c <= '9') || c == '.' || c == '-';
                     });
}

/// A word that quotes kept together although it holds several arguments: "--fp8-format hybrid".
void add_apart(const ShellWord& word, std::vector<ShellWord>& out) {
  const bool several = word.text.find_first_of(" \n") != std::string::npos &&
                       word.text.find("--") != std::string::npos;
  if (!several) {
    out.push_back(word);
    return;
  }
  ShellWord one{"", word.line, word.missing};
  char quote = '\0';
  const auto close = [&] {
    if (one.text.empty()) return;
    for (const std::string& name : word.missing) {
      if (!stands_in(name, one.text)) one.missing.erase(name);
    }
    out.push_back(one);
    one = {"", word.line, word.missing};
  };
  for (const char c : word.text) {
    if (quote != '\0') {
      if (c == quote) {
        quote = '\0';
      } else {
        one.text += c;
      }
    } else if (c == '\'' || c == '"') {
      quote = c;
    } else if (c == ' ' || c == '\n' || c == '\t') {
      close();
    } else if (c != '\\') {
      one.text += c;
    }
  }
  close();
}

std::size_t settings_in(const std::vector<ShellWord>& words) {
  return static_cast<std::size_t>(std::count_if(words.begin(), words.end(), [](const auto& word) {
    return is_flag(word.text) || is_override(word.text);
  }));
}

bool is_program(const std::string& word) { return word.ends_with(".py") && !word.starts_with("-"); }

Json value_of(const std::vector<ShellWord>& words) {
  if (words.empty()) return Json(true);
  if (words.size() == 1) return value_of_word(words.front().text);
  Json::Array list;
  for (const ShellWord& word : words) list.push_back(value_of_word(word.text));
  return Json(std::move(list));
}

void add_setting(const std::string& key, const std::string& written,
                 const std::vector<ShellWord>& values, const std::string& source, std::int64_t line,
                 Launch& out) {
  Setting setting{key, value_of(values), written, source + ":" + std::to_string(line), {}};
  for (const ShellWord& value : values) {
    if (!written.ends_with(value.text)) setting.from += " " + value.text;
    setting.missing.insert(value.missing.begin(), value.missing.end());
  }
  if (setting.from.size() > kLongestWritten) {
    setting.from = setting.from.substr(0, kLongestWritten) + "...";
  }
  out.settings.push_back(std::move(setting));
}

/// Flags of one dash that launchers have.
std::string launcher_flag(const std::string& word) {
  if (word == "-N") return "nodes";
  if (word == "-n" || word == "-np") return "np";
  return "";
}

/// Settings of one command, or of arguments alone.
void add_words(const std::vector<ShellWord>& words, const std::string& source, Launch& out) {
  bool launches = std::any_of(words.begin(), words.end(),
                              [](const ShellWord& word) { return is_program(word.text); });
  for (std::size_t i = 0; i < words.size(); ++i) {
    const ShellWord& word = words[i];
    if (is_program(word.text)) {
      const bool module = word.text == "-m" && i + 1 < words.size();
      out.programs.push_back(module ? words[++i].text : word.text);
      launches = false;
      continue;
    }
    const std::string short_flag = launches ? launcher_flag(word.text) : "";
    if (!short_flag.empty() && i + 1 < words.size()) {
      add_setting(short_flag, word.text, {words[i + 1]}, source, word.line, out);
      ++i;
      continue;
    }
    const std::size_t equals = word.text.find('=');
    if (is_flag(word.text) && equals == std::string::npos) {
      std::vector<ShellWord> values;
      while (i + 1 < words.size() && !is_flag(words[i + 1].text) &&
             !is_program(words[i + 1].text) && (!launches || values.empty())) {
        values.push_back(words[++i]);
      }
      add_setting(key_of_flag(word.text), word.text, values, source, word.line, out);
    } else if (is_flag(word.text) || is_override(word.text)) {
      ShellWord value = word;
      value.text = word.text.substr(equals + 1);
      add_setting(key_of_flag(word.text.substr(0, equals)), word.text, {value}, source, word.line,
                  out);
    }
  }
}

/// Arguments that stand in variables, or in lines of their own.
std::vector<ShellWord> loose_arguments(const Shell& shell) {
  std::vector<ShellWord> out;
  for (const ShellCommand& command : shell.commands) {
    const bool alone = !command.words.empty() && (is_flag(command.words.front().text) ||
                                                  is_override(command.words.front().text));
    if (!alone) continue;
    for (const ShellWord& word : command.words) add_apart(word, out);
  }
  if (settings_in(out) > 0) return out;
  for (const auto& [unused, value] : shell.variables) {
    std::vector<ShellWord> words;
    for (const ShellWord& word : value) add_apart(word, words);
    const bool holds = !words.empty() && is_flag(words.front().text);
    if (holds) out.insert(out.end(), words.begin(), words.end());
  }
  std::stable_sort(out.begin(), out.end(),
                   [](const ShellWord& a, const ShellWord& b) { return a.line < b.line; });
  return out;
}

}  // namespace

std::string key_of_flag(std::string_view flag) {
  flag.remove_prefix(std::min(flag.find_first_not_of("-+"), flag.size()));
  std::string out(flag);
  std::replace(out.begin(), out.end(), '-', '_');
  return out;
}

Status add_launch(const Shell& shell, const std::string& source, Launch& out) {
  std::vector<ShellWord> most;
  std::size_t settings = 0;
  std::size_t commands = 0;
  for (const ShellCommand& command : shell.commands) {
    std::vector<ShellWord> words;
    for (const ShellWord& word : command.words) add_apart(word, words);
    const std::size_t count = settings_in(words);
    if (words.empty() || is_flag(words.front().text) || count < kLeastSettings) continue;
    ++commands;
    if (count < settings) continue;  // of several the last
    settings = count;
    most = std::move(words);
  }
  if (settings == 0) {
    most = loose_arguments(shell);
    if (settings_in(most) == 0) {
      return input_error(source +
                         ": no command with arguments was found; expected a script that starts a "
                         "training, or a list of its arguments");
    }
  } else if (commands > 1) {
    out.unresolved.push_back(source + ": " + std::to_string(commands) +
                             " commands have arguments; that of line " +
                             std::to_string(most.front().line) + " is read");
  }
  for (const auto& [name, value] : shell.directives) {
    const std::string key = name == "N" ? "nodes" : name == "n" ? "ntasks" : key_of_flag(name);
    add_setting(key, "#SBATCH --" + name, {{value, 1, {}}}, source, 1, out);
  }
  add_words(most, source, out);
  for (const std::string& text : shell.left_out) {
    if (std::find(out.unresolved.begin(), out.unresolved.end(), text) == out.unresolved.end()) {
      out.unresolved.push_back(text);
    }
  }
  return ok_status();
}

}  // namespace foretrain
