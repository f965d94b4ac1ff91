#include "hardware/link_mesh.h"

#include <algorithm>
#include <array>
#include <numeric>

namespace foretrain {
namespace {

using Members = std::span<const std::int32_t>;

/// The hops of a pair's way among `members`; empty through the host.
struct Way {
  std::array<std::int32_t, 3> stops{};
  std::size_t hops = 0;
  std::int32_t links = 0;  ///< of the narrowest
};

Way way_of(const LinkMatrix& links, Members members, std::int32_t from, std::int32_t to) {
  const auto between = [&links](std::int32_t a, std::int32_t b) {
    return links[static_cast<std::size_t>(a)][static_cast<std::size_t>(b)];
  };
  if (between(from, to) > 0) return {{from, to, to}, 1, between(from, to)};
  Way best;
  for (const std::int32_t over : members) {
    const std::int32_t narrowest = std::min(between(from, over), between(over, to));
    if (narrowest > best.links) best = {{from, over, to}, 2, narrowest};
  }
  return best;
}

/// Packs rings, one after the other and each hop by hop, into the links that are left.
class RingSearch {
 public:
  RingSearch(const LinkMatrix& links, Members members, bool relayed)
      : x_free(links), x_count(members.size()), x_left(members.size(), true) {
    x_most = links.front().size() * links.front().size();
    for (const std::int32_t a : members) {
      std::int32_t own = 0;
      for (const std::int32_t b : members) {
        own += links[static_cast<std::size_t>(a)][static_cast<std::size_t>(b)];
        Way way = a == b ? Way{} : way_of(links, members, a, b);
        if (way.hops > 1 && !relayed) way = Way{};
        x_ways.push_back(way);
      }
      x_most = std::min(x_most, static_cast<std::size_t>(own));  // every ring leaves every member
    }
  }

  std::int32_t most() {
    start_ring(0);
    return static_cast<std::int32_t>(x_best);
  }

 private:
  /// As NCCL's own search, this one gives up after so many steps with what it has found.
  static constexpr std::int64_t kSteps = std::int64_t{1} << 14;

  bool over() { return x_best >= x_most || ++x_steps > kSteps; }

  std::int32_t& free(const Way& way, std::size_t hop) {
    return x_free[static_cast<std::size_t>(way.stops.at(hop))]
                 [static_cast<std::size_t>(way.stops.at(hop + 1))];
  }

  bool fits(const Way& way) {
    if (way.hops == 0) return false;
    for (std::size_t hop = 0; hop < way.hops; ++hop) {
      if (free(way, hop) < 1) return false;
    }
    return true;
  }

  void take(const Way& way, std::int32_t links) {
    for (std::size_t hop = 0; hop < way.hops; ++hop) free(way, hop) -= links;
  }

  void start_ring(std::size_t found) {
    x_best = std::max(x_best, found);
    std::fill(x_left.begin(), x_left.end(), true);
    x_left[0] = false;
    go_on(0, x_count - 1, found);
  }

  /// From member `at`, with `left` members still to visit.
  void go_on(std::size_t at, std::size_t left, std::size_t found) {
    if (over()) return;
    for (std::size_t next = 0; next < x_count; ++next) {
      if (left == 0 ? next != 0 : !x_left[next]) continue;
      const Way& way = x_ways[at * x_count + next];
      if (!fits(way)) continue;
      take(way, 1);
      if (left == 0) {
        const std::vector<bool> before = x_left;
        start_ring(found + 1);
        x_left = before;
      } else {
        x_left[next] = false;
        go_on(next, left - 1, found);
        x_left[next] = true;
      }
      take(way, -1);
      if (x_best >= x_most) return;
    }
  }

