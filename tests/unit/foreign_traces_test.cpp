// Files that profilers write: read token by token, their kernels classified, their steps found.
#include <gtest/gtest.h>
#include <sqlite3.h>
#include <unistd.h>

#include <filesystem>
#include <string>
#include <utility>
#include <vector>

#include "sim/base/json.h"
#include "traces/activity_builder.h"
#include "traces/json_stream.h"
#include "traces/kernel_families.h"
#include "traces/kineto.h"
#include "traces/nsight.h"

namespace foretrain {
namespace {

/// The tokens of a text, one letter each, with the texts of those that have one.
std::string tokens_of(const std::string& text) {
  ByteStream bytes = ByteStream::of(text, "text");
  JsonStream json(bytes);
  std::string out;
  for (;;) {
    const JsonToken token = json.next();
    out += "{}[]:sn w.!"[static_cast<std::size_t>(token) + (token >= JsonToken::kWord ? 1 : 0)];
    const bool texts = token == JsonToken::kKey || token == JsonToken::kString ||
                       token == JsonToken::kNumber || token == JsonToken::kWord;
    if (texts) out += json.text();
    if (token == JsonToken::kEnd) return out;
    if (token == JsonToken::kFault) return out + json.error().message;
  }
}

TEST(JsonStream, ReadsWhatJsonIs) {
  EXPECT_EQ(tokens_of(R"({"a": [1, -2.5e3, "x\"y\u00e9"], "b": {}, "c": null})"),
            "{:a[n1n-2.5e3sx\"y\xc3\xa9]:b{}:cwnull}.");
  EXPECT_EQ(tokens_of("[]"), "[].");
  EXPECT_EQ(tokens_of(R"("\ud83d\ude00")"), "s\xf0\x9f\x98\x80.");
}

TEST(JsonStream, ReadsWhatProfilersWriteInItsPlace) {
  EXPECT_EQ(tokens_of("[NaN, inf, -Infinity]"), "[nNaNninfn-Infinity].");
  EXPECT_EQ(tokens_of(R"(["C:\lib", "\ud83d"])"), "[sC:libs\xef\xbf\xbd].");
}

TEST(JsonStream, NamesTheByteOfAFault) {
  EXPECT_EQ(tokens_of(R"({"a": 1)"),
            "{:an1!text: byte 7: the file ends here, 1 brackets open: it was cut off, or is still "
            "being written");
  EXPECT_EQ(
      tokens_of(R"(["abc)"),
      "[!text: byte 5: the file ends here, 1 brackets open: it was cut off, or is still being "
      "written");
  EXPECT_EQ(tokens_of("[1 2]"), "[n1!text: byte 3: found '2', expected ',' or ']'");
  EXPECT_EQ(tokens_of("[1,]"), "[n1!text: byte 3: found ']', expected a value");
  EXPECT_EQ(tokens_of("{1"), "{!text: byte 1: found '1', expected a key");
  EXPECT_EQ(tokens_of("[] x"), "[]!text: byte 3: found 'x' after the end of the document");
  EXPECT_EQ(tokens_of("[bogus]"), "[!text: byte 6: found bogus, expected a value");
  EXPECT_EQ(tokens_of(""), "!text: byte 0: the file is empty, expected JSON");
  EXPECT_EQ(tokens_of(std::string(65, '[')),
            std::string(64, '[') + "!text: byte 64: more than 64 levels of nesting");
}

TEST(JsonStream, SkipsAWholeValue) {
  ByteStream bytes = ByteStream::of(R"({"a": [[1, {"b": 2}], 3], "c": 4})", "text");
  JsonStream json(bytes);
  ASSERT_EQ(json.next(), JsonToken::kObject);
  ASSERT_EQ(json.next(), JsonToken::kKey);
  ASSERT_TRUE(json.skip(json.next()));
  ASSERT_EQ(json.next(), JsonToken::kKey);
  EXPECT_EQ(json.text(), "c");
}

