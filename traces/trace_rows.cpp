#include "traces/trace_rows.h"

#include <algorithm>
#include <map>

namespace foretrain {

TraceRows trace_rows(const std::vector<Track>& tracks) {
  TraceRows out;
  out.names = {"schedule", "host"};
  // Streams of one name in a track are told apart by their number.
  std::vector<std::pair<std::string, int>> order = {{"", 0}, {"", 1}};
  std::map<std::vector<std::string>, bool> seen;
  const auto keys_of = [](const Track& track) {
    std::map<std::string, int> count;
    std::vector<std::pair<std::string, int>> keys;
    for (const std::string& name : track.streams) keys.emplace_back(name, 2 + count[name]++);
    return keys;
  };
  for (const Track& track : tracks) {
    if (!seen.emplace(track.streams, true).second) continue;
    auto at = order.begin() + 2;
    for (auto& key : keys_of(track)) {
      const auto found = std::find(order.begin() + 2, order.end(), key);
      at = (found != order.end() ? found : order.insert(at, std::move(key))) + 1;
    }
  }
  for (std::size_t i = 2; i < order.size(); ++i) out.names.push_back(order[i].first);
  for (const Track& track : tracks) {
    std::vector<std::size_t>& rows = out.of_streams.emplace_back();
    for (const auto& key : keys_of(track)) {
      const auto found = std::find(order.begin() + 2, order.end(), key);
      rows.push_back(static_cast<std::size_t>(found - order.begin()));
    }
  }
  return out;
}

bool waits_for_device(const SpanInfo& info) {
  return info.work == "host-sync";  // the text of a HostSync (sim/program/text.cpp)
}

std::vector<std::int32_t> ends_of_flows(const std::vector<Flow>& flows) {
  std::vector<std::int32_t> out;
  out.reserve(2 * flows.size());
  for (const Flow& flow : flows) {
    out.push_back(flow.from);
    out.push_back(flow.to);
  }
  std::sort(out.begin(), out.end());
  out.erase(std::unique(out.begin(), out.end()), out.end());
  return out;
}

std::size_t place_among(const std::vector<std::int32_t>& ends, std::int32_t span) {
  return static_cast<std::size_t>(std::lower_bound(ends.begin(), ends.end(), span) - ends.begin());
}

}  // namespace foretrain
