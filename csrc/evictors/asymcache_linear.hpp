// The victims of AsymCacheEvictor found without heaps: what the O(log n) is measured and checked against.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include "evictors/lambda.hpp"
#include "evictors/merge_orders.hpp"
#include "evictors/recompute_cost.hpp"
#include "evictors/reuse_frequency.hpp"
#include "evictors/scanned_evictor.hpp"

namespace agentcache {

/// Computes both keys of every block anew for each victim: O(n) per block evicted.
class AsymCacheLinearEvictor final : public ScannedEvictor {
 public:
  /// Knows the blocks from 0 to `num_blocks` - 1. λ follows `controller`.
  AsymCacheLinearEvictor(std::int64_t num_blocks, ReuseFrequency frequency, RecomputeCost cost,
                         Lambda::Controller controller = {})
      : ScannedEvictor(num_blocks), frequency_(frequency), cost_(cost), lambda_(std::move(controller)) {}

  /// Returns λ, to read or to set.
  Lambda& lambda() { return lambda_; }

  void observe_reuse(double idle_s) override { lambda_.observe_reuse(idle_s); }
  bool learns_reuse() const override { return lambda_.is_controlled(); }

 protected:
  void take(std::size_t count, double now_s, std::vector<BlockId>& victims) override {
    if (count == uses().size()) return take_all(now_s, victims);
    for (; count > 0; --count) {
      victims.push_back(find_victim(now_s));
      erase(victims.back());
    }
  }

  std::vector<BlockId> order_with_kv(double now_s) const override {
    std::vector<Ranked> early, late;
    for (const Use& use : uses()) {
      const auto [early_block, late_block] = rank(use);
      early.push_back(early_block);
      late.push_back(late_block);
    }
    return merge_orders(std::move(early), std::move(late), frequency_, lambda_.log(), now_s, num_blocks());
  }

 private:
  std::pair<Ranked, Ranked> rank(const Use& use) const {
    const Keys keys = frequency_.shared_keys(use.last_s).plus(std::log(cost_.at(use.position) * use.factor));
    return {{keys.early, use.sequence, use.id}, {keys.late, use.sequence, use.id}};
  }

  // A reset of the cache is no place for a scan a block.
  void take_all(double now_s, std::vector<BlockId>& victims) {
    for (const BlockId id : order_with_kv(now_s)) {
      victims.push_back(id);
      erase(id);
    }
  }

  BlockId find_victim(double now_s) const {
    auto [least_early, least_late] = rank(*uses().begin());
    for (const Use& use : uses()) {
      const auto [early, late] = rank(use);
      least_early = std::min(least_early, early);
      least_late = std::min(least_late, late);
    }
    const bool by_early = frequency_.early_goes_first(least_early.key, least_late.key, lambda_.log(), now_s);
    return by_early ? least_early.id : least_late.id;
  }

  ReuseFrequency frequency_;
  RecomputeCost cost_;
  Lambda lambda_;
};

}  // namespace agentcache
