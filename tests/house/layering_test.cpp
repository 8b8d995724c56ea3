// SPDX-License-Identifier: Apache-2.0
// Which folders may include which, and rules for the form of a file. The rules are a table; the test reads every source
// file.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <map>
#include <regex>
#include <string>
#include <vector>

namespace {

namespace fs = std::filesystem;
using Words = std::vector<std::string>;

// Files below `folder` may include paths that start with one of `sees` and with none of `hidden`. The first layer that
// contains a file decides.
struct Layer {
  std::string folder;
  Words sees, hidden{};
};
const std::vector<Layer> kLayers = {
    {"src/core/", {"core/"}},
    // Stands in for every GPU function in a build without CUDA, whichever folder declares it.
    {"src/machine/cuda/absent.cpp", {"machine/", "attention/gpu/block_lists.h", "variants/"}},
    {"src/machine/", {"core/", "machine/"}, {"core/variant/"}},
    // tile <- gpu <- sm80, sm90: a machine sees the shared code and no sibling.
    {"src/attention/tile/", {"core/", "attention/tile/"}},
    {"src/attention/cpu/", {"core/", "machine/", "attention/tile/", "attention/cpu/", "plan/backend.h"}},
    {"src/attention/gpu/", {"core/", "machine/", "attention/tile/", "attention/gpu/", "plan/backend.h"}},
    {"src/attention/sm80/",
     {"core/", "machine/", "attention/tile/", "attention/gpu/", "attention/sm80/", "plan/backend.h"}},
    {"src/attention/sm90/",
     {"core/", "machine/", "attention/tile/", "attention/gpu/", "attention/sm90/", "plan/backend.h"}},
    {"src/attention/cudnn/",
     {"core/", "machine/", "attention/gpu/refusal.h", "attention/cudnn/", "plan/backend.h"}},
    // Compositions only move data between their parts; they contain no loops and no instructions.
    {"src/variants/", {"core/", "variants/", "plan/backend.h", "machine/", "attention/gpu/block_lists.h",
                       "transport/communicator.h"}},
    // Transports handle memory and contain nothing about attention.
    {"src/transport/", {"core/status.h", "core/tensor.h", "transport/", "machine/library.h", "machine/cuda/copies.h",
                        "machine/cuda/runtime.h"}},
    {"src/modules/", {"core/", "plan/", "variants/", "machine/", "modules/"}},
    {"src/models/", {"core/", "plan/", "machine/", "modules/", "models/"}},
    {"src/reference/", {"core/", "reference/", "plan/backend.h"}},
    {"src/plan/", {"core/", "plan/", "machine/files.h"}},
    // The C interface: only its own files include it.
    {"src/capi/", {"core/", "plan/", "machine/host.h", "machine/cuda/runtime.h", "machine/cuda/nvtx.h",
                   "machine/cuda/pool.h", "machine/append_rows.h", "machine/tensor_ops.h", "variants/blocks/blocks.h",
                   "transport/", "modules/", "attune/", "capi/"}},
    {"src/", {}},
    {"include/attune/", {"attune/"}},
    {"verify/", {"core/", "plan/", "reference/naive.h", "machine/host.h", "machine/cuda/runtime.h",
                 "machine/cuda/nvtx.h", "transport/communicator.h", "verify/"}},
    // The command prints the machine whose loops run, so it sees that table too; it also times GPUs.
    {"tool/", {"core/", "plan/", "machine/host.h", "machine/known_gpus.h", "machine/library.h", "machine/files.h",
               "machine/cpu/kernels.h", "machine/cuda/", "transport/communicator.h", "variants/blocks/blocks.h",
               "modules/settings.h", "modules/build.h", "modules/safetensors.h", "models/", "reference/formula.h",
               "verify/", "tool/", "attune/", "build_info.h"}},
    {"plugins/ggml/", {"core/", "machine/", "attention/cpu/unit.h", "plugins/ggml/", "ggml"}},
    {"examples/", {"attune/"}},
    {"python/extension/", {"attune/", "extension/"}},  // Python's extension module
};
const std::regex kInclude(R"(^\s*#\s*include\s*([<"])([^>"]+)[>"])");
const std::regex kSource(R"(\.(h|hpp|c|cpp|cu|cuh|def))");
// Longer lines are allowed for GPU instructions, which cannot be broken.
const Words kLongLines = {"src/machine/sm"};
const std::regex kKernel(R"(/attention/(gpu|sm\d+|cudnn)/|\.cu$)");
const std::regex kAssembler(R"(\b(asm|__asm__)\b)");
const std::regex kCuda(R"(^(cuda|cublas|cudnn|cute/|cutlass/|cooperative_groups|nccl|nvml|mma\.h))");

