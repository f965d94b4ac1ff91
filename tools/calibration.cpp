#include "tools/calibration.h"

#include <unistd.h>

#include <chrono>
#include <csignal>
#include <cstdio>
#include <set>

#include "models/lower.h"

namespace foretrain {
namespace {

volatile sig_atomic_t stop_asked = 0;
void ask_to_stop(int) { stop_asked = 1; }

double now_seconds() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

/// Changes of a small RUN: its sizes, then a plan of so many ranks.
std::vector<std::vector<std::string>> plans_of(std::int64_t ranks) {
  if (ranks == 1) return {{}, {"recompute=\"full\""}};
  return {{"parallel.tensor=2"},
          {"parallel.tensor=2", "parallel.sequence=true"},
          {"parallel.pipeline=2"},
          {"sharding.level=\"none\""},
          {"sharding.level=\"optimizer\"", "overlap.gradient_reduce=true",
           "gradients.bucket_elements=1000000"}};
}

/// What a small model of that width is made of, and its plan's common part.
std::vector<std::vector<std::string>> models_of(std::int64_t width, bool on_device) {
  const std::string h = std::to_string(width);
  const std::string heads = std::to_string(width / 64);
  std::vector<std::string> gpt = {"gpt-small-host", "model.n_embd=" + h, "model.n_head=" + heads,
                                  "model.n_layer=2"};
  std::vector<std::string> llama = {
      "llama-small-host", "model.hidden_size=" + h, "model.num_attention_heads=" + heads,
      "model.intermediate_size=" + std::to_string(3 * width), "model.num_hidden_layers=2"};
  if (!on_device) return {gpt, llama};
  std::vector<std::vector<std::string>> out;
  for (std::vector<std::string> model : {gpt, llama}) {
    model.insert(model.end(),
                 {"precision=\"bf16\"", "batch.sequence=2048", "batch.micro=2", "batch.global=8"});
    model.emplace_back(model[0] == "gpt-small-host" ? "model.n_positions=2048"
                                                    : "model.max_position_embeddings=2048");
    for (const char* attention : {"flash", "unfused"}) {
      out.push_back(model);
      out.back().push_back(std::string("kernels.attention=\"") + attention + "\"");
    }
  }
  return out;
}

Result<std::vector<MicroOp>> model_ops(std::int64_t ranks, bool quick, bool on_device) {
  std::vector<MicroOp> out;
  std::vector<std::int64_t> widths = {256};
  if (!quick) widths = {128, 256, 512};
  if (on_device)
    widths = quick ? std::vector<std::int64_t>{1024} : std::vector<std::int64_t>{1024, 4096};
  for (const std::int64_t width : widths) {
    for (const std::vector<std::string>& model : models_of(width, on_device)) {
      for (const std::vector<std::string>& plan : plans_of(ranks)) {
        std::vector<std::string> sets(model.begin() + 1, model.end());
        sets.insert(sets.end(), plan.begin(), plan.end());
        sets.push_back("cluster.accelerators=" + std::to_string(ranks));
        FT_ASSIGN(const Run run, load_run(model.front(), sets));
        append_ops(out, distinct_ops(lower(run.model, run.plan)));
      }
    }
  }
  return out;
}

/// Forward and both gradients of every shape with these extents.
void add_gemms(const std::vector<std::int64_t>& sizes, DType type, std::int64_t ranks,
               std::vector<MicroOp>& out) {
  for (const std::int64_t m : sizes) {
    for (const std::int64_t n : sizes) {
      for (const std::int64_t k : sizes) {
        for (int pass = 0; pass < 3; ++pass) {
          const Gemm work{m,    n,   k, 1, pass == 2, pass == 0, pass == 2 && type == DType::kFp32,
                          type, type};
          out.push_back(micro_gemm(work, ranks));
        }
      }
    }
  }
}

std::vector<MicroOp> gemm_grid(std::int64_t ranks, bool quick, bool on_device) {
  std::vector<MicroOp> out;
  if (!on_device) {
    add_gemms(quick ? std::vector<std::int64_t>{64, 512} : std::vector<std::int64_t>{64, 256, 1024},
              DType::kFp32, ranks, out);
    return out;
  }
  std::vector<std::int64_t> sizes = {512, 4096};
  if (!quick) sizes = {256, 1024, 4096};
  add_gemms(sizes, DType::kFp32, ranks, out);  // nobody trains in it at larger sizes
  if (!quick) sizes.push_back(8192);
  add_gemms(sizes, DType::kBf16, ranks, out);
  return out;
}

std::vector<MicroOp> communication_grid(std::int64_t ranks, bool quick, bool on_device) {
  std::vector<MicroOp> out;
  const std::int64_t most = on_device ? 64 << 20 : 4 << 20;
  for (std::int64_t count = 64; count <= most; count *= quick ? 64 : 8) {
    out.push_back(micro_message(4 * count));
    for (const DType type : {DType::kFp32, DType::kBf16}) {
      if (type != DType::kFp32 && !on_device) continue;
      for (const CollectiveKind kind : {CollectiveKind::kAllReduce, CollectiveKind::kAllGather,
                                        CollectiveKind::kReduceScatter}) {
        out.push_back(micro_collective(kind, count, ranks, type));
      }
    }
  }
  return out;
}

}  // namespace

Result<std::vector<MicroOp>> calibration_ops(std::int64_t ranks, bool quick, bool on_device) {
  FT_ASSIGN(std::vector<MicroOp> out, model_ops(ranks, quick, on_device));
  append_ops(out, gemm_grid(ranks, quick, on_device));
  if (ranks > 1) append_ops(out, communication_grid(ranks, quick, on_device));
  return out;
}

CalibrateOptions options_on_device(const CudaModule& cuda) {
  CalibrateOptions out;
  out.make_rank = cuda.make_rank;
  out.library = cuda.versions;
  out.rotation = 4 * std::max<Bytes>(cuda.cache_bytes, 4 << 20);
  // Slower than any device that is worth it: fewer repeats, not more.
  out.gemm_rate = 5e13;
  out.byte_rate = 1e12;
  out.most_sets = 256;
  return out;
}

Json device_identity(const CudaModule& cuda, const std::string& name) {
  Json out = machine_identity();
  const std::string first = cuda.device_names.empty() ? "" : cuda.device_names.front();
  out.set("device", name.empty() ? first : name);
  out.set("processor", first);
  out.set("cores", static_cast<std::int64_t>(cuda.devices));
  out.set("blas", cuda.versions);
  out.set("private_cache_kib", static_cast<std::int64_t>(cuda.cache_bytes / 1024));
  return out;
}

void append_ops(std::vector<MicroOp>& ops, std::vector<MicroOp> more) {
  std::set<SampleKey> known;
  for (const MicroOp& op : ops) known.insert(op.key);
  for (MicroOp& op : more) {
    if (known.insert(op.key).second) ops.push_back(std::move(op));
  }
}

ProgressLine::ProgressLine(bool quiet)
    : x_on(!quiet && isatty(STDERR_FILENO) != 0), x_begin(now_seconds()) {}

ProgressLine::~ProgressLine() {
  if (x_on) std::fprintf(stderr, "\r%*s\r", 78, "");
}

void ProgressLine::show(std::size_t done, std::size_t all, const std::string& what) const {
  if (!x_on) return;
  const double passed = now_seconds() - x_begin;
  const double left =
      done == 0 ? 0 : passed / static_cast<double>(done) * static_cast<double>(all - done);
  std::fprintf(stderr, "\r%4zu of %zu, %3.0f s left: %-44.44s", done, all, left, what.c_str());
}

void note_interrupts() {
  struct sigaction action {};
  action.sa_handler = ask_to_stop;
  for (const int signal : {SIGINT, SIGTERM}) sigaction(signal, &action, nullptr);
}

bool interrupted() { return stop_asked != 0; }

}  // namespace foretrain
