// The order of eviction that follows from two orders of the same blocks.
#pragma once

#include <algorithm>
#include <cstddef>
#include <vector>

#include "core/block.hpp"
#include "evictors/reuse_frequency.hpp"

namespace agentcache {

/// Returns the blocks in the order in which AsymCache would evict all of them at `now_s`. Both lists hold the same
/// blocks, with their early and with their late keys, in any order. O(n log n).
inline std::vector<BlockId> merge_orders(std::vector<Ranked> early, std::vector<Ranked> late,
                                         const ReuseFrequency& frequency, double log_lambda, double now_s,
                                         std::size_t num_blocks) {
  std::sort(early.begin(), early.end());
  std::sort(late.begin(), late.end());
  std::vector<bool> gone(num_blocks);
  std::vector<BlockId> order;
  order.reserve(early.size());
  const auto is_gone = [&gone](const Ranked& block) { return gone[index(block.id)]; };
  for (auto next_early = early.begin(), next_late = late.begin(); order.size() < early.size();) {
    next_early = std::find_if_not(next_early, early.end(), is_gone);
    next_late = std::find_if_not(next_late, late.end(), is_gone);
    const bool by_early = frequency.early_goes_first(next_early->key, next_late->key, log_lambda, now_s);
    order.push_back(by_early ? next_early->id : next_late->id);
    gone[index(order.back())] = true;
  }
  return order;
}

}  // namespace agentcache
