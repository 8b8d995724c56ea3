// SPDX-License-Identifier: Apache-2.0
// Changes single values of a YAML file and nothing else: comments, order, quotes and line ends stay byte for byte.
// libyaml says where a value stands; the result is parsed again and may differ in that value alone.
#pragma once
#include <string>
#include <string_view>

#include "core/status.h"

namespace attune {

// Sets the scalar at a path of mapping keys, "runtime.fa2_min_len_win". A missing key is added to its parent if that is
// a mapping in block style. A number replaces a number or nothing, not a text, and keeps its quotes. Errors begin with
// the path; `text` then keeps its content.
Status set_yaml(std::string& text, std::string_view path, std::string_view value);

// The path of the only key with this name, anywhere in the mappings of a file; "" if there is none.
Status yaml_path_of(const std::string& text, std::string_view key, std::string& path);

// Whether the file has a value at this path.
bool yaml_has(const std::string& text, std::string_view path);

// The lines that differ, old ones with "-" and new ones with "+".
std::string yaml_diff(const std::string& before, const std::string& after);

}  // namespace attune
