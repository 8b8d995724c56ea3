// SPDX-License-Identifier: Apache-2.0
#include "machine/cuda/nvtx.h"

// Header-only, part of the toolkit. A compiler from PyPI may lack it; the build then has no ranges.
#if __has_include(<nvtx3/nvToolsExt.h>)
#define NVTX_SUPPORT_STATIC_INJECTION_LIBRARY 0  // otherwise it defines a weak symbol that another copy could take
#include <nvtx3/nvToolsExt.h>

namespace attune::cuda {
namespace {

// Null without a tool: NVTX looks for one once, at its first call.
nvtxDomainHandle_t domain() {
  static const nvtxDomainHandle_t made = nvtxDomainCreateA("attune");
  return made;
}

}  // namespace

Range::Range(const Problem* p) {
  if (!p || !domain()) return;
  const std::string line = name(*p);
  nvtxEventAttributes_t event{};
  event.version = NVTX_VERSION, event.size = NVTX_EVENT_ATTRIB_STRUCT_SIZE;
  event.messageType = NVTX_MESSAGE_TYPE_ASCII, event.message.ascii = line.c_str();
  nvtxDomainRangePushEx(domain(), &event);
  open_ = true;
}

Range::~Range() {
  if (open_) nvtxDomainRangePop(domain());
}

}  // namespace attune::cuda
#else
namespace attune::cuda {

Range::Range(const Problem*) {}
Range::~Range() = default;

}  // namespace attune::cuda
#endif
