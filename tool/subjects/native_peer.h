// SPDX-License-Identifier: Apache-2.0
// A function of a shared library as a peer: --peer path/libmine.so:symbol. It takes the structs of the C interface:
//   int symbol(const attune_problem*, const attune_args*, void* stream);   0, or a code of attune_last_code()
//   const char* symbol_error(void);                                        optional: says why the last call failed
// It writes out, or dq, dk and dv, and enqueues its work on the stream. A problem that it does not serve returns
// ATTUNE_UNSUPPORTED. Runs in this process: a crash of the library ends the command.
#pragma once
#include <string>
#include <string_view>

#include "core/args.h"
#include "tool/subjects/peer.h"

namespace attune {

bool is_native_peer(std::string_view word);            // "libmine.so:symbol"
// Registers it; once is enough. One that is missing is registered too: its rows say why.
void load_native_peer(const std::string& word);
bool is_native_peer(const attune_peer&);
// setup() of a native peer, with its results: a handle above 0, or 0 or -1 as in attune_peer. Calls it once.
int64_t set_up_native(const attune_peer&, const Problem&, const Args&, const PeerPlace&);

}  // namespace attune
