// SPDX-License-Identifier: Apache-2.0
// Parameter files: what was saved can be loaded, other dtypes are converted on request, and a malformed file gives an
// error message and nothing worse.
#include "modules/safetensors.h"

#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <csignal>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <set>
#include <thread>

#include "tests/modules/world.h"

namespace attune {
namespace {

namespace fs = std::filesystem;

class Safetensors : public testing::Test {
 protected:
  void SetUp() override { fs::create_directories(folder_); }
  void TearDown() override { fs::remove_all(folder_); }
  std::string file(const std::string& name) const { return folder_ / name; }
  std::string written(const std::string& bytes) const {
    std::ofstream(file("x"), std::ios::binary) << bytes;
    return file("x");
  }
  // Writes a file with this header and `data` bytes of data.
  std::string written(const std::string& header, size_t data) const {
    std::string bytes(8, '\0');
    for (size_t n = 0; n < 8; ++n) bytes[n] = char(header.size() >> (8 * n));
    return written(bytes + header + std::string(data, 'd'));
  }
  std::string opened(const std::string& path) const {
    TensorFile f;
    const std::string message = f.open(path).message;
    return message.starts_with(path + ": ") ? message.substr(path.size() + 2) : message;
  }
  std::set<std::string> names() const {
    std::set<std::string> all;
    for (const auto& entry : fs::directory_iterator(folder_)) all.insert(entry.path().filename());
    return all;
  }
  fs::path folder_ = fs::temp_directory_path() / join("attune_safetensors_", getpid());
};

std::string bytes_of(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), {}};
}

TEST_F(Safetensors, what_was_saved_is_loaded) {
  for (const char* dtype : {"f32", "bf16", "f16"}) {
    const auto a = made(join("llama ", dtype, " b1 s4 e32 h4 seed=1")),
               b = made(join("llama ", dtype, " b1 s4 e32 h4 seed=2"));
    ASSERT_EQ(save(*a, file("a.safetensors"), "model.layers.0.").message, "");
    ASSERT_EQ(load(*b, file("a.safetensors"), "model.layers.0.", false).message, "");
    for (const Parameter& p : a->graph().parameters) {
      std::vector<std::byte> x(size_t(p.count()) * size_t(size_of(p.dtype))), y(x.size());
      ASSERT_EQ(a->read(p, x.data()).message, "");
      ASSERT_EQ(b->read(*b->find(p.name), y.data()).message, "");
      EXPECT_EQ(x, y) << p.name;
    }
    EXPECT_EQ(names(), std::set<std::string>{"a.safetensors"}) << "nothing is left beside it";
  }
}

TEST_F(Safetensors, is_the_format_that_others_write) {
  const auto m = made("feed_forward f32 b1 s1 e2 ffn=3 bias=0");
  ASSERT_EQ(save(*m, file("a"), "").message, "");
  const std::string bytes = bytes_of(file("a"));
  const std::string header =
      "{\"norm1.weight\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,8]},"
      "\"norm1.bias\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[8,16]},"
      "\"linear1.weight\":{\"dtype\":\"F32\",\"shape\":[3, 2],\"data_offsets\":[16,40]},"
      "\"norm2.weight\":{\"dtype\":\"F32\",\"shape\":[3],\"data_offsets\":[40,52]},"
      "\"norm2.bias\":{\"dtype\":\"F32\",\"shape\":[3],\"data_offsets\":[52,64]},"
      "\"linear2.weight\":{\"dtype\":\"F32\",\"shape\":[2, 3],\"data_offsets\":[64,88]}}";
  ASSERT_GT(bytes.size(), 8 + header.size());
  const size_t length = size_t(uint8_t(bytes[0])) + size_t(uint8_t(bytes[1])) * 256;
  EXPECT_EQ(length % 8, 0u);
  EXPECT_EQ(bytes.substr(8, header.size()), header);
  EXPECT_EQ(bytes.substr(8 + header.size(), length - header.size()).find_first_not_of(' '), std::string::npos);
  EXPECT_EQ(bytes.size(), 8 + length + 88);
  float one = 0;
  std::memcpy(&one, bytes.data() + 8 + length, 4);
  EXPECT_EQ(one, 1.f) << "norm1.weight begins with 1";
}

