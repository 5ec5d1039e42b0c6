// Blocks in a given order, any of which can be taken out: a doubly linked list in an array.
#pragma once

#include <cstddef>
#include <span>
#include <vector>

#include "core/block.hpp"
#include "core/errors.hpp"

namespace agentcache {

/// One list of blocks. A block is in it once at most.
class BlockList {
 public:
  /// Makes room for blocks with the ids from 0 to `num_blocks` - 1.
  explicit BlockList(std::size_t num_blocks) : links_(num_blocks + 1) { connect(kEnds, kEnds); }

  /// Returns how many blocks are contained.
  std::size_t size() const { return size_; }
  /// Makes room for ids up to `num_blocks` - 1. Not for fewer than before.
  void resize(std::size_t num_blocks) { links_.resize(num_blocks + 1); }

  /// Puts blocks in front of all others, in order. O(ids).
  /// \pre None of `ids` is contained.
  void prepend(std::span<const BlockId> ids) { insert(kEnds, ids); }

  /// Puts blocks behind all others, in order. O(ids).
  /// \pre None of `ids` is contained.
  void append(std::span<const BlockId> ids) { insert(link(kEnds).previous, ids); }

  /// Takes out one block. O(1).
  /// \pre `id` is contained.
  void erase(BlockId id) {
    connect(link(id).previous, link(id).next);
    --size_;
  }

  /// Takes out the first `count` blocks and puts them behind `taken`. O(count).
  /// \pre At least so many are contained.
  void take(std::size_t count, std::vector<BlockId>& taken) {
    BlockId first = link(kEnds).next;
    for (std::size_t i = 0; i < count; ++i) {
      taken.push_back(first);
      first = link(first).next;
    }
    connect(kEnds, first);
    size_ -= count;
  }

  /// Returns every block, the first one first. O(size).
  std::vector<BlockId> order() const {
    std::vector<BlockId> order;
    order.reserve(size_);
    for (BlockId id = link(kEnds).next; id != kEnds; id = link(id).next) order.push_back(id);
    return order;
  }

  /// Checks the links against each other and the size. O(size).
  /// \throws IntegrityError unless they agree.
  void check_integrity() const {
    std::size_t steps = 0;
    BlockId id = kEnds;
    do {
      require_integrity(link(link(id).next).previous == id, "links of a list of blocks disagree");
      id = link(id).next;
      require_integrity(steps++ <= size_, "a list of blocks is longer than its size");
    } while (id != kEnds);
    require_integrity(steps == size_ + 1, "a list of blocks is shorter than its size");
  }

 private:
  friend struct Damage;

  struct Link {
    BlockId previous;
    BlockId next;
  };

  static constexpr BlockId kEnds = -1;  // Stands before the first and behind the last block.

  Link& link(BlockId id) { return links_[static_cast<std::size_t>(id + 1)]; }
  const Link& link(BlockId id) const { return links_[static_cast<std::size_t>(id + 1)]; }

  void connect(BlockId before, BlockId after) {
    link(before).next = after;
    link(after).previous = before;
  }

  void insert(BlockId before, std::span<const BlockId> ids) {
    const BlockId after = link(before).next;
    for (const BlockId id : ids) {
      connect(before, id);
      before = id;
    }
    connect(before, after);
    size_ += ids.size();
  }

  std::size_t size_ = 0;
  std::vector<Link> links_;
};

}  // namespace agentcache
