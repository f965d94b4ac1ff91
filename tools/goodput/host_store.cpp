#include "tools/goodput/host_store.h"

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <functional>
#include <vector>

#include "sim/base/file.h"
#include "sim/base/threads.h"
#include "tools/goodput/bill.h"

namespace foretrain {
namespace {

constexpr double kMostProbed = 64.0 * (1 << 20);
constexpr int kProbes = 3;

/// Seconds of the call of each rank, all at once.
Result<double> time_all(std::size_t ranks, const std::function<Status(std::size_t)>& call) {
  std::vector<Status> done(ranks, ok_status());
  const auto begin = std::chrono::steady_clock::now();
  FT_TRY(all_at_once(ranks, [&](std::size_t rank) { done[rank] = call(rank); }));
  const std::chrono::duration<double> passed = std::chrono::steady_clock::now() - begin;
  for (const Status& status : done) FT_TRY(status);
  return passed.count();
}

Result<StoreRates> probe(const std::string& folder, std::size_t ranks, const std::string& content) {
  const auto path_of = [&folder](std::size_t rank) {
    return (std::filesystem::path(folder) / ("probe-" + std::to_string(rank))).string();
  };
  StoreRates out;
  out.measured = true;
  const double gb = 1e-9 * static_cast<double>(ranks * content.size());
  Status status = ok_status();
  for (int i = 0; i < kProbes && status.ok(); ++i) {
    const Result<double> written =
        time_all(ranks, [&](std::size_t rank) { return write_text_file(path_of(rank), content); });
    const Result<double> read = time_all(ranks, [&](std::size_t rank) -> Status {
      std::string text(content.size(), '\0');
      std::ifstream file(path_of(rank), std::ios::binary);
      file.read(text.data(), static_cast<std::streamsize>(text.size()));
      return file ? ok_status() : Status(input_error(path_of(rank) + ": cannot be read"));
    });
    if (!written.ok() || !read.ok()) {
      status = written.ok() ? read.error() : written.error();
      break;
    }
    out.write_gb_per_s = std::max(out.write_gb_per_s, gb / written.value());
    out.read_gb_per_s = std::max(out.read_gb_per_s, gb / read.value());
  }
  for (std::size_t rank = 0; rank < ranks; ++rank) {
    std::error_code ignored;
    std::filesystem::remove(path_of(rank), ignored);
  }
  FT_TRY(status);
  return out;
}

}  // namespace

double transfer_s(double bytes, double gb_per_s) {
  return gb_per_s > 0 ? bytes / (1e9 * gb_per_s) : 0;
}

Result<StoreRates> store_rates(const Run& run, const std::string& folder, std::int64_t ranks,
                               double rank_bytes) {
  FT_ASSIGN(const std::optional<CampaignRequest> request, campaign_of(run));
  if (request && request->saving.store_gb_per_s) {
    return StoreRates{*request->saving.store_gb_per_s, *request->saving.store_gb_per_s, false};
  }
  std::string content(static_cast<std::size_t>(std::clamp(rank_bytes, 1.0, kMostProbed)), '\0');
  for (std::size_t i = 0; i < content.size(); ++i) content[i] = static_cast<char>(i * i + i / 256);
  return probe(folder, static_cast<std::size_t>(ranks), content);
}

}  // namespace foretrain
