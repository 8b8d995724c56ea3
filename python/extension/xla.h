// SPDX-License-Identifier: Apache-2.0
// The part of XLA's foreign function interface that a handler reads: a stable C interface, versioned by the sizes of
// its structs. Declared here because wheels are built without jaxlib.
#pragma once
#include <cstddef>
#include <cstdint>

namespace attune::xla {

struct Extension {
  size_t size;
  int32_t type;  // 1: the caller requests metadata
  Extension* next;
};
inline constexpr int32_t kMetadata = 1;

struct Version {
  size_t size;
  Extension* extensions;
  int32_t major, minor;
};

struct Metadata {
  size_t size;
  Version version;
  uint32_t traits;
};

struct MetadataExtension {
  Extension base;
  Metadata* metadata;
};

struct Buffer {
  size_t size;
  Extension* extensions;
  int32_t dtype;
  void* data;
  int64_t rank;
  int64_t* dims;  // compact, row-major
};

struct Text {
  const char* data;
  size_t length;
};

struct Scalar {
  int32_t dtype;
  void* value;
};

struct Buffers {  // arguments, and likewise results
  size_t size;
  Extension* extensions;
  int64_t count;
  int32_t* types;
  void** items;
};

struct Attributes {
  size_t size;
  Extension* extensions;
  int64_t count;
  int32_t* types;  // 3: Scalar, 4: Text
  Text** names;
  void** items;
};

struct Error;
struct Context;

struct ErrorArgs {
  size_t size;
  Extension* extensions;
  const char* message;
  int32_t code;
};
inline constexpr int32_t kInvalid = 3;

struct StreamArgs {
  size_t size;
  Extension* extensions;
  Context* context;
  void* stream;  // out
};

struct OrdinalArgs {
  size_t size;
  Extension* extensions;
  Context* context;
  int32_t ordinal;  // out
};

struct Api {
  size_t size;
  Extension* extensions;
  Version version;
  const void* internal;
  Error* (*error)(ErrorArgs*);
  void* unused_1[3];
  Error* (*stream)(StreamArgs*);
  void* unused_2[12];
  Error* (*ordinal)(OrdinalArgs*);  // from 0.1 of late 2025 on: check `size` first
};

struct Call {
  size_t size;
  Extension* extensions;
  const Api* api;
  Context* context;
  int32_t stage;
  Buffers arguments, results;
  Attributes attributes;
};

}  // namespace attune::xla