TEST(Kineto, TakesMicrosecondsToTheNanosecond) {
  const auto ns = [](const char* text) {
    std::int64_t out = -1;
    return parse_us(text, out) ? out : std::int64_t{-777};
  };
  EXPECT_EQ(ns("1740461679476346"), 1'740'461'679'476'346'000);
  EXPECT_EQ(ns("1740461679476346.123"), 1'740'461'679'476'346'123);
  EXPECT_EQ(ns("4458677052061.4315"), 4'458'677'052'061'432);
  EXPECT_EQ(ns("-0.5"), -500);
  EXPECT_EQ(ns("1.5e3"), 1'500'000);
  EXPECT_EQ(ns("12.9999"), 13'000);
  for (const char* wrong : {"", "soon", "1e300", "NaN", "12.3x", "9223372036854775807"}) {
    EXPECT_EQ(ns(wrong), -777) << wrong;
  }
}

TEST(KernelFamilies, KnowKernelsByTheirNames) {
  const std::pair<const char*, Family> cases[] = {
      {"ncclDevKernel_AllReduce_Sum_bf16_RING_LL(ncclDevKernelArgsStorage<4096ul>)",
       Family::kAllReduce},
      {"ncclKernel_ReduceScatter_RING_LL_Sum_half", Family::kReduceScatter},
      {"ncclDevKernel_Reduce_Sum_f32_RING_LL", Family::kReduce},
      {"ncclSymkDevKernel_AllGather_LLMC", Family::kAllGather},
      {"ncclDevKernel_SendRecv(ncclDevKernelArgsStorage<4096ul>)", Family::kSendRecv},
      {"ncclDevKernel_Generic_1(ncclDevKernelArgsStorage<4096ul>)", Family::kNcclOther},
      {"nvjet_hsh_128x256_64x4_1x2_h_bz_coopA_NTT", Family::kGemm},
      {"sm90_xmma_gemm_bf16f32_bf16f32_f32_tn_n_tilesize128x128x64_cublas", Family::kGemm},
      {"ampere_bf16_s16816gemm_bf16_128x256_ldg8_f2f_stages_64x3_tn", Family::kGemm},
      {"Cijk_Ailk_Bljk_BBS_BH_Bias_HAS_SAV_UserArgs_MT256x256x64_MI16x16x1", Family::kGemm},
      {"void cutlass::Kernel2<cutlass_80_wmma_tensorop_bf16_s161616gemm_bf16>", Family::kGemm},
      {"void pytorch_flash::flash_fwd_kernel<Flash_fwd_kernel_traits<128, 128, 64>>",
       Family::kAttention},
      {"void cutlass::device_kernel<flash::FlashAttnBwd<flash::CollectiveMainloopBwd<2>>>",
       Family::kAttention},
      {"cudnn_generated_fort_native_sdpa_sm90_flash_fprop_wgmma_f16_knob_7", Family::kAttention},
      {"fmha_cutlassF_bf16_aligned_64x128_rf_sm80", Family::kAttention},
      {"void ck_tile::kentry<256, 2, ck_tile::FmhaFwdKernel<...>>", Family::kAttention},
      {"triton_poi_fused__flash_attention_forward_mul_3", Family::kTriton},
      {"triton_red_fused_native_layer_norm_0", Family::kTriton},
      {"triton_tem_fused_mm_4", Family::kGemm},
      {"void at::native::(anonymous namespace)::vectorized_layer_norm_kernel<c10::BFloat16>",
       Family::kNorm},
      {"void transformer_engine::normalization::rmsnorm_fwd_tuned_kernel<...>", Family::kNorm},
      {"void (anonymous namespace)::softmax_warp_forward<float, float, float, 9, true>",
       Family::kSoftmaxLoss},
      {"void at::native::(anonymous namespace)::multi_tensor_apply_kernel<..., "
       "FusedAdamMathFunctor>",
       Family::kOptimizer},
      {"void at::native::vectorized_elementwise_kernel<4, at::native::FillFunctor<float>>",
       Family::kElementwise},
      {"void deep_ep::internode::dispatch<false, 8, true, 8>", Family::kDeepEp},
      {"Memcpy HtoD (Pinned -> Device)", Family::kHostToDevice},
      {"Memcpy DtoD (Device -> Device)", Family::kDeviceToDevice},
      {"Memset (Device)", Family::kMemset},
      {"my_own_kernel", Family::kOther},
  };
  for (const auto& [name, family] : cases) {
    EXPECT_EQ(name_of(classify_kernel(name).family), name_of(family)) << name;
  }
  EXPECT_EQ(classify_kernel("void cutlass::device_kernel<GroupProblemShape>").kind, "grouped");
  EXPECT_EQ(classify_collective("_allgather_base"), Family::kAllGather);
  EXPECT_EQ(classify_collective("nccl:_reduce_scatter_base"), Family::kReduceScatter);
  EXPECT_EQ(classify_collective("all_to_allv"), Family::kSendRecv);
}

Result<std::vector<ActivityTrace>> kineto(const std::string& text,
                                          const ActivityOptions& options = {}) {
  ByteStream bytes = ByteStream::of(text, "trace.json");
  return read_kineto(bytes, options);
}

// A step whose parts are launched by the main thread, autograd's and the optimizer; metadata stand
// behind the events, times are texts, process ids are words.
constexpr const char* kSteps = R"({"traceEvents": [
  {"ph": "M", "name": "process_name", "pid": "python", "args": {"name": "python"}},
  {"ph": "X", "cat": "user_annotation", "name": "ProfilerStep#3", "pid": "python", "tid": 1,
   "ts": "100.0", "dur": "50.5"},
  {"ph": "X", "cat": "gpu_user_annotation", "name": "ProfilerStep#3", "pid": 0, "tid": 7,
   "ts": "104.0", "dur": "30"},
  {"ph": "X", "cat": "user_annotation", "name": "Optimizer.step#Adam.step", "pid": "python",
   "tid": 1, "ts": "130", "dur": "10"},
  {"ph": "X", "cat": "cpu_op", "name": "autograd::engine::evaluate_function: MmBackward0",
   "pid": "python", "tid": 2, "ts": "115", "dur": "10"},
  {"ph": "X", "cat": "cuda_runtime", "name": "cudaLaunchKernel", "pid": "python", "tid": 1,
   "ts": "101", "dur": "1", "args": {"correlation": 11}},
  {"ph": "X", "cat": "cuda_runtime", "name": "cudaLaunchKernel", "pid": "python", "tid": 2,
   "ts": "116", "dur": "1", "args": {"correlation": 12}},
  {"ph": "X", "cat": "cuda_driver", "name": "cuLaunchKernel", "pid": "python", "tid": 1,
   "ts": "131", "dur": "1", "args": {"correlation": 13}},
  {"ph": "X", "cat": "kernel", "name": "nvjet_tst_128x256", "pid": 0, "tid": 7, "ts": "104.001",
   "dur": "10.5", "args": {"device": 0, "stream": 7, "correlation": 11}},
  {"ph": "X", "cat": "kernel", "name": "ncclDevKernel_Generic_4", "pid": 0, "tid": 9, "ts": "117",
   "dur": "6", "args": {"device": 0, "stream": 9, "correlation": 12,
                        "Collective name": "allreduce", "Group size": 8}},
  {"ph": "X", "cat": "kernel", "name": "copy_kernel", "pid": 0, "tid": 7, "ts": "133", "dur": "2",
   "args": {"device": 0, "stream": 7, "correlation": 13}},
  {"ph": "X", "cat": "kernel", "name": "broken", "pid": 0, "tid": 7, "ts": "134", "dur": -1}
 ],
 "deviceProperties": [{"id": 0, "name": "NVIDIA H100 80GB HBM3"}],
 "distributedInfo": {"backend": "nccl", "rank": 3, "world_size": 16,
                     "pg_config": [{"pg_size": 8, "ranks": [0, 1]}]}})";

