// Is a work read back from its text?
#include "sim/program/read_work.h"

#include <gtest/gtest.h>

#include <set>

#include "models/lower.h"
#include "sim/program/program.h"
#include "tests/support/small_plans.h"

namespace foretrain {
namespace {

void expect_read_back(const std::string& text) {
  const Result<Work> work = read_work(text);
  ASSERT_TRUE(work.ok()) << work.error().message;
  EXPECT_EQ(text_of(work.value()), text);
}

TEST(ReadWork, TextsReadBack) {
  for (const char* text :
       {"gemm 4096x6144x4096 nt bf16->bf16",
        "gemm 1x2x3 batch 8 tn fp8->fp32 split accumulator accumulate",
        "gemm 64x64x64 batch 4 apart nn bf16->bf16 cutlass of 3 on 2 streams groups 1 2 3 4",
        "gemm 64x64x64 nn bf16->bf16 of 4096 1024 1024 accumulate",
        "gemm 64x64x64 nn bf16->bf16 of 2 on 2 streams of 32 32 accumulate",
        "attention batch 2 heads 8/2 length 128x256 head 64 causal flash bf16",
        "attention-backward batch 1 heads 8/8 length 128x128 head 192/128 alibi dropout window 64 "
        "cudnn fp16",
        "attention batch 1 heads 8/8 length 96x96 head 64 causal from sequence 1 part 0 of 2 "
        "documents "
        "32 64 and 3 kernels of 100 B unfused fp32",
        "score-softmax-backward batch 1 heads 8/8 length 96x96 head 64 unfused fp32",
        "attention-key-gradient batch 1 heads 8/8 length 96x96 head 64 unfused fp32",
        "gelu 512x1024 bf16 2097152 B",
        "adam 1x4096 fp32 100000 B in 3 launches split over group 1 from row 5 columns split over "
        "group 0",
        "permute 512x1024 bf16 2097152 B 64 rows an expert of 8 from 4 ranks",
        "all-reduce group 0 4096 bf16 max", "broadcast group 2 4096 bf16 root 3",
        "copy host->device 4096 B pageable"}) {
    expect_read_back(text);
  }
}

TEST(ReadWork, WhatIsNoneIsRefused) {
  for (const char* text :
       {"",
        "gemm",
        "gemm 1x2",
        "gemm 1x2x3",
        "gemm 1x2x3 nt bf16",
        "gemm 1x2x-3 nt bf16->bf16",
        "gemm 1x2x3 nt bf16->bf16 more",
        "gemm 99999999999999999999x2x3 nt bf16->bf16",
        "attention batch 2",
        "attention batch 2 heads 8/2 length 128 head 64 flash bf16",
        "gelu",
        "gelu 1x2 bf16 5",
        "all-gather group 0 10 bf16 in 3 runs",
        "copy host 4 B",
        "host-sync",
        "attention batch 1 heads 12/12 length 128x128 head 64 causal documents 0 cudnn bf16",
        "attention batch 0 heads 12/12 length 128x128 head 64 causal cudnn bf16",
        "attention batch 1 heads 12/5 length 128x128 head 64 causal cudnn bf16",
        "gemm 1x2x3 batch 2 nt bf16->bf16 groups 0 0",
        "gemm 1x2x3 nt bf16->bf16 of 4 on 0 streams",
        "gemm 1x2x3 batch 2 nt bf16->bf16 groups 5",
        "all-gather group 99999999999 10 bf16",
        "gelu 1x2 bf16 5 B in 0 launches",
        "copy host->moon 4 B",
        "opaque x 1 B 2 FLOP"}) {
    EXPECT_FALSE(read_work(text).ok()) << text;
  }
}

}  // namespace
}  // namespace foretrain
