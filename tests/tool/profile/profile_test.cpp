// SPDX-License-Identifier: Apache-2.0
// The kernel attributes in a cubin, read from ELF files made here; no input may crash the reader.
#include <gtest/gtest.h>

#include <cstdint>
#include <nlohmann/json.hpp>
#include <random>

#include "tests/tool/spawn.h"
#include "tool/profile/counters.h"
#include "tool/profile/cubin.h"

namespace attune {
namespace {

template <class T>
void put(std::string& to, T value) { to.append(reinterpret_cast<const char*>(&value), sizeof value); }

struct Part {
  std::string name, bytes;
  uint32_t type = 1, link = 0;
  uint64_t size = 0;  // of a section without bytes
};

constexpr const char* kSymbol = "_ZN6attune4sm906kernelINS_4Bf16ELi128EEEvNS_6ParamsE";

// One kernel of 384 threads, as nvcc 13.0 writes it.
std::string cubin(uint32_t registers, uint32_t stack, uint32_t threads, uint64_t shared, int arch = 90, int abi = 8) {
  std::string strings = std::string(1, '\0') + kSymbol + '\0', symbols(24, '\0'), all, one, code(4096, 'x');
  put<uint32_t>(symbols, 1), symbols.resize(48);
  const auto attribute = [](std::string& to, uint8_t kind, std::vector<uint32_t> values) {
    put<uint8_t>(to, 4), put<uint8_t>(to, kind), put<uint16_t>(to, uint16_t(4 * values.size()));
    for (const uint32_t v : values) put(to, v);
  };
  put<uint32_t>(all, 0x00003703);  // an attribute whose value is in its header
  attribute(all, 0x2f, {1, registers}), attribute(all, 0x11, {1, stack});
  if (threads) attribute(one, 0x05, {threads / 2, 2, 1});
  std::vector<Part> parts = {{"", ""}, {".shstrtab", ""}, {".strtab", strings}, {".symtab", symbols, 2, 2},
                             {".nv.info", all}, {join(".nv.info.", kSymbol), one}, {join(".text.", kSymbol), code},
                             {join(".nv.shared.", kSymbol), "", 8, 0, shared}};
  std::vector<uint32_t> names;
  for (const Part& p : parts) {
    names.push_back(uint32_t(parts[1].bytes.size()));
    parts[1].bytes += p.name + '\0';
  }
  std::string file("\x7f" "ELF\x02\x01\x01\x41", 8), body;
  put<uint8_t>(file, uint8_t(abi)), file.resize(18);
  put<uint16_t>(file, 190), file.resize(40);
  std::string table;
  for (size_t n = 0; n < parts.size(); ++n) {
    const Part& p = parts[n];
    put<uint32_t>(table, names[n]), put<uint32_t>(table, p.type), put<uint64_t>(table, 0), put<uint64_t>(table, 0);
    put<uint64_t>(table, 64 + body.size()), put<uint64_t>(table, p.size ? p.size : p.bytes.size());
    put<uint32_t>(table, p.link), table.resize(64 * (n + 1));
    body += p.bytes;
  }
  put<uint64_t>(file, 64 + body.size()), put<uint32_t>(file, uint32_t(abi >= 8 ? arch << 8 | 4 : arch));
  file.resize(60), put<uint16_t>(file, uint16_t(parts.size())), put<uint16_t>(file, 1);
  return file + body + table;
}

TEST(Cubin, says_registers_stack_threads_and_shared_memory) {
  std::vector<KernelUsage> all;
  ASSERT_EQ(read_cubin(cubin(168, 16, 384, 2048), all).message, "");
  ASSERT_EQ(all.size(), 1u);
  EXPECT_EQ(all[0].symbol, kSymbol);
  EXPECT_EQ(all[0].arch, 90);
  EXPECT_EQ(all[0].registers, 168);
  EXPECT_EQ(all[0].stack_bytes, 16);
  EXPECT_EQ(all[0].threads, 384);
  EXPECT_EQ(all[0].shared_bytes, 2048);
  EXPECT_EQ(all[0].code_bytes, 4096);
  ASSERT_EQ(read_cubin(cubin(64, 0, 128, 0, 80, 7), all).message, "");
  EXPECT_EQ(all[1].arch, 80);  // where the previous version stored it
}

TEST(Cubin, a_name_is_short) {
  EXPECT_EQ(short_name(kSymbol), "sm90::kernel<Bf16, 128>");
  EXPECT_EQ(short_name("plain"), "plain");
  EXPECT_EQ(short_name("_ZN6attune12_GLOBAL__N_14copyEPfiPFviE"), "copy");  // a function type among the parameters
}

TEST(Cubin, what_is_none_or_cut_off_is_a_sentence) {
  std::vector<KernelUsage> all;
  EXPECT_EQ(read_cubin("", all).message, "not a cubin: not an ELF file");
  EXPECT_EQ(read_cubin(text_of(ATTUNE_BUILD_DIR "/attune"), all).message,
            "not a cubin: an ELF file of another machine");
  const std::string whole = cubin(168, 0, 384, 0);
  for (size_t size = 64; size < whole.size(); size += 7)
    EXPECT_EQ(read_cubin(whole.substr(0, size), all).message, "the cubin is truncated") << size;
  EXPECT_TRUE(all.empty());
}

// 2^22 registers of 1024 threads are 2^32 in a block, of which the occupancy was computed modulo 2^32: by 0.
TEST(Cubin, more_registers_than_a_thread_has_are_refused) {
  std::vector<KernelUsage> all;
  EXPECT_EQ(read_cubin(cubin(1 << 22, 0, 1024, 0), all).message,
            "the cubin says 4194304 registers per thread; a GPU has at most 255");
  EXPECT_EQ(read_cubin(cubin(256, 0, 1024, 0), all).message,
            "the cubin says 256 registers per thread; a GPU has at most 255");
  EXPECT_TRUE(all.empty());
  ASSERT_EQ(read_cubin(cubin(255, 0, 1024, 0), all).message, "");
  EXPECT_EQ(occupancy(all.at(0)).blocks, 0);
}

TEST(Cubin, no_bytes_crash_the_reader) {
  std::mt19937 random(1);
  const std::string whole = cubin(168, 0, 384, 1024);
  for (int n = 0; n < 3000; ++n) {
    std::string bad = whole;
    for (int flips = 0; flips < 8; ++flips) {
      // The header and the tables matter more than the code.
      const size_t at = random() % 2 ? random() % 64 : whole.size() - 1 - random() % 900;
      bad[at] = char(random());
    }
    std::vector<KernelUsage> all;
    if (!read_cubin(bad, all).ok()) continue;
    for (const KernelUsage& k : all) EXPECT_GE(occupancy(k).blocks, 0);
  }
}

TEST(Occupancy, is_bound_by_what_runs_out_first) {
  const auto told = [](int registers, int threads, int shared, int dynamic = 0) {
    const Occupancy o = occupancy({.arch = 90, .registers = registers, .shared_bytes = shared, .threads = threads},
                                  dynamic);
    return join(o.blocks, " ", o.warps, "/", o.most_warps, " ", o.bound);
  };
  EXPECT_EQ(told(168, 384, 1024), "1 12/64 registers");
  EXPECT_EQ(told(32, 1024, 0), "2 64/64 threads");
  EXPECT_EQ(told(32, 128, 100000), "2 8/64 shared memory");
  EXPECT_EQ(told(32, 128, 0, 100000), "2 8/64 shared memory");
  EXPECT_EQ(told(16, 32, 0), "32 32/64 blocks");
  EXPECT_EQ(occupancy({.arch = 90, .registers = 32}).blocks, 0);                  // number of threads unknown
  EXPECT_EQ(occupancy({.arch = 12, .registers = 32, .threads = 128}).blocks, 0);  // unknown architecture
}

// As ncu 2025 prints it after the program's output, reduced to a few columns.
constexpr const char* kNcu =
    "==PROF== Connected to process 7 (attune)\n==PROF== Profiling \"kernel\": 0%....100% - 9 passes\n"
    "\"ID\",\"Kernel Name\",\"Block Size\",\"Grid Size\",\"gpu__time_duration.sum\","
    "\"launch__registers_per_thread\",\"launch__shared_mem_per_block_dynamic\",\"launch__shared_mem_per_block_static\","
    "\"sm__throughput.avg.pct_of_peak_sustained_elapsed\",\"gpu__dram_throughput.avg.pct_of_peak_sustained_elapsed\","
    "\"sm__warps_active.avg.pct_of_peak_sustained_active\",\"sm__maximum_warps_per_active_cycle_pct\","
    "\"sm__inst_executed_pipe_tensor_op_gmma.avg.pct_of_peak_sustained_active\","
    "\"smsp__average_warps_issue_stalled_barrier_per_issue_active.ratio\","
    "\"smsp__average_warps_issue_stalled_gmma_per_issue_active.ratio\","
    "\"smsp__average_warps_issue_stalled_selected_per_issue_active.ratio\"\n"
    "\"\",\"\",\"\",\"\",\"ns\",\"register/thread\",\"byte/block\",\"byte/block\",\"%\",\"%\",\"%\",\"%\",\"%\","
    "\"inst\",\"inst\",\"inst\"\n"
    "\"0\",\"_ZN6attune4sm906kernelINS_4Bf16ELi128EEEvNS_6ParamsE\",\"(384, 1, 1)\",\"(132, 1, 1)\",\"12,345\",\"168\","
    "\"200,000\",\"1,024\",\"81.5\",\"12.25\",\"18.5\",\"18.75\",\"93.1\",\"0.5\",\"2.25\",\"1\"\n";

TEST(Counters, are_read_from_what_ncu_prints) {
  std::vector<KernelCounters> all;
  ASSERT_EQ(read_ncu(kNcu, all).message, "");
  ASSERT_EQ(all.size(), 1u);
  const KernelCounters& k = all[0];
  EXPECT_EQ(k.kernel, "sm90::kernel<Bf16, 128>");
  EXPECT_EQ(k.grid, "132 x 1 x 1");
  EXPECT_EQ(k.block, "384 x 1 x 1");
  EXPECT_NEAR(k.us, 12.345, 1e-9);
  EXPECT_EQ(k.registers, 168);
  EXPECT_EQ(k.shared_bytes, 201024);
  EXPECT_EQ(k.sm, 81.5);
  EXPECT_EQ(k.tensor, 93.1);
  EXPECT_EQ(k.dram, 12.25);
  EXPECT_LT(k.l2, 0) << "ncu did not say it";
  EXPECT_EQ(k.occupancy, 18.5);
  EXPECT_EQ(k.most_occupancy, 18.75);
  ASSERT_EQ(k.waits.size(), 2u);
  EXPECT_EQ(k.waits[0], (std::pair<std::string, double>("gmma", 2.25)));
}

TEST(Counters, a_table_that_is_none_or_cut_off_is_a_sentence) {
  std::vector<KernelCounters> all;
  EXPECT_EQ(read_ncu("==ERROR== no\n", all).message, "ncu printed no table");
  const std::string text = kNcu;
  EXPECT_TRUE(has(read_ncu(text.substr(0, text.size() - 40), all).message, "cells for 16 columns"));
  for (size_t size = 0; size < text.size(); ++size) (void)read_ncu(text.substr(0, size), all);
  std::mt19937 random(1);
  for (int n = 0; n < 300; ++n) {
    std::string bad = text;
    for (int flips = 0; flips < 8; ++flips) bad[random() % bad.size()] = char(random());
    (void)read_ncu(bad, all);
  }
}

TEST(ProfileCommand, shows_what_ncu_counts_of_one_call) {
  const std::vector<std::string> ask = {"profile", "--run", "forward bf16 b1 h1 q512 k512 d64 causal"};
  // A stand-in that logs its arguments.
  std::ofstream(temporary("ncu.csv")) << kNcu;
  std::ofstream(temporary("ncu")) << "#!/bin/sh\necho \"$@\" > " << temporary("asked") << "\ncat "
                                  << temporary("ncu.csv") << "\n";
  std::filesystem::permissions(temporary("ncu"), std::filesystem::perms::owner_all);
  const std::vector<std::string> path = {"PATH=" + temporary("") + ":/usr/bin:/bin"};
  const Ran r = attune_says(ask, path);
  EXPECT_EQ(r.code, 0) << r.err;
  EXPECT_TRUE(has(r.out, "gmma 2.25, barrier 0.50")) << r.out;
  EXPECT_TRUE(has(r.out, "18.5 % (18.8 %)")) << r.out;
  EXPECT_TRUE(has(text_of(temporary("asked")), "--profile-from-start off")) << text_of(temporary("asked"));
  EXPECT_TRUE(has(text_of(temporary("asked")), "--once")) << text_of(temporary("asked"));
  std::vector<std::string> json = ask;
  json.emplace_back("--json");
  const auto j = nlohmann::json::parse(attune_says(json, path).out);
  EXPECT_EQ(j[0]["tensor_percent"], 93.1);
  EXPECT_TRUE(j[0]["l2_percent"].is_null());
  EXPECT_EQ(j[0]["waits"]["barrier"], 0.5);

  std::ofstream(temporary("ncu"))
      << "#!/bin/sh\necho '==ERROR== ERR_NVGPUCTRPERM - The user does not have permission'\n";
  const Ran forbidden = attune_says(ask, path);
  EXPECT_EQ(forbidden.code, 3);
  EXPECT_EQ(forbidden.err, "attune profile: ERR_NVGPUCTRPERM - The user does not have permission\n");
  std::ofstream(temporary("ncu")) << "#!/bin/sh\necho nothing\n";
  EXPECT_EQ(attune_says(ask, path).err, "attune profile: ncu printed no table\n");
  std::ofstream(temporary("ncu")) << "#!/bin/sh\ncat " << temporary("ncu.csv") << "\nexit 9\n";
  const Ran failed = attune_says(ask, path);
  EXPECT_EQ(failed.code, 3) << failed.out;
  EXPECT_EQ(failed.err, "attune profile: ncu ended with 9\n");
  const Ran without = attune_says(ask, {"PATH=/nowhere"});
  EXPECT_EQ(without.code, 3);
  EXPECT_TRUE(has(without.err, "ncu of Nsight Compute is not installed")) << without.err;
  EXPECT_EQ(attune_says({"profile", "--run", "forward"}).code, 2);
  EXPECT_EQ(attune_says({"profile", "--run", ask[2], "--device", "cpu"}).code, 2);
  EXPECT_EQ(attune_says({"profile", "--once"}).code, 2);
  const Ran no_gpu = attune_says({"profile", "--run", ask[2], "--device", "cuda:99", "--once"});
  EXPECT_EQ(no_gpu.code, 3) << no_gpu.err;
  EXPECT_TRUE(has(no_gpu.err, "attune profile: device 'cuda:99'")) << no_gpu.err;
}

TEST(ProfileCommand, a_module_is_no_problem_to_run) {
  const Ran r = attune_says({"profile", "--run", "forward multihead f16 b1 s16 e32 h2 | causal", "--once"});
  EXPECT_EQ(r.code, 2);
  EXPECT_EQ(r.err, "attune profile: --run: 'forward multihead f16 b1 s16 e32 h2 | causal' is a module; give a problem "
                   "line\n");
}

TEST(ProfileCommand, lists_the_kernels_of_a_cubin) {
  std::ofstream(temporary("k.cubin"), std::ios::binary) << cubin(168, 0, 384, 1024);
  const Ran text = attune_says({"profile", temporary("k.cubin")});
  EXPECT_EQ(text.code, 0) << text.err;
  EXPECT_TRUE(has(text.out, "12 of 64 warps  registers  sm90::kernel<Bf16, 128>")) << text.out;
  const auto j = nlohmann::json::parse(attune_says({"profile", temporary("k.cubin"), "--json"}).out);
  EXPECT_EQ(j[0]["registers"], 168);
  EXPECT_EQ(j[0]["bound_by"], "registers");
}

TEST(ProfileCommand, what_is_wrong_is_one_sentence) {
  std::ofstream(temporary("k.cubin"), std::ios::binary) << cubin(168, 0, 384, 1024);
  const Ran none = attune_says({"profile", temporary("k.cubin"), "--kernel", "kernel sm_80"});
  EXPECT_EQ(none.code, 1);
  EXPECT_TRUE(has(none.err, "no kernel has 'kernel sm_80' in its name")) << none.err;
  std::ofstream(temporary("bad.cubin")) << "text";
  const Ran bad = attune_says({"profile", temporary("bad.cubin")});
  EXPECT_EQ(bad.code, 1);
  EXPECT_TRUE(has(bad.err, "bad.cubin: not a cubin")) << bad.err;
  EXPECT_TRUE(has(attune_says({"profile", temporary("no.cubin")}).err, "is not a file"));
  const Ran tool = attune_says({"profile"}, {"PATH=/nowhere"});
  EXPECT_EQ(tool.code, 3);
  EXPECT_TRUE(has(tool.err, "cuobjdump of the CUDA toolkit is not installed")) << tool.err;
}

TEST(ProfileCommand, a_program_is_unpacked_by_cuobjdump) {
  // A stand-in that leaves a cubin in its working folder, as cuobjdump does.
  std::ofstream(temporary("k.cubin"), std::ios::binary) << cubin(168, 0, 384, 1024);
  std::ofstream(temporary("cuobjdump")) << "#!/bin/sh\ncp " << temporary("k.cubin") << " one.sm_90a.cubin\n";
  std::filesystem::permissions(temporary("cuobjdump"), std::filesystem::perms::owner_all);
  const Ran r = attune_says({"profile", "--kernel", "Bf16 128"}, {"PATH=" + temporary("") + ":/usr/bin:/bin"});
  EXPECT_EQ(r.code, 0) << r.err;
  EXPECT_TRUE(has(r.out, "sm90::kernel<Bf16, 128>")) << r.out;
  std::ofstream(temporary("cuobjdump")) << "#!/bin/sh\nexit 1\n";
  const Ran without = attune_says({"profile"}, {"PATH=" + temporary("") + ":/usr/bin:/bin"});
  EXPECT_EQ(without.code, 1);
  EXPECT_TRUE(has(without.err, "has no GPU kernel")) << without.err;
}

TEST(Cubin, a_file_that_was_cut_is_refused_or_has_what_it_had) {
  const std::string whole = cubin(168, 24, 384, 1024);
  std::vector<KernelUsage> full;
  ASSERT_EQ(read_cubin(whole, full).message, "");
  for (size_t n = 0; n < whole.size(); n += n < 600 ? 1 : 37) {
    std::vector<KernelUsage> some;
    const Status s = read_cubin(std::string_view(whole).substr(0, n), some);
    EXPECT_TRUE(s.message.starts_with("not a cubin") || s.message == "the cubin is truncated") << n << s.message;
    EXPECT_TRUE(some.empty()) << n;
  }
}

TEST(Cubin, more_than_a_library_has_is_not_read) {
  const std::string path = temporary("sparse.cubin");
  std::ofstream(path) << "\x7f" "ELF\x02\x01";
  std::filesystem::resize_file(path, (size_t(256) << 20) + 1);
  const Ran r = attune_says({"profile", path});
  EXPECT_EQ(r.code, 1);
  EXPECT_EQ(r.err, join("attune profile: '", path, "' has more than 268435456 bytes\n"));
}

}  // namespace
}  // namespace attune
