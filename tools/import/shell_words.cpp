#include "tools/import/shell_words.h"

#include <utility>

namespace foretrain {
namespace {

constexpr std::size_t kDeepestBrackets = 32;

bool starts_name(char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_'; }
bool in_name(char c) { return starts_name(c) || (c >= '0' && c <= '9'); }
bool is_blank(char c) { return c == ' ' || c == '\t' || c == '\r'; }
bool ends_word(char c) {
  return is_blank(c) || c == '\n' || std::string_view(";&|()<>").find(c) != std::string_view::npos;
}

/// "NAME=" or "NAME+=", behind which a bracket opens an array.
bool assigns(std::string_view text) {
  if (text.empty() || !starts_name(text[0]) || text.back() != '=') return false;
  text.remove_suffix(1);
  if (text.ends_with('+')) text.remove_suffix(1);
  for (const char c : text) {
    if (!in_name(c)) return false;
  }
  return true;
}

class Cutter {
 public:
  Cutter(std::string_view text, const std::string& source) : x_text(text), x_source(source) {}

  Status script(ShellTokens& out) {
    while (!at_end()) {
      FT_TRY(skip_blanks(out.directives));
      if (at_end()) break;
      if (ends_word(peek())) {
        FT_TRY(read_operator(out.tokens));
      } else {
        FT_TRY(read_token(out));
      }
    }
    return ok_status();
  }

  /// Parts up to the end of a word, or of the text where `whole`.
  Status word(std::vector<ShellPart>& parts, bool whole) {
    while (!at_end() && (whole || !ends_word(peek()))) {
      const char c = peek();
      if (c == '\\') {
        escape(parts);
      } else if (c == '\'') {
        FT_TRY(single_quotes(parts));
      } else if (c == '"') {
        FT_TRY(double_quotes(parts));
      } else if (c == '$' || c == '`') {
        FT_TRY(expansion(parts, false));
      } else {
        add(parts, std::string(1, next()), false);
      }
    }
    return ok_status();
  }

  /// The body of a here-document: quotes are letters.
  Status document(std::vector<ShellPart>& parts) {
    while (!at_end()) {
      const char c = peek();
      if (c == '\\' && x_at + 1 < x_text.size() &&
          std::string_view("\\$`\n").find(peek(1)) != std::string_view::npos) {
        escape(parts);
      } else if (c == '$' || c == '`') {
        FT_TRY(expansion(parts, true));
      } else {
        add(parts, std::string(1, next()), true);
      }
    }
    return ok_status();
  }

 private:
  bool at_end() const { return x_at >= x_text.size(); }
  char peek(std::size_t ahead = 0) const {
    return x_at + ahead < x_text.size() ? x_text[x_at + ahead] : '\0';
  }
  char next() {
    if (x_text[x_at] == '\n') ++x_line;
    return x_text[x_at++];
  }
  Error fault(std::int64_t line, const std::string& what) const {
    return input_error(x_source + ":" + std::to_string(line) + ": " + what);
  }

  static void add(std::vector<ShellPart>& parts, const std::string& text, bool quoted) {
    const bool joins = !parts.empty() && parts.back().kind == ShellPart::Kind::kText &&
                       parts.back().quoted == quoted;
    if (joins) {
      parts.back().text += text;
    } else {
      parts.push_back({ShellPart::Kind::kText, quoted, text});
    }
  }

  Status skip_blanks(std::vector<std::string>& directives) {
    while (!at_end()) {
      if (is_blank(peek())) {
        next();
      } else if (peek() == '\\' && (peek(1) == '\n' || (peek(1) == '\r' && peek(2) == '\n'))) {
        while (next() != '\n') {
        }
      } else if (peek() == '#') {
        std::string comment;
        while (!at_end() && peek() != '\n') comment += next();
        if (comment.starts_with("#SBATCH")) directives.push_back(comment);
      } else {
        break;
      }
    }
    return ok_status();
  }

  Status read_operator(std::vector<ShellToken>& out) {
    const std::int64_t line = x_line;
    std::string text(1, next());
    const bool doubles = text != "\n" && text != "(" && text != ")";
    if (doubles && !at_end() && peek() == text[0]) text += next();
    if (text == "(" && peek() == '(') x_arithmetic = true;
    if (text == ")" && peek() == ')') x_arithmetic = false;
    if (text == "<<" && x_arithmetic) return ok_status();  // (( x = 1 << 2 )): a shift
    if (text == "<<") {
      here_document(out);
      return ok_status();
    }
    if (text[0] == '<' || text[0] == '>') {
      if (peek() == '&' || peek() == '|') next();
      text = ">";
    }
    out.push_back({ShellToken::Kind::kOperator, line, {}, text, {}});
    return text == "\n" ? read_bodies(out) : ok_status();
  }

  /// Notes the word that ends a here-document, whose body begins behind the line.
  void here_document(std::vector<ShellToken>& out) {
    if (peek() == '<') {  // <<< word: as any other word
      next();
      return;
    }
    if (peek() == '-') next();
    while (is_blank(peek())) next();
    Body body{"", false, out.size()};
    while (!at_end() && !ends_word(peek())) {
      const char c = next();
      const bool quotes = c == '\'' || c == '"' || c == '\\';
      body.plain = body.plain || quotes;
      if (!quotes) body.end += c;
    }
    if (body.end.empty()) return;
    x_bodies.push_back(body);
    out.push_back({ShellToken::Kind::kDocument, x_line, {}, "", {}});
  }

  Status read_bodies(std::vector<ShellToken>& out) {
    for (const Body& body : std::exchange(x_bodies, {})) {
      const std::size_t begin = x_at;
      std::size_t end = x_at;
      while (!at_end()) {
        end = x_at;
        std::string line;
        while (!at_end() && peek() != '\n') line += next();
        if (!at_end()) next();
        const std::size_t first = line.find_first_not_of(" \t");
        const std::size_t last = line.find_last_not_of(" \t\r");
        if (first != std::string::npos && line.substr(first, last + 1 - first) == body.end) break;
        end = x_at;
      }
      const std::string_view text = x_text.substr(begin, end - begin);
      std::vector<ShellPart>& parts = out[body.token].parts;
      if (body.plain) {
        parts.push_back({ShellPart::Kind::kText, true, std::string(text)});
      } else {
        FT_TRY(Cutter(text, x_source).document(parts));
      }
    }
    return ok_status();
  }

  Status read_token(ShellTokens& out) {
    ShellToken token{ShellToken::Kind::kWord, x_line, {}, "", {}};
    FT_TRY(word(token.parts, false));
    const std::string plain = token.plain();
    if (!at_end() && peek() == '(' && assigns(plain)) {
      next();
      token = {ShellToken::Kind::kArray, token.line, {}, plain, {}};
      FT_TRY(read_members(token, out.directives));
    } else if (!at_end() && (peek() == '>' || peek() == '<') && !plain.empty() &&
               plain.find_first_not_of("0123456789") == std::string::npos) {
      return ok_status();  // the stream that is led elsewhere: 2>file
    }
    if (token.kind == ShellToken::Kind::kArray || !token.parts.empty()) {
      out.tokens.push_back(std::move(token));
    }
    return ok_status();
  }

  Status read_members(ShellToken& array, std::vector<std::string>& directives) {
    while (true) {
      FT_TRY(skip_blanks(directives));
      if (at_end()) return fault(array.line, "the array " + array.text + "( has no end");
      if (peek() == ')') {
        next();
        return ok_status();
      }
      if (ends_word(peek())) {  // a new line; anything else is no shell
        next();
        continue;
      }
      ShellToken member{ShellToken::Kind::kWord, x_line, {}, "", {}};
      FT_TRY(word(member.parts, false));
      array.members.push_back(std::move(member));
    }
  }

  void escape(std::vector<ShellPart>& parts) {
    next();
    if (at_end()) return;
    if (peek() == '\r' && peek(1) == '\n') next();
    const char c = next();
    if (c != '\n') add(parts, std::string(1, c), true);
  }

  Status single_quotes(std::vector<ShellPart>& parts) {
    const std::int64_t line = x_line;
    next();
    std::string text;
    while (!at_end() && peek() != '\'') text += next();
    if (at_end()) return fault(line, "a ' is not closed");
    next();
    add(parts, text, true);
    return ok_status();
  }

  Status double_quotes(std::vector<ShellPart>& parts) {
    const std::int64_t line = x_line;
    next();
    add(parts, "", true);
    while (!at_end() && peek() != '"') {
      const char c = peek();
      if (c == '\\' && std::string_view("\"\\$`\n").find(peek(1)) != std::string_view::npos &&
          x_at + 1 < x_text.size()) {
        escape(parts);
      } else if (c == '$' || c == '`') {
        FT_TRY(expansion(parts, true));
      } else {
        add(parts, std::string(1, next()), true);
      }
    }
    if (at_end()) return fault(line, "a \" is not closed");
    next();
    return ok_status();
  }

  /// What stands between the bracket that was just read and the one that closes it.
  Status between(char open, char close, std::string& out) {
    const std::int64_t line = x_line;
    std::size_t depth = 1;
    char quote = '\0';
    while (!at_end()) {
      const char c = next();
      if (c == '\\' && quote != '\'' && !at_end()) {
        out += c;
        out += next();
        continue;
      }
      if (quote != '\0') {
        if (c == quote) quote = '\0';
      } else if (c == '\'' || c == '"') {
        quote = c;
      } else if (c == open) {
        if (++depth > kDeepestBrackets) return fault(line, "brackets nest more than 32 deep");
      } else if (c == close && --depth == 0) {
        return ok_status();
      }
      out += c;
    }
    return fault(line, std::string("a ") + open + " is not closed");
  }

  Status expansion(std::vector<ShellPart>& parts, bool quoted) {
    using Kind = ShellPart::Kind;
    std::string inner;
    if (next() == '`') {
      const std::int64_t line = x_line;
      while (!at_end() && peek() != '`') inner += next();
      if (at_end()) return fault(line, "a ` is not closed");
      next();
      parts.push_back({Kind::kCommand, quoted, inner});
    } else if (peek() == '(') {
      next();
      FT_TRY(between('(', ')', inner));
      const bool number = inner.size() >= 2 && inner.front() == '(' && inner.back() == ')';
      if (number) inner = inner.substr(1, inner.size() - 2);
      parts.push_back({number ? Kind::kArithmetic : Kind::kCommand, quoted, inner});
    } else if (peek() == '{') {
      next();
      FT_TRY(between('{', '}', inner));
      parts.push_back({Kind::kVariable, quoted, inner});
    } else if (starts_name(peek())) {
      while (!at_end() && in_name(peek())) inner += next();
      parts.push_back({Kind::kVariable, quoted, inner});
    } else if (!at_end() &&
               std::string_view("0123456789@*#?$!-").find(peek()) != std::string_view::npos) {
      parts.push_back({Kind::kVariable, quoted, std::string(1, next())});
    } else if (!quoted && (peek() == '\'' || peek() == '"')) {
      return ok_status();  // $'...': as '...'
    } else {
      add(parts, "$", quoted);
    }
    return ok_status();
  }

  std::string_view x_text;
  const std::string& x_source;
  std::size_t x_at = 0;
  std::int64_t x_line = 1;
  /// A here-document that begins behind this line.
  struct Body {
    std::string end;
    bool plain = false;  ///< nothing in it is expanded
    std::size_t token = 0;
  };
  std::vector<Body> x_bodies;
  bool x_arithmetic = false;  ///< between (( and )), a command
};

}  // namespace

std::string ShellToken::plain() const {
  if (kind != Kind::kWord || parts.size() != 1) return "";
  const ShellPart& part = parts.front();
  return part.kind == ShellPart::Kind::kText && !part.quoted ? part.text : "";
}

Result<ShellTokens> cut_shell(std::string_view text, const std::string& source) {
  ShellTokens out;
  FT_TRY(Cutter(text, source).script(out));
  return out;
}

Result<std::vector<ShellPart>> cut_word(std::string_view text, const std::string& source) {
  std::vector<ShellPart> out;
  FT_TRY(Cutter(text, source).word(out, true));
  return out;
}

}  // namespace foretrain
