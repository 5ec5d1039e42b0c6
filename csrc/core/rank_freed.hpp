// Blocks that were freed together, put in the order in which they are lost.
#pragma once

#include <algorithm>
#include <cstddef>
#include <vector>

#include "core/block.hpp"

namespace agentcache {

/// Replaces the content of `ranked` with the freed blocks, the one with the least key first. `key_of(position)` gives
/// each block's key; `ranked` is the caller's only to keep its memory from call to call.
/// \note O(n) for blocks that come in order or in reverse, else O(n log n).
template <typename KeyOf>
void rank_freed(const Freed& freed, const KeyOf& key_of, std::vector<Ranked>& ranked) {
  ranked.clear();
  for (std::size_t i = 0; i < freed.size(); ++i) {
    ranked.push_back({key_of(freed.positions[i]), freed.first_sequence + i, freed.ids[i]});
  }
  // A request's blocks come from its end to its start, as a rule.
  if (std::is_sorted(ranked.rbegin(), ranked.rend())) std::reverse(ranked.begin(), ranked.end());
  if (!std::is_sorted(ranked.begin(), ranked.end())) std::sort(ranked.begin(), ranked.end());
}

}  // namespace agentcache
