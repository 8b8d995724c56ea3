// SPDX-License-Identifier: Apache-2.0
#include "tool/subjects/native_peer.h"

#include <dlfcn.h>

#include <algorithm>
#include <cstring>
#include <deque>
#include <map>
#include <memory>
#include <vector>

#include "attune/attune.h"

namespace attune {
namespace {

using Call = int (*)(const attune_problem*, const attune_args*, void*);
using Error = const char* (*)();

struct Function {
  std::string name;
  Call call = nullptr;
  Error error = nullptr;
  std::string missing{};  // why there is no call
};

struct Given {
  int64_t shape[4], stride[4];
  std::string axes;
  attune_tensor tensor{};
};

// One set of arguments, as the C interface has them.
struct Prepared {
  const Function* function;
  attune_problem problem{};
  attune_args args{};
  std::deque<Given> tensors{};
  void* stream = nullptr;
};

struct Natives {
  std::deque<Function> functions{};
  std::map<int64_t, std::unique_ptr<Prepared>> prepared{};
  int64_t last = 0;
  std::string message{};
} natives;

std::string_view axes_of(Role role, const Problem& p, const Args& a) {
  const bool of_queries = role == Role::q || role == Role::out || role == Role::d_out || role == Role::dq;
  const bool of_keys = role == Role::k || role == Role::v || role == Role::dk || role == Role::dv;
  if (of_queries) return a.given(Role::cu_q) ? "thd" : "bshd";
  if (of_keys) return p.keys == KeySource::ragged ? "thd" : p.keys == KeySource::paged ? "pshd" : "bshd";
  switch (role) {
    case Role::lse: case Role::d_lse: return a.given(Role::cu_q) ? "th" : "bsh";
    case Role::cu_q: case Role::cu_k: case Role::block_column: case Role::block_row_k: case Role::seed: return "n";
    case Role::used_q: case Role::used_k: case Role::left_pad: case Role::cache_index: return "b";
    case Role::page_table: case Role::positions: return "bn";
    case Role::block_begin: case Role::block_begin_k: return "bhn";
    case Role::slopes: case Role::sinks: case Role::d_sinks: return "h";
    case Role::bias: case Role::d_bias: return p.has(Option::block_bias) ? "n" : "bqhk";
    case Role::rotary_cos: case Role::rotary_sin: return "sd";
    case Role::descale_q: case Role::descale_k: case Role::descale_v: return "bh";
    default: return "bshd";
  }
}

attune_tensor tensor_to(const Tensor& t, std::string_view axes, Given& g) {
  g.axes = axes;
  for (size_t n = 0; n < axes.size(); ++n) {
    const char c = axes[n];
    const bool batch = c == 'b' || c == 'p', seq = c == 's' || c == 't' || c == 'q', head = c == 'h';
    g.shape[n] = batch ? t.extent.batch : seq ? t.extent.seq : head ? t.extent.head : t.extent.dim;
    g.stride[n] = batch ? t.stride.batch : seq ? t.stride.seq : head ? t.stride.head : 1;
  }
  attune_tensor out{.data = t.data, .device = {t.device == DeviceKind::cuda ? 2 : 1, t.device_index},
                    .ndim = int32_t(axes.size()), .dtype = {}, .shape = g.shape, .strides = g.stride,
                    .byte_offset = 0, .axes = g.axes.c_str()};
  const bool is_integer = t.dtype == DType::i32 || t.dtype == DType::i64;
  const uint8_t code = t.dtype == DType::bf16 ? 4 : t.dtype == DType::e4m3 ? 10 : is_integer ? 0 : 2;
  out.dtype.code = code, out.dtype.bits = uint8_t(8 * size_of(t.dtype)), out.dtype.lanes = 1;
  return out;
}

const char* name_of_code(int code) {
  switch (code) {
    case ATTUNE_INVALID: return "ATTUNE_INVALID";
    case ATTUNE_UNSUPPORTED: return "ATTUNE_UNSUPPORTED";
    case ATTUNE_OUT_OF_MEMORY: return "ATTUNE_OUT_OF_MEMORY";
    case ATTUNE_DEVICE: return "ATTUNE_DEVICE";
    default: return "a failure";
  }
}

int run_prepared(const Prepared& p) {
  const int code = p.function->call(&p.problem, &p.args, p.stream);
  if (code == ATTUNE_OK) return code;
  const char* const why = p.function->error ? p.function->error() : nullptr;
  natives.message = why && *why ? why : join("returned ", code, ", ", name_of_code(code));
  return code;
}

int32_t run(int64_t handle) {
  if (!handle) return PEER_DONE;
  const int code = run_prepared(*natives.prepared.at(handle));
  return code == ATTUNE_OK ? PEER_DONE : code == ATTUNE_OUT_OF_MEMORY ? PEER_OUT_OF_MEMORY : PEER_FAILED;
}
int32_t fetch(int64_t) { return PEER_DONE; }  // results are written in place
void teardown(int64_t handle) { natives.prepared.erase(handle); }
void message(char* text, int64_t room) {
  const size_t size = std::min(natives.message.size(), size_t(room) - 1);
  std::memcpy(text, natives.message.data(), size);
  text[size] = 0;
}

std::string_view short_name(std::string_view word) { return word.substr(word.rfind('/') + 1); }

}  // namespace

bool is_native_peer(std::string_view word) { return word.find(".so:") != word.npos; }
bool is_native_peer(const attune_peer& peer) { return !peer.setup; }

void load_native_peer(const std::string& word) {
  if (find_peer(short_name(word))) return;
  const size_t colon = word.rfind(':');
  // Without a slash, the loader would search the system's folders instead of this one.
  const std::string path = word.find('/') == word.npos ? "./" + word.substr(0, colon) : word.substr(0, colon);
  const std::string symbol = word.substr(colon + 1);
  Function& f = natives.functions.emplace_back(Function{.name = std::string(short_name(word))});
  if (void* const library = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL)) {
    f.call = reinterpret_cast<Call>(dlsym(library, symbol.c_str()));
    f.error = reinterpret_cast<Error>(dlsym(library, (symbol + "_error").c_str()));
    if (!f.call) f.missing = join("is not available: '", path, "' has no function '", symbol, "'");
  } else {
    f.missing = join("is not available: ", dlerror());
  }
  const attune_peer peer{.name = f.name.c_str(), .version = f.call ? "a shared library" : "", .setup = nullptr,
                         .run = run, .fetch = fetch, .teardown = teardown, .message = message};
  attune_peer_register(&peer);
}

