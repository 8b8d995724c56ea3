#include "attention/sm90/backward/combine.h"

#include "machine/cuda/launch.h"

namespace attune::sm90 {

Status join_key_parts(std::string_view who, const Problem& p, const KeyPartsParams& x, int device, void* stream) {
  static constinit cuda::SharedMemoryOptIn ready[2];
  const bool bf16 = p.dtype.q == DType::bf16;
  return cuda::launch({.who = who,
                       .kernel = bf16 ? reinterpret_cast<const void*>(key_parts_kernel<Bf16>)
                                      : reinterpret_cast<const void*>(key_parts_kernel<F16>),
                       .ready = &ready[bf16],
                       .blocks = joined_blocks(x, p.batch),
                       .threads = kPartWarps * 32,
                       .device = device,
                       .stream = stream,
                       .early = true},
                      p, &x);
}

}  // namespace attune::sm90
