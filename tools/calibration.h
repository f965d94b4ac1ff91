// What `calibrate` measures, and where ranks measure together.
#pragma once

#include <vector>

#include "executor/calibrate.h"
#include "tools/host_run.h"

namespace foretrain {

/// Operations of small GPT and Llama models under plans of that many ranks, and grids of GEMMs in
/// the three layouts of a linear, of collectives and of messages. Each once.
/// On devices the models are larger, in bf16 with flash and unfused attention, and so are the
/// grids.
Result<std::vector<MicroOp>> calibration_ops(std::int64_t ranks, bool quick, bool on_device);

/// What measures on CUDA devices: operands turn through four times the L2.
CalibrateOptions options_on_device(const CudaModule& cuda);

/// What a profile of CUDA devices says of them; `name` is the device of clusters that it prices.
Json device_identity(const CudaModule& cuda, const std::string& name);

/// Appends what `more` has and `ops` has not.
void append_ops(std::vector<MicroOp>& ops, std::vector<MicroOp> more);

/// "12 of 340, 2 min left: gemm 256x..." on one line of a terminal; nothing elsewhere.
class ProgressLine {
 public:
  explicit ProgressLine(bool quiet);
  ~ProgressLine();
  ProgressLine(const ProgressLine&) = delete;
  ProgressLine(ProgressLine&&) = delete;
  ProgressLine& operator=(const ProgressLine&) = delete;
  ProgressLine& operator=(ProgressLine&&) = delete;
  void show(std::size_t done, std::size_t all, const std::string& what) const;

 private:
  bool x_on;
  double x_begin;
};

/// SIGINT and SIGTERM are noted instead of ending the process, from the first call on.
void note_interrupts();
bool interrupted();

}  // namespace foretrain
