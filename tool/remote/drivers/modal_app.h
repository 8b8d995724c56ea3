// SPDX-License-Identifier: Apache-2.0
#pragma once

namespace attune {

extern const char* const kModalApp;  // the text of app.py

}  // namespace attune