TEST_F(Safetensors, other_dtypes_are_converted_when_asked) {
  const auto wide = made("llama f32 b1 s4 e32 h4 seed=1"), narrow = made("llama bf16 b1 s4 e32 h4 seed=2");
  ASSERT_EQ(save(*wide, file("a"), "").message, "");
  EXPECT_EQ(load(*narrow, file("a"), "", false).message,
            file("a") + ": 'input_layernorm.weight' is F32, not BF16; conversion was not requested");
  ASSERT_EQ(load(*narrow, file("a"), "", true).message, "");
  const Parameter& p = *wide->find("self_attn.q_proj.weight");
  std::vector<float> x(size_t(p.count()));
  std::vector<uint16_t> y(x.size());
  ASSERT_EQ(wide->read(p, x.data()).message, "");
  ASSERT_EQ(narrow->read(*narrow->find(p.name), y.data()).message, "");
  for (size_t n = 0; n < x.size(); ++n) ASSERT_EQ(Bf16(x[n]).bits, y[n]);
}

TEST_F(Safetensors, a_file_that_does_not_fit_changes_no_parameter) {
  const auto a = made("llama f32 b1 s4 e32 h4 seed=1"), b = made("llama f32 b1 s4 e32 h4/2 seed=2");
  ASSERT_EQ(save(*a, file("a"), "").message, "");
  const ModuleWorld w(*b);
  const std::vector<float> before = w.parameter(*b->find("self_attn.q_proj.weight"));
  EXPECT_EQ(load(*b, file("a"), "", false).message,
            file("a") + ": 'self_attn.k_proj.weight' is [32, 32], not [16, 32]");
  EXPECT_EQ(load(*b, file("a"), "x.", false).message,
            file("a") + ": 'x.input_layernorm.weight' is missing; the module requires it");
  EXPECT_EQ(w.parameter(*b->find("self_attn.q_proj.weight")), before);
  EXPECT_EQ(load(*b, file("none"), "", false).message, file("none") + ": No such file or directory");
  for (const char* const prefix : {"p\xff", "\xc3", "\xed\xa0\x80", "\xf4\x90\x80\x80", "\xe0\x80\xaf", "\xc0\xaf"})
    EXPECT_EQ(save(*b, file("q"), prefix).message,
              file("q") + ": the prefix of the names is not UTF-8, which the format requires");
  ASSERT_EQ(save(*b, file("q"), "\xc3\xa9 \xe2\x96\x88 \xf0\x9f\x98\x80.").message, "");
  EXPECT_EQ(save(*b, file("none/a"), "").message, file("none/a") + ": No such file or directory");
}

TEST_F(Safetensors, saving_touches_no_file_but_its_own) {
  const auto m = made("feed_forward f32 b1 s1 e2 ffn=3");
  std::ofstream(file("a.part")) << "mine";
  std::ofstream(file("b")) << "mine";
  fs::create_symlink(file("b"), file("c.part"));
  for (const char* name : {"a", "c"}) {
    ASSERT_EQ(save(*m, file(name), "").message, "");
    EXPECT_EQ(opened(file(name)), "");
  }
  EXPECT_EQ(bytes_of(file("a.part")), "mine");
  EXPECT_EQ(bytes_of(file("b")), "mine");
  EXPECT_EQ(names(), (std::set<std::string>{"a", "a.part", "b", "c", "c.part"}));
}

TEST_F(Safetensors, saving_through_a_link_changes_what_it_points_at) {
  const auto m = made("feed_forward f32 b1 s1 e2 ffn=3");
  fs::create_directories(folder_ / "far");
  std::ofstream(file("far/old")) << "old";
  fs::create_symlink("far/old", file("old"));
  fs::create_symlink("far/new", file("new"));  // does not exist yet
  fs::create_symlink(file("new"), file("twice"));
  for (const char* name : {"old", "new", "twice"}) {
    ASSERT_EQ(save(*m, file(name), "").message, "");
    EXPECT_TRUE(fs::is_symlink(file(name)));
    EXPECT_EQ(opened(file(name)), "");
  }
  EXPECT_EQ(names(), (std::set<std::string>{"far", "new", "old", "twice"}));
  fs::create_symlink("round", file("round"));
  EXPECT_EQ(save(*m, file("round"), "").message, file("round") + ": Too many levels of symbolic links");
}

