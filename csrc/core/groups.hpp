// Blocks that were freed together, the cheapest first: only that one competes with other groups'.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "core/block.hpp"
#include "core/errors.hpp"
#include "core/ranked_lists.hpp"

namespace agentcache {

/// A group's id is that of its list.
using GroupId = ListId;

/// What the blocks of a group share. All groups are scanned, so one takes no more than a cache line.
struct Group {
  double freed_s;        ///< When its blocks were freed.
  GroupContext context;  ///< Of the request that freed them.
  Ranked first;          ///< Its cheapest block.
  GroupId id;
};
static_assert(sizeof(Group) <= 64);

/// A list of blocks for each group. The groups themselves are dense, for they are scanned.
class Groups {
 public:
  /// Makes room for blocks with the ids from 0 to `num_blocks` - 1.
  explicit Groups(std::size_t num_blocks) : lists_(num_blocks) {}

  /// Returns how many groups there are. O(1).
  std::size_t size() const { return groups_.size(); }
  /// Iterates over the groups, in no order. Valid until the next change.
  auto begin() const { return groups_.begin(); }
  auto end() const { return groups_.end(); }

  /// Returns the group with this id. Valid until the next change. O(1).
  /// \pre It has not ended.
  const Group& at(GroupId group) const { return groups_[place_[index(group)]]; }
  /// Returns the group that a block is in. Valid until the next change. O(1).
  /// \pre `id` is in a group.
  const Group& of(BlockId id) const { return at(lists_.list_of(id)); }

  /// Makes a group of blocks, in order. Each block's key is what its loss costs. O(blocks).
  /// \pre There is at least one block, and none is in a group.
  GroupId add(std::span<const Ranked> blocks, double freed_s, const GroupContext& context) {
    const GroupId group = lists_.begin(blocks);
    if (place_.size() < lists_.num_ids()) place_.resize(lists_.num_ids());
    place_[index(group)] = groups_.size();
    groups_.push_back({freed_s, context, blocks.front(), group});
    return group;
  }

  /// Notes that a group has lost one of its blocks. O(1).
  void note_loss(GroupId group) {
    Group& lossy = groups_[place_[index(group)]];
    lossy.context.factor *= value_after_loss(lossy);
    lossy.context.whole = false;
  }
  /// Returns what the blocks of a group are worth once one is lost, as a part of what they are worth now.
  static double value_after_loss(const Group& group) { return group.context.whole ? kBrokenValue : 1.0; }

  /// Returns a block with its key.
  /// \pre `id` is in a group.
  Ranked ranked(BlockId id) const { return lists_.ranked(id); }

  /// Puts blocks, in order, where they belong in a group that there is. O(blocks, and those of the group before them).
  /// \pre No block is in a group.
  void join(GroupId group, std::span<const Ranked> blocks) {
    Group& joined = groups_[place_[index(group)]];
    BlockId previous = kNoBlock;
    BlockId next = joined.first.id;
    for (const Ranked& block : blocks) {
      for (; next != kNoBlock && lists_.ranked(next) < block; next = lists_.next(next)) previous = next;
      lists_.insert(block, {previous, next, group});
      if (previous == kNoBlock) joined.first = block;
      previous = block.id;
    }
  }

  /// Tells whether `id` is the last of its group.
  /// \pre `id` is in a group.
  bool is_last(BlockId id) const { return lists_.next(id) == kNoBlock; }
  /// Returns the block behind `id`.
  /// \pre `id` is in a group, and not its last block.
  Ranked next(BlockId id) const { return lists_.ranked(lists_.next(id)); }

  /// Asks the memory for a block, and for the one behind it, as RankedLists does.
  void prefetch(BlockId id) const { lists_.prefetch(id); }
  void prefetch_next(BlockId id) const { lists_.prefetch_next(id); }

  /// Takes a block out of its group, which ends with its last block. O(1).
  /// \pre `id` is in a group.
  void erase(BlockId id) {
    const RankedLists::Link link = lists_.erase(id);
    if (link.previous != kNoBlock) return;
    if (link.next != kNoBlock) {
      groups_[place_[index(link.list)]].first = lists_.ranked(link.next);
    } else {
      end_group(link.list);
    }
  }

  /// Checks groups, lists and order against each other. O(blocks).
  /// \throws IntegrityError unless they agree.
  void check_integrity() const {
    require_integrity(groups_.size() == lists_.size() && place_.size() == lists_.num_ids(),
                      "the number of groups is wrong");
    const auto goes_before = [this](BlockId id, BlockId other) { return lists_.ranked(id) < lists_.ranked(other); };
    for (std::size_t place = 0; place < groups_.size(); ++place) {
      const Group& group = groups_[place];
      require_integrity(place_[index(group.id)] == place, "the index of the groups points to another group");
      const Ranked first = lists_.ranked(group.first.id);
      require_integrity(first.key == group.first.key && first.sequence == group.first.sequence,
                        "a group goes by another cost than its first block's");
      lists_.check_list(group.id, group.first.id, goes_before);
    }
  }

 private:
  friend struct Damage;

  // The last group moves into the gap.
  void end_group(GroupId group) {
    const std::size_t gap = place_[index(group)];
    groups_[gap] = groups_.back();
    place_[index(groups_[gap].id)] = gap;
    groups_.pop_back();
  }

  // Of blocks that are of no use any more: little enough for them to go first, and still in the order of their worth.
  static constexpr double kBrokenValue = 1e-9;

  RankedLists lists_;
  std::vector<Group> groups_;
  std::vector<std::size_t> place_;  // of each group in groups_
};

}  // namespace agentcache
