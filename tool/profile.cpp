// `attune profile`: what the binary says of every GPU kernel: registers, stack, shared memory, threads, and how much of
// a multiprocessor they can fill. Nothing runs, so no GPU is needed; cuobjdump, of the CUDA toolkit, unpacks kernels.
#include <fmt/format.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <memory>
#include <nlohmann/json.hpp>

#include "tool/cli.h"
#include "tool/commands.h"
#include "tool/profile/cubin.h"
#include "tool/text.h"

namespace attune {
namespace {

namespace fs = std::filesystem;
using json = nlohmann::ordered_json;

struct Asked {
  std::vector<std::string> files{};
  std::string kernel{};
};

// A folder that goes with it.
struct Folder {
  std::string path{(fs::temp_directory_path() / "attune_profile_XXXXXX").string()};
  bool good = mkdtemp(path.data()) != nullptr;
  ~Folder() {
    std::error_code ignored;
    if (good) fs::remove_all(path, ignored);
  }
};

// `cuobjdump -xelf all` writes a file for every cubin into its working folder.
Status unpack(const std::string& binary, const std::string& folder) {
  const pid_t child = fork();
  if (child == 0) {
    if (chdir(folder.c_str()) || !freopen("/dev/null", "w", stdout) || !freopen("/dev/null", "w", stderr)) _exit(126);
    execlp("cuobjdump", "cuobjdump", "-xelf", "all", binary.c_str(), static_cast<char*>(nullptr));
    _exit(127);
  }
  int status = 0;
  if (child < 0 || waitpid(child, &status, 0) < 0) return Status::no("cuobjdump cannot be started");
  if (WIFEXITED(status) && WEXITSTATUS(status) == 127)
    return Status::no("cuobjdump, of the CUDA toolkit, is not here; a .cubin file is read without it");
  return Status::good();  // of a file without kernels it fails, and leaves none
}

Status read_file(const fs::path& path, std::vector<KernelUsage>& out) {
  std::ifstream file(path, std::ios::binary);
  const std::string bytes{std::istreambuf_iterator<char>(file), {}};
  if (!file) return Status::no("'", path.string(), "' cannot be read");
  const Status s = read_cubin(bytes, out);
  return s.ok() ? s : Status::no(path.string(), ": ", s.message);
}

bool wanted(const KernelUsage& k, const std::string& words) {
  const std::string name = join(short_name(k.symbol), " sm_", k.arch);
  for (size_t at = 0; at < words.size();) {
    const size_t end = std::min(words.find(' ', at), words.size());
    if (name.find(words.substr(at, end - at)) == name.npos) return false;
    at = end + 1;
  }
  return true;
}

void print(const std::vector<KernelUsage>& all) {
  fmt::print("{:>5}  {:>9}  {:>7}  {:>7}  {:>10}  {:>14}  {:<13}  {}\n", "arch", "registers", "threads", "stack",
             "shared", "occupancy", "bound by", "kernel");
  int spilling = 0;
  for (const KernelUsage& k : all) {
    const Occupancy o = occupancy(k);
    spilling += k.stack_bytes > 0;
    fmt::print("{:>5}  {:>9}  {:>7}  {:>7}  {:>10}  {:>14}  {:<13}  {}\n", fmt::format("sm_{}", k.arch), k.registers,
               k.threads ? fmt::format("{}", k.threads) : "-", k.stack_bytes, bytes_text(k.shared_bytes),
               o.blocks ? fmt::format("{} of {} warps", o.warps, o.most_warps) : "-", o.bound.empty() ? "-" : o.bound,
               short_name(k.symbol));
  }
  fmt::print("{} kernels, {} with a stack. Threads are of a block at most; occupancy is an upper bound, since shared\n"
             "memory that a launch asks for is not in the binary.\n", all.size(), spilling);
}

void run(const Asked& asked, Context& context) {
  std::vector<std::string> files = asked.files;
  if (files.empty()) files.push_back(fs::read_symlink("/proc/self/exe").string());
  std::vector<KernelUsage> all;
  for (const std::string& path : files) {
    if (!fs::is_regular_file(path)) return fail(context, kFailed, join("attune profile: '", path, "' is not a file"));
    if (path.ends_with(".cubin")) {
      if (const Status s = read_file(path, all); !s.ok()) return fail(context, kFailed, "attune profile: " + s.message);
      continue;
    }
    const Folder folder;
    if (!folder.good) return fail(context, kMachine, "attune profile: no temporary folder can be made");
    if (const Status s = unpack(fs::absolute(path).string(), folder.path); !s.ok())
      return fail(context, kMachine, "attune profile: " + s.message);
    for (const fs::directory_entry& e : fs::directory_iterator(folder.path))
      if (const Status s = read_file(e.path(), all); !s.ok())
        return fail(context, kFailed, "attune profile: " + s.message);
  }
  if (all.empty())
    return fail(context, kFailed, join("attune profile: ", files.front(), " has no GPU kernel: docs/building.md"));
  std::erase_if(all, [&](const KernelUsage& k) { return !wanted(k, asked.kernel); });
  if (all.empty())
    return fail(context, kFailed, join("attune profile: no kernel has '", asked.kernel, "' in its name"));
  std::sort(all.begin(), all.end(), [](const KernelUsage& a, const KernelUsage& b) {
    return std::pair(a.arch, short_name(a.symbol)) < std::pair(b.arch, short_name(b.symbol));
  });
  if (!context.json) return print(all);
  json j = json::array();
  for (const KernelUsage& k : all) {
    const Occupancy o = occupancy(k);
    j.push_back({{"kernel", short_name(k.symbol)}, {"symbol", k.symbol}, {"arch", k.arch}, {"registers", k.registers},
                 {"threads", k.threads}, {"stack_bytes", k.stack_bytes}, {"shared_bytes", k.shared_bytes},
                 {"code_bytes", k.code_bytes}, {"blocks", o.blocks}, {"warps", o.warps},
                 {"most_warps", o.most_warps}, {"bound_by", o.bound}});
  }
  fmt::print("{}\n", j.dump(2, ' ', false, json::error_handler_t::replace));
}

}  // namespace

void add_profile(CLI::App& app, Context& context) {
  const Command sub = add_command(app, "profile", "Registers, shared memory and occupancy of every GPU kernel");
  const auto asked = std::make_shared<Asked>();
  sub.add_option("files", asked->files, "Cubins, or programs and libraries that have some; this program unless given")
      .type_name("FILE");
  sub.add_option("--kernel", asked->kernel, "Only kernels that have these words in their name: \"backward sm_90\"")
      .type_name("WORDS");
  sub.footer(
      "Examples:\n"
      "  attune profile\n"
      "  attune profile --kernel \"forward sm_90\" --json\n"
      "  attune profile mine.cubin");
  sub.callback([asked, &context] { run(*asked, context); });
}

}  // namespace attune
