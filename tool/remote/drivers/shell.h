// SPDX-License-Identifier: Apache-2.0
// Machines that are reached through a shell: this one, or one behind ssh. A lease there is a folder,
// ~/.cache/attune/remote/<lease name>, with a keeper: a session leader that starts the command, and that ends
// everything and removes the folder at the deadline or when the file `beat` is too old.
#pragma once
#include <string>
#include <vector>

#include "tool/remote/driver.h"
#include "tool/remote/process.h"

namespace attune {

// A text as one word of a shell.
std::string shell_word(std::string_view text);

// Runs a shell here or on a host.
class Shell {
 public:
  Shell(const Target&, std::string host, const std::string& control_folder);
  ~Shell();
  Shell(const Shell&) = delete;
  Shell& operator=(const Shell&) = delete;
  // The script is the shell's argument, so that stdin is free for a file.
  Status run(const std::string& script, int limit_s, ProgramResult&, const std::string& input_file = "") const;
  const std::string& who() const { return who_; }

 private:
  std::string who_, host_, control_{};
  std::vector<std::string> words_{};  // before the script
  Status explain(const ProgramResult&) const;
};

struct KeeperLimits {
  double seconds = 0;        // the lease ends itself after this time
  double silence_s = 600;    // and if the worker is silent for this time
};
std::string keeper_script(const KeeperLimits&);
// Sets d to the lease's folder, in a script.
std::string folder_words(std::string_view lease);

class ShellDriver : public Driver {
 public:
  ShellDriver(const Target& target, std::string host, const std::string& control_folder)
      : target_(target), shell_(target, std::move(host), control_folder) {}
  Status check() override;
  Status offers(const Wanted&, std::vector<RemoteOffer>&) override;
  Status acquire(const Wanted&, const RemoteOffer&, Lease&) override;
  Status life(const Lease&, Life&, std::string& why) override;
  Status find(std::string_view prefix, std::vector<Lease>&) override;
  Status push(const Lease&, const std::string& from, const std::string& to) override;
  Status run(const Lease&, const std::string& script, int limit_s, std::string& out, int& code) override;
  Status read(const Lease&, const std::string& file, std::uint64_t offset, std::string& bytes) override;
  Status start(const Lease&) override;
  Status release(const Lease&) override;
  Status bill(const Lease&, std::optional<double>& usd) override;
  Status silent_for(const Lease&, double& seconds) override;
  bool keeps_files() const override { return true; }

 protected:
  Target target_;
  Shell shell_;
  // Runs a script in the lease's folder, if there is one. Its worker is heard there.
  Status in_folder(const Lease&, const std::string& script, int limit_s, ProgramResult&,
                   const std::string& input_file = "") const;
  // A script that must succeed.
  Status do_or_say(const std::string& script, int limit_s, ProgramResult&) const;
};

}  // namespace attune
