// Where the tuned rules of a device are found: ATTUNE_TUNED (a file, or a folder of <device>.tsv), else
// .attune/<device>.tsv of the current folder, else $XDG_CONFIG_HOME/attune/<device>.tsv or
// ~/.config/attune/<device>.tsv where that is there, else none.
#pragma once
#include "plan/rules.h"

namespace attune {

std::string file_word(const Device&);      // "h200" of "NVIDIA H200", "neoverse-v1"
std::string tuned_path(const Device&);     // "" where there is none
std::string user_tuned_folder();           // "" where the environment names no home
inline constexpr const char* kProjectTunedFolder = ".attune";
Status load_tuned(const Device&, Tuned& out);  // no rules where there is no file; a file of another device is an error

}  // namespace attune
