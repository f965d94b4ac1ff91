#include "tools/import/shell.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "tools/import/shell_arithmetic.h"

namespace foretrain {
namespace {

constexpr std::size_t kLongest = std::size_t{1} << 20;
constexpr std::size_t kMostGrown = std::size_t{1} << 26;
constexpr std::size_t kCommandGrows = 512;  ///< so that 128 k commands are read at most
constexpr int kDeepestBranches = 16;

using TokenKind = ShellToken::Kind;
using Truth = ShellTruth;

bool is_operator(const ShellToken& token, std::string_view text) {
  return token.kind == TokenKind::kOperator && token.text == text;
}
bool ends_command(const ShellToken& token) {
  return token.kind == TokenKind::kOperator && token.text != ">" && token.text != ">>";
}

bool is_name(std::string_view text) {
  if (text.empty() || (text[0] >= '0' && text[0] <= '9')) return false;
  return std::all_of(text.begin(), text.end(), [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_';
  });
}

std::optional<std::int64_t> number_of(const std::string& text) {
  return shell_arithmetic(text, [](const std::string&) { return std::nullopt; });
}

/// All words as one, with spaces between them.
ShellWord joined(const std::vector<ShellWord>& words, std::int64_t line) {
  ShellWord out{"", line, {}};
  for (const ShellWord& word : words) {
    if (&word != &words.front()) out.text += ' ';
    out.text += word.text;
    out.missing.insert(word.missing.begin(), word.missing.end());
  }
  return out;
}

/// Whether a pattern of `case` fits: letters, * and ?.
bool fits(std::string_view pattern, std::string_view text) {
  // The last * and the text behind what it took: backtracking to it alone is enough.
  std::size_t p = 0;
  std::size_t t = 0;
  std::size_t star = std::string_view::npos;
  std::size_t mark = 0;
  while (t < text.size()) {
    if (p < pattern.size() && pattern[p] == '*') {
      star = p++;
      mark = t;
    } else if (p < pattern.size() && (pattern[p] == '?' || pattern[p] == text[t])) {
      ++p;
      ++t;
    } else if (star != std::string_view::npos) {
      p = star + 1;
      t = ++mark;
    } else {
      return false;
    }
  }
  while (p < pattern.size() && pattern[p] == '*') ++p;
  return p == pattern.size();
}

/// Words in the order in which a shell would read them, cut at spaces that nothing quotes.
class Words {
 public:
  explicit Words(std::int64_t line) : x_line(line) {}

  void add(const ShellWord& value, bool quoted) {
    if (quoted) {
      put(value.text, value.missing);
      x_open = true;
      return;
    }
    std::string text;
    for (const char c : value.text) {
      if (c != ' ' && c != '\t' && c != '\n') {
        text += c;
        continue;
      }
      if (!text.empty()) put(std::exchange(text, ""), value.missing);
      close();
    }
    if (!text.empty()) put(text, value.missing);
  }
  void close() {
    if (!x_open) return;
    x_words.push_back(std::exchange(x_word, ShellWord{"", x_line, {}}));
    x_open = false;
  }
  std::vector<ShellWord> take() {
    close();
    return std::move(x_words);
  }