// Headers that cost seconds of compile time per file, and the files allowed to include them.
const std::vector<std::pair<std::string, Words>> kCostly = {
    {"CLI/", {"tool/cli.cpp"}}, {"nlohmann/", {"tool/json.cpp", "tool/json_value.cpp", "tool/record/record.cpp"}}};

std::vector<std::string> lines_of(const fs::path& file) {
  std::vector<std::string> lines;
  std::ifstream in(file);
  for (std::string line; std::getline(in, line);) lines.push_back(line);
  return lines;
}

bool begins_with_one_of(const std::string& text, const Words& words) {
  return std::any_of(words.begin(), words.end(), [&](const std::string& w) { return text.starts_with(w); });
}

// Violations in the includes of one file, one per line.
std::string wrong_includes(const std::string& file, const std::vector<std::string>& lines) {
  const auto layer = std::find_if(kLayers.begin(), kLayers.end(),
                                  [&](const Layer& l) { return file.starts_with(l.folder); });
  const bool may_cuda = begins_with_one_of(file, {"src/machine/sm", "src/machine/cuda/", "tests/cuda/", "bench/"}) ||
                        std::regex_search(file, kKernel);
  std::string wrong;
  for (size_t n = 0; n < lines.size(); ++n) {
    std::smatch m;
    if (!std::regex_search(lines[n], m, kInclude)) continue;
    const std::string what = m[2];
    const std::string at = file + ":" + std::to_string(n + 1) + ": ";
    if (!may_cuda && std::regex_search(what, kCuda))
      wrong += at + what + " belongs in machine/sm*, machine/cuda or a kernel's folder\n";
    for (const auto& [begin, files] : kCostly)
      if (file.starts_with("tool/") && what.starts_with(begin) && !begins_with_one_of(file, files))
        wrong += at + what + " is slow to compile and belongs behind " + files[0] + "\n";
    if (m[1] == "\"" && layer != kLayers.end() &&
        (!begins_with_one_of(what, layer->sees) || begins_with_one_of(what, layer->hidden)))
      wrong += at + what + " is not for " + layer->folder + "\n";
  }
  return wrong;
}

// Counts characters of UTF-8: all bytes except continuation bytes.
size_t columns_of(const std::string& line) {
  return size_t(std::count_if(line.begin(), line.end(), [](char c) { return (c & 0xC0) != 0x80; }));
}

std::string wrong_looks(const std::string& file, const std::vector<std::string>& lines) {
  constexpr size_t kMostLines = 600, kMostColumns = 120;
  const bool long_lines = begins_with_one_of(file, kLongLines);
  std::string wrong;
  if (lines.size() > kMostLines) wrong += file + ": " + std::to_string(lines.size()) + " lines, over 600\n";
  const bool header = file.ends_with(".h") || file.ends_with(".hpp");
  const bool c_header = file.starts_with("include/");  // C has include guards
  const bool ptx = std::regex_search(file, kKernel) && file.starts_with("src/") && !file.starts_with("src/machine/");
  if (header && !c_header && std::find(lines.begin(), lines.end(), "#pragma once") == lines.end())
    wrong += file + ": no #pragma once\n";
  for (size_t n = 0; n < lines.size(); ++n) {
    const std::string at = file + ":" + std::to_string(n + 1) + ": ";
    if (const size_t columns = columns_of(lines[n]); columns > kMostColumns && !long_lines)
      wrong += at + std::to_string(columns) + " columns, over 120\n";
    if (lines[n].find('\t') != std::string::npos) wrong += at + "a tab\n";
    if (lines[n].ends_with(' ') || lines[n].ends_with('\r')) wrong += at + "space at the end\n";
    if (lines[n].find("TO" "DO") != std::string::npos) wrong += at + "unfinished: do it, or make an issue\n";
    if (ptx && std::regex_search(lines[n], kAssembler)) wrong += at + "instructions of a GPU belong in src/machine/\n";
    if (header && lines[n].starts_with("using namespace")) wrong += at + "using namespace in a header\n";
  }
  return wrong;
}