TEST(Kineto, FindsStepsPhasesAndTheWorld) {
  const Result<std::vector<ActivityTrace>> read = kineto(kSteps);
  ASSERT_TRUE(read.ok()) << read.error().message;
  ASSERT_EQ(read.value().size(), 1U);
  const ActivityTrace& trace = read.value().front();
  EXPECT_EQ(trace.device, "NVIDIA H100 80GB HBM3");
  EXPECT_EQ(trace.world_size, 16);
  EXPECT_EQ(trace.rank, 3);
  ASSERT_EQ(trace.steps.size(), 1U);  // the host's, not also that of the GPU
  EXPECT_EQ(trace.steps[0].begin, 100'000);
  EXPECT_EQ(trace.steps[0].end, 150'500);
  ASSERT_EQ(trace.events.size(), 3U);
  const auto family = [&trace](std::size_t i) {
    return trace.names[trace.events[i].name].of.family;
  };
  EXPECT_EQ(family(0), Family::kGemm);
  EXPECT_EQ(family(1), Family::kAllReduce);  // by the collective's name
  EXPECT_EQ(trace.events[0].begin, 104'001);
  EXPECT_EQ(trace.events[0].end, 114'501);
  EXPECT_EQ(trace.events[0].launched, 101'000);
  EXPECT_EQ(trace.events[0].phase, HostPhase::kForward);
  EXPECT_EQ(trace.events[1].phase, HostPhase::kBackward);
  EXPECT_EQ(trace.events[2].phase, HostPhase::kOptimizer);
  ASSERT_EQ(trace.notes.size(), 1U);
  EXPECT_EQ(trace.notes[0], "1 events of negative duration were left out");
}

TEST(Kineto, SaysWhatIsWrong) {
  const std::string whole = kSteps;
  const auto message = [](const std::string& text) {
    const Result<std::vector<ActivityTrace>> read = kineto(text);
    return read.ok() ? std::string("read") : read.error().message;
  };
  EXPECT_EQ(message(whole.substr(0, 700)),
            "trace.json: byte 700: the file ends here, 3 brackets open: it was cut off, or is "
            "still being written");
  EXPECT_NE(message(R"({"traceEvents": []})").find("found 0 events, none of them a kernel"),
            std::string::npos);
  EXPECT_NE(message(R"([{"ph": "X", "cat": "kernel", "name": "k", "ts": 1e300, "dur": 1}])")
                .find("byte 65: the event \"k\" has a ts or dur that is no number"),
            std::string::npos);
  EXPECT_NE(message(R"({"otherData": {"schema": "foretrain/trace/1"}, "traceEvents": []})")
                .find("it compares timelines"),
            std::string::npos);
}

TEST(Steps, StandApartInOrder) {
  const auto steps = [](std::vector<NamedStep> given) {
    std::vector<std::int64_t> out;
    for (const StepWindow& step : merged_steps(std::move(given))) {
      out.insert(out.end(), {step.begin, step.end});
    }
    return out;
  };
  using Times = std::vector<std::int64_t>;
  // Of two threads or streams; inside another; running into the next.
  EXPECT_EQ(steps({{100, 200, "b"}, {0, 100, "a"}, {5, 90, "a"}}), (Times{0, 100, 100, 200}));
  EXPECT_EQ(steps({{0, 50, "a"}, {40, 100, "a"}}), (Times{0, 100}));
  EXPECT_EQ(steps({{0, 100, "a"}, {10, 20, "c"}, {90, 200, "b"}}), (Times{0, 100, 100, 200}));
  // One name for all of them.
  EXPECT_EQ(steps({{0, 10, "step"}, {10, 20, "step"}}), (Times{0, 10, 10, 20}));
}

/// A database of what Nsight Systems writes of two processes, each with a GPU that it calls 0.
std::string nsight_export(const char* more = "") {
  std::string path =
      ::testing::TempDir() + "foretrain-nsight-" + std::to_string(getpid()) + ".sqlite";
  std::filesystem::remove(path);
  sqlite3* base = nullptr;
  EXPECT_EQ(sqlite3_open(path.c_str(), &base), SQLITE_OK);
  const std::string script = std::string(R"(
    CREATE TABLE StringIds (id INTEGER, value TEXT);
    INSERT INTO StringIds VALUES (1, 'nvjet_tst_128x256'), (2, 'ncclDevKernel_AllReduce_Sum_bf16'),
      (3, 'ProfilerStep#1'), (4, 'Optimizer.step#AdamW.step');
    CREATE TABLE TARGET_INFO_GPU (id INTEGER, name TEXT);
    INSERT INTO TARGET_INFO_GPU VALUES (0, 'NVIDIA H200');
    CREATE TABLE CUPTI_ACTIVITY_KIND_KERNEL (start INTEGER, end INTEGER, deviceId INTEGER,
      streamId INTEGER, correlationId INTEGER, globalPid INTEGER, demangledName INTEGER);
    INSERT INTO CUPTI_ACTIVITY_KIND_KERNEL VALUES
      (100, 300, 0, 7, 1, 0x1000000, 1), (250, 500, 0, 9, 2, 0x1000000, 2),
      (100, 200, 0, 7, 1, 0x2000000, 1);
    CREATE TABLE CUPTI_ACTIVITY_KIND_MEMCPY (start INTEGER, end INTEGER, deviceId INTEGER,
      streamId INTEGER, correlationId INTEGER, globalPid INTEGER, copyKind INTEGER);
    INSERT INTO CUPTI_ACTIVITY_KIND_MEMCPY VALUES (600, 700, 0, 7, 3, 0x1000000, 1);
    CREATE TABLE CUPTI_ACTIVITY_KIND_RUNTIME (start INTEGER, correlationId INTEGER,
      globalTid INTEGER);
    INSERT INTO CUPTI_ACTIVITY_KIND_RUNTIME VALUES (90, 1, 0x1000001), (240, 2, 0x1000001),
      (90, 1, 0x2000001);
    CREATE TABLE NVTX_EVENTS (start INTEGER, end INTEGER, text TEXT, textId INTEGER,
      globalTid INTEGER);
    INSERT INTO NVTX_EVENTS VALUES (50, 800, NULL, 3, 0x1000001), (50, 400, 'ProfilerStep#1', NULL,
      0x2000001), (230, 260, NULL, 4, 0x1000001), (20, NULL, 'mark', NULL, 0x1000001);
  )") + more;
  char* error = nullptr;
  EXPECT_EQ(sqlite3_exec(base, script.c_str(), nullptr, nullptr, &error), SQLITE_OK) << error;
  sqlite3_close(base);
  return path;
}

TEST(Nsight, ReadsEveryProcess) {
  const Result<std::vector<ActivityTrace>> read = read_nsight(nsight_export(), {});
  ASSERT_TRUE(read.ok()) << read.error().message;
  ASSERT_EQ(read.value().size(), 2U);
  const ActivityTrace& first = read.value()[0];
  EXPECT_EQ(first.device, "NVIDIA H200");
  ASSERT_EQ(first.events.size(), 3U);
  EXPECT_EQ(first.names[first.events[0].name].of.family, Family::kGemm);
  EXPECT_EQ(first.names[first.events[1].name].of.family, Family::kAllReduce);
  EXPECT_EQ(first.names[first.events[2].name].of.family, Family::kHostToDevice);
  EXPECT_EQ(first.events[0].launched, 90);
  EXPECT_EQ(first.events[1].phase, HostPhase::kOptimizer);
  ASSERT_EQ(first.steps.size(), 1U);
  EXPECT_EQ(first.steps[0].end, 800);
  ASSERT_EQ(read.value()[1].events.size(), 1U);
  EXPECT_EQ(read.value()[1].steps.at(0).end, 400);
}

TEST(Nsight, SaysWhatIsWrong) {
  const auto message = [](const char* more) {
    const Result<std::vector<ActivityTrace>> read = read_nsight(nsight_export(more), {});
    return read.ok() ? std::string("read") : read.error().message;
  };
  EXPECT_NE(message("DROP TABLE CUPTI_ACTIVITY_KIND_KERNEL;").find("has no table"),
            std::string::npos);
  EXPECT_NE(message("ALTER TABLE CUPTI_ACTIVITY_KIND_KERNEL RENAME COLUMN start TO begin;")
                .find("has no column start"),
            std::string::npos);
  EXPECT_EQ(message("DROP TABLE NVTX_EVENTS; DROP TABLE CUPTI_ACTIVITY_KIND_RUNTIME;"
                    "DROP TABLE StringIds; DROP TABLE TARGET_INFO_GPU;"),
            "read");
  const std::string path = nsight_export();
  std::filesystem::resize_file(path, 5000);
  EXPECT_FALSE(read_nsight(path, {}).ok());
}

// Whatever is cut off or changed, the reader ends with a message or a trace.
TEST(Kineto, SurvivesEveryCut) {
  const std::string whole = kSteps;
  for (std::size_t cut = 0; cut < whole.size(); ++cut) {
    EXPECT_FALSE(kineto(whole.substr(0, cut)).ok()) << cut;
    std::string changed = whole;
    changed[cut] = changed[cut] == '1' ? '}' : '1';
    const Result<std::vector<ActivityTrace>> read = kineto(changed);
    EXPECT_TRUE(read.ok() || !read.error().message.empty());
  }
}

}  // namespace
}  // namespace foretrain
