// SPDX-License-Identifier: Apache-2.0
#include "machine/library.h"

#include <dlfcn.h>
#include <pthread.h>
#include <signal.h>
#include <sys/mman.h>

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <exception>
#include <filesystem>
#include <fstream>
#include <mutex>
#include <thread>
#include <vector>

namespace attune {

std::string own_file() {
  const auto here = reinterpret_cast<uintptr_t>(&own_file);
  std::ifstream maps("/proc/self/maps");
  for (std::string line; std::getline(maps, line);) {
    unsigned long from = 0, until = 0;
    const size_t path = line.find('/');
    if (std::sscanf(line.c_str(), "%lx-%lx", &from, &until) == 2 && from <= here && here < until && path != line.npos)
      return line.substr(path);
  }
  // Fallback without /proc. For a program this is argv[0], for a library the name it was opened by: either may be
  // relative.
  Dl_info known{};
  if (!dladdr(reinterpret_cast<const void*>(&own_file), &known) || !known.dli_fname) return {};
  return known.dli_fname[0] == '/' ? known.dli_fname : "";
}

namespace {

std::string last_error() {
  const char* const error = dlerror();
  return error ? error : "unknown error";
}

// The file that pip installed with one of NVIDIA's packages, site-packages/nvidia/<package>/lib/<name>, if this code is
// in site-packages/attune; the system does not search there. "" if there is none.
std::string from_pip(const char* name) {
  namespace fs = std::filesystem;
  const fs::path packages = fs::path(own_file()).parent_path().parent_path();
  std::string found;
  if (packages.filename() != "site-packages" && packages.filename() != "dist-packages") return found;
  std::error_code error, ignored;
  for (fs::directory_iterator e(packages / "nvidia", error), end; !error && e != end; e.increment(error)) {
    const std::string file = (e->path() / "lib" / name).string();
    if (fs::exists(file, ignored) && file > found) found = file;  // of several the last name, as cu13 after cu12
  }
  return found;
}

}  // namespace

Library::Library(std::initializer_list<const char*> names, std::initializer_list<const char*> needs) {
  for (const char* name : names) {
    if (name[0] != '/' && std::strchr(name, '/')) {
      missed_ += join(missed_.empty() ? "" : "; ", name, " is not opened: the path is relative to the current folder");
      continue;
    }
    void* handle = dlopen(name, RTLD_NOW | RTLD_LOCAL);
    std::string error = handle ? "" : last_error(), opened = name;
    if (!handle && name[0] != '/')
      if (const std::string file = from_pip(name); !file.empty()) {
        handle = dlopen(file.c_str(), RTLD_NOW | RTLD_LOCAL);
        handle ? opened = file : error = last_error();
      }
    const char* lacks = nullptr;
    if (handle)
      for (const char* need : needs)
        if (!lacks && !dlsym(handle, need)) lacks = need;
    if (handle && !lacks) {
      handle_ = handle, name_ = opened, missed_.clear();
      return;
    }
    missed_ += join(missed_.empty() ? "" : "; ", name, " ", handle ? "lacks " : "cannot be opened: ",
                    handle ? std::string_view(lacks) : error);
    if (handle) dlclose(handle);
  }
}

void* Library::symbol(const char* name) const { return handle_ ? dlsym(handle_, name) : nullptr; }

namespace {

// OpenBLAS starts a thread per CPU while it is opened. Where a limit forbids one, it raises SIGINT, or the process does
// not end; so this tries the same first. The threads wait for each other, to exist at the same time.
Status can_start_threads() {
  constexpr unsigned kMost = 128;                      // of Debian's OpenBLAS
  constexpr size_t kBytesEach = size_t(32) << 20;      // its buffer
  const unsigned count = std::clamp(std::thread::hardware_concurrency(), 1u, kMost);
  sigset_t all, before;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);  // handlers belong to the application's threads
  std::mutex end;
  std::vector<std::thread> threads;
  Status s;
  {
    const std::lock_guard waiting(end);
    try {
      for (unsigned n = 1; n < count; ++n) threads.emplace_back([&end] { const std::lock_guard released(end); });
    } catch (const std::exception&) {
      s = Status::unsupported("a limit of this process leaves it fewer than ", count, " threads");
    }
    const size_t bytes = (count + 2) * kBytesEach;
    const int flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE;
    void* const reserved = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, flags, -1, 0);
    if (reserved != MAP_FAILED) munmap(reserved, bytes);
    else if (s.ok()) s = Status::unsupported("a limit of this process leaves it less than ", bytes >> 20, " MiB");
  }
  for (std::thread& t : threads) t.join();
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
  return s;
}

struct OpenedBlas {
  Blas functions{};
  std::string missed{};

  OpenedBlas() {
    if (const Status s = can_start_threads(); !s.ok()) {
      missed = "none is opened: " + s.message;
      return;
    }
    const Library library({"libopenblas.so.0", "libmkl_rt.so.2", "libnvpl_blas_lp64_seq.so.0", "libblis.so.4",
                           "libblas.so.3"}, {"cblas_sgemm"});
    missed = library.missed();
    if (!library.ok()) return;
    functions.sgemm = reinterpret_cast<decltype(functions.sgemm)>(library.symbol("cblas_sgemm"));
    functions.get_threads = library.function<int()>("openblas_get_num_threads");
    functions.set_threads = library.function<void(int)>("openblas_set_num_threads");
    functions.set_threads_here = library.function<int(int)>("MKL_Set_Num_Threads_Local");
  }
};

std::mutex one_thread_mutex;
int one_thread_users = 0, threads_before = 0;

}  // namespace

const Blas* blas(std::string* missed) {
  static const OpenedBlas opened;
  if (missed) *missed = opened.missed;
  return opened.functions.sgemm ? &opened.functions : nullptr;
}

BlasOneThread::BlasOneThread(const Blas& blas) : blas_(blas) {
  if (blas_.set_threads_here) here_ = blas_.set_threads_here(1);
  if (!blas_.get_threads || !blas_.set_threads) return;
  const std::lock_guard lock(one_thread_mutex);
  if (one_thread_users++) return;
  threads_before = blas_.get_threads();
  blas_.set_threads(1);
}

BlasOneThread::~BlasOneThread() {
  if (blas_.set_threads_here) blas_.set_threads_here(here_);
  if (!blas_.get_threads || !blas_.set_threads) return;
  const std::lock_guard lock(one_thread_mutex);
  if (--one_thread_users == 0) blas_.set_threads(threads_before);
}

}  // namespace attune