TEST_F(Safetensors, only_a_regular_file_is_replaced_or_read) {
  const auto m = made("feed_forward f32 b1 s1 e2 ffn=3");
  ASSERT_EQ(mkfifo(file("pipe").c_str(), 0600), 0);
  fs::create_symlink("pipe", file("link"));
  fs::create_directories(folder_ / "folder");
  for (const char* name : {"pipe", "link", "folder"}) {
    EXPECT_EQ(opened(file(name)), "is not a safetensors file: it is not a regular file");
    EXPECT_EQ(save(*m, file(name), "").message, file(name) + ": exists and is not a regular file; it is not replaced");
  }
  EXPECT_TRUE(fs::is_fifo(file("pipe")));
}

TEST_F(Safetensors, a_file_that_is_replaced_keeps_its_mode) {
  const auto m = made("feed_forward f32 b1 s1 e2 ffn=3");
  const auto mode = [&](const char* name) {
    struct stat about{};
    EXPECT_EQ(stat(file(name).c_str(), &about), 0);
    return about.st_mode & 07777;
  };
  const mode_t before = umask(027);
  for (const mode_t given : {0600u, 0666u, 0640u}) {
    std::ofstream(file("old")) << "old";
    ASSERT_EQ(chmod(file("old").c_str(), given), 0);
    ASSERT_EQ(save(*m, file("old"), "").message, "");
    EXPECT_EQ(mode("old"), given);
  }
  ASSERT_EQ(save(*m, file("new"), "").message, "");
  EXPECT_EQ(mode("new"), 0640u) << "as the umask says";
  umask(before);
}

TEST_F(Safetensors, two_that_save_to_one_path_leave_one_whole_file) {
  const std::unique_ptr<Module> all[] = {made("feed_forward f32 b1 s1 e8 ffn=30"), made("feed_forward f32 b1 s1 e64")};
  std::vector<std::thread> threads;
  ASSERT_EQ(save(*all[0], file("a"), "").message, "");
  for (const auto& m : all)
    threads.emplace_back([&] {
      for (int n = 0; n < 100; ++n) EXPECT_EQ(save(*m, file("a"), "").message, "");
    });
  for (int n = 0; n < 100; ++n) EXPECT_EQ(opened(file("a")), "");
  for (std::thread& t : threads) t.join();
  EXPECT_EQ(names(), std::set<std::string>{"a"});
}

TEST_F(Safetensors, what_cannot_be_written_leaves_the_old_file) {
  const auto small = made("feed_forward f32 b1 s1 e2 ffn=3"), large = made("feed_forward f32 b1 s1 e64");
  ASSERT_EQ(save(*small, file("a"), "").message, "");
  const std::string before = bytes_of(file("a"));
  const auto handler = std::signal(SIGXFSZ, SIG_IGN);
  rlimit all{};
  getrlimit(RLIMIT_FSIZE, &all);
  const rlimit decode{.rlim_cur = 4096, .rlim_max = all.rlim_max};
  setrlimit(RLIMIT_FSIZE, &decode);
  EXPECT_EQ(save(*large, file("a"), "").message, file("a") + ": File too large");
  setrlimit(RLIMIT_FSIZE, &all);
  std::signal(SIGXFSZ, handler);
  EXPECT_EQ(bytes_of(file("a")), before);
  EXPECT_EQ(names(), std::set<std::string>{"a"});
}

