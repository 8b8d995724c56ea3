// SPDX-License-Identifier: Apache-2.0
// Runs a fuzz target over the files of folders, without libFuzzer, so every build tests past findings.
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size);

int main(int count, char** folder) {
  int files = 0;
  for (int n = 1; n < count; ++n)
    for (const auto& entry : std::filesystem::directory_iterator(folder[n])) {
      std::ifstream file(entry.path(), std::ios::binary);
      const std::string text{std::istreambuf_iterator<char>(file), {}};
      LLVMFuzzerTestOneInput(reinterpret_cast<const uint8_t*>(text.data()), text.size());
      ++files;
    }
  std::printf("%d inputs replayed\n", files);
  return files == 0;
}
