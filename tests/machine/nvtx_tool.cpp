// SPDX-License-Identifier: Apache-2.0
// A profiler as NVTX sees it, for nvtx_test.cpp: it takes the three domain calls that Range makes and logs them. NVTX
// loads it from the path in NVTX_INJECTION64_PATH and calls InitializeInjectionNvtx2.
#define NVTX_NO_IMPL
#include <nvtx3/nvToolsExt.h>

#include <string>

namespace {

std::string& heard() {
  static std::string text;
  return text;
}

nvtxDomainHandle_t create(const char* name) {
  static int one;
  heard() += std::string("domain ") + name + "\n";
  return reinterpret_cast<nvtxDomainHandle_t>(&one);
}
int push(nvtxDomainHandle_t, const nvtxEventAttributes_t* event) {
  heard() += std::string("push ") + event->message.ascii + "\n";
  return 0;
}
int pop(nvtxDomainHandle_t) {
  heard() += "pop\n";
  return 0;
}

// From nvtxTypes.h, which only an implementation may include.
constexpr uint32_t kCallbacks = 1;
constexpr int kDomains = 5, kPush = 4, kPop = 5, kCreate = 12;
struct Callbacks {
  size_t size;
  int (*table)(int module, void**** out, unsigned* count);
};

}  // namespace

extern "C" __attribute__((visibility("default"))) const char* nvtx_tool_heard() { return heard().c_str(); }

extern "C" __attribute__((visibility("default"))) int InitializeInjectionNvtx2(const void* (*tables)(uint32_t)) {
  const auto* callbacks = static_cast<const Callbacks*>(tables(kCallbacks));
  void*** table = nullptr;
  unsigned count = 0;
  if (!callbacks || !callbacks->table(kDomains, &table, &count) || count <= unsigned(kCreate)) return 0;
  *table[kCreate] = reinterpret_cast<void*>(create);
  *table[kPush] = reinterpret_cast<void*>(push);
  *table[kPop] = reinterpret_cast<void*>(pop);
  return 1;
}
