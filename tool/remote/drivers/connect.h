// SPDX-License-Identifier: Apache-2.0
// Messages with which a Prime sandbox runs a command: a server stream of the Connect protocol with protobuf messages
// (service command_session.CommandSession, method Start). Only the fields that are used are written and read.
#pragma once
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "core/status.h"

namespace attune {

// The enveloped request that starts a program with these arguments and without stdin.
std::string start_request(const std::vector<std::string>& words);

struct CommandOutput {
  std::string out{}, err{};
  int code = 0;
};
// Reads the whole stream. Fails with Code::device if it ends without an exit code, or with the error of the server.
// `missing` is true where the server does not know the machine.
Status read_stream(std::string_view stream, CommandOutput&, bool& missing);

}  // namespace attune
