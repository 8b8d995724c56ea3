// SPDX-License-Identifier: Apache-2.0
#include "models/checkpoint.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <map>
#include <set>

#include "machine/files.h"
#include "models/json.h"
#include "modules/safetensors.h"

namespace attune::models {
namespace {

namespace fs = std::filesystem;
constexpr size_t kMostIndex = size_t(64) << 20;  // bytes
constexpr const char* kOneFile = "model.safetensors";
constexpr const char* kIndex = "model.safetensors.index.json";

enum class Order { from_file, to_file };

// A matrix of a checkpoint and as it lies here, in elements of `size` bytes: [in, out] against [out, in], or rows by
// head, (head, q k v, dim), against (q k v, head, dim).
void reorder(const Config& c, const ModelParameter& p, size_t size, const std::byte* from, std::byte* to, Order order) {
  const bool inwards = order == Order::from_file;
  const size_t rows = size_t(p.shape[0]), columns = p.shape.size() > 1 ? size_t(p.shape[1]) : 1;
  if (p.layout == Layout::by_head) {
    const size_t dim = size_t(c.dim), heads = size_t(c.heads), bytes = columns * size;
    for (size_t n = 0; n < rows; ++n) {
      const size_t part = n / (heads * dim), head = n / dim % heads, d = n % dim;
      const size_t there = (head * 3 + part) * dim + d;
      std::memcpy(to + (inwards ? n : there) * bytes, from + (inwards ? there : n) * bytes, bytes);
    }
    return;
  }
  if (p.layout == Layout::as_here || p.shape.size() < 2) return void(std::memcpy(to, from, rows * columns * size));
  const size_t across = inwards ? rows : columns, down = inwards ? columns : rows;  // of `from`
  constexpr size_t kTile = 32;
  for (size_t r = 0; r < down; r += kTile)
    for (size_t k = 0; k < across; k += kTile)
      for (size_t i = r; i < std::min(r + kTile, down); ++i)
        for (size_t j = k; j < std::min(k + kTile, across); ++j)
          std::memcpy(to + (j * down + i) * size, from + (i * across + j) * size, size);
}

std::string text(const std::vector<int64_t>& shape) {
  std::string s = "[";
  for (const int64_t n : shape) s += join(s.size() > 1 ? ", " : "", n);
  return s + "]";
}

// Tensors that checkpoints hold beside parameters: masks and tables of older versions.
bool is_buffer(std::string_view name) {
  for (const std::string_view end : {".attn.bias", ".attn.masked_bias", ".attention.bias", ".attention.masked_bias",
                                     ".rotary_emb.inv_freq"})
    if (name.ends_with(end)) return true;
  return false;
}

struct Shards {
  std::map<std::string, std::unique_ptr<TensorFile>> files{};
  std::map<std::string, std::pair<const TensorFile*, const FileTensor*>> tensors{};

