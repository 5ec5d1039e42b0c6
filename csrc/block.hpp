// What every evictor knows a block by.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace agentcache {

/// A block's id: an integer from 0.
using BlockId = std::int32_t;

/// How the request ended that freed blocks, as a number of the caller's from 0: which tool it called, say. 0: unknown.
using EndClass = std::int32_t;
constexpr EndClass kMaxEndClasses = 1024;

/// The agent's job that freed blocks, as a number of the caller's. kNoJob: nobody knows.
using JobNumber = std::int64_t;
constexpr JobNumber kNoJob = 0;

/// How the request ended that freed blocks. What it left is alike in all of this.
struct Ending {
  double factor = 1.0;  ///< Multiplies the value of its blocks.
  EndClass end_class = 0;
  JobNumber job = kNoJob;

  bool operator==(const Ending&) const = default;
};

/// Where a block stands in tables that have one entry for each id.
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
  std::span<const std::int64_t> positions;
  double last_s;
  Ending ending;
  std::uint64_t first_sequence;

  std::size_t size() const { return ids.size(); }
  Use use(std::size_t i) const { return {ids[i], positions[i], last_s, ending.factor, first_sequence + i}; }
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
