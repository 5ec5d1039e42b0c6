// What is known of each free block with KV, whether in a pin or not.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "core/block.hpp"

namespace agentcache {

/// A record a block. One at position 0 has nothing to recompute, and counts as one without KV.
class HeldBlocks {
 public:
  /// Knows the blocks from 0 to `num_blocks` - 1, none of them held.
  explicit HeldBlocks(std::size_t num_blocks) : held_(num_blocks) {}

  /// Tells whether there is such a block.
  bool is_known(BlockId id) const { return id >= 0 && index(id) < held_.size(); }
  /// Tells whether a block is held and has KV; whether it is in a pin.
  /// \pre It is known.
  bool has_kv(BlockId id) const { return held_[index(id)].position > 0; }
  bool is_pinned(BlockId id) const { return held_[index(id)].is_pinned; }
  /// Returns what the block was freed with, but for the pin.
  /// \pre It is held.
  const GroupContext& context_of(BlockId id) const { return held_[index(id)].context; }

  /// Returns the positions of blocks that are held, in the order of `ids`.
  std::vector<std::int64_t> positions_of(std::span<const BlockId> ids) const {
    std::vector<std::int64_t> positions;
    positions.reserve(ids.size());
    for (const BlockId id : ids) positions.push_back(held_[index(id)].position);
    return positions;
  }

  /// Returns how many blocks are in pins. O(blocks).
  std::size_t count_pinned() const {
    return static_cast<std::size_t>(std::ranges::count(held_, true, &Held::is_pinned));
  }

  /// Holds a block, not yet in a pin.
  void hold(BlockId id, std::int64_t position, const GroupContext& context) {
    held_[index(id)] = {position, context, false};
  }
  /// Puts a block that is held into a pin, or takes it out of one.
  void set_pinned(BlockId id, bool is_pinned) { held_[index(id)].is_pinned = is_pinned; }
  /// Holds a block no longer: it is taken.
  void drop(BlockId id) { held_[index(id)] = {}; }

 private:
  struct Held {
    std::int64_t position = 0;
    GroupContext context;
    bool is_pinned = false;
  };

  std::vector<Held> held_;
};

}  // namespace agentcache
