// The file that a name is of.
#pragma once
#include <filesystem>

namespace attune {

// Where a link leads, and what that leads to; what is no link is itself. Not realpath(): its end need not be there.
inline std::filesystem::path behind_links(std::filesystem::path at) {
  constexpr int kMostLinks = 40;  // as the kernel follows
  std::error_code none;
  for (int n = 0; n < kMostLinks && std::filesystem::is_symlink(at, none); ++n) {
    const std::filesystem::path to = std::filesystem::read_symlink(at, none);
    if (none) break;
    at = at.parent_path() / to;
  }
  return at;
}

}  // namespace attune