TEST_F(Safetensors, every_malformed_header_is_a_sentence) {
  const std::string tensor = R"({"dtype":"F32","shape":[2],"data_offsets":[0,8]})";
  EXPECT_EQ(opened(written("{\"a\":" + tensor + "}", 8)), "");
  EXPECT_EQ(opened(written(" {\"a\" : " + tensor + " , \"__metadata__\":{\"format\":\"pt\"}} \n", 8)), "");
  EXPECT_EQ(opened(written("{}", 0)), "");
  const std::pair<std::string, std::string> wrong[] = {
      {"", "header: expected { at byte 0"},
      {"{", "header: expected \" at byte 1"},
      {"[]", "header: expected { at byte 0"},
      {"{\"a\":" + tensor, "header: expected } at byte 53"},
      {"{\"a\":" + tensor + ",}", "header: expected \" at byte 54"},
      {"{\"a\":" + tensor + "}x", "header: expected the end of the header at byte 54"},
      {"{\"a\":" + tensor + ",\"a\":" + tensor + "}", "'a' occurs twice"},
      {"{\"a\":{\"dtype\":\"F32\",\"shape\":[2]}}", "'a' lacks dtype, shape or data_offsets"},
      {R"({"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8],"shape":[2]}})",
       "header: expected each member once at byte 61"},
      {R"({"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8],"x":1}})",
       "header: expected dtype, shape or data_offsets at byte 57"},
      {R"({"a":{"dtype":"F31","shape":[2],"data_offsets":[0,8]}})", "'a': dtype 'F31' is unknown"},
      {R"({"a":{"dtype":"F32","shape":[3],"data_offsets":[0,8]}})",
       "'a' has 8 bytes of data; its shape and dtype need 12"},
      {R"({"a":{"dtype":"F32","shape":[2],"data_offsets":[8,0]}})", "'a': data_offsets are not [first, last]"},
      {R"({"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8,9]}})", "'a': data_offsets are not [first, last]"},
      {R"({"a":{"dtype":"F32","shape":[-2],"data_offsets":[0,8]}})",
       "header: expected an integer in 0 ... 2^64 - 1 at byte 29"},
      {R"({"a":{"dtype":"F32","shape":[02],"data_offsets":[0,8]}})",
       "header: expected an integer in 0 ... 2^64 - 1 at byte 29"},
      {R"({"a":{"dtype":"F32","shape":[2.0],"data_offsets":[0,8]}})", "header: expected ] at byte 30"},
      {R"({"a":{"dtype":"F32","shape":[4294967296,4294967296,2],"data_offsets":[0,8]}})", "'a' is over 2^64 bytes"},
      {R"({"a":{"dtype":"F32","shape":[2],"data_offsets":[4,12]}})", "data of 'a' begins at 4; expected 0"},
      {R"({"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}})", "has 8 bytes of data; its tensors need 4"},
      {R"({"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]},"b":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}})",
       "data of 'b' begins at 0; expected 8"},
      {"{\"a\n\":1}", "header: expected no control character in a string at byte 3"},
      {R"({"\q":1})", "header: expected an escape at byte 4"},
      {R"({"\u12":1})", "header: expected four hexadecimal digits at byte 4"},
      {R"({"\u0000":1})", "header: expected a character that is not 0 at byte 8"},
      {R"({"\ud800x":1})", "header: expected the second half of a character at byte 8"},
  };
  for (const auto& [header, sentence] : wrong) EXPECT_EQ(opened(written(header, 8)), sentence) << header;
}

TEST_F(Safetensors, names_may_hold_any_character) {
  std::vector<FileTensor> out;
  const std::string odd = "a\"b\\c\n\xC3\xA9";
  const std::string whole = write_header({{odd, "F32", {0}, 0, 0}});
  ASSERT_EQ(read_header(std::string_view(whole).substr(8), whole.size(), out).message, "");
  ASSERT_EQ(out.size(), 1u);
  EXPECT_EQ(out[0].name, odd);
  const std::string escaped = R"({"\u00e9\ud83d\ude00":{"dtype":"U8","shape":[],"data_offsets":[0,1]}})";
  ASSERT_EQ(read_header(escaped, escaped.size() + 9, out).message, "");
  EXPECT_EQ(out[0].name, "\xC3\xA9\xF0\x9F\x98\x80");
}

TEST_F(Safetensors, a_file_cut_short_or_changed_anywhere_is_refused_or_read_and_never_more) {
  const auto m = made("feed_forward f32 b1 s1 e2 ffn=3");
  ASSERT_EQ(save(*m, file("a"), "").message, "");
  const std::string whole = bytes_of(file("a"));
  for (size_t n = 0; n < whole.size(); n += n < 16 ? 1 : 29)
    EXPECT_NE(opened(written(whole.substr(0, n))), "") << "cut to " << n;
  EXPECT_NE(opened(written(whole + "x")), "");
  std::mt19937 random(7);
  int refused = 0;
  const std::string header = whole.substr(8, whole.size() - 8 - 112);
  for (int trial = 0; trial < 3000; ++trial) {
    std::string changed = header;
    for (unsigned k = 0; k <= random() % 3; ++k) changed[random() % header.size()] = char(random());
    std::vector<FileTensor> read;
    refused += !read_header(changed, whole.size(), read).ok();
    for (const FileTensor& t : read) EXPECT_LE(t.first, t.last);
  }
  EXPECT_GT(refused, 2000);
}

}  // namespace
}  // namespace attune
