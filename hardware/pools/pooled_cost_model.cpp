#include <map>
#include <utility>

#include "hardware/hardware_cost_model.h"
#include "hardware/pools/pools.h"
#include "sim/base/check.h"

namespace foretrain {
namespace {

class PooledCostModel final : public CostModel {
 public:
  PooledCostModel(const Cluster& cluster, std::vector<std::unique_ptr<CostModel>> views)
      : x_cluster(cluster), x_pools(x_cluster), x_models(std::move(views)) {
    FT_CHECK(x_models.size() == x_pools.views(), "a cost model for each view of the pools");
  }

  int sm_count() const override { return x_models.front()->sm_count(); }
  const CostModel& on(RankId rank) const override { return *x_models[x_pools.pool_of(rank)]; }

  Result<PlacementId> place(std::span<const RankId> ranks) override {
    if (ranks.empty()) return input_error("an empty group");
    for (const RankId rank : ranks) {
      if (rank.value >= 0 && rank.value < x_cluster.accelerators) continue;
      return input_error("rank " + std::to_string(rank.value) + " of a group is beyond the " +
                         std::to_string(x_cluster.accelerators) + " of the cluster");
    }
    const std::size_t view = x_pools.view_of(ranks);
    FT_ASSIGN(const PlacementId of_view, x_models[view]->place(x_pools.placed(ranks, view)));
    const Placed placed{view, of_view};
    const auto [found, fresh] = x_ids.try_emplace(placed, PlacementId(x_placed.size()));
    if (fresh) x_placed.push_back(placed);
    return found->second;
  }

  /// Local work without a rank is that of the first pool: see `on`.
  Result<Cost> price(const Work& work, std::span<const PlacementId> placements) const override {
    std::vector<PlacementId> own;
    return model_of(placements, own).price(work, own);
  }
  std::string explain(const Work& work, std::span<const PlacementId> placements) const override {
    const auto* batch = std::get_if<P2PBatch>(&work);
    if (batch != nullptr && batch->messages.size() > 1) {
      std::string out;
      for (std::size_t m = 0; m < batch->messages.size(); ++m) {
        out += explain(P2PBatch{{batch->messages[m]}}, placements.subspan(m, 1));
      }
      return out;
    }
    std::vector<PlacementId> own;
    return model_of(placements, own).explain(work, own);
  }

  std::int32_t port_of(RankId rank, Port port) const override {
    const std::size_t pool = x_pools.pool_of(rank);
    const RankId own = x_pools.placed({&rank, 1}, pool).front();
    return x_pools.first_port(pool) + x_models[pool]->port_of(own, port);
  }

 private:
  using Placed = std::pair<std::size_t, PlacementId>;

  const CostModel& model_of(std::span<const PlacementId> placements,
                            std::vector<PlacementId>& own) const {
    std::size_t model = 0;
    for (const PlacementId id : placements) {
      FT_CHECK(id.valid() && id.index() < x_placed.size(), "a placement of another cost model");
      FT_CHECK(own.empty() || model == x_placed[id.index()].first, "placements of one model");
      model = x_placed[id.index()].first;
      own.push_back(x_placed[id.index()].second);
    }
    return *x_models[model];
  }

  Cluster x_cluster;
  Pools x_pools;
  std::vector<std::unique_ptr<CostModel>> x_models;  ///< by view
  std::vector<Placed> x_placed;
  std::map<Placed, PlacementId> x_ids;
};

}  // namespace

std::unique_ptr<CostModel> make_pooled_cost_model(const Cluster& cluster,
                                                  std::vector<std::unique_ptr<CostModel>> views) {
  return std::make_unique<PooledCostModel>(cluster, std::move(views));
}

}  // namespace foretrain
