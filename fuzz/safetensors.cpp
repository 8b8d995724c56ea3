// SPDX-License-Identifier: Apache-2.0
// Parses arbitrary bytes as a safetensors header. Parsing terminates. An accepted header covers its data without gaps
// and is written to a header that parses to the same tensors. The first two bytes are the size of the file's data.
#include <cstdint>
#include <string>

#include "fuzz/require.h"
#include "modules/safetensors.h"

using namespace attune;

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size < 2) return 0;
  const uint64_t bytes = uint64_t(data[0]) | uint64_t(data[1]) << 8;
  const std::string_view header(reinterpret_cast<const char*>(data) + 2, size - 2);
  std::vector<FileTensor> tensors, again;
  if (const Status read = read_header(header, 8 + header.size() + bytes, tensors); !read.ok()) {
    require(!read.message.empty() && read.message.find('\0') == std::string::npos, "a sentence");
    return 0;
  }
  uint64_t at = 0;
  for (const FileTensor& t : tensors) {
    require(t.first == at && t.last >= t.first, "no gaps");
    at = t.last;
  }
  require(at == bytes, "all of the data");
  const std::string whole = write_header(tensors);
  require(read_header(std::string_view(whole).substr(8), whole.size() + bytes, again).ok(),
          "what was written reads back");
  require(again.size() == tensors.size(), "as many tensors");
  for (size_t n = 0; n < tensors.size(); ++n)
    require(again[n].name == tensors[n].name && again[n].dtype == tensors[n].dtype &&
                again[n].shape == tensors[n].shape && again[n].first == tensors[n].first &&
                again[n].last == tensors[n].last,
            "the same tensors");
  return 0;
}
