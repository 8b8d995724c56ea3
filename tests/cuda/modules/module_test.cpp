// SPDX-License-Identifier: Apache-2.0
// Modules on a GPU compared with the same modules on the CPU: equal parameters from the same seed, equal results within
// the rounding of their dtype, forward and backward. Also a forward and a backward captured in a graph.
#include "tests/cuda/gpu.h"
#include "tests/modules/world.h"

namespace attune {
namespace {

// A module call on a GPU, with the inputs of a CPU world.
struct OnDevice {
  const Module& module;
  ModuleWorld& host;
  cuda::Memory memory{};
  std::byte* at[8] = {};  // x, memory, out, d_out, dx, d_memory, tape, workspace

  OnDevice(const Module& m, ModuleWorld& w) : module(m), host(w) {
    const size_t rows = w.x.size() * size(), keys = w.memory.size() * size();
    const size_t work = std::max({m.workspace_bytes(Pass::backward, true), m.workspace_bytes(Pass::forward, true),
                                  m.workspace_bytes(Pass::forward, false)});
    const size_t bytes[8] = {rows, keys, rows, rows, rows, keys, m.graph().tape_bytes, work};
    size_t total = 0;
    size_t first[8];
    for (int n = 0; n < 8; ++n) first[n] = total, total += (bytes[n] + 255) / 256 * 256;
    EXPECT_EQ(memory.allocate(0, total).message, "");
    EXPECT_EQ(cudaMemset(memory.data(), 0xFF, total), cudaSuccess);
    for (int n = 0; n < 8; ++n) at[n] = bytes[n] ? memory.data() + first[n] : nullptr;
    send(w.x, 0), send(w.memory, 1), send(w.d_out, 3);
  }
  DType dtype() const { return module.settings().dtype; }
  size_t size() const { return size_t(size_of(dtype())); }
  void send(const std::vector<float>& from, int n) {
    std::vector<uint16_t> narrow;
    for (const float x : from) narrow.push_back(dtype() == DType::f16 ? F16(x).bits : Bf16(x).bits);
    const void* data = dtype() == DType::f32 ? static_cast<const void*>(from.data()) : narrow.data();
    if (from.empty()) return;
    EXPECT_EQ(cuda::copy_to(at[n], data, from.size() * size(), nullptr).message, "");
  }
  std::vector<float> receive(int n, size_t count) const {
    std::vector<float> all(count);
    std::vector<uint16_t> narrow(count);
    void* data = dtype() == DType::f32 ? static_cast<void*>(all.data()) : narrow.data();
    EXPECT_EQ(cuda::copy_from(data, at[n], count * size(), nullptr).message, "");
    for (size_t i = 0; i < count && dtype() != DType::f32; ++i) {
      F16 f;
      Bf16 b;
      f.bits = b.bits = narrow[i];
      all[i] = dtype() == DType::f16 ? float(f) : float(b);
    }
    return all;
  }
  Tensor tensor(int n, int len) const {
    const Extents e = row_extent(module.settings().batch, len, module.settings().embed);
    return {.data = at[n], .dtype = dtype(), .device = DeviceKind::cuda, .extent = e, .stride = compact(e)};
  }
  ModuleCall call(void* stream) const {
    const int len = module.settings().len, keys = module.settings().memory;
    ModuleCall c{.x = tensor(0, len), .memory = tensor(1, keys), .out = tensor(2, len), .d_out = tensor(3, len),
                 .dx = tensor(4, len), .d_memory = tensor(5, keys)};
    c.tape = at[6], c.workspace = at[7], c.stream = stream;
    return c;
  }
  std::vector<float> gradient(const Parameter& p) const {
    std::byte* gradients = nullptr;
    EXPECT_EQ(module.gradients(gradients).message, "");
    std::vector<float> all(size_t(p.count()));
    EXPECT_EQ(cuda::copy_from(all.data(), gradients + p.gradient_at, all.size() * 4, nullptr).message, "");
    return all;
  }
};

// The RMS of an element.
double element_size(const std::vector<float>& x) { return std::sqrt(dot(x, x) / double(x.size())); }

// The error per element, relative to `want` or to `size`.
double apart(const std::vector<float>& got, const std::vector<float>& want, double size = 0) {
  double error = 0;
  for (size_t n = 0; n < want.size(); ++n) error += std::pow(double(got[n]) - want[n], 2) / double(want.size());
  return std::sqrt(error) / (size > 0 ? size : element_size(want));
}

// Allowed distance of an output from its f32 counterpart. Two factors and their product are each rounded by 0.4 u on
// average (u: half an ulp), and errors add as squares. A forward chains seven products, so sqrt(3 * 7) * 0.4 u = 1.9 u
// is expected, and twice that is allowed. A backward has three times as many: 3.2 u expected, four times 1.9 u allowed.
// f32 differs only by summation order.
double most(DType t) { return t == DType::f32 ? 2e-5 : 4 * rounding_of(t); }

class Modules : public OnGpu {
 protected:
  // Checks the relative error of everything that a forward and a backward write.
  void compare(const std::string& kind, const std::string& rest, DType dtype) {
    const std::string line = join(kind, " ", name(dtype), rest);
    SCOPED_TRACE(line);
    const auto here = made(kind + " f32" + rest), there = made(line, nullptr, gpu_);
    ASSERT_TRUE(here && there);
    ModuleWorld w(*here);
    ASSERT_EQ(w.both().message, "");
    OnDevice gpu(*there, w);
    ASSERT_EQ(there->forward(gpu.call(stream_.get())).message, "");
    ASSERT_EQ(there->backward(gpu.call(stream_.get())).message, "");
    ASSERT_EQ(cuda::wait_all(0).message, "");
    EXPECT_LT(apart(gpu.receive(2, w.out.size()), w.out), most(dtype));
    EXPECT_LT(apart(gpu.receive(4, w.dx.size()), w.dx), 2 * most(dtype)) << "dx";
    if (!w.memory.empty()) {
      EXPECT_LT(apart(gpu.receive(5, w.memory.size()), w.d_memory), 2 * most(dtype)) << "d_memory";
    }
    double mean = 0;
    for (const Parameter& p : here->graph().parameters)
      mean += element_size(w.gradient(p)) / double(here->graph().parameters.size());
    for (const Parameter& p : there->graph().parameters) {
      // A parameter that cancels in the softmax, such as a key bias without rotary embedding, has no gradient. In f32
      // it is 1e-6 of the other gradients, and is compared with their size.
      const std::vector<float> want = w.gradient(*here->find(p.name));
      const double size = element_size(want);
      EXPECT_LT(apart(gpu.gradient(p), want, size < 1e-5 * mean ? mean : size), 2 * most(dtype)) << p.name;
    }
  }
};

TEST_F(Modules, are_the_twins_of_those_on_the_cpu) {
  const std::pair<const char*, const char*> lines[] = {
      {"llama", " b2 s130 e256 h4/2 ffn=512 | causal"},
      {"llama", " b1 s100 e96 h3 dim=32 ffn=77 | causal"},  // rows are not multiples of 16 bytes
      {"multihead", " b2 s65 e128 h4 norm=1 rope=pairs | causal"},
      {"multihead", " b1 s64 e128 h4/2 memory=90 | full"},
      {"longnet_encoder", " b2 s128 e128 h4 act=gelu | full : dilated mode=longnet norm=lse rates=1,2 segments=32,64"},
      {"longnet_decoder", " b1 s66 e128 h2 act=gelu memory=40 | causal"},
      {"feed_forward", " b3 s33 e64 ffn=100 act=silu"},
      // All blocks are selected, because a partial selection would depend on rounding.
      {"multihead", " b1 s128 e256 h4/2 rope=pairs | causal : nsa d=16 gate=softmax l=32 n=8 phi=mlp s=32 w=48"},
      {"multihead", " b1 s128 e256 h4/2 | causal : nsa d=16 gate=sigmoid l=32 n=8 phi=conv s=32 w=48"},
      {"llama", " b1 s200 e256 h4 ffn=512 | causal | 64x64 local_window window=128"},
  };
  for (const auto& [kind, rest] : lines)
    for (const DType dtype : {DType::f32, DType::bf16, DType::f16}) compare(kind, rest, dtype);
  // The sign of a ReLU input decides its slope. In a lower precision, about a fraction u of them change sign, which
  // changes gradients by the square root of that.
  compare("longnet_decoder", " b1 s66 e128 h2 act=relu memory=40 | causal", DType::f32);
}

TEST_F(Modules, begin_with_the_same_parameters_on_every_device) {
  const auto here = made("llama bf16 b1 s16 e64 h4"), there = made("llama bf16 b1 s16 e64 h4", nullptr, gpu_);
  for (const Parameter& p : here->graph().parameters) {
    std::vector<uint16_t> a(size_t(p.count())), b(a.size());
    ASSERT_EQ(here->read(p, a.data()).message, "");
    ASSERT_EQ(there->read(*there->find(p.name), b.data()).message, "");
    EXPECT_EQ(a, b) << p.name;
  }
}

TEST_F(Modules, a_captured_step_replays) {
  const auto here = made("llama f32 b1 s64 e128 h4/2"), there = made("llama bf16 b1 s64 e128 h4/2", nullptr, gpu_);
  ModuleWorld w(*here);
  OnDevice gpu(*there, w);
  const auto step = [&] {
    Status s = there->forward(gpu.call(stream_.get()));
    return s.ok() ? there->backward(gpu.call(stream_.get())) : s;
  };
  ASSERT_EQ(step().message, "");  // warm-up: looks up plans and kernels, allocates gradients
  ASSERT_EQ(cuda::wait_all(0).message, "");
  const Parameter& p = *there->find("mlp.gate_proj.weight");
  const std::vector<float> first = gpu.gradient(p);
  const auto stream = static_cast<cudaStream_t>(stream_.get());
  cudaGraph_t graph = nullptr;
  cudaGraphExec_t ready = nullptr;
  ASSERT_EQ(cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal), cudaSuccess);
  const Status captured = step();
  ASSERT_EQ(cudaStreamEndCapture(stream, &graph), cudaSuccess);
  ASSERT_EQ(captured.message, "");
  ASSERT_EQ(cudaGraphInstantiate(&ready, graph, 0), cudaSuccess);
  std::vector<float> other = w.x;
  for (float& x : other) x = -x;
  gpu.send(other, 0);
  ASSERT_EQ(cudaGraphLaunch(ready, stream), cudaSuccess);
  ASSERT_EQ(cuda::wait_all(0).message, "");
  EXPECT_NE(gpu.gradient(p), first);
  gpu.send(w.x, 0);
  ASSERT_EQ(cudaGraphLaunch(ready, stream), cudaSuccess);
  ASSERT_EQ(cuda::wait_all(0).message, "");
  EXPECT_LT(apart(gpu.gradient(p), first), 1e-3);
  cudaGraphExecDestroy(ready), cudaGraphDestroy(graph);
}

}  // namespace
}  // namespace attune
