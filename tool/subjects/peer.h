// SPDX-License-Identifier: Apache-2.0
// Attention of other libraries, and of the user's own, under the same timer, in the same process, on the same memory. A
// host (a Python process that has loaded this tool as a library) or native_peer.h registers callbacks; a peer is then a
// Subject like any other.
#pragma once
#include <string>
#include <vector>

#include "core/args.h"
#include "tool/subjects/peer_process.h"
#include "tool/timing/engine.h"

extern "C" {
enum peer_result { PEER_DONE, PEER_FAILED, PEER_OUT_OF_MEMORY };
// All text is UTF-8. Handles are above 0.
struct attune_peer {
  const char* name;     // "torch:sdpa"
  const char* version;  // "torch 2.9.0"; empty: not available, and every setup fails with the reason
  // Takes a JSON object, see peer.cpp. 0: refused, see `message`; -1: refused for lack of memory.
  int64_t (*setup)(const char* problem);
  int32_t (*run)(int64_t handle);                   // returns a peer_result. Handle 0: an empty call, for the floor
  int32_t (*fetch)(int64_t handle);                 // copies the last results into the tensors named "results"
  void (*teardown)(int64_t handle);
  void (*message)(char* text, int64_t room);        // the last error, or a note after a successful setup
  // Runs once more and returns the peak bytes besides inputs and results; below 0: unknown.
  int64_t (*memory)(int64_t handle) = nullptr;
};
__attribute__((visibility("default"))) void attune_peer_register(const attune_peer*);
// Before a host loads this peer, so that a crash has a name; null after it.
__attribute__((visibility("default"))) void attune_peer_loads(const char* name);
}

namespace attune {

bool is_hosted();  // true if a peer is registered
// The peer registered under this name; null if none.
const attune_peer* find_peer(std::string_view name);
// Expands the words of --peer to names; "torch" stands for its implementations that serve the device.
Status peers_named(const std::vector<std::string>& words, bool gpu, std::vector<std::string>& out);
std::string peer_names();  // "torch:sdpa, torch:math, ..."
// The name in records: of "dir/my.py:function" what is behind the last slash.
std::string_view peer_name(std::string_view word);
// Makes the named peers available: loads shared libraries, and starts the command again inside Python if one of them
// needs it. Their addresses stay valid.
Status open_peers(const std::vector<std::string>& words, const std::string& python,
                  std::vector<const attune_peer*>& out);
std::string peer_message(const attune_peer&);

// Where a peer runs.
struct PeerPlace {
  int threads = 1;
  int gpu = -1;            // GPU index; -1: the CPU
  void* stream = nullptr;  // stream of the GPU
  bool train = false;      // a forward and its backward; the problem is the backward
};

// One problem set up with a peer, for one or several sets of tensors; calls rotate through them.
class PeerRun {
 public:
  explicit PeerRun(const attune_peer& peer) : peer_(peer), number_(number_of_peer(peer.name)) {}
  PeerRun(const PeerRun&) = delete;
  PeerRun& operator=(const PeerRun&) = delete;
  ~PeerRun();
  // `results` has separate outputs; everything else is shared with our backends.
  Status setup(const Problem&, const Args& results, const PeerPlace&);
  const std::string& note() const { return note_; }  // "KV heads are expanded beforehand"
  Status run_once();                                 // runs on the first set
  Status fetch();                                    // copies its last results
  double taken_bytes();                              // below 0: unknown
  Subject subject();

 private:
  const attune_peer& peer_;
  int number_;  // see PeerCall
  std::vector<int64_t> handles_{};
  size_t next_ = 0;
  std::string note_{};
  Status refused(bool lacks_memory) const;
};

Subject empty_call(const attune_peer&);

// Replaces this process by one that runs the same command line: with a host for the peers of Python, if there are some.
// Returns only on failure.
Status start_again(const std::vector<std::string>& peers, const std::string& python);
Status become_host(const std::vector<std::string>& peers, const std::string& python);

}  // namespace attune
