// Blocks in a given order, any of which can be taken out: a doubly linked list in an array.
#pragma once

#include <cstddef>
#include <span>
#include <vector>

#include "block.hpp"
#include "errors.hpp"

namespace agentcache {

class BlockList {
 public:
  /// Blocks have the ids from 0 to `num_blocks` - 1.
  explicit BlockList(std::size_t num_blocks) : links_(num_blocks + 1) { connect(kEnds, kEnds); }

  std::size_t size() const { return size_; }
  void resize(std::size_t num_blocks) { links_.resize(num_blocks + 1); }

  /// In front of all others, in order. None of `ids` may be contained yet.
  void prepend(std::span<const BlockId> ids) { insert(kEnds, ids); }

  /// Behind all others, in order. None of `ids` may be contained yet.
  void append(std::span<const BlockId> ids) { insert(link(kEnds).previous, ids); }

  /// `id` must be contained.
  void erase(BlockId id) {
    connect(link(id).previous, link(id).next);
    --size_;
  }

  /// Takes out the first `count` blocks, of at least so many, and puts them behind `taken`.
  void take(std::size_t count, std::vector<BlockId>& taken) {
    BlockId first = link(kEnds).next;
    for (std::size_t i = 0; i < count; ++i) {
      taken.push_back(first);
      first = link(first).next;
    }
    connect(kEnds, first);
    size_ -= count;
  }

  /// Every block, the first one first.
  std::vector<BlockId> order() const {
    std::vector<BlockId> order;
    order.reserve(size_);
    for (BlockId id = link(kEnds).next; id != kEnds; id = link(id).next) order.push_back(id);
    return order;
  }

  /// Throws IntegrityError unless the links agree with each other and with the size.
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

 protected:
  std::size_t size_ = 0;

 private:
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

  std::vector<Link> links_;
};

}  // namespace agentcache
