// What every evictor knows a block by.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "core/free_context.hpp"

namespace agentcache {

/// A block's id: an integer from 0.
using BlockId = std::int32_t;

/// Returns where a block stands in tables that have one entry for each id.
inline std::size_t index(BlockId id) {
  return static_cast<std::size_t>(id);
}

/// The last use of a block with reusable KV.
struct Use {
  BlockId id;
  std::int64_t position;   ///< Tokens of its sequence up to the end of the block.
  double last_s;           ///< When it was freed.
  double factor;           ///< Multiplies its value.
  std::uint64_t sequence;  ///< Counts additions; the order where nothing else tells blocks apart.
};

/// Blocks with reusable KV that were freed together: they share their last use.
struct Freed {
  std::span<const BlockId> ids;
  std::span<const std::int64_t> positions;  ///< Of each block, as in Use.
  double last_s;                            ///< When they were freed.
  FreeContext context;                      ///< Of the request that freed them.
  std::uint64_t first_sequence;             ///< Of the first block; the others count on from it.

  /// Returns the number of blocks.
  std::size_t size() const { return ids.size(); }
  /// Returns the last use of the block at place `i`.
  Use use(std::size_t i) const { return {ids[i], positions[i], last_s, context.factor, first_sequence + i}; }
};

/// A block with the number that it is ordered by.
struct Ranked {
  double key;
  std::uint64_t sequence;
  BlockId id;

  /// Less goes first; of equal keys, the block that was added earlier.
  bool operator<(const Ranked& other) const {
    return key < other.key || (key == other.key && sequence < other.sequence);
  }
};

}  // namespace agentcache
