// SPDX-License-Identifier: Apache-2.0
#pragma once

namespace CLI {
class App;
}

namespace attune {

struct Context;
void add_remote(CLI::App&, Context&);

}  // namespace attune