// Four parameters of a template can be told apart by position; more are fields of a configuration, and so are flags.
std::string wrong_templates(const std::string& file, const std::vector<std::string>& lines) {
  constexpr int kMostParameters = 4;
  static const std::regex kTwoFlags(R"(<[^<>;{}]*\b(true|false), (true|false)\b[^<>;{}]*>)");
  static const std::regex kComment(R"(//.*|"(?:[^"\\]|\\.)*")");
  std::string wrong;
  int depth = 0, inner = 0, parameters = 0;  // open angle brackets; other open brackets
  std::string at;
  for (size_t n = 0; n < lines.size(); ++n) {
    const std::string code = std::regex_replace(lines[n], kComment, "");
    for (size_t i = 0; i < code.size(); ++i) {
      if (!depth && code.compare(i, 10, "template <") == 0)
        i += 9, depth = 1, parameters = 1, at = file + ":" + std::to_string(n + 1) + ": ";
      else if (!depth) continue;
      else if (strchr("([{", code[i])) ++inner;
      else if (strchr(")]}", code[i])) --inner;
      else if (inner == 0 && code[i] == '<') ++depth;
      else if (inner == 0 && code[i] == ',') parameters += depth == 1;
      else if (inner == 0 && code[i] == '>' && --depth == 0 && parameters > kMostParameters)
        wrong += at + std::to_string(parameters) + " template parameters, over 4\n";
    }
    if (std::regex_search(code, kTwoFlags)) wrong += file + ":" + std::to_string(n + 1) + ": flags by position\n";
  }
  return wrong;
}

std::string check_tree(std::string (*check)(const std::string&, const std::vector<std::string>&), int& files) {
  const fs::path root = ATTUNE_SOURCE_DIR;
  std::string wrong;
  for (const char* folder : {"src", "include", "verify", "tool", "tests", "fuzz", "examples", "bench", "python",
                             "plugins"}) {
    if (!fs::exists(root / folder)) continue;
    for (const fs::directory_entry& e : fs::recursive_directory_iterator(root / folder)) {
      const std::string kind = e.path().extension();
      if (!e.is_regular_file() || !std::regex_match(kind, kSource)) continue;
      const std::string file = fs::relative(e.path(), root);
      if (file.ends_with("/dlpack.h")) continue;  // third-party file
      wrong += check(file, lines_of(e.path()));
      ++files;
    }
  }
  return wrong;
}

// Types with the same name in two headers, of which the linker keeps one set of functions. Kernel headers are excluded,
// as above.
const std::regex kNamespace(R"(^(?:inline )?namespace ([\w:]+) \{)");
const std::regex kDefinition(R"(^(?:struct|class) (\w+)(?: final)?(?: : [^;]*)? \{)");

std::string defined_twice(const std::string& file, const std::vector<std::string>& lines,
                          std::map<std::string, std::string>& seen) {
  std::string space, wrong;
  for (const std::string& line : lines) {
    std::smatch m;
    if (std::regex_search(line, m, kNamespace)) space = m[1];
    if (!std::regex_search(line, m, kDefinition)) continue;
    const auto [at, fresh] = seen.emplace(space + "::" + std::string(m[1]), file);
    if (!fresh) wrong += at->first + " is defined in " + at->second + " and in " + file + "\n";
  }
  return wrong;
}

TEST(Layering, a_type_has_one_definition) {
  static std::map<std::string, std::string> seen;
  int files = 0;
  EXPECT_EQ(check_tree([](const std::string& file, const std::vector<std::string>& lines) {
    const bool ours = begins_with_one_of(file, {"src/", "verify/", "tool/"}) && file.ends_with(".h");
    return ours && !std::regex_search(file, kKernel) ? defined_twice(file, lines, seen) : std::string();
  }, files), "");
  EXPECT_GT(seen.size(), 100u);
}

TEST(Layering, every_include_is_allowed) {
  int files = 0;
  EXPECT_EQ(check_tree(wrong_includes, files), "");
  EXPECT_GT(files, 40);
}

TEST(Layering, files_look_as_agreed) {
  int files = 0;
  EXPECT_EQ(check_tree(wrong_looks, files), "");
}

TEST(Layering, templates_have_four_parameters_at_most) {
  int files = 0;
  EXPECT_EQ(check_tree(wrong_templates, files), "");
  EXPECT_GT(files, 40);
}

// Folders with more files than can be surveyed at a glance.
std::string crowded(const std::map<std::string, int>& folders) {
  constexpr int kMostFiles = 25;
  std::string wrong;
  for (const auto& [folder, count] : folders)
    if (count > kMostFiles) wrong += folder + ": " + std::to_string(count) + " files, over 25\n";
  return wrong;
}

TEST(Layering, no_folder_is_crowded) {
  const fs::path root = ATTUNE_SOURCE_DIR;
  std::map<std::string, int> folders;
  for (const char* folder : {"src", "tool", "verify", "tests", "plugins", "python/attune", "python/extension"})
    for (const fs::directory_entry& e : fs::recursive_directory_iterator(root / folder))
      if (e.is_regular_file()) ++folders[fs::relative(e.path().parent_path(), root)];
  EXPECT_GT(folders.size(), 20u);
  EXPECT_EQ(crowded(folders), "");
}

// The folder determines the build target; a name has no dots except the last.
std::string dotted(const std::string& file, const std::vector<std::string>&) {
  const std::string name = fs::path(file).filename();
  const bool wrong = file.starts_with("src/") && std::count(name.begin(), name.end(), '.') > 1;
  return wrong ? file + ": more than one dot in its name\n" : "";
}

TEST(Layering, names_have_one_dot) {
  int files = 0;
  EXPECT_EQ(check_tree(dotted, files), "");
  EXPECT_GT(files, 40);
}

TEST(Layering, the_rules_can_fail) {
  EXPECT_EQ(crowded({{"src/core", 25}, {"src/machine", 26}}), "src/machine: 26 files, over 25\n");
  EXPECT_EQ(dotted("src/attention/sm90/forward/kernel.h", {}), "");
  EXPECT_EQ(dotted("src/core/mask.sm90.h", {}), "src/core/mask.sm90.h: more than one dot in its name\n");
  EXPECT_EQ(wrong_includes("src/machine/host.h", {"#include \"core/variant/nsa.h\""}),
            "src/machine/host.h:1: core/variant/nsa.h is not for src/machine/\n");
  EXPECT_EQ(wrong_includes("src/attention/gpu/a.cu", {"#include \"attention/sm80/f32.h\""}),
            "src/attention/gpu/a.cu:1: attention/sm80/f32.h is not for src/attention/gpu/\n");
  EXPECT_EQ(wrong_includes("src/attention/sm90/a.cu", {"#include \"attention/sm80/f32.h\""}),
            "src/attention/sm90/a.cu:1: attention/sm80/f32.h is not for src/attention/sm90/\n");
  EXPECT_EQ(wrong_includes("src/core/mask.h", {"#include \"core/tensor.h\"", "#include <vector>"}), "");
  EXPECT_EQ(wrong_includes("src/core/mask.h", {"", "#include \"plan/backend.h\""}),
            "src/core/mask.h:2: plan/backend.h is not for src/core/\n");
  EXPECT_EQ(wrong_includes("src/plan/plan.cpp", {"#include \"attention/forward.h\""}),
            "src/plan/plan.cpp:1: attention/forward.h is not for src/plan/\n");
  EXPECT_EQ(wrong_includes("src/attention/cpu/forward.cpp", {"#include \"plan/plan.h\""}),
            "src/attention/cpu/forward.cpp:1: plan/plan.h is not for src/attention/cpu/\n");
  EXPECT_EQ(wrong_includes("src/core/mask.h", {"#include \"mask.h\""}),
            "src/core/mask.h:1: mask.h is not for src/core/\n");
  EXPECT_EQ(wrong_includes("src/capi/call.cpp", {"#include \"machine/cpu/kernels.h\""}),
            "src/capi/call.cpp:1: machine/cpu/kernels.h is not for src/capi/\n");
  EXPECT_EQ(wrong_includes("tool/commands/bench.cpp", {"# include <cuda_runtime.h>"}),
            "tool/commands/bench.cpp:1: cuda_runtime.h belongs in machine/sm*, machine/cuda or a kernel's folder\n");
  EXPECT_EQ(wrong_includes("tool/commands/bench.cpp", {"#include <nlohmann/json.hpp>"}),
            "tool/commands/bench.cpp:1: nlohmann/json.hpp is slow to compile and belongs behind tool/json.cpp\n");
  EXPECT_EQ(wrong_includes("tool/commands/bench.cpp", {"#include <CLI/CLI.hpp>"}),
            "tool/commands/bench.cpp:1: CLI/CLI.hpp is slow to compile and belongs behind tool/cli.cpp\n");
  EXPECT_EQ(wrong_includes("tool/cli.cpp", {"#include <CLI/CLI.hpp>"}), "");
  EXPECT_EQ(wrong_includes("src/attention/sm90/forward/host.cu", {"#include <cuda_runtime.h>"}), "");
  EXPECT_EQ(wrong_includes("src/machine/sm90/tma.h", {"#include <cuda.h>"}), "");
  EXPECT_EQ(wrong_looks("src/core/a.h", {"int a;"}), "src/core/a.h: no #pragma once\n");
  EXPECT_EQ(wrong_looks("src/core/a.cpp", {"int a; "}), "src/core/a.cpp:1: space at the end\n");
  EXPECT_EQ(wrong_looks("src/core/a.cpp", {"\tint a;"}), "src/core/a.cpp:1: a tab\n");
  const std::string widest(120, 'x'), wider(121, 'x');
  EXPECT_EQ(wrong_looks("src/core/a.cpp", {widest, widest.substr(1) + "\u2192"}), "");
  EXPECT_EQ(wrong_looks("src/core/a.cpp", {wider}), "src/core/a.cpp:1: 121 columns, over 120\n");
  EXPECT_EQ(wrong_looks("src/machine/sm80/a.h", {"#pragma once", wider}), "");
  for (const char* file : {"src/attention/sm80/a.cu", "src/attention/sm90/forward/a.h", "src/variants/ring/gpu.cu"})
    EXPECT_EQ(wrong_looks(file, {"#pragma once", "  asm volatile(\"mov;\");"}),
              std::string(file) + ":2: instructions of a GPU belong in src/machine/\n");
  EXPECT_EQ(wrong_looks("src/machine/sm80/a.h", {"#pragma once", "  asm volatile(\"mov;\");"}), "");
  EXPECT_EQ(wrong_templates("a.h", {"template <class A, int B, Pair<A, B> C,", "          int D = f(1, 2)>"}), "");
  EXPECT_EQ(wrong_templates("a.h", {"", "template <class A, int B, int C,", "          int D, class E>"}),
            "a.h:2: 5 template parameters, over 4\n");
  EXPECT_EQ(wrong_templates("a.h", {"// template <class A, int B, int C, int D, class E>", "run<true>(false, true);"}),
            "");
  EXPECT_EQ(wrong_templates("a.h", {"run<6, true, false>();"}), "a.h:1: flags by position\n");
  std::map<std::string, std::string> seen;
  EXPECT_EQ(defined_twice("a.h", {"namespace attune {", "class Point;", "struct Point {", "  struct Row {"}, seen), "");
  EXPECT_EQ(defined_twice("b.h", {"namespace attune::sm80 {", "struct Point {"}, seen), "");
  EXPECT_EQ(defined_twice("c.h", {"namespace attune {", "class Point final : public Row {"}, seen),
            "attune::Point is defined in a.h and in c.h\n");
  EXPECT_EQ(wrong_looks("src/core/a.cpp", std::vector<std::string>(601)), "src/core/a.cpp: 601 lines, over 600\n");
}

}  // namespace
