// SPDX-License-Identifier: Apache-2.0
#include "tool/remote/run/bundle.h"

#include <sys/utsname.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <cstdlib>
#include <filesystem>
#include <map>
#include <set>

#include "machine/cuda/runtime.h"
#include "machine/known_gpus.h"
#include "machine/library.h"
#include "tool/files.h"
#include "tool/json.h"
#include "tool/json_value.h"
#include "tool/record/sha256.h"
#include "tool/remote/process.h"
#include "tool/remote/target.h"
#include "tool/text.h"

namespace attune {

namespace fs = std::filesystem;

namespace {

constexpr size_t kMostFile = size_t(2) << 30;

// Libraries of glibc, and what comes with a driver: the machine's own are used.
bool is_of_machine(const std::string& name) {
  constexpr std::string_view kBegin[] = {"ld-linux", "libc.so", "libm.so", "libdl.so", "librt.so", "libpthread.so",
                                         "libresolv.so", "libutil.so", "libnsl.so", "libcuda.so", "libnvidia",
                                         "linux-vdso"};
  return std::any_of(std::begin(kBegin), std::end(kBegin), [&](std::string_view b) { return name.starts_with(b); });
}

// The largest minor of "GLIBC_2.<minor>" in a file: what its symbols need.
int glibc_of(std::string_view bytes) {
  constexpr std::string_view kName = "GLIBC_2.";
  int most = 0;
  for (size_t at = bytes.find(kName); at != bytes.npos; at = bytes.find(kName, at + 1)) {
    int minor = 0;
    const char* const begin = bytes.data() + at + kName.size();
    if (std::from_chars(begin, bytes.data() + bytes.size(), minor).ec == std::errc()) most = std::max(most, minor);
  }
  return most;
}

// 89 of "NVIDIA L4", "L4_24GB" and "L4"; 0: not known.
int arch_of(const std::string& gpu) {
  const KnownGpu* known = known_gpu(gpu);
  if (!known) known = known_gpu(planner_word(gpu));
  return known ? known->arch : 0;
}

// "sm_75, sm_80, sm_90 and PTX of sm_90": code runs on its own generation, PTX also on later ones.
bool has_code(std::string_view gpus, int arch) {
  constexpr std::string_view kBefore = "sm_", kPtx = "PTX of ";
  for (size_t at = gpus.find(kBefore); at != gpus.npos; at = gpus.find(kBefore, at + 1)) {
    int code = 0;
    std::from_chars(gpus.data() + at + kBefore.size(), gpus.data() + gpus.size(), code);
    const bool ptx = gpus.substr(0, at).ends_with(kPtx);
    if (code && code <= arch && (ptx || code / 10 == arch / 10)) return true;
  }
  return false;
}

// Files of the archive: name there, path here.
using Files = std::map<std::string, std::string>;

Status add_libraries(const std::string& program, Files& files) {
  ProgramResult r;
  if (Status s = run_program({.words = {"ldd", program}}, r); !s.ok()) return s;
  if (r.code) return Status::failure(Code::device, "ldd ", program, ": ", last_line(r.err));
  for (size_t at = 0, end; (end = r.out.find('\n', at)) != r.out.npos; at = end + 1) {
    const std::string line = r.out.substr(at, end - at);
    const size_t arrow = line.find(" => "), address = line.rfind(" (0x");
    if (arrow == line.npos) continue;
    const std::string name = line.substr(line.find_first_not_of(" \t"), arrow - line.find_first_not_of(" \t"));
    if (is_of_machine(name)) continue;
    if (address == line.npos || address < arrow + 4)
      return Status::failure(Code::device, program, ": its library ", name, " is not here");
    files["lib/" + name] = line.substr(arrow + 4, address - arrow - 4);
  }
  return Status::good();
}

// What lies beside the program or in the folders of an installation: plug-ins, the library for peers, their scripts.
void add_rest(const fs::path& program, Files& files) {
  const fs::path folder = program.parent_path(), root = folder.parent_path();
  std::error_code error;
  const fs::path folders[] = {folder, root / "lib", root / "lib64", root / "share/attune", folder / "peers"};
  for (const fs::path& from : folders)
    for (fs::directory_iterator it(from, error), end; !error && it != end; it.increment(error)) {
      const std::string name = it->path().filename();
      const bool library = name == "libattune_tool.so" || name == "libattune_mpi.so";  // opened beside the command
      if (library || (name.ends_with(".py") && from != folder))
        files.try_emplace(join(library ? "bin/" : "share/attune/", name), it->path());
    }
}

std::string cache_folder() {
  const char* const given = std::getenv("XDG_CACHE_HOME");
  const char* const home = std::getenv("HOME");
  if (given && *given == '/') return join(given, "/attune/bundles");
  return home && *home ? join(home, "/.cache/attune/bundles") : "";
}

Json facts_of(const Bundle& b) {
  return {{"attune_bundle", 1}, {"hash", b.hash}, {"architecture", b.architecture}, {"glibc_minor", b.glibc_minor},
          {"gpus", b.gpus}};
}

// Copies the files into a folder and packs it. The archive appears under its name when it is complete.
Status pack(const Files& files, const Bundle& bundle, const std::string& cache) {
  const std::string folder = join(cache, "/making-", ::getpid());
  std::error_code error;
  const auto done = [&](Status s) {
    fs::remove_all(folder, error);
    return s;
  };
  for (const auto& [name, path] : files) {
    fs::create_directories(fs::path(folder + "/" + name).parent_path(), error);
    fs::copy_file(path, folder + "/" + name, fs::copy_options::overwrite_existing, error);
    if (error) return done(Status::failure(Code::device, "'", path, "' cannot be copied: ", error.message()));
  }
  if (Status s = write_file(folder + "/bundle.json", facts_of(bundle).dump() + "\n"); !s.ok()) return done(s);
  const std::string archive = folder + ".tar.gz";
  ProgramCall tar{.words = {"tar", "-C", folder, "--sort=name", "--owner=0", "--group=0", "--numeric-owner",
                            "--mtime=@0", "-czf", archive},
                  .limit_s = 600};
  for (const char* part : {"bundle.json", "bin", "lib", "share", "peers"})
    if (fs::exists(join(folder, "/", part), error)) tar.words.push_back(part);
  ProgramResult r;
  Status s = run_program(tar, r);
  if (s.ok() && r.code) s = Status::failure(Code::device, "tar: ", last_line(r.err));
  if (s.ok()) fs::rename(archive, bundle.path, error);
  if (s.ok() && error) s = Status::failure(Code::device, "'", bundle.path, "' cannot be written: ", error.message());
  return done(s);
}

}  // namespace

Status make_bundle(Bundle& b) {
  const std::string program = own_file(), cache = cache_folder();
  if (cache.empty()) return Status::failure(Code::device, "neither XDG_CACHE_HOME nor HOME is set");
  Files files{{"bin/attune", program}};
  if (Status s = add_libraries(program, files); !s.ok()) return s.after("bundle: ");
  add_rest(program, files);
  utsname system{};
  ::uname(&system);
  b = {.architecture = system.machine, .gpus = std::string(cuda::built_for())};
  std::string hashes = b.architecture;
  for (const auto& [name, path] : files) {
    std::string bytes;
    if (Status s = read_text(path, bytes, kMostFile); !s.ok()) return s.after("bundle: ");
    hashes += join("\n", name, " ", sha256_hex(bytes));
    b.glibc_minor = std::max(b.glibc_minor, glibc_of(bytes));
  }
  b.hash = sha256_hex(hashes).substr(0, 16);
  b.path = join(cache, "/", b.hash, ".tar.gz");
  std::error_code error;
  if (fs::exists(b.path, error)) return Status::good();
  fs::create_directories(cache, error);
  if (error) return Status::failure(Code::device, "bundle: '", cache, "' cannot be created: ", error.message());
  return pack(files, b, cache).after("bundle: ");
}

Status read_bundle(const std::string& path, Bundle& b) {
  ProgramResult r;
  if (Status s = run_program({.words = {"tar", "-xzOf", path, "bundle.json"}, .limit_s = 120}, r); !s.ok()) return s;
  JsonValue j;
  if (r.code || !JsonValue::parse(r.out, j).ok() || j["attune_bundle"].number() != 1)
    return Status::no("--bundle: '", path, "' is not a bundle of attune");
  std::error_code error;
  b = {.path = fs::absolute(path, error), .hash = j["hash"].text(), .architecture = j["architecture"].text(),
       .glibc_minor = int(j["glibc_minor"].number().value_or(0)), .gpus = j["gpus"].text()};
  const bool good = b.hash.size() == 16 && b.hash.find_first_not_of("0123456789abcdef") == b.hash.npos;
  return good ? Status::good() : Status::no("--bundle: '", path, "' is not a bundle of attune");
}

Status fits(const Bundle& b, const std::string& probe, bool wants_gpu) {
  const auto no = [](const auto&... why) { return Status::failure(Code::device, why...); };
  std::string gpu;
  for (size_t at = 0, end; (end = probe.find('\n', at)) != probe.npos; at = end + 1) {
    const std::string line = in_one_line(probe.substr(at, end - at)), what = line.substr(0, line.find(' '));
    const std::string value = line.find(' ') == line.npos ? "" : line.substr(line.find(' ') + 1);
    if (what == "machine" && value != b.architecture)
      return no("the machine is ", value, ", and the bundle is for ", b.architecture, "; give one of that build with "
                "--bundle");
    if (what == "glibc") {
      int minor = 0;
      const size_t dot = value.find('.');
      if (value.starts_with("2.") && dot != value.npos)
        std::from_chars(value.data() + dot + 1, value.data() + value.size(), minor);
      if (minor < b.glibc_minor)
        return no("the machine has glibc ", value.empty() ? "of no known version" : value, "; the bundle needs 2.",
                  b.glibc_minor);
    }
    if (what == "lacks") return no("the machine lacks the program '", value, "'");
    if (what == "gpu" && gpu.empty()) gpu = value;
  }
  if (wants_gpu && gpu.empty()) return no("the machine has no GPU that nvidia-smi shows");
  if (wants_gpu && b.gpus.empty()) return no("the bundle has no GPU code: it was left out of this build");
  const int arch = wants_gpu ? arch_of(gpu) : 0;
  if (arch && !has_code(b.gpus, arch))
    return no("the GPU ", gpu, " is sm_", arch, ", and the bundle has code for ", in_one_line(b.gpus),
              "; ATTUNE_CUDA_ARCHS selects what is built");
  return Status::good();
}

}  // namespace attune
