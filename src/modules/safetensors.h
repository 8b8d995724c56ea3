// Files of named tensors in the safetensors format: eight bytes that say how long a JSON header is, the header
// ({"name": {"dtype": "F32", "shape": [2, 3], "data_offsets": [0, 24]}, ...}), and the data. A reader of our own,
// because the library depends on nothing: strict, and every malformed file is one sentence.
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
  std::string dtype{};           // as the file says: "BF16"; those that attune does not compute with too
  std::vector<int64_t> shape{};
  uint64_t first = 0, last = 0;  // bytes of the data
};

// The header of a file of `file_bytes` bytes, whose text is `header` (without the eight bytes of its length). Tensors
// are in the order of their data, which they cover without gaps or overlaps, as the format wants.
Status read_header(std::string_view header, uint64_t file_bytes, std::vector<FileTensor>& out);
std::string write_header(const std::vector<FileTensor>&);  // with the length before it, padded to 8 bytes

DType dtype_of(std::string_view word);        // none where attune does not compute with it
std::string_view word_of(DType);

// A file that is read. Nothing of its data is in memory until asked for.
class TensorFile {
 public:
  TensorFile() = default;
  TensorFile(const TensorFile&) = delete;
  TensorFile& operator=(const TensorFile&) = delete;
  ~TensorFile();
  Status open(const std::string& path);
  const std::vector<FileTensor>& tensors() const { return tensors_; }
  const FileTensor* find(std::string_view name) const;
  // All of it, in a dtype of the caller's choice: rounded once where that is another one.
  Status read(const FileTensor&, DType, void* to) const;

 private:
  std::string path_{};
  int file_ = -1;
  uint64_t data_at_ = 0;
  std::vector<FileTensor> tensors_{};
};

class Module;
// Every parameter from a file, found by prefix + name. With `convert` another floating dtype is taken too. Parameters
// are as before where the file does not fit: all is checked before anything is written.
Status load(const Module&, const std::string& path, std::string_view prefix, bool convert);
// Every parameter into a new file; one that is there, or that a link points at, is replaced at the end, at once, and
// keeps its mode. What is no regular file is not replaced.
Status save(const Module&, const std::string& path, std::string_view prefix);

}  // namespace attune
