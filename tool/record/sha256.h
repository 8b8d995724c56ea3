// SPDX-License-Identifier: Apache-2.0
// SHA-256 of FIPS 180-4, for the seals of records and the content policy of reports. Written out, because the command
// has no other use for a library of cryptography.
#pragma once
#include <string>
#include <string_view>

namespace attune {

std::string sha256_hex(std::string_view);     // 64 lower-case digits, as sha256sum prints
std::string sha256_base64(std::string_view);  // 44 characters, as a Content-Security-Policy wants it

}  // namespace attune
