// Optional providers, opened at run time: the library needs none of them, and says what it missed. A library once
// opened stays open, since its code may be running in another thread. None is looked for in the current folder, which
// may be anybody's.
#pragma once
#include <initializer_list>
#include <string>

#include "core/status.h"

namespace attune {

// The file that this code was loaded from, with its whole path and behind links: a program, or a library inside of one.
// "" where the system does not say. Never by the word that a program was called by, which a path may be missing from.
std::string own_file();

class Library {
 public:
  // The first of `names` that can be opened and has every symbol of `needs`: words, that the system looks for, or whole
  // paths. On failure `missed` is a sentence that says of each name why not.
  Library(std::initializer_list<const char*> names, std::initializer_list<const char*> needs);

  bool ok() const { return handle_ != nullptr; }
  const std::string& name() const { return name_; }      // the one opened
  const std::string& missed() const { return missed_; }  // "" if ok

  // Null where the library lacks it.
  void* symbol(const char* name) const;
  template <class F>
  F* function(const char* name) const { return reinterpret_cast<F*>(symbol(name)); }

 private:
  void* handle_ = nullptr;
  std::string name_, missed_;
};

// Matrix products, for cpu_standard. The enums are CBLAS's: 101 is row-major, 111 as it is, 112 transposed.
struct Blas {
  void (*sgemm)(int order, int trans_a, int trans_b, int m, int n, int k, float alpha, const float* a, int lda,
                const float* b, int ldb, float beta, float* c, int ldc) = nullptr;
  // Of the whole process (OpenBLAS), or of the calling thread (MKL), giving what was before. Null where it is another
  // library.
  int (*get_threads)() = nullptr;
  void (*set_threads)(int) = nullptr;
  int (*set_threads_here)(int) = nullptr;
};

// Null where there is none; then `missed` (if given) says why.
const Blas* blas(std::string* missed = nullptr);

// While one lives, BLAS calls of the thread that made it use that thread alone. OpenBLAS has one setting for the whole
// process, which belongs to the application: the last to leave puts it back.
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
