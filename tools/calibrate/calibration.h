// What `calibrate` measures, and where ranks measure together.
#pragma once

#include <vector>

#include "executor/calibrate.h"
#include "tools/calibrate/host_run.h"

namespace foretrain {

/// What is measured, and on what.
struct CalibrationScope {
  std::int64_t ranks = 1;
  bool quick = false;
  bool on_device = false;
  bool fp8 = false;  ///< the device multiplies it
  int sms = 0;       ///< of the device
  bool cudnn = false;
};
CalibrationScope scope_of(std::int64_t ranks, bool quick, const CudaModule& cuda);

/// Operations of small GPT and Llama models under plans of that many ranks, and grids of GEMMs in
/// the three layouts of a linear, of collectives and of messages. Each once.
/// On devices the models are larger, in bf16 with flash, unfused and, where it is there, cuDNN's
/// attention, and so are the grids, and there are:
///   products in fp8, on one rank, where the device has them: those of the Llama, and a grid;
///   cuDNN's attention by length, size and grouping of heads;
///   GEMMs and attention as bursts and sustained (`tell_states_apart`);
///   on one rank some of these, and a memory-bound kernel, beside held SMs that copy memory or
///   spin;
///   of several ranks only communication and what one rank has not.
Result<std::vector<MicroOp>> calibration_ops(const CalibrationScope& scope);

/// What measures on CUDA devices: operands turn through four times the L2, and NVML says what the
/// first device runs at.
CalibrateOptions options_on_device(const CudaModule& cuda);

/// What measures on the host: operands turn through four times a core's own cache.
CalibrateOptions options_on_host();

/// What a profile of CUDA devices says of them; `name` is the device of clusters that it prices.
Json device_identity(const CudaModule& cuda, const std::string& name);

/// Of products and attention on devices: as bursts, and, behind everything else, sustained; `quick`
/// has them sustained alone, before everything else.
void tell_states_apart(bool quick, std::vector<MicroOp>& ops);

/// Appends what `more` has and `ops` has not.
void append_ops(std::vector<MicroOp>& ops, std::vector<MicroOp> more);

/// "12 of 340, 2 min left: gemm 256x..." on one line of a terminal; nothing elsewhere.
class ProgressLine {
 public:
  /// `budget` s in all; 0: no bound.
  explicit ProgressLine(bool quiet, double budget = 0);
  ~ProgressLine();
  ProgressLine(const ProgressLine&) = delete;
  ProgressLine(ProgressLine&&) = delete;
  ProgressLine& operator=(const ProgressLine&) = delete;
  ProgressLine& operator=(ProgressLine&&) = delete;
  void show(std::size_t done, std::size_t all, const std::string& what) const;

 private:
  bool x_on;
  double x_begin, x_budget;
};

/// SIGINT and SIGTERM are noted instead of ending the process, from the first call on.
void note_interrupts();
bool interrupted();

}  // namespace foretrain
