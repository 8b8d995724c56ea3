// SPDX-License-Identifier: Apache-2.0
#include "machine/cuda/tensor_map.h"

#include "core/check.h"
#include "machine/library.h"

namespace attune::cuda {

namespace {

Status find(decltype(cuTensorMapEncodeTiled)*& encode) {
  static const Library driver({"libcuda.so.1", "libcuda.so"}, {"cuTensorMapEncodeTiled"});
  static const auto found = driver.function<decltype(cuTensorMapEncodeTiled)>("cuTensorMapEncodeTiled");
  encode = found;
  return found ? Status::good() : Status::unsupported("cuTensorMapEncodeTiled: ", driver.missed());
}

}  // namespace

Status mappable(std::string_view who, Role r, const Tensor& t) {
  if (t.extent.seq == 0 || t.extent.batch == 0) return Status::good();  // nothing to address
  if (Status s = check_aligned16(who, r, t); !s.ok()) return s;
  const struct { int64_t step; int32_t extent; const char* axis; } axes[] = {
      {t.stride.batch, t.extent.batch, "batch"}, {t.stride.seq, t.extent.seq, "seq"},
      {t.stride.head, t.extent.head, "head"}};
  for (const auto& [step, extent, axis] : axes)
    if (step <= 0 && extent > 1)
      return Status::unsupported(who, ": ", name(r), " has a ", axis, " stride of ", step, " over an extent of ",
                                 extent, "; a tensor map requires a positive stride");
  return Status::good();
}

Status tensor_map(const Tensor& t, int rows, CUtensorMap& out, int heads) {
  decltype(cuTensorMapEncodeTiled)* encode;
  if (Status s = find(encode); !s.ok()) return s;
  constexpr int64_t kSize = 2;
  const Extents& e = t.extent;
  // An axis of extent 1 has stride 0, which the driver refuses; any valid stride will do.
  const auto bytes = [](int64_t stride) { return cuuint64_t(stride ? stride * kSize : 16); };
  const cuuint64_t extent[] = {cuuint64_t(e.dim), cuuint64_t(e.seq), cuuint64_t(e.head), cuuint64_t(e.batch)};
  const cuuint64_t stride[] = {bytes(t.stride.seq), bytes(t.stride.head), bytes(t.stride.batch)};
  const cuuint32_t box[] = {64, cuuint32_t(rows), cuuint32_t(heads), 1}, each[] = {1, 1, 1, 1};
  const CUtensorMapDataType type =
      t.dtype == DType::bf16 ? CU_TENSOR_MAP_DATA_TYPE_BFLOAT16 : CU_TENSOR_MAP_DATA_TYPE_FLOAT16;
  const CUresult result =
      encode(&out, type, 4, t.data, extent, stride, box, each, CU_TENSOR_MAP_INTERLEAVE_NONE,
             CU_TENSOR_MAP_SWIZZLE_128B, CU_TENSOR_MAP_L2_PROMOTION_L2_256B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  if (result == CUDA_SUCCESS) return Status::good();
  return Status::failure(Code::device, "cuTensorMapEncodeTiled refuses a tensor of ", e.batch, " x ", e.seq, " x ",
                         e.head, " x ", e.dim, " with strides ", t.stride.batch, ", ", t.stride.seq, ", ",
                         t.stride.head, ": error ", int(result));
}

Status line_map(const float* data, int64_t columns, int rows, int batch, int count, CUtensorMap& out) {
  decltype(cuTensorMapEncodeTiled)* encode;
  if (Status s = find(encode); !s.ok()) return s;
  const cuuint64_t extent[] = {cuuint64_t(columns), cuuint64_t(rows), cuuint64_t(batch), 1};
  const cuuint64_t stride[] = {extent[0] * 4, extent[0] * extent[1] * 4, extent[0] * extent[1] * extent[2] * 4};
  const cuuint32_t box[] = {cuuint32_t(count), 1, 1, 1}, each[] = {1, 1, 1, 1};
  const CUresult result =
      encode(&out, CU_TENSOR_MAP_DATA_TYPE_FLOAT32, 4, const_cast<float*>(data), extent, stride, box, each,
             CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_NONE, CU_TENSOR_MAP_L2_PROMOTION_L2_256B,
             CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  if (result == CUDA_SUCCESS) return Status::good();
  return Status::failure(Code::device, "cuTensorMapEncodeTiled refuses ", batch, " x ", rows, " lines of ", columns,
                         " numbers: error ", int(result));
}

}  // namespace attune::cuda
