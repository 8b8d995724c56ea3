// SPDX-License-Identifier: Apache-2.0
// Signatures of files of records, by OpenSSH: FILE.sig is what `ssh-keygen -Y sign -n attune -f KEY FILE` writes, so
// both sides work without this command too. ssh-keygen runs as a process of its own, without a shell.
#pragma once
#include <string>
#include <string_view>

#include "core/status.h"

namespace attune {

inline std::string signature_path(const std::string& file) { return file + ".sig"; }

// Code::device if ssh-keygen cannot be started or the key cannot be read; any other failure is the key's or the file's.
Status sign(std::string_view text, const std::string& key, std::string& signature);
// Whether `path`, a new or an empty file, can be signed with this key: nothing is written.
Status can_sign(const std::string& path, const std::string& key);
Status sign_file(const std::string& path, const std::string& key);  // into signature_path()
Status are_signers(const std::string& path);  // whether it is a file with some text; Code::device as in read_file()
// Checks that a key of `signers`, a file of allowed signers (ssh-keygen(1)), signed `text`, which was read from `file`.
// `who` receives the signer's name and key.
Status check_signature(std::string_view text, const std::string& file, const std::string& signers, std::string& who);

}  // namespace attune
