// Baseline: recomputation cost over the time since the last use, as in Pensieve.
#pragma once

#include <algorithm>
#include <cstdint>

#include "evictors/recompute_cost.hpp"
#include "evictors/scored_evictor.hpp"

namespace agentcache {

/// Score: cost · factor / idle time. O(n) per call of `evict`.
class PensieveEvictor final : public ScoredEvictor {
 public:
  /// Knows the blocks from 0 to `num_blocks` - 1.
  PensieveEvictor(std::int64_t num_blocks, RecomputeCost cost) : ScoredEvictor(num_blocks), cost_(cost) {}

 protected:
  double score(const Use& use, double now_s) const override {
    return cost_.at(use.position) * use.factor / std::max(now_s - use.last_s, kLeastIdleS);
  }

 private:
  // A block that was freed just now must not be worth infinitely much.
  static constexpr double kLeastIdleS = 1e-3;

  RecomputeCost cost_;
};

}  // namespace agentcache
