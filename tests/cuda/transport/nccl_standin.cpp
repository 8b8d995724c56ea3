// SPDX-License-Identifier: Apache-2.0
// A stand-in for libnccl. Ranks are threads that share one GPU, which NCCL itself refuses. Grouped sends and receives
// meet in mailboxes and become copies on the given streams. It counts its calls and can fail on request.
#include <cuda_runtime.h>

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstring>
#include <deque>
#include <map>
#include <mutex>
#include <vector>

namespace {

struct Letter {
  const void* data;
  size_t bytes;
  cudaEvent_t ready, taken = nullptr;
  bool done = false;
};
struct Comm { int rank, ranks; };
struct Act {
  bool receive;
  void* data;
  size_t bytes;
  int peer;
  Comm* comm;
  cudaStream_t stream;
  Letter* letter = nullptr;
};

// Never destroyed: a rank whose peer never arrives still waits on them at process exit.
std::mutex& mutex = *new std::mutex;
std::condition_variable& changed = *new std::condition_variable;
std::map<std::pair<char, int>, int> arrived;  // ranks that arrived, by the second byte of an id and the group size
std::map<std::pair<int, int>, std::deque<Letter*>> boxes;  // key: from, to
std::atomic<int> calls{0}, broken{0};
thread_local std::vector<Act> group;
constexpr auto kPatience = std::chrono::seconds(10);

cudaEvent_t mark(cudaStream_t stream) {
  cudaEvent_t event = nullptr;
  cudaEventCreateWithFlags(&event, cudaEventDisableTiming);
  cudaEventRecord(event, stream);
  return event;
}

int add(bool receive, void* data, size_t bytes, int peer, void* comm, cudaStream_t stream) {
  ++calls;
  group.push_back({receive, data, bytes, peer, static_cast<Comm*>(comm), stream});
  return 0;
}

}  // namespace

#define STANDIN extern "C" __attribute__((visibility("default")))

struct Id { char bytes[128]; };

STANDIN int standin_calls() { return calls; }
STANDIN void standin_break(int code) { broken = code; }
STANDIN int ncclGetUniqueId(Id* id) { return std::memset(id, 7, sizeof *id), 0; }
STANDIN int ncclCommInitRank(void** comm, int ranks, Id id, int rank) {
  if (id.bytes[0] != 7) return 4;
  std::unique_lock lock(mutex);
  int& there = arrived[{id.bytes[1], ranks}];
  const int all = (there++ / ranks + 1) * ranks;  // groups form one after another
  changed.notify_all();
  if (!changed.wait_for(lock, kPatience, [&] { return there >= all; })) return 2;
  return *comm = new Comm{rank, ranks}, 0;
}
STANDIN int ncclCommAbort(void* comm) { return delete static_cast<Comm*>(comm), 0; }
STANDIN int ncclCommDestroy(void* comm) { return delete static_cast<Comm*>(comm), 0; }
STANDIN int ncclGroupStart() { return group.clear(), 0; }
STANDIN int ncclSend(const void* data, size_t bytes, int, int peer, void* comm, cudaStream_t stream) {
  return add(false, const_cast<void*>(data), bytes, peer, comm, stream);
}
STANDIN int ncclRecv(void* data, size_t bytes, int, int peer, void* comm, cudaStream_t stream) {
  return add(true, data, bytes, peer, comm, stream);
}
STANDIN int ncclCommGetAsyncError(void*, int* out) { return *out = broken, 0; }
STANDIN const char* ncclGetErrorString(int code) { return code == 6 ? "remote process exited" : "an error"; }

STANDIN int ncclGroupEnd() {
  std::unique_lock lock(mutex);
  for (Act& a : group)
    if (!a.receive) {
      a.letter = new Letter{a.data, a.bytes, mark(a.stream)};
      boxes[{a.comm->rank, a.peer}].push_back(a.letter);
    }
  changed.notify_all();
  for (Act& a : group) {
    if (!a.receive) continue;
    auto& box = boxes[{a.peer, a.comm->rank}];
    if (!changed.wait_for(lock, kPatience, [&] { return !box.empty(); })) return 2;
    Letter& letter = *box.front();
    box.pop_front();
    if (letter.bytes != a.bytes) return 5;
    cudaStreamWaitEvent(a.stream, letter.ready, 0);
    cudaMemcpyAsync(a.data, letter.data, a.bytes, cudaMemcpyDeviceToDevice, a.stream);
    letter.taken = mark(a.stream), letter.done = true;
    changed.notify_all();
  }
  for (Act& a : group) {
    if (a.receive) continue;
    if (!changed.wait_for(lock, kPatience, [&] { return a.letter->done; })) return 2;
    cudaStreamWaitEvent(a.stream, a.letter->taken, 0);
  }
  return 0;
}
