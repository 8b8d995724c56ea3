// SHA-256 in the form that a Content-Security-Policy uses to allow exactly one script or style.
#pragma once
#include <string>
#include <string_view>

namespace attune {

std::string sha256_base64(std::string_view);  // 44 characters

}  // namespace attune
