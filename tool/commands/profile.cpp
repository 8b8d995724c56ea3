// SPDX-License-Identifier: Apache-2.0
// `attune profile`: shows what the binary states about every GPU kernel: registers, stack, shared memory, threads and
// the occupancy of an SM. Nothing runs, so no GPU is needed; cuobjdump of the CUDA toolkit unpacks the kernels. With
// --run it starts itself again under ncu, which measures the kernels of one call.
#include <fcntl.h>
#include <fmt/format.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <memory>

#include "machine/host.h"
#include "machine/library.h"
#include "plan/plan.h"
#include "machine/files.h"
#include "tool/cli.h"
#include "tool/commands/commands.h"
#include "tool/files.h"
#include "tool/json.h"
#include "tool/line.h"
#include "tool/machine.h"
#include "tool/profile/counters.h"
#include "tool/profile/cubin.h"
#include "tool/profile/once.h"
#include "tool/table.h"
#include "tool/text.h"

namespace attune {
namespace {

namespace fs = std::filesystem;
constexpr const char* kNowhere = "cannot find the file of this program: /proc is missing";
constexpr const char* kNoFolder = "cannot create a temporary folder";

struct Asked {
  std::vector<std::string> files{};
  std::string kernel{}, line{}, backend{}, device{"cuda:0"};
  bool once = false;
};

// A temporary folder, removed by the destructor. TMPDIR may name a folder that does not exist.
struct Folder {
  std::error_code error{};
  std::string path{(fs::temp_directory_path(error) / "attune_profile_XXXXXX").string()};
  bool good = !error && mkdtemp(path.data()) != nullptr;
  ~Folder() {
    std::error_code ignored;
    if (good) fs::remove_all(path, ignored);
  }
};

// Redirects stdout and stderr of a forked child. The streams may be those of ShownOutput, which freopen() cannot
// change.
bool redirect(const char* to) {
  const int file = open(to, O_WRONLY | O_CREAT | O_TRUNC, 0600);
  return file >= 0 && dup2(file, STDOUT_FILENO) >= 0 && dup2(file, STDERR_FILENO) >= 0;
}

// `cuobjdump -xelf all` writes a file for every cubin into its working folder.
Status unpack(const std::string& binary, const std::string& folder) {
  const pid_t child = fork();
  if (child == 0) {
    if (chdir(folder.c_str()) || !redirect("/dev/null")) _exit(126);
    execlp("cuobjdump", "cuobjdump", "-xelf", "all", binary.c_str(), static_cast<char*>(nullptr));
    _exit(127);
  }
  int status = 0;
  if (child < 0 || waitpid(child, &status, 0) < 0) return Status::no("cuobjdump cannot be started");
  if (WIFEXITED(status) && WEXITSTATUS(status) == 127)
    return Status::no("cuobjdump of the CUDA toolkit is not installed; only .cubin files can be read without it");
  return Status::good();  // for a file without kernels cuobjdump fails and writes nothing
}

// Runs a program to its end, with stdout and stderr redirected to the file `to`.
Status run_program(std::vector<std::string> words, const std::string& to, int& code) {
  const pid_t child = fork();
  if (child == 0) {
    if (!redirect(to.c_str())) _exit(126);
    std::vector<char*> argv;
    for (std::string& w : words) argv.push_back(w.data());
    argv.push_back(nullptr);
    execvp(argv[0], argv.data());
    _exit(127);
  }
  int status = 0;
  if (child < 0 || waitpid(child, &status, 0) < 0) return Status::no(words[0], " cannot be started");
  code = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
  if (code == 127) return Status::no("--run: ", words[0], " of Nsight Compute is not installed");
  return Status::good();
}

std::string text_in(const fs::path& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

// The error in the output of ncu: that of the program, or its own; `ours` if there is none.
std::string complaint(const std::string& text, const std::string& ours) {
  for (const std::string_view mark : {"attune profile: ", "==ERROR== "})
    if (const size_t at = text.find(mark); at != text.npos)
      return text.substr(at + mark.size(), text.find('\n', at) - at - mark.size());
  return ours;
}

Status read_file(const fs::path& path, std::vector<KernelUsage>& out) {
  constexpr size_t kMostBytes = size_t(256) << 20;  // several times the largest library of one architecture
  std::string bytes;
  if (Status s = read_limited(path.string(), {.most_bytes = kMostBytes}, bytes); !s.ok())
    return s.after("'", path.string(), "' ");
  const Status s = read_cubin(bytes, out);
  return s.ok() ? s : s.after(path.string(), ": ");
}

bool has_words(const std::string& name, const std::string& words) {
  for (size_t at = 0; at < words.size();) {
    const size_t end = std::min(words.find(' ', at), words.size());
    if (name.find(words.substr(at, end - at)) == name.npos) return false;
    at = end + 1;
  }
  return true;
}
bool wanted(const KernelUsage& k, const std::string& words) {
  return has_words(join(short_name(k.symbol), " sm_", k.arch), words);
}

void print(const std::vector<KernelUsage>& all) {
  constexpr Cells number = Cells::number;
  TextTable t{.columns = {{"arch", number, TextColumn::Shared::fact}, {"registers", number}, {"threads", number},
                          {"stack", number}, {"shared", number}, {"occupancy", number}, {"bound by"}, {"kernel"}}};
  int spilling = 0;
  for (const KernelUsage& k : all) {
    const Occupancy o = occupancy(k);
    spilling += k.stack_bytes > 0;
    t.rows.push_back({fmt::format("sm_{}", k.arch), join(k.registers), k.threads ? fmt::format("{}", k.threads) : "-",
                      join(k.stack_bytes), bytes_text(k.shared_bytes),
                      o.blocks ? fmt::format("{} of {} warps", o.warps, o.most_warps) : "-", std::string(o.bound),
                      short_name(k.symbol)});
  }
  fmt::print("{}", to_text(std::move(t), terminal_width(STDOUT_FILENO)));
  fmt::print("{}, {} with a stack. Threads are the most per block. Occupancy is an upper bound, because "
             "dynamic shared memory is not in the binary.\n", counted(all.size(), "kernel"), spilling);
}

void print(const std::vector<KernelCounters>& all) {
  const auto percent = [](double x) { return x < 0 ? std::string("-") : fmt::format("{:.1f} %", x); };
  constexpr Cells number = Cells::number;
  TextTable t{.columns = {{"time", number}, {"SM", number}, {"tensor", number}, {"DRAM", number}, {"L2", number},
                          {"warps (possible)", number}, {"registers", number}, {"shared", number}, {"grid, block"},
                          {"waits, warps per instruction"}, {"kernel"}}};
  for (const KernelCounters& k : all) {
    std::string waits;
    for (size_t n = 0; n < std::min<size_t>(3, k.waits.size()); ++n)
      waits += fmt::format("{}{} {:.2f}", n ? ", " : "", k.waits[n].first, k.waits[n].second);
    t.rows.push_back({seconds_text(1e-6 * k.us), percent(k.sm), percent(k.tensor), percent(k.dram), percent(k.l2),
                      fmt::format("{} ({})", percent(k.occupancy), percent(k.most_occupancy)),
                      fmt::format("{}", k.registers), bytes_text(k.shared_bytes),
                      fmt::format("{}, {}", k.grid, k.block), waits, k.kernel});
  }
  fmt::print("{}", to_text(std::move(t), terminal_width(STDOUT_FILENO)));
  fmt::print("{} of one call, measured by ncu, which replays each many times: its times are not a benchmark.\n",
             counted(all.size(), "kernel"));
}

Json as_json(const KernelCounters& k) {
  const auto said = [](double x) { return x < 0 ? Json(nullptr) : Json(x); };
  Json waits = Json::object();
  for (const auto& [reason, warps] : k.waits) waits[reason] = warps;
  return {{"kernel", k.kernel},        {"grid", k.grid},         {"block", k.block},
          {"microseconds", k.us},      {"registers", k.registers}, {"shared_bytes", k.shared_bytes},
          {"sm_percent", said(k.sm)},  {"tensor_percent", said(k.tensor)}, {"dram_percent", said(k.dram)},
          {"l2_percent", said(k.l2)},  {"occupancy_percent", said(k.occupancy)},
          {"possible_occupancy_percent", said(k.most_occupancy)}, {"waits", waits}};
}

// Runs one call of a problem: in this process if `once`, else under ncu.
void run_problem(Asked asked, Context& context) {
  const auto no = [&](Exit code, const std::string& message) { fail(context, code, "attune profile: " + message); };
  BenchRow row;
  Device device;
  if (const Status s = parse_row(asked.line, row); !s.ok()) {
    const std::string module = meant_module(asked.line);
    return no(kUsage, join(module.empty() ? s.message : module, caret_below(asked.line)));
  }
  if (!row.module.empty()) return no(kUsage, join("--run: '", asked.line, "' is a module; give a problem line"));
  if (!asked.files.empty()) return no(kUsage, "--run: given with files; it profiles this program only");
  ForcedBackend forced;
  if (const Status s = forced_backend(asked.backend, forced); !s.ok()) return no(kUsage, s.message);
  asked.backend = forced.name;
  if (!asked.device.starts_with("cuda"))
    return no(kUsage, join("--run: --device ", asked.device, " is not a GPU of this machine; give one such as cuda:0"));
  // An unsupported problem is a negative answer; any other obstacle is the machine's.
  const auto cannot = [&](const std::string& why) {
    const Status there = device_named(asked.device, device);
    const Status taken = there.ok() ? can_run_once(row, device, asked.backend) : Status::good();
    taken.ok() ? no(kMachine, why) : no(kFailed, taken.message);
  };
  if (asked.once) {
    if (const Status s = device_named(asked.device, device); !s.ok()) return no(kMachine, s.message);
    if (const Status s = run_once(row, device, asked.backend); !s.ok()) cannot(s.message);
    return;
  }
  const Folder folder;
  if (!folder.good) return no(kMachine, kNoFolder);
  const std::string program = this_program();
  if (program.empty()) return no(kMachine, kNowhere);
  std::vector<std::string> again = {program, "profile", "--run", asked.line,
                                    "--device", asked.device, "--once"};
  if (!asked.backend.empty()) again.insert(again.end(), {"--backend", asked.backend});
  const std::string file = folder.path + "/ncu.csv";
  int code = 0;
  if (const Status s = run_program(ncu_command(again), file, code); !s.ok()) return no(kMachine, s.message);
  const std::string text = text_in(file);
  std::vector<KernelCounters> all;
  if (const Status s = read_ncu(text, all); !s.ok() || all.empty())
    return cannot(complaint(text, s.ok() ? "ncu measured no kernel" : s.message));
  if (code) return cannot(complaint(text, join("ncu ended with ", code)));
  std::erase_if(all, [&](const KernelCounters& k) { return !has_words(k.kernel, asked.kernel); });
  if (all.empty()) return no(kFailed, join("no kernel of the call has '", asked.kernel, "' in its name"));
  if (!context.json) return print(all);
  Json j = Json::array();
  for (const KernelCounters& k : all) j.push_back(as_json(k));
  fmt::print("{}\n", j.dump(2));
}

void run(const Asked& asked, Context& context) {
  if (!asked.line.empty()) return run_problem(asked, context);
  if (asked.once || !asked.backend.empty())
    return fail(context, kUsage, "attune profile: --once or --backend given without --run \"<problem line>\"");
  std::vector<std::string> files = asked.files;
  if (files.empty()) {
    files.push_back(own_file());
    if (files[0].empty()) return fail(context, kMachine, join("attune profile: ", kNowhere));
  }
  std::vector<KernelUsage> all;
  for (const std::string& path : files) {
    std::error_code error;
    const fs::path whole = fs::absolute(path, error);
    if (error || !fs::is_regular_file(path, error))
      return fail(context, kMachine, join("attune profile: '", path, "' is not a file"));
    if (path.ends_with(".cubin")) {
      if (const Status s = read_file(path, all); !s.ok()) return fail(context, kFailed, "attune profile: " + s.message);
      continue;
    }
    const Folder folder;
    if (!folder.good) return fail(context, kMachine, join("attune profile: ", kNoFolder));
    if (const Status s = unpack(whole.string(), folder.path); !s.ok())
      return fail(context, kMachine, "attune profile: " + s.message);
    for (fs::directory_iterator e(folder.path, error); !error && e != fs::directory_iterator(); e.increment(error))
      if (const Status s = read_file(e->path(), all); !s.ok())
        return fail(context, kFailed, "attune profile: " + s.message);
    if (error) return fail(context, kMachine, join("attune profile: ", kNoFolder));
  }
  if (all.empty())
    return fail(context, kFailed, join("attune profile: ", files.front(), " has no GPU kernels; see docs/building.md"));
  std::erase_if(all, [&](const KernelUsage& k) { return !wanted(k, asked.kernel); });
  if (all.empty())
    return fail(context, kFailed, join("attune profile: no kernel has '", asked.kernel, "' in its name"));
  std::sort(all.begin(), all.end(), [](const KernelUsage& a, const KernelUsage& b) {
    return std::pair(a.arch, short_name(a.symbol)) < std::pair(b.arch, short_name(b.symbol));
  });
  if (!context.json) return print(all);
  Json j = Json::array();
  for (const KernelUsage& k : all) {
    const Occupancy o = occupancy(k);
    j.push_back({{"kernel", short_name(k.symbol)}, {"symbol", k.symbol}, {"arch", k.arch}, {"registers", k.registers},
                 {"threads", k.threads}, {"stack_bytes", k.stack_bytes}, {"shared_bytes", k.shared_bytes},
                 {"code_bytes", k.code_bytes}, {"blocks", o.blocks}, {"warps", o.warps},
                 {"most_warps", o.most_warps}, {"bound_by", o.bound}});
  }
  fmt::print("{}\n", j.dump(2));
}

}  // namespace

void add_profile(CLI::App& app, Context& context) {
  const Command sub =
      add_command(app, "profile", "Show registers, shared memory and occupancy of GPU kernels, or counters of ncu");
  const auto asked = std::make_shared<Asked>();
  sub.add_option("files", asked->files, "Read these cubins, programs or libraries; default this program")
      .type_name("FILE");
  sub.add_option("--kernel", asked->kernel, "Show only kernels with these words in their name: \"backward sm_90\"")
      .type_name("WORDS");
  sub.add_option("--run", asked->line, "Measure the counters of one call of this problem with ncu").type_name("LINE");
  sub.add_option("--backend", asked->backend, "With --run: use only this backend; its refusal is an error")
      .type_name("NAME");
  sub.add_option("--device", asked->device, "With --run: run on this GPU").type_name("NAME").show_default();
  sub.add_flag("--once", asked->once,
               "With --run: only run it, between cuProfilerStart and cuProfilerStop, for your own profiler");
  sub.footer(
      "Examples:\n"
      "  attune profile\n"
      "  attune profile --kernel \"forward sm_90\" --json\n"
      "  attune profile mine.cubin\n"
      "  attune profile --run \"forward bf16 b1 h16 q4096 k4096 d128 causal\" --backend sm90_forward\n"
      "  nsys profile --capture-range=cudaProfilerApi attune profile \\\n"
      "    --run \"forward bf16 b1 h16 q512 k512 d64 full\" --once\n\n"
      "Exit code 1 if there is no such kernel, a file is not a cubin, or no backend supports the problem; 3 if\n"
      "cuobjdump, ncu, permission to read counters or the GPU is missing, or the call fails.");
  sub.callback([asked, &context] { run(*asked, context); });
}

}  // namespace attune
