#include "machine/library.h"

#include <dlfcn.h>

#include <mutex>

namespace attune {

Library::Library(std::initializer_list<const char*> names, std::initializer_list<const char*> needs) {
  for (const char* name : names) {
    void* handle = dlopen(name, RTLD_NOW | RTLD_LOCAL);
    const char* lacks = nullptr;
    if (handle)
      for (const char* need : needs)
        if (!lacks && !dlsym(handle, need)) lacks = need;
    if (handle && !lacks) {
      handle_ = handle, name_ = name, missed_.clear();
      return;
    }
    const char* error = handle ? nullptr : dlerror();
    missed_ += join(missed_.empty() ? "" : "; ", name, " ", handle ? "has no " : "cannot be opened: ",
                    handle ? lacks : error ? error : "unknown error");
    if (handle) dlclose(handle);
  }
}

void* Library::symbol(const char* name) const { return handle_ ? dlsym(handle_, name) : nullptr; }

namespace {

struct OpenedBlas {
  Blas functions{};
  std::string missed{};

  OpenedBlas() {
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
