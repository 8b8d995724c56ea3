// Other people's attention under the same timer, in the same process, on the same memory. A host (a Python process that
// has loaded this tool as a library) registers callbacks; to the engine a peer is then a Subject like any other.
#pragma once
#include <string>
#include <vector>

#include "core/args.h"
#include "tool/measure/engine.h"

extern "C" {
// All text is UTF-8. Handles are above 0.
struct attune_peer {
  const char* name;     // "torch:sdpa"
  const char* version;  // "torch 2.9.0"
  int64_t (*setup)(const char* problem);            // a JSON object, see peer.cpp; 0: no, and `message` says why
  int32_t (*run)(int64_t handle);                   // 0: done. Handle 0: an empty call, for the floor
  int32_t (*fetch)(int64_t handle);                 // copies the last results into the tensors named "results"
  void (*teardown)(int64_t handle);
  void (*message)(char* text, int64_t room);        // the last reason, with its terminating zero
};
__attribute__((visibility("default"))) void attune_peer_register(const attune_peer*);
}

namespace attune {

// "torch:sdpa" is one, "torch" all of its kind; empty: no host has registered it.
std::vector<const attune_peer*> find_peers(std::string_view word);
bool is_peer(std::string_view word);  // one that become_host() can host
std::string peer_message(const attune_peer&);

// One problem set up with a peer.
class PeerRun {
 public:
  explicit PeerRun(const attune_peer& peer) : peer_(peer) {}
  PeerRun(const PeerRun&) = delete;
  PeerRun& operator=(const PeerRun&) = delete;
  ~PeerRun();
  // `results` has outputs of its own; everything else is shared with ours.
  Status setup(const Problem&, const Args& results, int threads);
  Status run_and_fetch();
  Subject subject();

 private:
  const attune_peer& peer_;
  int64_t handle_ = 0;
};

Subject empty_call(const attune_peer&);

// Replaces this process by a Python one that hosts the peer and runs the same command line. Returns only on failure.
Status become_host(std::string_view peer, const std::string& python);

}  // namespace attune
