// What bench/sm90_window.cu and its units say to each other.
#pragma once
#include <cuda.h>
#include <cuda_runtime.h>

#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>

// A window over one batch, d128, aligned bottom-right; all in memory of the GPU.
struct WindowRun {
  int heads_q, heads_kv, rows, keys, left, right;
  bool bf16, bhsd;
  int tail;     // of the last rows of every head, in tiles whose keys warpgroups share; 0: none
  int units;    // multiprocessors
  int section;  // heads whose tiles are taken together
  void *q, *k, *v, *out;
  float* lse;
  unsigned long long* counters;
};

cudaError_t run_before(const WindowRun&, cudaStream_t);
cudaError_t run_other(const WindowRun&, cudaStream_t);  // as it is, but without a loop of plain steps
cudaError_t run_after(const WindowRun&, cudaStream_t);
int window_tail(const WindowRun&);  // as shape() of sm90_forward has it
