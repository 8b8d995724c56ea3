// SPDX-License-Identifier: Apache-2.0
#include "tool/profile/cubin.h"

#include <cxxabi.h>

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <map>
#include <memory>

namespace attune {
namespace {

// Bounds-checked reads of an untrusted file. A read outside returns zeros and clears `good`.
struct Bytes {
  std::string_view all;
  bool good = true;
  template <class T>
  T at(uint64_t offset) {
    T value{};
    if (offset > all.size() || all.size() - offset < sizeof value) return good = false, value;
    std::memcpy(&value, all.data() + offset, sizeof value);
    return value;
  }
  std::string_view part(uint64_t offset, uint64_t size) {
    if (offset > all.size() || all.size() - offset < size) return good = false, std::string_view();
    return all.substr(offset, size);
  }
};

std::string_view text_at(std::string_view strings, uint32_t offset) {
  if (offset >= strings.size()) return "";
  const std::string_view rest = strings.substr(offset);
  return rest.substr(0, rest.find('\0'));
}

struct Section {
  std::string_view name{}, bytes{};
  uint32_t type = 0, link = 0;
};

// An attribute of .nv.info: one byte of format, one of kind, and two that hold the size if the format is 4, else the
// value.
constexpr uint32_t kMostRegisters = 255;  // per thread, of every GPU
enum : uint8_t { kMaxThreads = 0x05, kFrameSize = 0x11, kRegisters = 0x2f };
template <class Each>
void attributes(std::string_view info, Each each) {
  Bytes bytes{info};
  for (uint64_t at = 0; at + 4 <= info.size();) {
    const auto format = bytes.at<uint8_t>(at), kind = bytes.at<uint8_t>(at + 1);
    const uint64_t size = format == 4 ? bytes.at<uint16_t>(at + 2) : 0;
    const std::string_view value = bytes.part(at + 4, size);
    if (!bytes.good) return;
    each(kind, value);
    at += 4 + size;
  }
}

struct Machine {
  int warps, blocks, shared_kib;
};
// Limits of an SM, from the tables of the CUDA programming guide. All have 65536 registers.
Machine machine_of(int arch) {
  switch (arch) {
    case 80: return {64, 32, 164};
    case 86: return {48, 16, 100};
    case 89: return {48, 24, 100};
    case 90: return {64, 32, 228};
    case 100: case 103: return {64, 32, 228};
    case 120: case 121: return {48, 24, 100};
    default: return {0, 0, 0};
  }
}

}  // namespace

Status read_cubin(std::string_view file, std::vector<KernelUsage>& out) {
  Bytes bytes{file};
  if (!file.starts_with("\x7f" "ELF\x02\x01")) return Status::no("not a cubin: not an ELF file");
  if (bytes.at<uint16_t>(18) != 190) return Status::no("not a cubin: an ELF file of another machine");
  const auto abi = bytes.at<uint8_t>(8);
  const auto flags = bytes.at<uint32_t>(48);
  const int arch = int(abi >= 8 ? flags >> 8 & 255 : flags & 255);
  const auto table = bytes.at<uint64_t>(40);
  const auto count = bytes.at<uint16_t>(60), names_at = bytes.at<uint16_t>(62);
  std::vector<Section> sections;
  std::vector<uint32_t> name_offsets;
  bytes.part(table, 64 * uint64_t(count));
  for (uint64_t n = 0; n < count && bytes.good; ++n) {
    const uint64_t at = table + 64 * n;
    name_offsets.push_back(bytes.at<uint32_t>(at));
    Section s{.type = bytes.at<uint32_t>(at + 4), .link = bytes.at<uint32_t>(at + 40)};
    const auto offset = bytes.at<uint64_t>(at + 24), size = bytes.at<uint64_t>(at + 32);
    if (s.type == 8) s.bytes = std::string_view(nullptr, std::min<uint64_t>(size, 1 << 30));  // NOBITS: only a size
    else s.bytes = bytes.part(offset, size);
    sections.push_back(s);
  }
  if (!bytes.good || names_at >= sections.size() || sections[names_at].type == 8)
    return Status::no("the cubin is truncated");
  for (size_t n = 0; n < sections.size(); ++n) sections[n].name = text_at(sections[names_at].bytes, name_offsets[n]);

  uint32_t impossible = 0;  // registers
  std::map<std::string, KernelUsage> kernels;
  std::vector<std::string> symbols;  // by symbol index
  for (const Section& s : sections) {
    if (s.type != 2 || s.link >= sections.size() || sections[s.link].type == 8) continue;
    Bytes entries{s.bytes};
    for (uint64_t at = 0; at + 24 <= s.bytes.size(); at += 24)
      symbols.emplace_back(text_at(sections[s.link].bytes, entries.at<uint32_t>(at)));
  }
  const auto after = [](std::string_view name, std::string_view start) {
    return std::string(name.substr(start.size()));
  };
  for (const Section& s : sections) {
    if (!s.name.starts_with(".text.")) continue;
    const std::string symbol = after(s.name, ".text.");
    kernels[symbol] = {.symbol = symbol, .arch = arch, .code_bytes = int(std::min<size_t>(s.bytes.size(), 1 << 30))};
  }
  for (const Section& s : sections) {
    if (s.name.starts_with(".nv.shared.")) {
      if (const auto k = kernels.find(after(s.name, ".nv.shared.")); k != kernels.end())
        k->second.shared_bytes = int(s.bytes.size());
    } else if (s.name.starts_with(".nv.info.") && s.type != 8) {
      const auto k = kernels.find(after(s.name, ".nv.info."));
      attributes(s.bytes, [&](uint8_t kind, std::string_view value) {
        if (kind != kMaxThreads || value.size() < 12 || k == kernels.end()) return;
        Bytes v{value};
        const uint64_t threads = uint64_t(v.at<uint32_t>(0)) * v.at<uint32_t>(4) * v.at<uint32_t>(8);
        if (threads <= 1024) k->second.threads = int(threads);
      });
    } else if (s.name == ".nv.info" && s.type != 8) {
      attributes(s.bytes, [&](uint8_t kind, std::string_view value) {
        if ((kind != kRegisters && kind != kFrameSize) || value.size() < 8) return;
        Bytes v{value};
        const auto symbol = v.at<uint32_t>(0), amount = v.at<uint32_t>(4);
        const auto k = symbol < symbols.size() ? kernels.find(symbols[symbol]) : kernels.end();
        if (kind == kRegisters && amount > kMostRegisters) impossible = amount;
        if (k == kernels.end() || amount > 1u << 30) return;
        (kind == kRegisters ? k->second.registers : k->second.stack_bytes) = int(amount);
      });
    }
  }
  if (impossible)
    return Status::no("the cubin says ", impossible, " registers per thread; a GPU has at most ", kMostRegisters);
  for (auto& [symbol, kernel] : kernels)
    if (kernel.registers) out.push_back(std::move(kernel));  // device functions have no register entry
  return Status::good();
}

std::string short_name(const std::string& symbol) {
  int status = 0;
  const std::unique_ptr<char, decltype(&std::free)> demangled(
      abi::__cxa_demangle(symbol.c_str(), nullptr, nullptr, &status), &std::free);
  std::string name = status == 0 && demangled ? demangled.get() : symbol;
  const auto cut = [&](std::string_view part, std::string_view with) {
    for (size_t at = name.find(part); at != name.npos; at = name.find(part, at)) name.replace(at, part.size(), with);
  };
  if (name.starts_with("void ")) name.erase(0, 5);
  cut("(anonymous namespace)::", ""), cut("attune::", ""), cut(" >", ">");
  // Cuts off the parameters: from the parenthesis that matches the last one.
  if (name.ends_with(')')) {
    int depth = 0;
    for (size_t at = name.size(); at-- > 0;) {
      depth += name[at] == ')' ? 1 : name[at] == '(' ? -1 : 0;
      if (depth == 0) return name.substr(0, at);
    }
  }
  return name;
}

Occupancy occupancy(const KernelUsage& k, int dynamic_shared_bytes) {
  const Machine m = machine_of(k.arch);
  if (!m.warps || k.threads <= 0) return {};
  const int warps = (k.threads + 31) / 32;
  const int registers = std::max(256, (k.registers * 32 + 255) / 256 * 256) * warps;  // allocated by 256 per warp
  const int shared = k.shared_bytes + dynamic_shared_bytes + 1024;                    // 1 KiB reserved by the system
  Occupancy o{.blocks = m.blocks, .most_warps = m.warps, .bound = "blocks"};
  const auto bound = [&](int blocks, const char* by) {
    if (blocks < o.blocks) o.blocks = blocks, o.bound = by;
  };
  bound(m.warps / warps, "threads");
  bound(65536 / registers, "registers");
  bound(m.shared_kib * 1024 / shared, "shared memory");
  o.warps = o.blocks * warps;
  return o;
}

}  // namespace attune
