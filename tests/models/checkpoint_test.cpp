// SPDX-License-Identifier: Apache-2.0
#include "models/checkpoint.h"

#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <filesystem>
#include <fstream>

#include "modules/safetensors.h"
#include "tests/models/small.h"

namespace attune::models {
namespace {

namespace fs = std::filesystem;

struct Folder {
  fs::path path;
  explicit Folder(const std::string& name) : path(fs::temp_directory_path() / join(name, "-", int64_t(getpid()))) {
    fs::remove_all(path);
  }
  ~Folder() { fs::remove_all(path); }
  std::string text() const { return path.string(); }
};

TEST(Checkpoint, comes_back_bit_for_bit) {
  for (const char* family : kSmall)
    for (const uint64_t most : {uint64_t(1) << 30, uint64_t(4000)}) {
      const Folder folder("attune-checkpoint");
      const auto model = small_model(family, 7), other = small_model(family, 8);
      ASSERT_NE(bytes_of(*model), bytes_of(*other));
      ASSERT_EQ(save_checkpoint(*model, folder.text(), {.most_shard_bytes = most}).message, "");
      EXPECT_EQ(fs::exists(folder.path / "model.safetensors.index.json"), most == 4000) << family;
      ASSERT_EQ(load_checkpoint(*other, folder.text()).message, "") << family;
      EXPECT_EQ(bytes_of(*model), bytes_of(*other)) << family;
      Config c;
      EXPECT_EQ(find_config(folder.text(), c).message, "");
    }
}

// The tensors of transformers' own file come out again, under the same names and with the same bytes.
TEST(Checkpoint, is_that_of_transformers) {
  for (const char* family : kSmall) {
    const Folder folder("attune-checkpoint");
    ASSERT_EQ(save_checkpoint(*small_model(family), folder.text()).message, "");
    TensorFile ours, theirs;
    ASSERT_EQ(ours.open(folder.text() + "/model.safetensors").message, "");
    ASSERT_EQ(theirs.open(small_folder(family) + "/model.safetensors").message, "");
    ASSERT_EQ(ours.tensors().size(), theirs.tensors().size()) << family;
    for (const FileTensor& t : theirs.tensors()) {
      const FileTensor* const found = ours.find(t.name);
      ASSERT_TRUE(found) << t.name;
      ASSERT_EQ(found->shape, t.shape) << t.name;
      std::vector<std::byte> a(t.last - t.first), b(a.size());
      ASSERT_TRUE(theirs.read(t, DType::f32, a.data()).ok() && ours.read(*found, DType::f32, b.data()).ok());
      EXPECT_EQ(a, b) << family << " " << t.name;
    }
  }
}

TEST(Checkpoint, a_wrong_folder_is_one_sentence_and_changes_nothing) {
  const Folder folder("attune-checkpoint");
  const auto model = small_model("llama", 7);
  const std::vector<std::byte> before = bytes_of(*model);
  const auto refusal = [&](const std::string& path) {
    const Status s = load_checkpoint(*model, path);
    EXPECT_FALSE(s.ok());
    EXPECT_EQ(bytes_of(*model), before);
    return s.message;
  };
  const std::string gpt2 = small_folder("gpt2"), qwen2 = small_folder("qwen2");
  EXPECT_EQ(refusal(gpt2), gpt2 + ": 'model.embed_tokens.weight' is missing; the model requires it");
  EXPECT_NE(refusal(qwen2).find(qwen2 + ": 'lm_head.weight' is missing"), std::string::npos);
  EXPECT_NE(refusal("/nonexistent").find("/nonexistent: holds no model.safetensors"), std::string::npos);
  ASSERT_EQ(save_checkpoint(*model, folder.text(), {.most_shard_bytes = 4000}).message, "");
  fs::path shard;
  for (const auto& entry : fs::directory_iterator(folder.path))
    if (entry.path().filename().string().starts_with("model-00002-of-")) shard = entry.path();
  fs::resize_file(shard, 100);
  EXPECT_NE(refusal(folder.text()).find(shard.string() + ": "), std::string::npos);
  fs::remove(shard);
  EXPECT_NE(refusal(folder.text()).find(shard.string() + ": No such file"), std::string::npos);
  std::ofstream(folder.path / "model.safetensors.index.json") << R"({"weight_map": {"a": "../b"}})";
  EXPECT_NE(refusal(folder.text()).find("'a' is not in a file of this folder"), std::string::npos);
}

TEST(Checkpoint, saves_over_a_checkpoint_only) {
  const Folder folder("attune-checkpoint");
  const auto model = small_model("llama", 7);
  fs::create_directories(folder.path);
  std::ofstream(folder.path / "letter.txt") << "dear";
  EXPECT_EQ(save_checkpoint(*model, folder.text()).message,
            folder.text() + ": holds files and no config.json; save to a new folder or to a checkpoint's");
  std::ofstream(folder.path / "config.json") << "{}";
  ASSERT_EQ(save_checkpoint(*model, folder.text()).message, "");
  EXPECT_TRUE(fs::exists(folder.path / "letter.txt"));
  EXPECT_TRUE(fs::exists(folder.path / "model.safetensors"));
  EXPECT_NE(std::distance(fs::directory_iterator(folder.path), {}), 2);
  fs::create_directory(folder.path / "inside");
  EXPECT_NE(save_checkpoint(*model, folder.text()).message, "");
  EXPECT_TRUE(fs::exists(folder.path / "inside"));
}

TEST(Checkpoint, a_save_keeps_what_is_not_its_own) {
  const Folder folder("attune-checkpoint");
  const auto model = small_model("llama", 7);
  ASSERT_EQ(save_checkpoint(*model, folder.text(), {.most_shard_bytes = 4000}).message, "");
  for (const char* name : {"numbers.safetensors", "model-card.safetensors"}) std::ofstream(folder.path / name) << "7";
  const fs::path near = folder.text() + ".saving-999999999-mine";  // of no process
  fs::create_directory(near);
  fs::permissions(folder.path, fs::perms::owner_all);
  ASSERT_EQ(save_checkpoint(*model, folder.text()).message, "");
  EXPECT_TRUE(fs::exists(folder.path / "numbers.safetensors"));
  EXPECT_TRUE(fs::exists(folder.path / "model-card.safetensors"));
  EXPECT_TRUE(fs::exists(near)) << "a folder of the user is swept";
  fs::remove(near);
  EXPECT_EQ(fs::status(folder.path).permissions(), fs::perms::owner_all) << "a private folder becomes public";
  EXPECT_EQ(std::distance(fs::directory_iterator(folder.path), {}), 4) << "shards of the old checkpoint stay";
}

TEST(Checkpoint, names_the_dtype_of_its_weights) {
  const Folder folder("attune-checkpoint");
  const auto f32 = small_model("qwen2", 7);
  Config c = f32->config();
  c.json.insert(c.json.find('{') + 1, R"("torch_dtype": "bfloat16", )");
  const size_t there = c.json.find(R"("dtype": ")");
  if (there != c.json.npos) c.json.erase(there, c.json.find(',', there) + 1 - there);
  std::unique_ptr<Model> model;
  ASSERT_EQ(Model::make(c, DType::f32, f32->device(), 7, model).message, "");
  ASSERT_EQ(save_checkpoint(*model, folder.text()).message, "");
  ASSERT_EQ(find_config(folder.text(), c).message, "");
  EXPECT_NE(c.json.find(R"("torch_dtype": "float32")"), std::string::npos) << c.json;
}

// transformers does not tie an embedding and a head that differ, so that a tied model is another.
TEST(Checkpoint, a_head_beside_a_tied_embedding_is_the_same) {
  const Folder folder("attune-checkpoint");
  const auto tied = small_model("qwen2", 7);
  Config c = tied->config();
  c.tied = false;
  std::unique_ptr<Model> untied;
  ASSERT_EQ(Model::make(c, DType::f32, tied->device(), 7, untied).message, "");
  ASSERT_EQ(save_checkpoint(*untied, folder.text()).message, "");
  EXPECT_NE(load_checkpoint(*tied, folder.text()).message.find("'lm_head.weight' differs from the embedding"),
            std::string::npos);
}

// A child saves two models in turn until it is killed. Whatever the moment, one of them is there; a look at any time
// before the kill is one more moment.
TEST(Checkpoint, a_killed_process_leaves_a_whole_one) {
  const Folder folder("attune-checkpoint");
  const auto one = small_model("gpt2", 1), two = small_model("gpt2", 2), read = small_model("gpt2", 3);
  const std::vector<std::byte> first = bytes_of(*one), second = bytes_of(*two);
  ASSERT_EQ(save_checkpoint(*one, folder.text()).message, "");
  void* const shared = mmap(nullptr, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  ASSERT_NE(shared, MAP_FAILED);
  auto* const saved = new (shared) std::atomic<int>(0);  // by all children
  for (int round = 0; round < 8; ++round) {
    const pid_t child = fork();
    if (!child)
      for (int n = 0;; ++n, ++*saved)
        if (!save_checkpoint(n % 2 ? *one : *two, folder.text(), {.most_shard_bytes = 4000}).ok())
          *saved = 1 << 30, _exit(1);
    int missed = 0;
    while (*saved < 8 * (round + 1)) missed += access((folder.text() + "/config.json").c_str(), F_OK) != 0;
    EXPECT_EQ(missed, 0) << round;
    usleep(useconds_t(300 * round));
    kill(child, SIGKILL);
    int status = 0;
    waitpid(child, &status, 0);
    ASSERT_TRUE(WIFSIGNALED(status)) << "the child could not save";
    ASSERT_EQ(load_checkpoint(*read, folder.text()).message, "");
    const std::vector<std::byte> now = bytes_of(*read);
    EXPECT_TRUE(now == first || now == second) << round;
  }
  ASSERT_EQ(save_checkpoint(*one, folder.text()).message, "");
  munmap(shared, 4096);
  for (const auto& entry : fs::directory_iterator(folder.path.parent_path()))
    EXPECT_FALSE(entry.path().filename().string().starts_with(folder.path.filename().string() + ".saving-"));
}

}  // namespace
}  // namespace attune::models