  Status open(const std::string& folder, const std::string& name) {
    auto file = std::make_unique<TensorFile>();
    if (Status s = file->open(join(folder, "/", name)); !s.ok()) return s;
    for (const FileTensor& t : file->tensors())
      if (!tensors.emplace(t.name, std::pair{file.get(), &t}).second)
        return Status::no(folder, ": '", t.name, "' is in two shards");
    return files[name] = std::move(file), Status::good();
  }
  Status open(const std::string& folder) {
    if (std::error_code error; fs::exists(fs::path(folder) / kOneFile, error)) return open(folder, kOneFile);
    const std::string path = join(folder, "/", kIndex);
    std::string index;
    if (Status s = read_limited(path, {.most_bytes = kMostIndex}, index); !s.ok())
      return s.after(folder, ": holds no ", kOneFile, ", and its index: ");
    Json json;
    if (Status s = read_json(index, json); !s.ok()) return s.after(path, ": ");
    const Json* const map = json.find("weight_map");
    if (!map || map->kind != JsonKind::object) return Status::no(path, ": has no weight_map");
    for (const auto& [name, file] : map->members) {
      if (file.text.empty() || file.text.find('/') != file.text.npos)
        return Status::no(path, ": '", name, "' is not in a file of this folder");
      if (!files.contains(file.text))
        if (Status s = open(folder, file.text); !s.ok()) return s;
      if (!tensors.contains(name)) return Status::no(path, ": '", name, "' is not in ", file.text);
    }
    return Status::good();
  }
};

// A head beside a tied embedding: transformers would not tie two that differ.
Status is_same(const std::string& folder, const std::string& name, std::pair<const TensorFile*, const FileTensor*> head,
               std::pair<const TensorFile*, const FileTensor*> embed) {
  const auto no = [&](const auto&... why) { return Status::no(folder, ": '", name, "' ", why...); };
  const FileTensor &a = *head.second, &b = *embed.second;
  if (a.shape != b.shape) return no("is ", text(a.shape), ", not ", text(b.shape));
  if (dtype_of(a.dtype) == DType::none) return no("is ", a.dtype, ", not one of F64, F32, F16, BF16");
  size_t count = 1;
  for (const int64_t n : a.shape) count *= size_t(n);
  std::vector<float> left(count), right(count);
  if (Status s = head.first->read(a, DType::f32, left.data()); !s.ok()) return s;
  if (Status s = embed.first->read(b, DType::f32, right.data()); !s.ok()) return s;
  return left == right ? Status::good() : no("differs from the embedding, which tie_word_embeddings makes the head");
}

Status fit(const Model& model, const std::string& folder, Shards& shards,
           std::vector<std::pair<const TensorFile*, const FileTensor*>>& found) {
  const Config& c = model.config();
  std::set<std::string> known;
  for (const ModelParameter& p : model.parameters()) {
    auto at = shards.tensors.find(p.name);
    if (at == shards.tensors.end() && p.name.starts_with(c.names.base))  // of the model without its head
      at = shards.tensors.find(p.name.substr(c.names.base.size()));
    const auto no = [&](const auto&... why) { return Status::no(folder, ": '", p.name, "' ", why...); };
    if (at == shards.tensors.end()) return no("is missing; the model requires it");
    const FileTensor& t = *at->second.second;
    if (const auto shape = p.file_shape(c); t.shape != shape) return no("is ", text(t.shape), ", not ", text(shape));
    if (dtype_of(t.dtype) == DType::none) return no("is ", t.dtype, ", not one of F64, F32, F16, BF16");
    known.insert(at->first), found.push_back(at->second);
  }
  for (const auto& [name, tensor] : shards.tensors) {
    const bool head = c.tied && name == join(c.names.head, ".weight");
    if (head)
      if (Status s = is_same(folder, name, tensor, found[0]); !s.ok()) return s;  // the first is the embedding
    if (!known.contains(name) && !head && !is_buffer(name))
      return Status::no(folder, ": holds '", name, "', which is not a parameter of its config.json");
  }
  return Status::good();
}

bool is_number(std::string_view text) { return !text.empty() && text.find_first_not_of("0123456789") == text.npos; }

// model.safetensors, or model-00001-of-00002.safetensors.
bool is_shard(std::string_view name) {
  constexpr std::string_view kBegin = "model-", kMiddle = "-of-", kEnd = ".safetensors";
  if (name == kOneFile) return true;
  if (!name.starts_with(kBegin) || !name.ends_with(kEnd)) return false;
  name = name.substr(kBegin.size(), name.size() - kBegin.size() - kEnd.size());
  const size_t middle = name.find(kMiddle);
  return middle != name.npos && is_number(name.substr(0, middle)) && is_number(name.substr(middle + kMiddle.size()));
}

// What a folder holds beside a checkpoint stays: `keep` is called with its files.
template <class F>
Status each_other(const std::string& old, F keep) {
  std::error_code error;
  for (fs::directory_iterator at(old, error), end; !error && at != end; at.increment(error)) {
    const fs::directory_entry& entry = *at;
    const std::string name = entry.path().filename();
    if (name == "config.json" || name == kIndex || is_shard(name)) continue;
    std::error_code e;
    if (!entry.is_regular_file(e) || entry.is_symlink(e))
      return Status::no(old, ": holds '", name, "', which is not a file; save to a folder with files alone");
    if (Status s = keep(entry.path(), name); !s.ok()) return s;
  }
  return error ? Status::no(old, ": ", error.message()) : Status::good();
}

// Links them into the new folder, which takes the mode of the old.
Status keep_others(const std::string& old, const std::string& made) {
  Status s = each_other(old, [&](const fs::path& path, const std::string& name) {
    if (linkat(AT_FDCWD, path.c_str(), AT_FDCWD, join(made, "/", name).c_str(), 0))
      return Status::no(old, ": '", name, "' cannot be kept: ", std::strerror(errno));
    return Status::good();
  });
  struct stat about{};
  if (s.ok() && !stat(old.c_str(), &about) && chmod(made.c_str(), about.st_mode & 07777))
    s = Status::no(made, ": ", std::strerror(errno));
  return s;
}

// Folders that killed processes left beside the target.
void sweep(const std::string& folder) {
  const fs::path target(folder);
  const std::string begin = target.filename().string() + ".saving-";
  std::error_code error;
  const fs::path parent = target.has_parent_path() ? target.parent_path() : ".";
  for (fs::directory_iterator at(parent, error), end; !error && at != end; at.increment(error)) {
    const std::string name = at->path().filename();
    if (!name.starts_with(begin)) continue;
    const std::string number = name.substr(begin.size());
    const int owner = is_number(number) && number.size() <= 9 ? std::atoi(number.c_str()) : 0;
    if (owner > 0 && kill(owner, 0) && errno == ESRCH) {
      std::error_code ignored;
      fs::remove_all(at->path(), ignored);
    }
  }
}

Status write_file(const std::string& path, std::string_view content) {
  Replacement made;
  if (Status s = made.open(path); !s.ok()) return s.after(path, ": ");
  if (Status s = made.write(content.data(), content.size()); !s.ok()) return s.after(path, ": ");
  return made.finish().after(path, ": ");
}

struct Shard { std::string name{}; std::vector<const ModelParameter*> parameters{}; uint64_t bytes = 0; };

Status write_shard(const Model& model, const std::string& folder, const Shard& shard) {
  const size_t size = size_t(size_of(model.dtype()));
  std::vector<FileTensor> tensors;
  uint64_t at = 0;
  for (const ModelParameter* p : shard.parameters) {
    const uint64_t bytes = uint64_t(p->count()) * size;
    tensors.push_back({p->name, std::string(word_of(model.dtype())), p->file_shape(model.config()), at, at + bytes});
    at += bytes;
  }
  const std::string path = join(folder, "/", shard.name), header = write_header(tensors);
  Replacement made;
  Status s = made.open(path);
  if (s.ok()) s = made.write(header.data(), header.size());
  std::vector<std::byte> here, there;
  for (const ModelParameter* p : shard.parameters) {
    if (!s.ok()) break;
    here.resize(size_t(p->count()) * size), there.resize(here.size());
    s = model.read(*p, here.data());
    reorder(model.config(), *p, size, here.data(), there.data(), Order::to_file);
    if (s.ok()) s = made.write(there.data(), there.size());
  }
  if (s.ok()) s = made.finish();
  return s.after(path, ": ");
}

// A config.json of weights in this dtype: transformers loads them in the dtype that it names.
std::string with_dtype(const std::string& text, DType dtype) {
  Json json;
  if (!read_json(text, json).ok()) return text;
  std::string out = text;
  for (auto at = json.members.rbegin(); at != json.members.rend(); ++at)
    if ((at->first == "dtype" || at->first == "torch_dtype") && at->second.kind == JsonKind::text)
      out.replace(at->second.at, at->second.end - at->second.at,
                  dtype == DType::f32   ? "\"float32\""
                  : dtype == DType::f16 ? "\"float16\""
                                        : "\"bfloat16\"");
  return out;
}

std::vector<Shard> divide(const Model& model, uint64_t most) {
  std::vector<Shard> shards(1);
  for (const ModelParameter& p : model.parameters()) {
    const uint64_t bytes = uint64_t(p.count()) * uint64_t(size_of(model.dtype()));
    if (shards.back().bytes && shards.back().bytes + bytes > most) shards.emplace_back();
    shards.back().parameters.push_back(&p), shards.back().bytes += bytes;
  }
  for (size_t n = 0; n < shards.size(); ++n) {
    char name[64];
    std::snprintf(name, sizeof name, "model-%05zu-of-%05zu.safetensors", n + 1, shards.size());
    shards[n].name = shards.size() > 1 ? name : kOneFile;
  }
  return shards;
}

Status write_all(const Model& model, const std::string& folder, uint64_t most) {
  const std::vector<Shard> shards = divide(model, most);
  uint64_t all = 0;
  std::string map;
  for (const Shard& shard : shards) {
    if (Status s = write_shard(model, folder, shard); !s.ok()) return s;
    all += shard.bytes;
    for (const ModelParameter* p : shard.parameters)
      map += join(map.empty() ? "" : ",\n", "    \"", p->name, "\": \"", shard.name, "\"");
  }
  if (shards.size() > 1)
    if (Status s = write_file(join(folder, "/", kIndex), join("{\n  \"metadata\": {\"total_size\": ", all,
                                                              "},\n  \"weight_map\": {\n", map, "\n  }\n}\n"));
        !s.ok())
      return s;
  return write_file(join(folder, "/config.json"), with_dtype(model.config().json, model.dtype()));
}

// Where a checkpoint of this name goes, behind links, and whether there is one already.
struct Target {
  std::string path{};
  bool there = false;
};

Status find_target(const std::string& folder, Target& out) {
  if (Status s = behind_links(folder, out.path); !s.ok()) return s.after(folder, ": ");
  while (out.path.size() > 1 && out.path.ends_with('/')) out.path.pop_back();
  std::error_code error;
  out.there = fs::exists(out.path, error);
  if (!out.there) return Status::good();
  if (!fs::is_directory(out.path, error)) return Status::no(folder, ": is not a folder");
  if (!fs::is_empty(out.path, error) && !fs::exists(join(out.path, "/config.json"), error))
    return Status::no(folder, ": holds files and no config.json; save to a new folder or to a checkpoint's");
  return each_other(out.path, [](const auto&, const auto&) { return Status::good(); });
}

}  // namespace

void to_file_order(const Config& c, const ModelParameter& p, size_t size, const std::byte* here, std::byte* there) {
  reorder(c, p, size, here, there, Order::to_file);
}

Status load_checkpoint(Model& model, const std::string& folder) {
  Shards shards;
  if (Status s = shards.open(folder); !s.ok()) return s;
  std::vector<std::pair<const TensorFile*, const FileTensor*>> found;
  if (Status s = fit(model, folder, shards, found); !s.ok()) return s;
  const size_t size = size_t(size_of(model.dtype()));
  std::vector<std::byte> there, here;
  for (size_t n = 0; n < found.size(); ++n) {
    const ModelParameter& p = model.parameters()[n];
    there.resize(size_t(p.count()) * size), here.resize(there.size());
    if (Status s = found[n].first->read(*found[n].second, model.dtype(), there.data()); !s.ok()) return s;
    reorder(model.config(), p, size, there.data(), here.data(), Order::from_file);
    if (Status s = model.write(p, here.data()); !s.ok()) return s;
  }
  return Status::good();
}

Status has_weights(const std::string& folder, bool& out) {
  std::error_code error;
  out = false;
  for (const char* const name : {kOneFile, kIndex}) out = out || fs::exists(fs::path(folder) / name, error);
  if (out) return Status::good();
  for (fs::directory_iterator at(folder, error), end; !error && at != end; at.increment(error)) {
    const std::string name = at->path().filename();
    bool weights = is_shard(name) || name.ends_with(".gguf");
    for (const std::string_view begin : {"pytorch_model", "tf_model", "flax_model", "consolidated"})
      weights = weights || name.starts_with(begin);
    if (weights)
      return Status::no(folder, ": holds '", name, "', but neither ", kOneFile, " nor ", kIndex,
                        "; weights are read from these alone");
  }
  return Status::good();
}

Status can_save(const std::string& folder) {
  Target target;
  if (Status s = find_target(folder, target); !s.ok()) return s;
  // The nearest folder above that exists: what is missing is made in it.
  fs::path above = fs::path(target.path).parent_path();
  std::error_code error;
  while (!above.empty() && !fs::exists(above, error)) above = above.parent_path();
  if (above.empty()) above = ".";
  if (!fs::is_directory(above, error)) return Status::no(folder, ": ", above.string(), " is not a folder");
  return access(above.c_str(), W_OK) ? Status::no(folder, ": ", above.string(), ": ", std::strerror(errno))
                                     : Status::good();
}

Status save_checkpoint(const Model& model, const std::string& folder, const SaveSettings& settings) {
  Target old;
  if (Status s = find_target(folder, old); !s.ok()) return s;
  const auto& [target, there] = old;
  std::error_code error;
  sweep(target);
  const std::string made = join(target, ".saving-", int64_t(getpid()));
  fs::remove_all(made, error);
  if (!fs::create_directories(made, error)) return Status::no(made, ": ", error ? error.message() : "exists");
  Status s = write_all(model, made, settings.most_shard_bytes);
  if (s.ok() && there) s = keep_others(target, made);
  // Both folders change places in one step, so a process that ends at any time leaves one whole checkpoint there.
  if (s.ok() && renameat2(AT_FDCWD, made.c_str(), AT_FDCWD, target.c_str(), there ? RENAME_EXCHANGE : RENAME_NOREPLACE))
    s = Status::no(folder, ": cannot be replaced in one step: ", std::strerror(errno), "; save to a new folder");
  fs::remove_all(made, error);
  return s;
}

}  // namespace attune::models
