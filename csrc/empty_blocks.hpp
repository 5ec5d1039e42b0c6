// Free blocks without reusable KV, in the order in which they are given up: a doubly linked list in two arrays.
#pragma once

#include <cstddef>
#include <span>
#include <vector>

#include "block.hpp"
#include "errors.hpp"

namespace agentcache {

class EmptyBlocks {
 public:
  /// Blocks have the ids from 0 to `num_blocks` - 1.
  explicit EmptyBlocks(std::size_t num_blocks)
      : ends_(static_cast<BlockId>(num_blocks)), next_(num_blocks + 1, kAbsent), previous_(num_blocks + 1, kAbsent) {
    link(ends_, ends_);
  }

  std::size_t size() const { return size_; }
  bool contains(BlockId id) const { return next(id) != kAbsent; }

  /// The latest call goes first, in order within the call. None of `ids` may be contained yet.
  void add(std::span<const BlockId> ids) {
    const BlockId old_first = next(ends_);
    BlockId before = ends_;
    for (const BlockId id : ids) {
      link(before, id);
      before = id;
    }
    link(before, old_first);
    size_ += ids.size();
  }

  /// The block that goes first. The list must not be empty.
  BlockId first() const { return next(ends_); }

  /// `id` must be contained.
  void erase(BlockId id) {
    link(previous(id), next(id));
    next(id) = previous(id) = kAbsent;
    --size_;
  }

  /// Every block, the next to go first.
  std::vector<BlockId> order() const {
    std::vector<BlockId> order;
    order.reserve(size_);
    for (BlockId id = next(ends_); id != ends_; id = next(id)) order.push_back(id);
    return order;
  }

  /// Throws IntegrityError unless the links agree with each other and with the size.
  void check_integrity() const {
    std::size_t steps = 0;
    BlockId id = ends_;
    do {
      require_integrity(next(id) != kAbsent && previous(next(id)) == id, "links of the empty blocks disagree");
      id = next(id);
      require_integrity(steps++ <= size_, "the list of empty blocks is longer than its size");
    } while (id != ends_);
    require_integrity(steps == size_ + 1, "the list of empty blocks is shorter than its size");
  }

 protected:
  std::size_t size_ = 0;

 private:
  static constexpr BlockId kAbsent = -1;

  BlockId& next(BlockId id) { return next_[static_cast<std::size_t>(id)]; }
  BlockId& previous(BlockId id) { return previous_[static_cast<std::size_t>(id)]; }
  BlockId next(BlockId id) const { return next_[static_cast<std::size_t>(id)]; }
  BlockId previous(BlockId id) const { return previous_[static_cast<std::size_t>(id)]; }

  void link(BlockId before, BlockId after) {
    next(before) = after;
    previous(after) = before;
  }

  BlockId ends_;  // Stands before the first and behind the last block.
  std::vector<BlockId> next_;
  std::vector<BlockId> previous_;
};

}  // namespace agentcache
