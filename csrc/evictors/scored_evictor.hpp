// Evictors whose order is that of one score of each block, which changes with time.
#pragma once

#include <algorithm>
#include <cstddef>
#include <vector>

#include "evictors/scanned_evictor.hpp"

namespace agentcache {

/// Scores every block once a call: victims of one call share its time, so their scores stay. O(n) per call.
class ScoredEvictor : public ScannedEvictor {
 public:
  using ScannedEvictor::ScannedEvictor;

 protected:
  /// Returns the score of a block. The one with the least goes first; of equals, the one that was added earlier.
  virtual double score(const Use& use, double now_s) const = 0;

  void take(std::size_t count, double now_s, std::vector<BlockId>& victims) override {
    if (count == 0) return;
    for (const BlockId id : first_blocks(count, now_s)) {
      victims.push_back(id);
      erase(id);
    }
  }

  std::vector<BlockId> order_with_kv(double now_s) const override { return first_blocks(uses().size(), now_s); }

 private:
  std::vector<BlockId> first_blocks(std::size_t count, double now_s) const {
    std::vector<Ranked> blocks;
    blocks.reserve(uses().size());
    for (const Use& use : uses()) blocks.push_back({score(use, now_s), use.sequence, use.id});
    const auto end = blocks.begin() + static_cast<std::ptrdiff_t>(count);
    std::partial_sort(blocks.begin(), end, blocks.end());
    std::vector<BlockId> ids(count);
    std::transform(blocks.begin(), end, ids.begin(), [](const Ranked& block) { return block.id; });
    return ids;
  }
};

}  // namespace agentcache
