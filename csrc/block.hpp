// What every evictor knows a block by.
#pragma once

#include <cstdint>
#include <vector>

namespace agentcache {

/// A block's id: an integer from 0.
using BlockId = std::int32_t;

/// The last use of a block with reusable KV.
struct Use {
  BlockId id;
  std::int64_t position;   ///< Tokens of its sequence up to the end of the block.
  double last_s;           ///< When it was freed.
  double factor;           ///< Multiplies its value.
  std::uint64_t sequence;  ///< Counts additions; the order where nothing else tells blocks apart.
};

/// A block with the number that it is ordered by. Less goes first; of equals, the one that was added earlier.
struct Ranked {
  double key;
  std::uint64_t sequence;
  BlockId id;

  bool operator<(const Ranked& other) const {
    return key < other.key || (key == other.key && sequence < other.sequence);
  }
};

}  // namespace agentcache