 private:
  void put(const std::string& text, const std::set<std::string>& missing) {
    x_word.line = x_line;
    x_word.text += text;
    for (const std::string& name : missing) {
      if (stands_in(name, text)) x_word.missing.insert(name);
    }
    x_open = true;
  }
  std::int64_t x_line;
  ShellWord x_word;
  bool x_open = false;
  std::vector<ShellWord> x_words;
};

std::string in_case(std::string text, bool upper) {
  for (char& c : text) {
    if (upper && c >= 'a' && c <= 'z') c = static_cast<char>(c - 'a' + 'A');
    if (!upper && c >= 'A' && c <= 'Z') c = static_cast<char>(c - 'A' + 'a');
  }
  return text;
}

/// What a test of two or three words says. A variable that nothing sets is empty, and `assumed`.
Truth truth_of(const std::vector<ShellWord>& words, std::set<std::string>& assumed) {
  std::vector<std::string> text;
  for (const ShellWord& word : words) {
    const auto is_unset = [](const std::string& name) {
      return is_name("_" + name) || name == "#";
    };
    if (!std::all_of(word.missing.begin(), word.missing.end(), is_unset)) return Truth::kUnknown;
    assumed.insert(word.missing.begin(), word.missing.end());
    const char* empty = word.missing.contains("#") ? "0" : "";
    text.push_back(word.missing.empty() ? word.text : empty);
  }
  const auto is = [](bool yes) { return yes ? Truth::kTrue : Truth::kFalse; };
  if (text.size() == 1 && (text[0] == "true" || text[0] == "false")) return is(text[0] == "true");
  if (text.size() == 2 && text[0] == "-n") return is(!text[1].empty());
  if (text.size() == 2 && text[0] == "-z") return is(text[1].empty());
  if (text.size() != 3) return Truth::kUnknown;
  const std::string& op = text[1];
  if (op == "=" || op == "==") return is(fits(text[2], text[0]));
  if (op == "!=") return is(!fits(text[2], text[0]));
  const auto a = number_of(text[0]);
  const auto b = number_of(text[2]);
  if (!a || !b) return Truth::kUnknown;
  if (op == "-eq") return is(*a == *b);
  if (op == "-ne") return is(*a != *b);
  if (op == "-lt" || op == "<") return is(*a < *b);
  if (op == "-le") return is(*a <= *b);
  if (op == "-gt" || op == ">") return is(*a > *b);
  if (op == "-ge") return is(*a >= *b);
  return Truth::kUnknown;
}

}  // namespace

bool stands_in(const std::string& missing, const std::string& text) {
  const bool is_command = missing.starts_with("$(");
  return text.find(is_command ? missing : "${" + missing + "}") != std::string::npos;
}

std::string Shell::place(std::int64_t line) const {
  return x_source + ":" + std::to_string(line) + ": ";
}

Status Shell::grow(std::size_t letters, std::int64_t line) {
  x_grown += letters;
  if (letters <= kLongest && x_grown <= kMostGrown) return ok_status();
  return input_error(place(line) +
                     "a variable grows beyond 1 MiB as it is expanded; is it built of itself?");
}

Status Shell::read(std::string_view text, const std::string& source) {
  FT_ASSIGN(ShellTokens cut, cut_shell(text, source));
  x_source = source;
  x_tokens = std::move(cut.tokens);
  x_functions.clear();
  for (const std::string& directive : cut.directives) {
    const std::size_t begin = directive.find('-');
    if (begin == std::string::npos) continue;
    const std::size_t end = directive.find_first_of(" \t=", begin);
    std::string name = directive.substr(begin, end - begin);
    name.erase(0, name.find_first_not_of('-'));
    std::string value = end == std::string::npos ? "" : directive.substr(end + 1);
    value = value.substr(0, value.find_first_of(" \t#"));
    directives[name] = value;
  }
  return run({0, x_tokens.size()});
}

/// Runs of nothing: commands are noted.
Status Shell::run(Range range) {
  if (x_depth >= kDeepestBranches) {
    return input_error(x_source + ": functions and branches nest more than 16 deep");
  }
  ++x_depth;
  for (std::size_t at = range.at; at < range.end;) {
    const ShellToken& token = x_tokens[at];
    FT_TRY(grow(kCommandGrows, token.line));  // functions that call each other end, too
    const std::string word = token.plain();
    const bool defines = at + 2 < range.end && is_name(word) &&
                         is_operator(x_tokens[at + 1], "(") && is_operator(x_tokens[at + 2], ")");
    if (token.kind == TokenKind::kOperator || word == "{" || word == "}" || word == "!" ||
        word == "then" || word == "do" || word == "done" || word == "fi" || word == "esac") {
      ++at;
      if (is_operator(token, ">") || is_operator(token, ">>")) ++at;
    } else if (word == "if") {
      FT_TRY(follow_if(at, range.end));
    } else if (word == "case") {
      FT_TRY(follow_case(at, range.end));
    } else if (word == "for" || word == "while" || word == "until" || word == "select") {
      FT_TRY(skip_loop(at, range.end));
    } else if (defines || word == "function") {
      const std::string name = defines ? word : at + 1 < range.end ? x_tokens[at + 1].plain() : "";
      while (at < range.end && x_tokens[at].plain() != "{") ++at;
      const std::size_t begin = at;
      int depth = 0;
      for (; at < range.end; ++at) {
        if (x_tokens[at].plain() == "{") ++depth;
        if (x_tokens[at].plain() == "}" && --depth == 0) break;
      }
      x_functions[name] = {std::min(begin + 1, at), at};
    } else {
      FT_TRY(run_simple(at, range.end));
    }
  }
  --x_depth;
  return ok_status();
}

/// A simple command up to its end: an assignment, a test that guards what follows, or a command.
Status Shell::run_simple(std::size_t& at, std::size_t end) {
  const std::size_t begin = at;
  while (at < end && !ends_command(x_tokens[at])) ++at;
  const std::string first = x_tokens[begin].plain();
  if (first == "[" || first == "[[" || first == "test") {
    // `[[ a && b ]]` goes on behind its operators.
    while (first == "[[" && at < end && x_tokens[at - 1].plain() != "]]" &&
           !is_operator(x_tokens[at], "\n")) {
      ++at;
    }
    FT_ASSIGN(const Truth truth, condition({begin, at}));
    const bool both = at < end && is_operator(x_tokens[at], "&&");
    const bool either = at < end && is_operator(x_tokens[at], "||");
    const bool skips = (both && truth != Truth::kTrue) || (either && truth != Truth::kFalse);
    if (skips) {
      for (++at; at < end && !is_operator(x_tokens[at], "\n") && !is_operator(x_tokens[at], ";");) {
        ++at;
      }
    }
    return ok_status();
  }
  ShellCommand command{x_tokens[begin].line, {}};
  std::size_t target = at, document = at;  // none
  bool leads = true;                       // assignments stand before the command
  for (std::size_t i = begin; i < at; ++i) {
    const ShellToken& token = x_tokens[i];
    if (token.kind == TokenKind::kOperator) {  // where output goes
      if (++i < at) target = i;
      continue;
    }
    if (token.kind == TokenKind::kDocument) {
      document = i;
      continue;
    }
    const std::string plain = token.plain();
    const bool declares = leads && (plain == "export" || plain == "declare" || plain == "local" ||
                                    plain == "readonly" || plain == "typeset" || plain == "eval" ||
                                    (plain.starts_with("-") && i > begin));
    if (declares) continue;
    bool assigned = false;
    if (leads) FT_TRY(assign(token, assigned));
    if (assigned) continue;
    leads = false;
    FT_ASSIGN(std::vector<ShellWord> words, expand(token.parts, token.line));
    for (ShellWord& word : words) command.words.push_back(std::move(word));
  }
  if (command.words.empty()) return ok_status();
  const std::string name = command.words.front().text;
  if (document < at) FT_TRY(keep_document(command, document, target < at ? target : begin));
  if (const auto of = x_functions.find(name); of != x_functions.end()) {
    for (std::size_t i = 0; i < command.words.size(); ++i) {
      variables[std::to_string(i)] = {command.words[i]};
    }
    variables["@"] = ShellValue(command.words.begin() + 1, command.words.end());
    return run(of->second);
  }
  if (name == "source" || name == ".") {
    left_out.push_back(place(command.line) + joined(command.words, 0).text +
                       ": is not read; give that file before this one");
  }
  if (name == "unset" && command.words.size() > 1) variables.erase(command.words[1].text);
  commands.push_back(std::move(command));
  return ok_status();
}

/// `cat <<EOT > FILE` and `tee FILE <<EOT` write a file. `to`: the token behind `>`, or that of the
/// command itself.
Status Shell::keep_document(const ShellCommand& command, std::size_t body, std::size_t to) {
  const ShellToken& token = x_tokens[body];
  const std::string& name = command.words.front().text;
  ShellWord file;
  if (name == "tee" && command.words.size() > 1) {
    file = command.words.back();
  } else if (name == "cat" && x_tokens[to].line == command.line && x_tokens[to].plain() != name) {
    FT_ASSIGN(const std::vector<ShellWord> words, expand(x_tokens[to].parts, token.line));
    file = joined(words, token.line);
  } else {
    return ok_status();  // what reads it is a program
  }
  FT_ASSIGN(const std::vector<ShellWord> words, expand(token.parts, token.line));
  documents[file.text] = joined(words, token.line);
  return ok_status();
}

/// From `if` to behind its `fi`: the first branch whose condition holds.
Status Shell::follow_if(std::size_t& at, std::size_t end) {
  const std::int64_t line = x_tokens[at].line;
  std::size_t depth = 0;
  std::size_t mark = at;  // behind `if`, `elif`, `then` or `else`
  enum class Part : std::uint8_t { kCondition, kBody } part = Part::kCondition;
  Truth holds = Truth::kFalse;
  bool done = false;  // a branch was taken, or nobody knows whether one is
  Range taken{0, 0};
  for (; at < end; ++at) {
    const std::string word = x_tokens[at].plain();
    if (word == "if") ++depth;
    if (word == "fi" && --depth == 0) break;
    if (depth != 1) continue;
    if (word == "if" || word == "elif" || word == "then" || word == "else") {
      if (part == Part::kBody && holds == Truth::kTrue && !done) {
        taken = {mark, at};
        done = true;
      }
      if (word == "then" && part == Part::kCondition && !done) {
        FT_ASSIGN(holds, condition({mark, at}));
        if (holds == Truth::kUnknown) {
          left_out.push_back(place(line) +
                             "only running the script tells which branch of this `if` it takes; "
                             "none is read");
          done = true;
        }
      }
      if (word == "else") holds = Truth::kTrue;
      part = word == "then" || word == "else" ? Part::kBody : Part::kCondition;
      mark = at + 1;
    }
  }
  if (!done && part == Part::kBody && holds == Truth::kTrue) taken = {mark, at};
  if (at < end) ++at;
  return run(taken);
}

Status Shell::follow_case(std::size_t& at, std::size_t end) {
  const ShellToken& head = x_tokens[std::min(at + 1, end - 1)];
  FT_ASSIGN(const std::vector<ShellWord> words, expand(head.parts, head.line));
  const ShellWord subject = joined(words, head.line);
  if (!subject.missing.empty()) {
    left_out.push_back(place(head.line) + "case " + subject.text + ": is not known; none is read");
  }
  std::size_t depth = 0;
  Range taken{0, 0};
  bool found = !subject.missing.empty();
  while (at < end && x_tokens[at].plain() != "in") ++at;
  bool patterns = true;
  for (; at < end; ++at) {
    const std::string word = x_tokens[at].plain();
    if (word == "case") ++depth;
    if (word == "esac") {
      if (depth == 0) break;
      --depth;
    }
    if (depth > 0) continue;
    if (is_operator(x_tokens[at], ";;")) patterns = true;
    if (!patterns || x_tokens[at].kind != TokenKind::kWord || word == "in") continue;
    FT_ASSIGN(const std::vector<ShellWord> pattern, expand(x_tokens[at].parts, head.line));
    const bool last = at + 1 < end && is_operator(x_tokens[at + 1], ")");
    if (!found && fits(joined(pattern, 0).text, subject.text)) {
      found = true;
      taken.at = at;
      while (taken.at < end && !is_operator(x_tokens[taken.at], ")")) ++taken.at;
      taken.at = std::min(taken.at + 1, end);
      taken.end = taken.at;
      for (std::size_t inner = 0; taken.end < end; ++taken.end) {
        const ShellToken& token = x_tokens[taken.end];
        if (token.plain() == "case") ++inner;
        if (token.plain() == "esac" && inner-- == 0) break;
        if (inner == 0 && is_operator(token, ";;")) break;
      }
    }
    if (last) patterns = false;
  }
  if (at < end) ++at;
  return run(taken);
}

Status Shell::skip_loop(std::size_t& at, std::size_t end) {
  left_out.push_back(place(x_tokens[at].line) + "the body of this loop is not read");
  int depth = 0;
  for (; at < end; ++at) {
    const std::string word = x_tokens[at].plain();
    if (word == "do") ++depth;
    if (word == "done" && --depth == 0) break;
  }
  if (at < end) ++at;
  return ok_status();
}

Status Shell::assign(const ShellToken& token, bool& assigned) {
  std::string head = token.text;
  std::vector<ShellPart> rest;
  if (token.kind == TokenKind::kWord) {
    if (token.parts.empty() || token.parts[0].kind != ShellPart::Kind::kText ||
        token.parts[0].quoted) {
      return ok_status();
    }
    const std::size_t equals = token.parts[0].text.find('=');
    if (equals == std::string::npos) return ok_status();
    head = token.parts[0].text.substr(0, equals + 1);
    rest = token.parts;
    rest[0].text.erase(0, equals + 1);
    for (ShellPart& part : rest) part.quoted = true;  // an assignment cuts nothing
  }
  head.pop_back();
  const bool adds = head.ends_with('+');
  if (adds) head.pop_back();
  if (!is_name(head)) return ok_status();
  assigned = true;
  ShellValue value;
  std::size_t letters = 0;
  if (token.kind == TokenKind::kArray) {
    for (const ShellToken& member : token.members) {
      FT_ASSIGN(std::vector<ShellWord> words, expand(member.parts, member.line));
      for (ShellWord& word : words) value.push_back(std::move(word));
    }
    for (const ShellWord& word : value) letters += word.text.size() + 1;
    ShellValue& target = variables[head];
    for (const ShellWord& word : target) letters += adds ? word.text.size() + 1 : 0;
    if (!adds) target.clear();
    target.insert(target.end(), value.begin(), value.end());
    return grow(letters, token.line);
  }
  FT_ASSIGN(const std::vector<ShellWord> words, expand(rest, token.line));
  ShellWord word = joined(words, token.line);
  ShellValue& target = variables[head];
  if (adds && !target.empty()) {
    word.text = target.front().text + word.text;
    word.missing.insert(target.front().missing.begin(), target.front().missing.end());
  }
  target = {word};
  return grow(word.text.size(), token.line);
}

Result<std::vector<ShellWord>> Shell::expand(const std::vector<ShellPart>& parts,
                                             std::int64_t line) {
  using PartKind = ShellPart::Kind;
  Words words(line);
  std::size_t letters = 0;
  bool nothing = false;  // "${A[@]}" of no elements
  for (const ShellPart& part : parts) {
    if (part.kind == PartKind::kText) {
      words.add({part.text, line, {}}, true);
      continue;
    }
    if (part.kind == PartKind::kCommand) {
      words.add({"$(" + part.text + ")", line, {"$(" + part.text + ")"}}, true);
      continue;
    }
    if (part.kind == PartKind::kArithmetic) {
      FT_ASSIGN(const std::vector<ShellPart> inner, cut_word(part.text, x_source));
      FT_ASSIGN(const std::vector<ShellWord> text, expand(inner, line));
      const ShellWord one = joined(text, line);
      const auto value = shell_arithmetic(
          one.text, [this](const std::string& name) -> std::optional<std::int64_t> {
            const auto of = variables.find(name);
            if (of == variables.end() || of->second.empty()) return std::nullopt;
            return number_of(of->second.front().text);
          });
      const std::string asked = "$((" + part.text + "))";
      words.add(
          value ? ShellWord{std::to_string(*value), line, {}} : ShellWord{asked, line, {asked}},
          true);
      continue;
    }
    const bool all = part.text.ends_with("[@]") || part.text == "@";
    FT_ASSIGN(const ShellValue value, variable(part.text, line));
    nothing = nothing || (all && value.empty());
    for (const ShellWord& word : value) {
      letters += word.text.size() + 1;
      const bool more = &word != &value.front();
      if (more && (all || !part.quoted)) words.close();
      if (more && !all && part.quoted) words.add({" ", line, {}}, true);
      words.add(word, part.quoted);
    }
  }
  FT_TRY(grow(letters, line));
  std::vector<ShellWord> out = words.take();
  if (nothing && out.size() == 1 && out.front().text.empty()) out.clear();
  return out;
}

/// What ${inner} stands for.
Result<ShellValue> Shell::variable(const std::string& inner, std::int64_t line) {
  const ShellWord untold{"${" + inner + "}", line, {inner}};
  const bool counts = inner.size() > 1 && inner[0] == '#';
  std::size_t end = counts ? 1 : 0;
  while (end < inner.size() && is_name("_" + inner.substr(end, 1))) ++end;
  std::string name = inner.substr(counts ? 1 : 0, end - (counts ? 1 : 0));
  std::string rest = inner.substr(end);
  if (name.empty() && !rest.empty()) {  // $@, $*, $#, $?
    name = std::exchange(rest, "");
    if (name == "*") name = "@";
  }
  ShellValue value;
  const auto found = variables.find(name);
  const bool set = found != variables.end() && !found->second.empty();
  if (set) value = found->second;
  if (rest.starts_with("[")) {
    const std::size_t close = rest.find(']');
    if (close == std::string::npos) return ShellValue{untold};
    const std::string index = rest.substr(1, close - 1);
    rest.erase(0, close + 1);
    if (index != "@" && index != "*") {
      const auto at = number_of(index);
      if (!at || *at < 0 || *at >= std::ssize(value)) return ShellValue{untold};
      value = {value[static_cast<std::size_t>(*at)]};
    } else if (found != variables.end() && value.empty() && rest.empty()) {
      return ShellValue{};  // an array that is empty
    }
  } else if (value.size() > 1 && name != "@") {
    value.resize(1);  // $A is the first of an array
  }
  if (counts) {
    if (!set) return ShellValue{untold};
    const std::size_t count =
        inner.find('[') != std::string::npos ? value.size() : value.front().text.size();
    return ShellValue{{std::to_string(count), line, {}}};
  }
  const bool colon = rest.starts_with(":") && rest.size() > 1 &&
                     std::string_view("-=+?").find(rest[1]) != std::string_view::npos;
  if (colon) rest.erase(0, 1);
  const bool empty = !set || (colon && value.size() == 1 && value.front().text.empty());
  const char how = rest.empty() ? '\0' : rest[0];
  if (how == '-' || how == '=' || how == '+') {
    if ((how == '+') == empty) return how == '+' ? Result<ShellValue>(ShellValue{}) : value;
    if (++x_depth > 2 * kDeepestBranches)
      return input_error(place(line) + "defaults nest too deep");
    FT_ASSIGN(const std::vector<ShellPart> parts, cut_word(rest.substr(1), x_source));
    FT_ASSIGN(const std::vector<ShellWord> words, expand(parts, line));
    --x_depth;
    ShellValue out{joined(words, line)};
    if (how == '=') variables[name] = out;
    return out;
  }
  if (found == variables.end() && name == "@") return ShellValue{};  // started without arguments
  if (found == variables.end()) return ShellValue{untold};
  if (rest.empty() || how == '?') return value;
  if ((rest == ",," || rest == "^^") && !value.empty()) {
    value.front().text = in_case(value.front().text, rest == "^^");
    return value;
  }
  return ShellValue{untold};
}

/// Whether the words of a test hold: `[ ... ]`, `[[ ... ]]`, joined by && and ||.
Result<ShellTruth> Shell::condition(Range range) {
  Truth all = Truth::kTrue;
  bool negated = false;
  bool both = true;  // joined by &&, else by ||
  std::vector<ShellWord> words;
  std::set<std::string> assumed;
  const auto settle = [&] {
    Truth one = truth_of(words, assumed);
    words.clear();
    if (std::exchange(negated, false) && one != Truth::kUnknown) {
      one = one == Truth::kFalse ? Truth::kTrue : Truth::kFalse;
    }
    const Truth decides = both ? Truth::kFalse : Truth::kTrue;
    if (one == decides || all == decides) {
      all = decides;
    } else if (all != Truth::kUnknown) {
      all = one;
    }
  };
  for (std::size_t i = range.at; i < range.end; ++i) {
    const ShellToken& token = x_tokens[i];
    const std::string plain = token.plain();
    const bool links =
        is_operator(token, "&&") || is_operator(token, "||") || plain == "-a" || plain == "-o";
    if (links) {
      if (!words.empty()) settle();
      both = !is_operator(token, "||") && plain != "-o";
    } else if (plain == "!") {
      negated = true;
    } else if (is_operator(token, ">")) {
      words.push_back({">", token.line, {}});
    } else if (token.kind == TokenKind::kOperator) {
      continue;
    } else if (plain != "[" && plain != "[[" && plain != "]" && plain != "]]" && plain != "test") {
      FT_ASSIGN(const std::vector<ShellWord> one, expand(token.parts, token.line));
      words.push_back(joined(one, token.line));
    }
  }
  if (!words.empty()) settle();
  if (all != Truth::kUnknown && !assumed.empty()) {
    for (const std::string& name : assumed) {
      left_out.push_back(place(x_tokens[range.at].line) + "a condition is read as if " + name +
                         " were not set");
    }
  }
  return all;
}

}  // namespace foretrain
