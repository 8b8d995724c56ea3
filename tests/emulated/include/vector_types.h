// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cstdint>

struct float2 { float x, y; };
struct float4 { float x, y, z, w; };
struct int4 { int x, y, z, w; };
struct uint4 { uint32_t x, y, z, w; };
