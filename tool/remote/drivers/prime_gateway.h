// SPDX-License-Identifier: Apache-2.0
// What happens inside a Prime sandbox goes through a gateway: commands by the Connect protocol, files by upload.
#pragma once
#include <map>
#include <string>

#include "tool/remote/drivers/connect.h"
#include "tool/remote/drivers/prime_api.h"

namespace attune {

class PrimeGateway {
 public:
  explicit PrimeGateway(const PrimeApi& api) : api_(api) {}
  struct Command {
    std::string script{};
    double limit_s = 60;
    bool repeatable = false;  // running it twice changes nothing
  };
  Status run(const std::string& sandbox, const Command&, CommandOutput&);
  Status upload(const std::string& sandbox, const std::string& from, const std::string& to, double limit_s);

 private:
  struct Access { std::string base{}, token{}; };  // of one sandbox; the token stays in this process
  Status access(const std::string& sandbox, Access&, double limit_s);
  // Repeats what the gateway certainly did not do, and what is repeatable; asks for a new token once.
  Status call(const std::string& sandbox, const WebCall& part, bool repeatable, double limit_s, WebReply&,
              Status (*judge)(const WebReply&, bool& missing));

  const PrimeApi& api_;
  std::map<std::string, Access> known_{};
};

}  // namespace attune
