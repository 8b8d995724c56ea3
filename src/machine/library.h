// SPDX-License-Identifier: Apache-2.0
// Optional libraries, opened at run time. None is required, and failures are reported with their reason. A library
// stays open once opened, since its code may be running in another thread. None is searched for in the current folder,
// which is not trusted.
#pragma once
#include <initializer_list>
#include <string>

#include "core/status.h"

namespace attune {

// Absolute path of the file that contains this code, with links resolved: a program, or a library inside one. "" if the
// system does not provide it. Never derived from argv[0], which may lack a path.
std::string own_file();

class Library {
 public:
  // Opens the first of `names` that has every symbol of `needs`: names for the system's search, or absolute paths. On
  // failure `missed` explains for each name why not.
  Library(std::initializer_list<const char*> names, std::initializer_list<const char*> needs);

  bool ok() const { return handle_ != nullptr; }
  const std::string& name() const { return name_; }      // the name that was opened
  const std::string& missed() const { return missed_; }  // "" if ok

  // Null if the library lacks it.
  void* symbol(const char* name) const;
  template <class F>
  F* function(const char* name) const { return reinterpret_cast<F*>(symbol(name)); }

 private:
  void* handle_ = nullptr;
  std::string name_, missed_;
};

// Matrix products, for cpu_standard. The enums are CBLAS's: 101 is row-major, 111 not transposed, 112 transposed.
struct Blas {
  void (*sgemm)(int order, int trans_a, int trans_b, int m, int n, int k, float alpha, const float* a, int lda,
                const float* b, int ldb, float beta, float* c, int ldc) = nullptr;
  // Thread count of the whole process (OpenBLAS), or of the calling thread (MKL), which returns the previous value.
  // Null for another library.
  int (*get_threads)() = nullptr;
  void (*set_threads)(int) = nullptr;
  int (*set_threads_here)(int) = nullptr;
};

// Null if there is none; `missed` (if given) then holds the reason.
const Blas* blas(std::string* missed = nullptr);

// During its lifetime, BLAS calls of the creating thread use that thread alone. OpenBLAS has one setting per process,
// which belongs to the application: the last instance restores it.
class BlasOneThread {
 public:
  explicit BlasOneThread(const Blas&);
  ~BlasOneThread();
  BlasOneThread(const BlasOneThread&) = delete;
  BlasOneThread& operator=(const BlasOneThread&) = delete;

 private:
  const Blas& blas_;
  int here_ = 0;
};

}  // namespace attune
