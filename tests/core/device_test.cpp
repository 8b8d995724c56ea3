// SPDX-License-Identifier: Apache-2.0
#include "core/device.h"

#include <gtest/gtest.h>

#include <set>

using namespace attune;

namespace {

TEST(Device, known_devices_are_what_their_data_sheets_say) {
  Device d;
  ASSERT_TRUE(known_device("h200", d).ok());
  EXPECT_TRUE(d.kind == DeviceKind::cuda && d.arch == 90 && d.units == 132 && d.name == "NVIDIA H200");
  ASSERT_TRUE(known_device("a100", d).ok());
  EXPECT_TRUE(d.arch == 80 && d.units == 108 && d.name == "NVIDIA A100-SXM4-80GB");
  ASSERT_TRUE(known_device("l4", d).ok());
  EXPECT_TRUE(d.arch == 89 && d.features == 0);
}

TEST(Device, every_listed_device_is_known) {
  std::set<std::string> names;
  std::string all = known_devices() + ", ";
  for (size_t at; (at = all.find(", ")) != std::string::npos; all.erase(0, at + 2)) {
    Device d;
    EXPECT_TRUE(known_device(all.substr(0, at), d).ok()) << all.substr(0, at);
    EXPECT_TRUE(d.kind == DeviceKind::cuda && d.arch >= 70 && d.units > 1 && names.insert(d.name).second) << d.name;
  }
  EXPECT_GE(names.size(), 8u);
}

TEST(Device, unknown_device_is_refused_with_what_is_known) {
  Device d{.arch = 7};
  EXPECT_EQ(known_device("mi300x", d).message, "device 'mi300x' is not one of " + known_devices());
  EXPECT_EQ(known_device("h300", d).message,
            "device 'h300' is not one of " + known_devices() + "; did you mean h100?");
  EXPECT_TRUE(known_device("RTX 409", d).message.ends_with("; did you mean rtx4090?"));
  EXPECT_EQ(d.arch, 7) << "the output is not touched";
}

TEST(Device, features_are_bits_with_names) {
  Device d;
  EXPECT_FALSE(d.has(Feature::neon));
  d.features = bit(Feature::neon) | bit(Feature::blas);
  EXPECT_TRUE(d.has(Feature::neon) && d.has(Feature::blas) && !d.has(Feature::neon_bf16));
  std::set<std::string> names;
  for (int n = 0; n < int(Feature::count); ++n) names.insert(name(Feature(n)));
  EXPECT_EQ(names.size(), size_t(Feature::count));
  EXPECT_EQ(name(Feature::avx512_bf16), "avx512_bf16");
  EXPECT_EQ(name(Feature::count), "?");
}

}  // namespace
