// SPDX-License-Identifier: Apache-2.0
// A value of a YAML file changes, and nothing else: every other byte stays, whatever the style of the file.
#include "tool/tune/yaml_edit.h"

#include <gtest/gtest.h>

#include <random>

namespace attune {
namespace {

constexpr const char* kConfig =
    "# Attention of the large model.\n"
    "model:\n"
    "    name: \"llama: 7b\"   # quoted\n"
    "    layers: [1, 2, {a: b}]\n"
    "\n"
    "runtime:            # thresholds\n"
    "    fa2_min_len_win:   512    # windows, \xC3\xA4 measured\n"
    "    'quoted key': 'it''s'\n"
    "    text: |\n"
    "        fa2_min_len_win: 1\n"
    "\n"
    "    last: &anchor yes\n"
    "# the end\n";

std::string set(std::string text, std::string_view path, std::string_view value) {
  const Status s = set_yaml(text, path, value);
  return s.ok() ? text : "error: " + s.message;
}
std::string replaced(std::string text, std::string_view from, std::string_view to) {
  return text.replace(text.find(from), from.size(), to);
}

TEST(YamlEdit, only_the_value_changes) {
  EXPECT_EQ(set(kConfig, "runtime.fa2_min_len_win", "2048"), replaced(kConfig, "512 ", "2048 "));
  EXPECT_EQ(set(kConfig, "runtime.quoted key", "x"), replaced(kConfig, "'it''s'", "x"));
  for (const char* number : {"+3", "8_192", ".5", "-1", "1e3"})
    EXPECT_EQ(set(std::string("a: ") + number, "a", "7"), "a: 7") << number;
  EXPECT_EQ(set(kConfig, "model.name", "x"), replaced(kConfig, "\"llama: 7b\"", "x"));
}

TEST(YamlEdit, a_number_in_quotes_keeps_them) {
  EXPECT_EQ(set("a: '512'  # text\n", "a", "-1"), "a: '-1'  # text\n");
  EXPECT_EQ(set("{a: \"512\", b: 1}\n", "a", "77"), "{a: \"77\", b: 1}\n");
  EXPECT_EQ(set("a: \"5\\x31\"\n", "a", "77"), "a: \"77\"\n");
  EXPECT_EQ(set("a: ''\n", "a", "77"), "a: '77'\n");
}

TEST(YamlEdit, a_missing_key_is_added_behind_its_siblings_with_their_indentation) {
  EXPECT_EQ(set(kConfig, "runtime.new", "7"), replaced(kConfig, "anchor yes\n", "anchor yes\n    new: 7\n"));
  EXPECT_EQ(set(kConfig, "model.new", "7"), replaced(kConfig, "{a: b}]\n", "{a: b}]\n    new: 7\n"));
  EXPECT_EQ(set("a: 1", "b", "2"), "a: 1\nb: 2\n");
  EXPECT_EQ(set("a:\n  b: 1\n# end", "a.c", "2"), "a:\n  b: 1\n  c: 2\n# end");
  EXPECT_EQ(set("a:\n  b: |\n    text\nd: 1\n", "a.c", "2"), "a:\n  b: |\n    text\n  c: 2\nd: 1\n");
  EXPECT_EQ(set("a:\n  b:\n    c: 1\n", "a.d", "2"), "a:\n  b:\n    c: 1\n  d: 2\n");
  EXPECT_EQ(set("", "a", "2"), "a: 2\n");
  EXPECT_EQ(set("# mine\n", "a.b.c", "2"), "# mine\na:\n  b:\n    c: 2\n");
}

TEST(YamlEdit, line_ends_and_empty_values_stay_as_they_are) {
  EXPECT_EQ(set("a:\r\n  b: 1\r\nc: 2\r\n", "a.b", "5"), "a:\r\n  b: 5\r\nc: 2\r\n");
  EXPECT_EQ(set("a:\r\n  b: 1\r\nc: 2\r\n", "a.d", "5"), "a:\r\n  b: 1\r\n  d: 5\r\nc: 2\r\n");
  EXPECT_EQ(set("a:\n  b:\n  c: 2\n", "a.b", "5"), "a:\n  b: 5\n  c: 2\n");
  EXPECT_EQ(set("{a: 1, b: {c: 2}}\n", "b.c", "5"), "{a: 1, b: {c: 5}}\n");
}

TEST(YamlEdit, what_cannot_be_edited_is_refused_and_nothing_changes) {
  std::string deep;
  for (int n = 0; n < 20000; ++n) deep += "{a: ";
  const struct { const char *text, *path, *words; } all[] = {
      {kConfig, "runtime.text", "runtime.text: its value is not a plain one"},
      {kConfig, "runtime.last", "its value is not a plain one: accepted is a single value without an anchor or a tag"},
      {kConfig, "model.layers", "its value is not a plain one"},
      {kConfig, "model.name", "model.name: its value 'llama: 7b' is not a number"},
      {kConfig, "nothing.here", "nothing.here: the file has no 'nothing' to add it to"},
      {kConfig, "model.name.x", "'model.name' is not a mapping"},
      {"a: 1\na: 2\n", "a", "a: it stands 2 times in the file"},
      {"a: {b: 1}\n", "a.c", "its parent is not a mapping of lines"},
      {"- 1\n- 2\n", "a", "the file is not a mapping"},
      {"a: 1\n---\na: 2\n", "a", "YAML: 2 documents; accepted is one"},
      {"a: [1\n", "a", "YAML: line 2: "},
      {"\xEF\xBB\xBF" "a: 1\n", "a", "accepted is UTF-8 without a byte order mark"},
      {"a: *x\nb: &x 1\n", "a", "YAML: "},
      {"a: 2026-11-19\n", "a", "a: its value '2026-11-19' is not a number"},
      {"a: 1.2.3\n", "a", "a: its value '1.2.3' is not a number"},
      {"a: 1e\n", "a", "a: its value '1e' is not a number"},
      {deep.c_str(), "a", "YAML: line 1: more than 100 levels"},
  };
  for (const auto& [text, path, words] : all) {
    std::string now = text;
    const Status s = set_yaml(now, path, "3");
    if (std::string_view(words) == "YAML: ") { EXPECT_FALSE(s.ok()); continue; }
    EXPECT_NE(s.message.find(words), std::string::npos) << path << " -> " << s.message;
    EXPECT_EQ(now, text);
  }
}

TEST(YamlEdit, a_value_that_would_be_read_as_more_is_refused) {
  for (const char* value : {"1 # no", "1\nb: 2", "[1", "a: b"}) {
    std::string text = "a: 0\nc: 1\n";
    EXPECT_FALSE(set_yaml(text, "a", value).ok()) << value;
    EXPECT_EQ(text, "a: 0\nc: 1\n");
  }
}

TEST(YamlEdit, a_key_is_found_by_its_name_if_it_is_the_only_one) {
  std::string path;
  EXPECT_TRUE(yaml_path_of(kConfig, "fa2_min_len_win", path).ok());
  EXPECT_EQ(path, "runtime.fa2_min_len_win");
  EXPECT_TRUE(yaml_path_of(kConfig, "nothing", path).ok());
  EXPECT_EQ(path, "");
  EXPECT_EQ(yaml_path_of("a:\n  x: 1\nb:\n  x: 2\n", "x", path).message,
            "x: stands at a.x and at b.x; name one of them");
}

TEST(YamlEdit, damaged_files_are_refused_or_edited_in_one_place) {
  std::mt19937 random(1);
  int edited = 0;
  for (int n = 0; n < 20000; ++n) {
    std::string text = kConfig;
    for (unsigned cuts = random() % 4; cuts; --cuts) {
      const size_t at = random() % text.size();
      if (random() % 2) text.erase(at, 1 + random() % 5);
      else text[at] = kConfig[random() % std::string_view(kConfig).size()];
    }
    std::string now = text;
    if (!set_yaml(now, "runtime.fa2_min_len_win", "77").ok()) { ASSERT_EQ(now, text); continue; }
    ++edited;
    size_t head = 0, tail = 0;
    while (head < std::min(text.size(), now.size()) && text[head] == now[head]) ++head;
    const size_t most = std::min(text.size(), now.size()) - head;
    while (tail < most && text[text.size() - 1 - tail] == now[now.size() - 1 - tail]) ++tail;
    const std::string put = now.substr(head, now.size() - head - tail);
    ASSERT_TRUE(put.find_first_not_of("7 \nfa2_min_len_win:") == put.npos) << text << "\n->\n" << now;
  }
  EXPECT_GT(edited, 5000);
}

TEST(YamlEdit, the_difference_names_the_lines) {
  EXPECT_EQ(yaml_diff(kConfig, set(kConfig, "runtime.fa2_min_len_win", "2048")),
            "-     fa2_min_len_win:   512    # windows, \xC3\xA4 measured\n"
            "+     fa2_min_len_win:   2048    # windows, \xC3\xA4 measured\n");
  EXPECT_EQ(yaml_diff("a: 1\nb: 2\n", "a: 1\nc: 3\nb: 2\n"), "+ c: 3\n");
  EXPECT_EQ(yaml_diff("a: 1\nb: 2\nc: 3\n", "a: 9\nb: 2\nc: 8\n"), "- a: 1\n+ a: 9\n- c: 3\n+ c: 8\n");
  EXPECT_EQ(yaml_diff("a: 1\n", "a: 1\n"), "");
}

}  // namespace
}  // namespace attune
