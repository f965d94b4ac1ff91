// Text from files and command lines, made safe for terminals and spreadsheets.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace foretrain {

/// `text` with what a terminal would obey written out: control characters as \x1b, C1 controls
/// and marks that turn the direction of writing as \u202e, bytes that are not UTF-8 as \xff.
/// Newlines stay, tabs become \t. For reports of several lines.
std::string printable(std::string_view text);

/// The same with newlines as \n: for messages, and for a name in a table.
std::string printable_line(std::string_view text);

/// `printable_line` of at most `most` bytes and what stands for the rest: "abc... (12 more bytes)".
std::string shortened(std::string_view text, std::size_t most);

/// `text` with lines of more than `width` characters broken at spaces. What follows a break stands
/// four characters deeper than its line; a word that is too long stays whole.
std::string folded(std::string_view text, std::size_t width);

/// Prints "foretrain: TEXT" on stderr, `shortened` to 4,000 bytes: every message of the program.
void warn(std::string_view text);

/// One cell of a CSV file, in quotes. A text that a spreadsheet would compute (it begins with =, +,
/// -, @, a tab or a carriage return) gets a ' before it.
std::string csv_cell(std::string_view text);

/// JSON text with C1 controls, DEL and marks of direction as \u escapes, which mean the same.
std::string printable_json(std::string text);

}  // namespace foretrain
