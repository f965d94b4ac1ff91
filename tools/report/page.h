// A page that people look at: one HTML file with everything in it, no script, no network. It reads
// on a phone, follows the reader's light or dark setting, and prints.
#pragma once

#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "sim/base/json.h"

namespace foretrain {

/// "&lt;" for "<" and its like.
std::string escaped(const std::string& text);

/// A number as people read it, and as the result has it.
struct Shown {
  double value = 0;
  std::string text;
};

/// A cell of a table: words, or a number of the result.
struct Cell {
  Cell(std::string words) : text(std::move(words)) {}                     // NOLINT
  Cell(Shown shown) : text(std::move(shown.text)), value(shown.value) {}  // NOLINT
  std::string text;
  std::optional<double> value;
};

struct Bar {
  std::string name;
  Shown amount;
};

/// A point of a picture of two quantities; `note` appears where it is pointed at.
struct Dot {
  double x = 0, y = 0;
  std::string note;
  bool marked = false;
};

/// A box of a picture of rows over time.
struct Box {
  std::size_t row = 0;
  double begin = 0, end = 0;
  int colour = 0;  ///< 0 forward, 1 backward, 2 gradients of weights, 3 other
  std::string label, note;
};

class Page {
 public:
  explicit Page(std::string title) : x_title(std::move(title)) {}

  void paragraph(const std::string& text);
  void heading(const std::string& text);
  /// Names and values, the most important first.
  void figures(const std::vector<Bar>& all);
  /// A table with a bar of each amount beside the largest.
  void bars(const std::vector<Bar>& all);
  void table(const std::vector<std::string>& header, const std::vector<std::vector<Cell>>& rows);
  void scatter(const std::string& x, const std::string& y, const std::vector<Dot>& points);
  /// Rows over time from 0 to `end`.
  void lanes(const std::vector<std::string>& rows, const std::vector<Box>& boxes, double end);
  void text(const std::string& preformatted);

  /// The file; `result` is kept in it, as a script of type application/json with the id "result".
  std::string html(const Json& result) const;

 private:
  std::string x_title, x_body;
};

}  // namespace foretrain