int64_t set_up_native(const attune_peer& peer, const Problem& p, const Args& a, const PeerPlace& place) {
  constexpr int64_t kRefused = 0, kRefusedForMemory = -1;
  auto made = std::make_unique<Prepared>();
  const auto found = std::find_if(natives.functions.begin(), natives.functions.end(),
                                  [&](const Function& f) { return f.name == peer.name; });
  made->function = &*found;
  if (!found->call) return natives.message = found->missing, kRefused;
  made->problem.size = sizeof made->problem;
  if (attune_problem_parse(name(p).c_str(), &made->problem)) return natives.message = attune_last_error(), kRefused;
  made->args.size = sizeof made->args;
  made->args.scale = a.scale, made->args.softcap = a.softcap, made->args.dropout = a.dropout;
  for (int n = 0; n < int(Role::variant); ++n) {
    const Role role = Role(n);
    if (!a.given(role) || (role == Role::lse && p.pass == Pass::forward)) continue;  // only out is compared
    Given& g = made->tensors.emplace_back();
    g.tensor = tensor_to(a[role], axes_of(role, p, a), g);
    made->args.role[n] = &g.tensor;
  }
  if (p.variant.text[0]) return natives.message = "a shared library gets no tensors of variants", kRefused;
  made->stream = place.stream;
  if (const int code = run_prepared(*made)) return code == ATTUNE_OUT_OF_MEMORY ? kRefusedForMemory : kRefused;
  natives.message.clear();
  natives.prepared[++natives.last] = std::move(made);
  return natives.last;
}

}  // namespace attune
