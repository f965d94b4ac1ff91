#include "tools/calibrate/calibration.h"

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

/// A small model's sizes: no extent of one is that of another, so that each kernel is measured at
/// several.
struct ModelSizes {
  std::int64_t width = 0, length = 0, vocabulary = 0;
};

std::vector<ModelSizes> sizes_of(bool quick, bool on_device) {
  if (on_device && quick) return {{1024, 2048, 4096}};
  if (on_device) return {{1024, 2048, 4096}, {4096, 4096, 32768}};
  if (quick) return {{256, 256, 4096}};
  return {{128, 128, 1024}, {256, 256, 4096}, {512, 512, 8192}};
}

/// What small models of these sizes are made of, and their plan's common part.
std::vector<std::vector<std::string>> models_of(const ModelSizes& sizes, bool on_device) {
  const auto set = [](const char* key, std::int64_t value) {
    return std::string(key) + "=" + std::to_string(value);
  };
  const std::vector<std::string> gpt = {"gpt-small-host", set("model.n_embd", sizes.width),
                                        set("model.n_head", sizes.width / 64), "model.n_layer=2",
                                        set("model.n_positions", sizes.length)};
  const std::vector<std::string> llama = {"llama-small-host",
                                          set("model.hidden_size", sizes.width),
                                          set("model.num_attention_heads", sizes.width / 64),
                                          set("model.intermediate_size", 3 * sizes.width),
                                          "model.num_hidden_layers=2",
                                          set("model.max_position_embeddings", sizes.length)};
  std::vector<std::vector<std::string>> out;
  for (std::vector<std::string> model : {gpt, llama}) {
    model.push_back(set("batch.sequence", sizes.length));
    model.push_back(set("model.vocab_size", sizes.vocabulary));
    if (!on_device) {
      out.push_back(model);
      continue;
    }
    model.insert(model.end(), {"precision=\"bf16\"", "batch.micro=2", "batch.global=8"});
    for (const char* attention : {"flash", "unfused", "cudnn"}) {
      out.push_back(model);
      out.back().push_back(std::string("kernels.attention=\"") + attention + "\"");
    }
  }
  return out;
}

