// Numbers for people: three significant digits and a unit. JSON never goes through here.
#pragma once
#include <string>

namespace attune {

std::string bytes_text(double bytes);      // "1.50 MiB": powers of 1024
std::string count_text(double count);      // "68.7 G": powers of 1000, the unit follows directly
std::string seconds_text(double seconds);  // "1.23 ms"
std::string factor_text(double factor);    // "1.40x"
std::string digits_text(double value, int significant = 3);  // "0.0123", "1230": never an exponent below 1e15

}  // namespace attune
