#include "sim/engine/transfers.h"

#include <algorithm>

namespace foretrain {

void Transfers::add(Transfer transfer) {
  std::int32_t id = 0;
  if (x_free.empty()) {
    id = static_cast<std::int32_t>(x_all.size());
    x_all.emplace_back();
  } else {
    id = x_free.back();
    x_free.pop_back();
  }
  Transfer& slot = x_all[static_cast<std::size_t>(id)];
  transfer.version = slot.version + 1;
  slot = std::move(transfer);
  x_queue.push(slot.start, EventQueue::Kind::kTransferStart, id, 0, slot.version);
}

void Transfers::start(std::int32_t id, Time now) {
  Transfer& transfer = x_all[static_cast<std::size_t>(id)];
  transfer.progress = Progress(transfer.alone);
  transfer.seen = now;
  for (const PortDemand& demand : transfer.demands) {
    want(demand.port, demand.share);
    x_active[static_cast<std::size_t>(demand.port)].push_back(id);
  }
  retune(transfer, now);
}

bool Transfers::end(const EventQueue::Event& event) {
  Transfer& transfer = x_all[static_cast<std::size_t>(event.subject)];
  if (event.version != transfer.version) return false;
  ++transfer.version;
  for (const PortDemand& demand : transfer.demands) {
    want(demand.port, -demand.share);
    std::erase(x_active[static_cast<std::size_t>(demand.port)], event.subject);
  }
  retune(transfer, event.at);
  return true;
}

void Transfers::want(std::int32_t port, std::int64_t more) {
  const auto at = static_cast<std::size_t>(port);
  x_wanted[at] += more;
  x_rate[at] = rate_on_port(x_wanted[at]);
}

/// Brings every transfer on the ports of `changed` to the rate it has from `now` on. One that
/// shares several of them is looked at once.
void Transfers::retune(const Transfer& changed, Time now) {
  ++x_changes;
  for (const PortDemand& touched : changed.demands) {
    for (const std::int32_t id : x_active[static_cast<std::size_t>(touched.port)]) {
      Transfer& transfer = x_all[static_cast<std::size_t>(id)];
      if (transfer.change == x_changes) continue;
      transfer.change = x_changes;
      std::int64_t rate = kOneRate;
      for (const PortDemand& demand : transfer.demands) {
        rate = std::min(rate, x_rate[static_cast<std::size_t>(demand.port)]);
      }
      if (rate == transfer.rate) continue;
      transfer.progress.advance(now - transfer.seen, transfer.rate);
      transfer.seen = now;
      transfer.rate = rate;
      ++transfer.version;
      x_queue.push(transfer.progress.end_at(now, rate), EventQueue::Kind::kTransferEnd, id, 0,
                   transfer.version);
    }
  }
}

}  // namespace foretrain
