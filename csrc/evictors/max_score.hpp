// Baseline: the block that is least likely to be used again goes first, whatever it costs.
#pragma once

#include <cmath>
#include <cstdint>

#include "evictors/reuse_frequency.hpp"
#include "evictors/scored_evictor.hpp"

namespace agentcache {

/// Score: ln(factor · reuse frequency). O(n) per call of `evict`.
class MaxScoreEvictor final : public ScoredEvictor {
 public:
  /// Knows the blocks from 0 to `num_blocks` - 1.
  MaxScoreEvictor(std::int64_t num_blocks, ReuseFrequency frequency)
      : ScoredEvictor(num_blocks), frequency_(frequency) {}

 protected:
  double score(const Use& use, double now_s) const override {
    return std::log(use.factor) + frequency_.log_at(now_s - use.last_s);
  }

 private:
  ReuseFrequency frequency_;
};

}  // namespace agentcache
