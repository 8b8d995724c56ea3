// SPDX-License-Identifier: Apache-2.0
// Peers run code of others, which may end its process: os._exit, abort, a fault. So a run with peers is a process of
// its own, and the command that the user started waits for it. If a peer ends it, the command notes which peer and in
// which row, and starts the process again: rows that are done are kept, and that peer is a failed row. The two share
// the notes and a file in memory with the records so far.
#pragma once
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "core/status.h"

namespace attune {

// ---- In the command that waits.
struct PeerProcess {
  std::vector<std::string> names{};                          // words of --peer
  std::function<Status(const std::vector<std::string>&)> start{};  // becomes the process; returns only on failure
};
// Runs the process to its end, as often as needed, and returns the command's exit code. Fails if no peer can be blamed.
Status await(const PeerProcess&, int& code);

// ---- In the process of the peers; elsewhere, these do nothing.
bool is_peer_process();
bool is_started_again();           // a peer has ended the process before
std::string session_path();        // the file in memory
size_t& printed_records();         // on stdout, since the first start
void note_row(int row);            // the row that begins
void note_interrupt() noexcept;    // for a signal handler
// How this peer ended the process in the row that was noted last; "" if it did not.
std::string how_it_ended(std::string_view peer);
bool is_given_up(std::string_view peer);  // it is not started again in any row
struct RunGuard {                  // its destructor notes that bench came to its end
  RunGuard() = default;
  RunGuard(const RunGuard&) = delete;
  RunGuard& operator=(const RunGuard&) = delete;
  ~RunGuard();
};

// While it lives, what code of peers prints to stdout, in Python or in C, goes to stderr: stdout has only the answer.
class AnswerKept {
 public:
  AnswerKept();
  AnswerKept(const AnswerKept&) = delete;
  AnswerKept& operator=(const AnswerKept&) = delete;
  ~AnswerKept();

 private:
  int answer_ = -1;
};

// A number for PeerCall; 0 if the peer is unknown.
int number_of_peer(std::string_view name);
// While it lives, this peer's code runs.
class PeerCall {
 public:
  explicit PeerCall(int number);
  explicit PeerCall(std::string_view name) : PeerCall(number_of_peer(name)) {}
  PeerCall(const PeerCall&) = delete;
  PeerCall& operator=(const PeerCall&) = delete;
  ~PeerCall();
};

}  // namespace attune
