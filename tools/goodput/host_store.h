// What the folder of real checkpoints takes and gives, and how long `goodput`'s model of a shared
// store says that a state of so many bytes takes there.
#pragma once

#include <string>

#include "sim/base/result.h"
#include "tools/predict/run_file.h"

namespace foretrain {

/// 1e9 bytes a second of all ranks together.
struct StoreRates {
  double write_gb_per_s = 0, read_gb_per_s = 0;
  bool measured = false;  ///< else the RUN's campaign.checkpoint.store_gb_per_s
};

/// Seconds for `bytes` at a rate: of a store, of a link. 0 where the rate is not known.
double transfer_s(double bytes, double gb_per_s);

/// The RUN's, else measured: as many files at once as ranks write, of `rank_bytes` but at most 64
/// MiB each, written and read back as states are, without checksums and waiting; the best of three.
/// The files are removed.
Result<StoreRates> store_rates(const Run& run, const std::string& folder, std::int64_t ranks,
                               double rank_bytes);

}  // namespace foretrain
