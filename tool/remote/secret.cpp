// SPDX-License-Identifier: Apache-2.0
#include "tool/remote/secret.h"

#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/stat.h>

#include <algorithm>
#include <cctype>
#include <cstdlib>

#include "tool/files.h"
#include "tool/json_value.h"

namespace attune {

Status read_secret(const std::string& variable, const std::string& file, const std::string& member, std::string& out) {
  out.clear();
  const char* const value = std::getenv(variable.c_str());
  if (value && *value) {
    out = value;
  } else {
    struct stat s{};
    if (file.empty() || stat(file.c_str(), &s)) return Status::good();
    if (s.st_mode & 077)
      return Status::no("'", file, "' holds a key and can be read by others; accepted is mode 600: chmod 600 ", file);
    std::string text;
    if (Status read = read_file(file, text); !read.ok()) return read;
    JsonValue json;
    if (Status parsed = JsonValue::parse(text, json); !parsed.ok()) return parsed.after("'", file, "' ");
    out = json[member].text();
  }
  // A line break would end the header that the key travels in.
  if (std::any_of(out.begin(), out.end(), [](unsigned char c) { return c <= ' ' || c >= 127; }))
    return out.clear(), Status::no(variable, ": has a blank, a control character or a letter beyond ASCII");
  return Status::good();
}

void keep_secrets() {
  const rlimit none{0, 0};
  setrlimit(RLIMIT_CORE, &none);
  prctl(PR_SET_DUMPABLE, 0);
}

}  // namespace attune
