// SHA-256 as a Content-Security-Policy names a script or a style: the page allows these bytes and no others.
#pragma once
#include <string>
#include <string_view>

namespace attune {

std::string sha256_base64(std::string_view);  // 44 characters

}  // namespace attune
