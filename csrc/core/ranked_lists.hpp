// Many doubly linked lists of ranked blocks in arrays: what runs and groups of blocks freed together are made of.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "core/block.hpp"
#include "core/errors.hpp"

namespace agentcache {

/// A list's id: an integer from 0. Ids of lists that ended are given again.
using ListId = std::int32_t;

/// Stands for the block before the first and behind the last one of a list.
constexpr BlockId kNoBlock = -1;

/// Each block is in one list at most. A list's owner keeps its first block; a list ends with its last block.
class RankedLists {
 public:
  /// A block's neighbours, kNoBlock at the ends, and its list.
  struct Link {
    BlockId previous;
    BlockId next;
    ListId list;
  };

  /// Makes room for blocks with the ids from 0 to `num_blocks` - 1.
  explicit RankedLists(std::size_t num_blocks) : links_(num_blocks), ranks_(num_blocks) {}

  /// Returns how many lists there are now.
  std::size_t size() const { return num_ids_ - ended_.size(); }
  /// Returns how many ids were given so far: the size of tables that have one entry for each list.
  std::size_t num_ids() const { return num_ids_; }

  /// Makes a list of blocks, in order.
  /// \pre There is at least one block, and none is in a list.
  /// \return Its id: that of the list that ended last, or else `num_ids()` before the call. O(blocks).
  ListId begin(std::span<const Ranked> blocks) {
    const ListId list = unused_id();
    for (std::size_t i = 0; i < blocks.size(); ++i) {
      const BlockId previous = i == 0 ? kNoBlock : blocks[i - 1].id;
      const BlockId next = i + 1 == blocks.size() ? kNoBlock : blocks[i + 1].id;
      put(blocks[i], {previous, next, list});
    }
    return list;
  }

  /// Puts a block that is in no list between two neighbours of one, or at an end if one is kNoBlock. O(1).
  void insert(const Ranked& block, const Link& link) {
    put(block, link);
    if (link.next != kNoBlock) links_[index(link.next)].previous = block.id;
    if (link.previous != kNoBlock) links_[index(link.previous)].next = block.id;
  }

  /// Takes a block out of its list, which ends with its last block. O(1).
  /// \pre `id` is in a list.
  /// \return The link that it had. Without neighbours it was the last block.
  Link erase(BlockId id) {
    const Link link = links_[index(id)];
    if (link.next != kNoBlock) links_[index(link.next)].previous = link.previous;
    if (link.previous != kNoBlock) {
      links_[index(link.previous)].next = link.next;
    } else if (link.next == kNoBlock) {
      ended_.push_back(link.list);
    }
    return link;
  }

  /// Returns a block's list, the block behind it (kNoBlock if it is the last one), and its rank.
  /// \pre `id` is in a list.
  ListId list_of(BlockId id) const { return links_[index(id)].list; }
  BlockId next(BlockId id) const { return links_[index(id)].next; }
  double key(BlockId id) const { return ranks_[index(id)].key; }
  std::uint64_t sequence(BlockId id) const { return ranks_[index(id)].sequence; }
  Ranked ranked(BlockId id) const { return {key(id), sequence(id), id}; }

  /// Asks the memory for a block, or for the one behind it, for the caller that will read it some blocks from now.
  void prefetch(BlockId id) const { __builtin_prefetch(&links_[index(id)], 1); }
  void prefetch_next(BlockId id) const {
    const BlockId next = links_[index(id)].next;
    if (next == kNoBlock) return;
    __builtin_prefetch(&links_[index(next)], 1);
    __builtin_prefetch(&ranks_[index(next)]);
  }

  /// Calls `visit(id)` for the block `first` and all behind it, in order.
  template <typename Visit>
  void for_each_from(BlockId first, const Visit& visit) const {
    for (BlockId id = first; id != kNoBlock; id = next(id)) visit(id);
  }

  /// Checks one list, which begins with `first`. `goes_before(id, other)` tells whether neighbours are in order.
  /// \throws IntegrityError unless links and order are right. O(blocks of the list).
  template <typename GoesBefore>
  void check_list(ListId list, BlockId first, const GoesBefore& goes_before) const {
    BlockId previous = kNoBlock;
    for (BlockId id = first; id != kNoBlock; previous = id, id = next(id)) {
      const Link& link = links_[index(id)];
      require_integrity(link.list == list && link.previous == previous, "links of a list disagree");
      require_integrity(previous == kNoBlock || goes_before(previous, id), "a list is out of order");
    }
  }

 private:
  friend struct Damage;

  // Apart from the links, because a removal mostly needs those alone.
  struct Rank {
    double key;
    std::uint64_t sequence;
  };

  void put(const Ranked& block, const Link& link) {
    links_[index(block.id)] = link;
    ranks_[index(block.id)] = {block.key, block.sequence};
  }

  ListId unused_id() {
    if (ended_.empty()) return static_cast<ListId>(num_ids_++);
    const ListId list = ended_.back();
    ended_.pop_back();
    return list;
  }

  std::vector<Link> links_;  // of each block
  std::vector<Rank> ranks_;  // of each block
  std::size_t num_ids_ = 0;
  std::vector<ListId> ended_;
};

}  // namespace agentcache
