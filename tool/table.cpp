// SPDX-License-Identifier: Apache-2.0
#include "tool/table.h"

#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <utility>

#include "core/status.h"
#include "tool/terminal.h"

namespace attune {
namespace {

constexpr size_t kGap = 2;          // blanks between columns
constexpr size_t kLeastColumn = 8;  // a narrower column of text is hard to read
constexpr char kMark = '\xfe';

// Columns of a character on a terminal, by the ranges of Unicode's East Asian Width that people type.
size_t columns_of(uint32_t code) {
  const auto in = [&](uint32_t first, uint32_t last) { return code >= first && code <= last; };
  const bool over = in(0x300, 0x36F) || in(0x200B, 0x200D) || in(0x20D0, 0x20FF) || in(0xFE00, 0xFE0F);
  if (over) return 0;  // drawn over the character before
  return in(0x1100, 0x115F) || in(0x2E80, 0xA4CF) || in(0xAC00, 0xD7A3) || in(0xF900, 0xFAFF) || in(0xFE30, 0xFE6F) ||
                 in(0xFF00, 0xFF60) || in(0xFFE0, 0xFFE6) || in(0x1F300, 0x1F64F) || in(0x1F680, 0x1F6FF) ||
                 in(0x1F900, 0x1FAFF) || in(0x20000, 0x3FFFD)
             ? 2
             : 1;
}

// The character or mark at the beginning of a text, which is not empty. A byte that is not UTF-8 is a character.
struct Character {
  size_t bytes = 1, columns = 1;
};
Character first_of(std::string_view text) {
  const auto byte = [&](size_t n) { return (unsigned char)(text[n]); };
  if (text[0] == kMark) return text.size() > 1 ? Character{2, 0} : Character{1, 0};
  if (byte(0) < 0xC0) return {};
  const size_t size = byte(0) < 0xE0 ? 2 : byte(0) < 0xF0 ? 3 : 4;
  uint32_t code = byte(0) & (0x7Fu >> size);
  size_t n = 1;
  for (; n < size && n < text.size() && (byte(n) & 0xC0) == 0x80; ++n) code = code << 6 | (byte(n) & 63);
  return n == size && byte(0) < 0xF8 ? Character{n, columns_of(code)} : Character{};
}

// Size in bytes of the longest beginning that is at most `width` wide.
size_t bytes_of(std::string_view text, size_t width) {
  size_t at = 0;
  for (size_t columns = 0; at < text.size();) {
    const Character c = first_of(text.substr(at));
    if (columns + c.columns > width) break;
    columns += c.columns, at += c.bytes;
  }
  return at;
}

// Breaks a text between words into lines of at most `width`; a word that is longer is broken too.
std::vector<std::string> broken(std::string_view text, size_t width, size_t first) {
  std::vector<std::string> lines(1);
  size_t used = 0, limit = first;
  const auto next = [&] { lines.emplace_back(), used = 0, limit = width; };
  for (size_t at = 0; at < text.size();) {
    const size_t word = std::min(text.find_first_not_of(' ', at), text.size());
    const size_t end = std::min(text.find(' ', word), text.size());
    std::string_view piece = text.substr(word, end - word);
    const size_t blanks = used ? word - at : 0, size = display_width(piece);
    at = end;
    if (piece.empty()) break;
    if (used + blanks + size <= limit) {
      lines.back().append(blanks, ' ').append(piece), used += blanks + size;
      continue;
    }
    if (used) next();
    while (display_width(piece) > limit) {
      const size_t bytes = std::max(bytes_of(piece, limit), first_of(piece).bytes);
      lines.back().append(piece.substr(0, bytes)), piece.remove_prefix(bytes), next();
    }
    lines.back().append(piece), used = display_width(piece);
  }
  return lines;
}

// Where the text behind a label begins: at 13 in "  backend    cpu_forward". Without a label, the margin.
size_t hanging(std::string_view line, size_t width) {
  const size_t margin = std::min(line.find_first_not_of(' '), line.size());
  const size_t gap = line.find("  ", margin);
  if (gap != line.npos && gap < width / 2)
    if (const size_t text = line.find_first_not_of(' ', gap); text != line.npos) {
      const size_t column = display_width(line.substr(0, text));
      if (column <= width / 2) return column;
    }
  return std::min(margin, width / 2);
}

std::string wrapped_line(std::string_view line, size_t width) {
  if (display_width(line) <= width) return std::string(line);
  const size_t margin = std::min(line.find_first_not_of(' '), width / 2), hang = hanging(line, width);
  std::string out(margin, ' ');
  const auto lines = broken(line.substr(margin), width - hang, width - margin);
  for (size_t n = 0; n < lines.size(); ++n) {
    if (n) out += "\n" + std::string(hang, ' ');
    out += lines[n];
  }
  return out;
}

bool is_caret(std::string_view line) {
  const size_t first = line.find_first_not_of(' ');
  return first != line.npos && line[first] == '^' && line.find_first_not_of("^~ ", first) == line.npos;
}

// A line and the carets below it, cut so that the caret is seen.
std::string around_caret(std::string_view line, std::string_view caret, size_t width) {
  if (display_width(line) <= width && caret.size() <= width) return join(line, "\n", caret);
  const size_t at = caret.find('^'), part = width > 16 ? width - 6 : width;
  const size_t begin = at > part / 2 ? at - part / 2 : 0;
  const std::string_view rest = line.substr(std::min(line.size(), bytes_of(line, begin)));
  const std::string head = begin ? "..." : "";
  const size_t bytes = bytes_of(rest, part);
  std::string out = head + std::string(rest.substr(0, bytes)) + (bytes < rest.size() ? "..." : "");
  const std::string_view marks = caret.substr(at, std::max<size_t>(1, begin + part - std::min(at, begin + part - 1)));
  return out + "\n" + std::string(head.size() + at - begin, ' ') + std::string(marks);
}

bool is_empty(std::string_view cell) { return cell.empty() || cell == "-"; }

void remove_column(TextTable& t, size_t n) {
  t.group = t.group == int(n) ? -1 : t.group - (t.group > int(n));
  t.columns.erase(t.columns.begin() + std::ptrdiff_t(n));
  for (auto& row : t.rows) row.erase(row.begin() + std::ptrdiff_t(n));
}

std::vector<std::string> cells_of(const TextTable& t, size_t n) {
  std::vector<std::string> all;
  for (const auto& row : t.rows) all.push_back(row[n]);
  return all;
}

// Moves what all rows share into a title, and removes columns without content.
std::string title_of(TextTable& t) {
  std::string line, facts;
  for (size_t n = 0; n < t.columns.size();) {
    const std::vector<std::string> cells = cells_of(t, n);
    const TextColumn& c = t.columns[n];
    const bool one = t.rows.size() > 1 &&
                     std::all_of(cells.begin(), cells.end(), [&](const std::string& cell) { return cell == cells[0]; });
    if (std::all_of(cells.begin(), cells.end(), is_empty)) {
      remove_column(t, n);
    } else if (one && c.shared != TextColumn::Shared::never) {
      if (c.shared == TextColumn::Shared::line) line = cells[0];
      else facts += (facts.empty() ? "" : ", ") + c.head + (c.head.empty() ? "" : " ") + cells[0];
      remove_column(t, n);
    } else if (t.rows.size() > 1 && c.shared == TextColumn::Shared::line) {
      SharedWords words = share_words(cells);
      line = words.shared;
      for (size_t r = 0; r < t.rows.size(); ++r) t.rows[r][n] = words.rest[r];
      ++n;
    } else {
      ++n;
    }
  }
  if (line.empty() && facts.empty()) return "";
  return line + (line.empty() || facts.empty() ? "" : ", ") + facts + "\n";
}

// Makes the widest columns of text narrower until the table fits; false if it cannot.
bool narrow(std::vector<size_t>& widths, const TextTable& t, size_t width) {
  std::vector<size_t> least(widths.size());
  for (size_t n = 0; n < widths.size(); ++n) {
    least[n] = widths[n];
    if (t.columns[n].cells == Cells::number) continue;
    least[n] = std::max(display_width(t.columns[n].head), std::min(widths[n], kLeastColumn));
    for (const auto& row : t.rows)  // no word is broken that would fit into a third of the width
      for (const std::string& word : broken(row[n], 1000, 0))
        for (size_t at = 0; at < word.size();) {
          const size_t end = std::min(word.find(' ', at), word.size());
          if (const size_t size = display_width(word.substr(at, end - at)); size <= width / 3)
            least[n] = std::max(least[n], size);
          at = end + 1;
        }
    least[n] = std::min(least[n], widths[n]);
  }
  size_t total = kGap * (widths.size() - 1);
  for (const size_t w : widths) total += w;
  while (total > width) {
    size_t best = widths.size();
    for (size_t n = 0; n < widths.size(); ++n)
      if (widths[n] > least[n] && (best == widths.size() || widths[n] > widths[best])) best = n;
    if (best == widths.size()) return false;
    --widths[best], --total;
  }
  return true;
}

std::string grid(const TextTable& t, const std::vector<size_t>& widths) {
  std::string text;
  const auto print = [&](const std::vector<std::string>& cells) {
    std::vector<std::vector<std::string>> lines;
    size_t height = 1;
    for (size_t n = 0; n < cells.size(); ++n) {
      lines.push_back(broken(cells[n], std::max<size_t>(widths[n], 1), std::max<size_t>(widths[n], 1)));
      height = std::max(height, lines.back().size());
    }
    for (size_t k = 0; k < height; ++k) {
      std::string line;
      for (size_t n = 0; n < cells.size(); ++n) {
        const std::string cell = k < lines[n].size() ? lines[n][k] : "";
        const std::string blank(widths[n] - std::min(widths[n], display_width(cell)), ' ');
        line += (n ? std::string(kGap, ' ') : "") + (t.columns[n].cells == Cells::number ? blank + cell : cell + blank);
      }
      line.erase(line.find_last_not_of(' ') + 1);
      text += line + "\n";
    }
  };
  std::vector<std::string> heads;
  for (const TextColumn& c : t.columns) heads.push_back(c.head);
  if (std::any_of(heads.begin(), heads.end(), [](const std::string& h) { return !h.empty(); })) print(heads);
  for (const auto& row : t.rows) print(row);
  return text;
}

// Every row as a paragraph: its first cells, then "head cell" pairs.
std::string paragraphs(const TextTable& t, int width) {
  std::string text;
  for (const auto& row : t.rows) {
    std::string line;
    for (size_t n = 0; n < row.size(); ++n) {
      if (is_empty(row[n])) continue;
      const bool named = n && !t.columns[n].head.empty() && t.columns[n].shared != TextColumn::Shared::line;
      line += (line.empty() ? "" : ", ") + (named ? t.columns[n].head + " " : "") + row[n];
    }
    text += wrapped(line, width) + "\n";
  }
  return text;
}

}  // namespace

int terminal_width(int file) {
  winsize size{};
  if (!isatty(file)) return 0;
  return ioctl(file, TIOCGWINSZ, &size) == 0 && size.ws_col >= 20 ? size.ws_col : 0;
}

size_t display_width(std::string_view text) {
  size_t columns = 0;
  for (size_t at = 0; at < text.size();) {
    const Character c = first_of(text.substr(at));
    columns += c.columns, at += c.bytes;
  }
  return columns;
}

std::string cut_to(std::string_view text, int width) {
  if (width <= 0 || display_width(text) <= size_t(width)) return std::string(text);
  const size_t room = width > 3 ? size_t(width) - 3 : 0;
  return std::string(text.substr(0, bytes_of(text, room))) + std::string(size_t(width) - room, '.');
}

std::string wrapped(std::string_view text, int width) {
  if (width <= 0) return std::string(text);
  std::string out;
  for (size_t at = 0; at < text.size();) {
    const size_t end = std::min(text.find('\n', at), text.size());
    const std::string_view line = text.substr(at, end - at);
    const size_t after = std::min(text.find('\n', std::min(end + 1, text.size())), text.size());
    const std::string_view below = end < text.size() ? text.substr(end + 1, after - end - 1) : "";
    if (is_caret(below)) {
      out += around_caret(line, below, size_t(width));
      at = after;
    } else {
      out += wrapped_line(line, size_t(width));
      at = end;
    }
    if (at < text.size()) out += '\n', ++at;
  }
  return out;
}

SharedWords share_words(const std::vector<std::string>& lines) {
  // A variant is text of its own: " : nsa block=64" is never split.
  const auto words_of = [](std::string_view line) {
    std::vector<std::string> words;
    for (size_t at = 0; at < line.size();) {
      const size_t word = std::min(line.find_first_not_of(' ', at), line.size());
      size_t end = std::min(line.find(' ', word), line.size());
      if (line.substr(word).starts_with(": ") || line.substr(word).starts_with("| ")) end = line.size();
      if (end > word) words.emplace_back(line.substr(word, end - word));
      at = end;
    }
    return words;
  };
  SharedWords out;
  if (lines.empty()) return out;
  std::vector<std::string> shared = words_of(lines[0]);
  for (const std::string& line : lines) {
    const std::vector<std::string> words = words_of(line);
    std::erase_if(shared, [&](auto& w) { return std::find(words.begin(), words.end(), w) == words.end(); });
  }
  for (const std::string& w : shared) out.shared += (out.shared.empty() ? "" : " ") + w;
  if (out.shared.ends_with(',')) out.shared.pop_back();
  for (const std::string& line : lines) {
    std::string rest;
    for (const std::string& w : words_of(line))
      if (std::find(shared.begin(), shared.end(), w) == shared.end()) rest += (rest.empty() ? "" : " ") + w;
    if (rest.ends_with(',')) rest.pop_back();
    out.rest.push_back(rest);
  }
  return out;
}

std::string to_text(TextTable t, int width) {
  if (t.rows.empty()) return "";
  if (t.margin) {
    const std::string margin(size_t(std::exchange(t.margin, 0)), ' ');
    const std::string inner = to_text(std::move(t), width ? std::max(1, width - int(margin.size())) : 0);
    std::string text = margin;
    for (size_t n = 0; n < inner.size(); ++n) {
      text += inner[n];
      if (inner[n] == '\n' && n + 1 < inner.size()) text += margin;
    }
    return text;
  }
  std::string text = wrapped(title_of(t), width);
  if (t.columns.empty()) return text;
  std::vector<size_t> widths;
  for (size_t n = 0; n < t.columns.size(); ++n) {
    widths.push_back(display_width(t.columns[n].head));
    for (const auto& row : t.rows) widths[n] = std::max(widths[n], display_width(row[n]));
  }
  if (width > 0 && !narrow(widths, t, size_t(width))) return text + paragraphs(t, width);
  if (t.group >= 0)
    for (size_t r = t.rows.size(); r-- > 1;)
      if (auto& cell = t.rows[r][size_t(t.group)]; cell == t.rows[r - 1][size_t(t.group)]) cell.clear();
  return text + grid(t, widths);
}

}  // namespace attune
