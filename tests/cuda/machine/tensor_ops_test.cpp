// SPDX-License-Identifier: Apache-2.0
// The loops of machine/tensor_ops.h give the same results on a GPU as on the CPU: the same random numbers, both kinds
// of strides, every dtype, and no write outside the elements.
#include "machine/tensor_ops.h"

#include <cmath>

#include "tests/cuda/gpu.h"

using namespace attune;

namespace {

// A tensor on the host and on the GPU.
struct Both {
  Owned host;
  cuda::Memory memory{};
  Tensor gpu{};

  Both(DType dtype, const Extents& e, Layout layout, uint32_t seed, int pad = 8) : host(dtype, e, layout, pad) {
    Random random{seed};
    host.each([&](int b, int s, int h, int d) { store(host.t, b, s, h, d, random.normal()); });
    gpu = host.t;
    gpu.device = DeviceKind::cuda;
    send();
  }
  void send() {
    EXPECT_EQ(memory.allocate(0, host.memory.size()).message, "");
    const auto offset = static_cast<unsigned char*>(host.t.data) - host.memory.data();
    gpu.data = memory.data() + offset;
    EXPECT_EQ(cuda::copy_to(memory.data(), host.memory.data(), host.memory.size(), nullptr).message, "");
  }
  // Expects all GPU memory, including guards, to equal the host's; values may differ by `most`, relative to max(1,
  // |x|).
  void expect_same(void* stream, double most) {
    Owned back(host.t.dtype, host.t.extent);
    back.t = host.t;
    back.memory.resize(host.memory.size());
    EXPECT_EQ(cuda::copy_from(back.memory.data(), memory.data(), back.memory.size(), stream).message, "");
    back.t.data = back.memory.data() + (static_cast<unsigned char*>(host.t.data) - host.memory.data());
    EXPECT_TRUE(back.surroundings_intact());
    host.each([&](int b, int s, int h, int d) {
      const double x = load(host.t, b, s, h, d), y = load(back.t, b, s, h, d);
      if (x == y) return;
      ASSERT_LE(std::fabs(x - y), most * std::fmax(1, std::fabs(x))) << b << " " << s << " " << h << " " << d;
    });
  }
};

class OpsOnGpu : public OnGpu {};
constexpr DType kFloats[] = {DType::f64, DType::f32, DType::f16, DType::bf16, DType::e4m3};
constexpr Extents kShape{2, 77, 3, 72};

TEST_F(OpsOnGpu, fill_and_convert_are_the_cpus) {
  for (const int pad : {8, 3})  // vectors of four elements, and single elements
    for (const DType from : kFloats)
      for (const DType to : kFloats) {
        SCOPED_TRACE(join(name(from), " to ", name(to), ", padding ", pad));
        Both x(from, kShape, Layout::bshd, 1, pad), y(to, kShape, Layout::bhsd, 2, pad);
        ASSERT_EQ(fill(y.gpu, 1.25f, stream_.get()).message, "");
        ASSERT_EQ(fill(y.host.t, 1.25f, nullptr).message, "");
        y.expect_same(stream_.get(), 0);
        ASSERT_EQ(convert(x.gpu, y.gpu, stream_.get()).message, "");
        ASSERT_EQ(convert(x.host.t, y.host.t, nullptr).message, "");
        y.expect_same(stream_.get(), 0);
      }
}

TEST_F(OpsOnGpu, sums_are_the_cpus) {
  for (const Extents e : {kShape, Extents{1, 77, 3, 72}, Extents{2, 1, 3, 72}, Extents{2, 77, 1, 72}})
    for (const DType from : {DType::f32, DType::f16, DType::bf16}) {
      Both x(from, e, Layout::bhsd, 3), y(DType::f32, kShape, Layout::bshd, 4);
      ASSERT_EQ(scale_add(x.gpu, 0.3f, y.gpu, -0.7f, stream_.get()).message, "");
      ASSERT_EQ(scale_add(x.host.t, 0.3f, y.host.t, -0.7f, nullptr).message, "");
      y.expect_same(stream_.get(), 1e-6);
    }
}

TEST_F(OpsOnGpu, merge_is_the_cpus) {
  for (const int dim : {1, 8, 64, 72, 128, 200})
    for (const DType dtype : {DType::f32, DType::f16}) {
      const Extents e{2, 77, 3, dim}, row{2, 77, 3, 1};
      Both part(dtype, e, Layout::bshd, 5), out(DType::f32, e, Layout::bhsd, 6);
      Both lse_part(DType::f32, row, Layout::bshd, 7), lse(DType::f32, row, Layout::bhsd, 8);
      for (int s = 0; s < 77; s += 3) {
        store(s % 2 ? lse.host.t : lse_part.host.t, 1, s, 2, 0, -INFINITY);
        for (int d = 0; d < dim; ++d) store(s % 2 ? out.host.t : part.host.t, 1, s, 2, d, NAN);
      }
      for (Both* b : {&part, &out, &lse_part, &lse}) b->send();
      ASSERT_EQ(merge(part.gpu, lse_part.gpu, out.gpu, lse.gpu, stream_.get()).message, "");
      ASSERT_EQ(merge(part.host.t, lse_part.host.t, out.host.t, lse.host.t, nullptr).message, "");
      out.expect_same(stream_.get(), 1e-5);
      lse.expect_same(stream_.get(), 1e-5);
      ASSERT_EQ(merge({}, lse_part.gpu, {}, lse.gpu, stream_.get()).message, "");
      ASSERT_EQ(merge({}, lse_part.host.t, {}, lse.host.t, nullptr).message, "");
      lse.expect_same(stream_.get(), 1e-5);
    }
}

}  // namespace
