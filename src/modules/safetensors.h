// SPDX-License-Identifier: Apache-2.0
// Reads and writes the safetensors format: an 8-byte header length, a JSON header ({"name": {"dtype": "F32", "shape":
// [2, 3], "data_offsets": [0, 24]}, ...}), and the data. The library has no dependencies, so this reader is its own. It
// is strict: every malformed file yields one sentence.
#pragma once
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "core/problem.h"

namespace attune {

struct FileTensor {
  std::string name{};
  std::string dtype{};           // as in the file: "BF16"; includes dtypes that attune does not compute with
  std::vector<int64_t> shape{};
  uint64_t first = 0, last = 0;  // byte range of the data
};

// Parses the header of a file of `file_bytes` bytes; `header` excludes the 8-byte length. Tensors are in the order of
// their data, which they cover without gaps or overlaps, as the format requires.
Status read_header(std::string_view header, uint64_t file_bytes, std::vector<FileTensor>& out);
std::string write_header(const std::vector<FileTensor>&);  // with the length first, padded to 8 bytes

DType dtype_of(std::string_view word);        // none if attune does not compute with it
std::string_view word_of(DType);

// An open file. Data is read only on request.
class TensorFile {
 public:
  TensorFile() = default;
  TensorFile(const TensorFile&) = delete;
  TensorFile& operator=(const TensorFile&) = delete;
  ~TensorFile();
  Status open(const std::string& path);
  const std::vector<FileTensor>& tensors() const { return tensors_; }
  const FileTensor* find(std::string_view name) const;
  // Reads a whole tensor in any dtype, rounding once if it differs from the file's.
  Status read(const FileTensor&, DType, void* to) const;

 private:
  std::string path_{};
  int file_ = -1;
  uint64_t data_at_ = 0;
  std::vector<FileTensor> tensors_{};
};

class Module;
// Loads every parameter from a file, under prefix + name. With `convert`, accepts other floating dtypes. Everything is
// checked before anything is written, so a file that does not fit leaves the parameters unchanged.
Status load(const Module&, const std::string& path, std::string_view prefix, bool convert);
// Saves every parameter to a new file. An existing file, or the target of a symlink, is replaced atomically at the end
// and keeps its mode. Anything but a regular file is not replaced.
Status save(const Module&, const std::string& path, std::string_view prefix);

}  // namespace attune