  LinkMatrix x_free;
  std::size_t x_count = 0, x_most = 0, x_best = 0;
  std::int64_t x_steps = 0;
  std::vector<bool> x_left;
  std::vector<Way> x_ways;
};

/// Fills in what an exchange among the members leaves to the links and to the host.
void count_exchange(const LinkMatrix& links, Members members, MeshUse& out) {
  LinkMatrix messages(links.size(), std::vector<std::int32_t>(links.size(), 0));
  for (const std::int32_t from : members) {
    std::int32_t through_host = 0;
    for (const std::int32_t to : members) {
      if (from == to) continue;
      const Way way = way_of(links, members, from, to);
      if (way.hops == 0) ++through_host;
      for (std::size_t hop = 0; hop < way.hops; ++hop) {
        const auto a = static_cast<std::size_t>(way.stops.at(hop));
        const auto b = static_cast<std::size_t>(way.stops.at(hop + 1));
        const std::int32_t load = ++messages[a][b] * kExchangeUnit / links[a][b];
        out.exchanged = std::max(out.exchanged, load);
      }
    }
    out.through_host = std::max(out.through_host, through_host);
  }
}

Error misread(const std::string& source, const std::string& pointer, const std::string& text) {
  return input_error(place_in(source, pointer) + text +
                     "; accepted: a row for each accelerator of a node with its links to each, as "
                     "[[0, 2], [2, 0]]");
}

/// Symmetric, nobody linked to itself, and no more links than a device has.
std::string fault_of(const LinkMatrix& links, std::int32_t most) {
  for (std::size_t i = 0; i < links.size(); ++i) {
    if (links[i][i] != 0) return "accelerator " + std::to_string(i) + " has links to itself";
    for (std::size_t j = 0; j < i; ++j) {
      if (links[i][j] == links[j][i]) continue;
      return "accelerator " + std::to_string(j) + " has " + std::to_string(links[j][i]) +
             " links to " + std::to_string(i) + ", and " + std::to_string(i) + " has " +
             std::to_string(links[i][j]) + " to " + std::to_string(j);
    }
    const std::int32_t own = std::accumulate(links[i].begin(), links[i].end(), 0);
    if (own <= most) continue;
    return "accelerator " + std::to_string(i) + " has " + std::to_string(own) +
           " links, and scale_up_links of its device is " + std::to_string(most);
  }
  return "";
}

}  // namespace

Result<LinkMatrix> read_links(const Json& json, const std::string& source,
                              const std::string& pointer, std::int32_t accelerators,
                              std::int32_t most) {
  const Json::Array* rows = json.array();
  if (rows == nullptr) return misread(source, pointer, "found " + describe(json));
  const auto count = static_cast<std::size_t>(accelerators);
  if (rows->size() < count) {
    return misread(source, pointer,
                   "found " + std::to_string(rows->size()) +
                       " rows, and accelerators_per_node is " + std::to_string(accelerators));
  }
  LinkMatrix links;
  for (std::size_t i = 0; i < rows->size(); ++i) {
    const std::string at = pointer + "/" + std::to_string(i);
    const Json::Array* row = (*rows)[i].array();
    if (row == nullptr) return misread(source, at, "found " + describe((*rows)[i]));
    if (row->size() != rows->size()) {
      return misread(source, at,
                     "found " + std::to_string(row->size()) + " numbers in one of " +
                         std::to_string(rows->size()) + " rows");
    }
    links.emplace_back();
    for (const Json& number : *row) {
      const double value = number.is_number() ? number.number() : -1;
      if (value < 0 || value > most || value != static_cast<std::int32_t>(value)) {
        return misread(source, at, "found " + describe(number) + " for a number of links");
      }
      links.back().push_back(static_cast<std::int32_t>(value));
    }
  }
  const std::string fault = fault_of(links, most);
  if (!fault.empty()) return misread(source, pointer, fault);
  links.resize(count);
  for (std::vector<std::int32_t>& row : links) row.resize(count);
  return links;
}

Json to_json(const LinkMatrix& links) {
  Json::Array rows;
  for (const std::vector<std::int32_t>& row : links) {
    rows.emplace_back(Json::Array(row.begin(), row.end()));
  }
  return rows;
}

MeshUse mesh_use(const LinkMatrix& links, Members members) {
  MeshUse out;
  if (members.size() < 2) return out;
  for (const bool relayed : {false, true}) {
    if (out.rings > 0) break;
    out.rings = RingSearch(links, members, relayed).most();
    out.relayed = relayed && out.rings > 0;
  }
  if (members.size() == 2) {
    std::vector<std::int32_t> node(links.size());
    std::iota(node.begin(), node.end(), 0);
    out.pair_links = way_of(links, node, members[0], members[1]).links;
  }
  count_exchange(links, members, out);
  return out;
}

MeshUse mesh_use(const LinkMatrix& links, std::int32_t members) {
  std::vector<std::int32_t> first(static_cast<std::size_t>(members));
  std::iota(first.begin(), first.end(), 0);
  return mesh_use(links, first);
}

MeshUse slower_of(const MeshUse& a, const MeshUse& b) {
  const bool first = a.rings != b.rings ? a.rings < b.rings : a.relayed;
  MeshUse out = first ? a : b;
  out.exchanged = std::max(a.exchanged, b.exchanged);
  out.through_host = std::max(a.through_host, b.through_host);
  return out;
}

}  // namespace foretrain
