// SPDX-License-Identifier: Apache-2.0
// Locates the tuned rules of a device: ATTUNE_TUNED (a file, or a folder of <device>.tsv), else
// $XDG_CONFIG_HOME/attune/<device>.tsv or ~/.config/attune/<device>.tsv if it exists, else none. Never a file of the
// current folder that was not named: rules decide which code runs and which bits come out.
#pragma once
#include "plan/rules.h"

namespace attune {

std::string file_word(const Device&);      // "h200" for "NVIDIA H200", "neoverse-v1"
std::string tuned_path(const Device&);     // "" if there is none
std::string user_tuned_folder();           // "" if the environment names no home
inline constexpr const char* kProjectTunedFolder = ".attune";  // read only if ATTUNE_TUNED names it
// The text of a tuned file: a regular file of at most 4 MiB. Without ATTUNE_TUNED it must belong to this user or root.
Status read_tuned_file(const std::string& path, std::string& out);
Status load_tuned(const Device&, Tuned& out);  // no rules without a file; another device's file is an error

}  // namespace attune
