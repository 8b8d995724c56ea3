// Other people's attention under the same timer, in the same process, on the same memory. A host (a Python process that
// has loaded this tool as a library) registers callbacks; to the engine a peer is then a Subject like any other.
#pragma once
#include <string>
#include <vector>

#include "core/args.h"
#include "tool/timing/engine.h"

extern "C" {
// All text is UTF-8. Handles are above 0.
struct attune_peer {
  const char* name;     // "torch:sdpa"
  const char* version;  // "torch 2.9.0"; empty: it is not here, and every setup says why
  int64_t (*setup)(const char* problem);            // a JSON object, see peer.cpp; 0: no, and `message` says why
  int32_t (*run)(int64_t handle);                   // 0: done. Handle 0: an empty call, for the floor
  int32_t (*fetch)(int64_t handle);                 // copies the last results into the tensors named "results"
  void (*teardown)(int64_t handle);
  void (*message)(char* text, int64_t room);        // the last reason, or after a setup what is to be known of it
  // Runs once more: bytes it takes beside inputs and results at the highest; below 0: not known.
  int64_t (*memory)(int64_t handle) = nullptr;
};
__attribute__((visibility("default"))) void attune_peer_register(const attune_peer*);
}

namespace attune {

bool is_hosted();  // whether anybody has registered anything
// Registered by the host under this name; null: by none.
const attune_peer* find_peer(std::string_view name);
// "torch:flash,fa3" as names; "torch" stands for those of its ways that serve the device.
Status peers_named(const std::vector<std::string>& words, bool gpu, std::vector<std::string>& out);
std::string peer_names();  // "torch:sdpa, torch:math, ..."
std::string peer_message(const attune_peer&);

// Where a peer runs.
struct PeerPlace {
  int threads = 1;
  int gpu = -1;            // its index; -1: the CPU
  void* stream = nullptr;  // of it
};

// One problem set up with a peer, once or for several sets of tensors; calls go round through them.
class PeerRun {
 public:
  explicit PeerRun(const attune_peer& peer) : peer_(peer) {}
  PeerRun(const PeerRun&) = delete;
  PeerRun& operator=(const PeerRun&) = delete;
  ~PeerRun();
  // `results` has outputs of its own; everything else is shared with ours.
  Status setup(const Problem&, const Args& results, const PeerPlace&);
  const std::string& note() const { return note_; }  // "heads of keys expanded beforehand"
  Status run_once();                                 // of the first set
  Status fetch();                                    // its last results
  double taken_bytes();                              // below 0: it does not say
  Subject subject();

 private:
  const attune_peer& peer_;
  std::vector<int64_t> handles_{};
  size_t next_ = 0;
  std::string note_{};
};

Subject empty_call(const attune_peer&);

// Replaces this process by a Python one that hosts the peers and runs the same command line. Returns only on failure.
Status become_host(const std::vector<std::string>& peers, const std::string& python);

}  // namespace attune
