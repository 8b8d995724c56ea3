// Resolves symlinks.
#pragma once
#include <filesystem>

namespace attune {

// Follows links to their end; returns the path itself if it is not a link. Unlike realpath(), the target need not
// exist.
inline std::filesystem::path behind_links(std::filesystem::path at) {
  constexpr int kMostLinks = 40;  // the kernel's limit
  std::error_code none;
  for (int n = 0; n < kMostLinks && std::filesystem::is_symlink(at, none); ++n) {
    const std::filesystem::path to = std::filesystem::read_symlink(at, none);
    if (none) break;
    at = at.parent_path() / to;
  }
  return at;
}

}  // namespace attune