Result<std::vector<MicroOp>> model_ops(std::int64_t ranks, bool quick, bool on_device) {
  std::vector<MicroOp> out;
  for (const ModelSizes& sizes : sizes_of(quick, on_device)) {
    for (const std::vector<std::string>& model : models_of(sizes, on_device)) {
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

/// Some device that multiplies it: what a layer's products are, no device decides.
constexpr const char* kDeviceWithFp8 = R"(cluster={"preset": "dgx-h100", "accelerators": 1})";

/// The products in fp8 of a model's layers: Programs in fp8 are not executed, their products are
/// measured.
Status add_fp8_of_model(bool quick, std::vector<MicroOp>& out) {
  for (const ModelSizes& sizes : sizes_of(quick, true)) {
    for (std::vector<std::string> model : models_of(sizes, true)) {
      if (model[0] != "llama-small-host") continue;
      model.insert(model.end(), {"precision=\"fp8\"", kDeviceWithFp8});
      FT_ASSIGN(const Run run, load_run(model[0], {model.begin() + 1, model.end()}));
      std::vector<MicroOp> ops = distinct_ops(lower(run.model, run.plan));
      std::erase_if(ops, [](const MicroOp& op) {
        const auto* gemm = std::get_if<Gemm>(&op.work);
        return gemm == nullptr || gemm->in != DType::kFp8;
      });
      append_ops(out, std::move(ops));
      break;  // attention differs, products do not
    }
  }
  return ok_status();
}

/// Forward as layers multiply, both gradients as Programs state them: sums taken out of the tensor
/// cores, that of weights added to fp32.
void add_fp8_grid(const std::vector<std::int64_t>& sizes, std::vector<MicroOp>& out) {
  for (const std::int64_t m : sizes) {
    for (const std::int64_t n : sizes) {
      for (const std::int64_t k : sizes) {
        Gemm work{m, n, k, 1, false, true, false, DType::kFp8, DType::kBf16};
        out.push_back(micro_gemm(work, 1));
        work.split_accumulator = true;
        work.transpose_b = false;
        out.push_back(micro_gemm(work, 1));
        work.transpose_a = work.accumulate = true;
        work.out = DType::kFp32;
        out.push_back(micro_gemm(work, 1));
      }
    }
  }
}

/// Whether power and heat may bound it.
bool has_states(const MicroOp& op) {
  return std::holds_alternative<Gemm>(op.work) || std::holds_alternative<Attention>(op.work);
}

/// The largest op of that name and type; nothing where there is none.
const MicroOp* largest(const std::vector<MicroOp>& ops, const std::string& name, DType type) {
  const MicroOp* out = nullptr;
  for (const MicroOp& op : ops) {
    if (op.key.op != name || op.buffers.empty() || op.buffers[0].dtype != type) continue;
    if (out == nullptr || sample_size(op.work) > sample_size(out->work)) out = &op;
  }
  return out;
}

/// GEMMs of each layout, attention of both passes and a memory-bound kernel, each beside several
/// numbers of SMs that copy memory, and beside two that spin.
std::vector<MicroOp> beside_ops(const std::vector<MicroOp>& ops, const CalibrationScope& scope) {
  constexpr std::int64_t kExtent = 4096;
  std::vector<MicroOp> of;
  for (int pass = 0; pass < 3; ++pass) {
    if (scope.quick && pass > 0) break;
    of.push_back(micro_gemm(
        Gemm{kExtent, kExtent, kExtent, 1, pass == 2, pass == 0, false, DType::kBf16, DType::kBf16},
        1));
  }
  const std::string kernel = scope.cudnn ? "cudnn" : "flash";
  for (const std::string& name : {"attention causal " + kernel,
                                  "attention-backward causal " + kernel, std::string("rms-norm")}) {
    const MicroOp* const found = largest(ops, name, DType::kBf16);
    if (found != nullptr) of.push_back(*found);
  }
  std::vector<MicroOp> out;
  for (const int sms : {1, 2, 4, 8, 16, 24, 32}) {
    if (sms >= scope.sms || (scope.quick && sms != 8 && sms != 24)) continue;
    for (const MicroOp& op : of) {
      out.push_back(op);
      out.back().key.state.clear();
      out.back().key.sms = sms;
      if (sms != 8 && sms != 24) continue;
      out.push_back(out.back());
      out.back().key.spin = true;
    }
  }
  return out;
}

/// Both passes of causal attention by cuDNN.
std::vector<MicroOp> attention_grid(bool quick) {
  std::vector<MicroOp> out;
  for (const std::int64_t length : {2048, 4096, 8192, 16384}) {
    for (const std::int64_t head : {128, 64}) {
      for (const std::int64_t group : {1, 4}) {
        if (quick && (length == 4096 || (head == 64 && group > 1))) continue;
        Attention work;
        work.kernel = AttentionKernel::kCudnn;
        work.batch = 1;
        work.q_heads = 2048 / head;
        work.kv_heads = work.q_heads / group;
        work.q_len = work.kv_len = length;
        work.head_dim = head;
        for (const bool backward : {false, true}) {
          work.backward = backward;
          out.push_back(micro_attention(work));
        }
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
          Gemm work{m,    n,   k, 1, pass == 2, pass == 0, pass == 2 && type == DType::kFp32,
                    type, type};
          out.push_back(micro_gemm(work, ranks));
          if (pass < 2 || bits_of(type) == 32) continue;
          // Gradients of weights are kept in the type, or added up in fp32.
          work.out = DType::kFp32;
          work.accumulate = true;
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
  // Nobody trains in fp32 at larger sizes.
  add_gemms(
      quick ? std::vector<std::int64_t>{512, 4096} : std::vector<std::int64_t>{256, 1024, 4096},
      DType::kFp32, ranks, out);
  std::vector<std::int64_t> sizes = {1024, 4096, 16384};
  if (!quick) sizes = {1024, 2048, 4096, 8192, 16384};
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

/// What a rank does on a device of its own takes no longer where others do the same: of several
/// ranks only what one rank has not.
Status drop_what_one_rank_has(bool quick, std::vector<MicroOp>& ops) {
  FT_ASSIGN(std::vector<MicroOp> alone, model_ops(1, quick, true));
  append_ops(alone, gemm_grid(1, quick, true));
  std::set<SampleKey> known;
  for (const MicroOp& op : alone) known.insert(op.key);
  std::erase_if(ops, [&known](const MicroOp& op) {
    SampleKey key = op.key;
    key.ranks = 1;
    // Copies share what lies between devices and host.
    return !std::holds_alternative<Copy>(op.work) && known.contains(key);
  });
  return ok_status();
}

}  // namespace

void tell_states_apart(bool quick, std::vector<MicroOp>& ops) {
  std::vector<MicroOp> sustained;
  for (MicroOp& op : ops) {
    if (!has_states(op) || op.key.sms > 0) continue;
    op.key.state = kBurst;
    sustained.push_back(op);
    sustained.back().key.state = kSustained;
  }
  if (quick) std::erase_if(ops, [](const MicroOp& op) { return op.key.state == kBurst; });
  ops.insert(quick ? ops.begin() : ops.end(), sustained.begin(), sustained.end());
}

CalibrationScope scope_of(std::int64_t ranks, bool quick, const CudaModule& cuda) {
  return {ranks, quick, cuda.devices > 0, multiplies_fp8(cuda), cuda.sms, cuda.cudnn};
}

Result<std::vector<MicroOp>> calibration_ops(const CalibrationScope& scope) {
  const auto [ranks, quick, on_device, fp8, sms, cudnn] = scope;
  FT_ASSIGN(std::vector<MicroOp> out, model_ops(ranks, quick, on_device));
  append_ops(out, gemm_grid(ranks, quick, on_device));
  if (on_device && fp8 && ranks == 1) {
    FT_TRY(add_fp8_of_model(quick, out));
    std::vector<MicroOp> grid;
    add_fp8_grid(
        quick ? std::vector<std::int64_t>{4096} : std::vector<std::int64_t>{1024, 4096, 8192},
        grid);
    append_ops(out, std::move(grid));
  }
  if (on_device && cudnn && ranks == 1) append_ops(out, attention_grid(quick));
  if (on_device && !cudnn) {
    std::erase_if(out, [](const MicroOp& op) {
      const auto* attention = std::get_if<Attention>(&op.work);
      return attention != nullptr && attention->kernel == AttentionKernel::kCudnn;
    });
  }
  if (ranks > 1) append_ops(out, communication_grid(ranks, quick, on_device));
  if (!on_device) return out;
  if (ranks == 1) append_ops(out, beside_ops(out, scope));
  if (ranks > 1) FT_TRY(drop_what_one_rank_has(quick, out));
  tell_states_apart(quick, out);
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
  const Result<int> own = device_of(RankId(0), cuda.devices);
  const auto number = static_cast<std::size_t>(own.ok() ? own.value() : 0);
  if (number >= cuda.gpus.size()) {
    out.no_state = "clock, power, temperature: CUDA does not name the device";
    return out;
  }
  Result<std::unique_ptr<StateReader>> state = make_nvml_state_reader(cuda.gpus[number]);
  if (state.ok()) {
    out.state = std::move(state.value());
  } else {
    out.no_state = "clock, power, temperature: " + state.error().message;
  }
  return out;
}

CalibrateOptions options_on_host() {
  CalibrateOptions out;
  out.rotation = 4 * private_cache_bytes();
  out.state = make_host_state_reader();
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

ProgressLine::ProgressLine(bool quiet, double budget)
    : x_on(!quiet && isatty(STDERR_FILENO) != 0), x_begin(now_seconds()), x_budget(budget) {}

ProgressLine::~ProgressLine() {
  if (x_on) std::fprintf(stderr, "\r%*s\r", 78, "");
}

void ProgressLine::show(std::size_t done, std::size_t all, const std::string& what) const {
  if (!x_on) return;
  const double passed = now_seconds() - x_begin;
  double left =
      done == 0 ? 0 : passed / static_cast<double>(done) * static_cast<double>(all - done);
  if (x_budget > 0) left = std::min(left, std::max(0.0, x_budget - passed));
  std::fprintf(stderr, "\r%4zu of %zu, %3.0f s left: %-44.44s", done, all, left, what.c_str());
}

void note_interrupts() {
  struct sigaction action {};
  action.sa_handler = ask_to_stop;
  for (const int signal : {SIGINT, SIGTERM}) {
    struct sigaction before {};
    sigaction(signal, nullptr, &before);
    if (before.sa_handler != SIG_IGN) sigaction(signal, &action, nullptr);
  }
}

bool interrupted() { return stop_asked != 0; }

}  // namespace foretrain
