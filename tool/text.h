// SPDX-License-Identifier: Apache-2.0
// Numbers for people: three significant digits and a unit. Not used for JSON.
#pragma once
#include <cstdint>
#include <string>
#include <string_view>

namespace attune {

std::string bytes_text(double bytes);      // "1.50 MiB": powers of 1024
std::string count_text(double count, std::string_view unit);  // "68.7 GFLOP", "537 M pairs": powers of 1000
std::string seconds_text(double seconds);  // "1.23 ms"
std::string tick_text(double seconds);     // the same without trailing zeros: "10 ms"
std::string factor_text(double factor);    // "1.40x"
std::string counted(int64_t count, std::string_view what);  // "1 row", "2 rows"
std::string digits_text(double value, int significant = 3);  // "0.0123", "1230": never an exponent below 1e15
// "attune::forward<64>": a symbol, demangled and without parameter types; a name that is not C++ is returned unchanged.
std::string kernel_text(const std::string& mangled);
// Control characters become their code, \u000a: a text of others in one line of output cannot begin another line.
std::string in_one_line(std::string_view text);
// "'decod' is not one of decode, nsa; did you mean 'decode'?" for a list of names with commas between them.
std::string not_one_of(std::string_view word, std::string_view names);
std::string without_zeros(std::string digits);               // "80.0" becomes "80"

}  // namespace attune
