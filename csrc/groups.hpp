// Blocks that were freed together, the cheapest first: only that one competes with other groups'.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "block.hpp"
#include "errors.hpp"

namespace agentcache {

/// A group's id: an integer from 0. Ids of groups that ended are given again.
using GroupId = std::int32_t;

/// A cache line: all groups are scanned.
struct Group {
  double freed_s;
  Ending ending;
  Ranked first;        ///< Its cheapest block, by seconds.
  std::uint32_t size;  ///< Blocks at its beginning.
  GroupId id;

  /// Of the group that each of its blocks was at its beginning.
  double share() const { return 1.0 / size; }
};

/// A doubly linked list of blocks for each group, in arrays. The groups themselves are dense, for they are scanned.
class Groups {
 public:
  /// Blocks have the ids from 0 to `num_blocks` - 1.
  explicit Groups(std::size_t num_blocks) : links_(num_blocks), costs_(num_blocks) {}

  auto begin() const { return groups_.begin(); }
  auto end() const { return groups_.end(); }
  const Group& at(GroupId group) const { return groups_[place_[index(group)]]; }
  const Group& of(BlockId id) const { return at(links_[index(id)].group); }

  /// A new group of at least one block, in order. Each block's key is what its loss costs.
  GroupId add(std::span<const Ranked> blocks, double freed_s, const Ending& ending) {
    const GroupId group = unused_id();
    place_[index(group)] = groups_.size();
    groups_.push_back({freed_s, ending, blocks.front(), static_cast<std::uint32_t>(blocks.size()), group});
    for (std::size_t i = 0; i < blocks.size(); ++i) {
      const BlockId previous = i == 0 ? kNone : blocks[i - 1].id;
      const BlockId next = i + 1 == blocks.size() ? kNone : blocks[i + 1].id;
      put(blocks[i], {previous, next, group});
    }
    return group;
  }

  /// Puts blocks, in order, where they belong in a group that there is. O(blocks, and those of the group before them).
  void join(GroupId group, std::span<const Ranked> blocks) {
    Group& joined = groups_[place_[index(group)]];
    BlockId previous = kNone;
    BlockId next = joined.first.id;
    for (const Ranked& block : blocks) {
      for (; next != kNone && ranked(next) < block; next = links_[index(next)].next) previous = next;
      put(block, {previous, next, group});
      if (next != kNone) links_[index(next)].previous = block.id;
      if (previous != kNone) links_[index(previous)].next = block.id;
      if (previous == kNone) joined.first = block;
      previous = block.id;
    }
  }

  /// Whether `id` is the last of its group, and the one behind it if it is not.
  bool is_last(BlockId id) const { return links_[index(id)].next == kNone; }
  Ranked next(BlockId id) const { return ranked(links_[index(id)].next); }

  /// Takes a block out of its group, which ends with its last block.
  void erase(BlockId id) {
    const Link& link = links_[index(id)];
    if (link.next != kNone) links_[index(link.next)].previous = link.previous;
    if (link.previous != kNone) {
      links_[index(link.previous)].next = link.next;
    } else if (link.next != kNone) {
      groups_[place_[index(link.group)]].first = ranked(link.next);
    } else {
      end_group(link.group);
    }
  }

  /// Throws IntegrityError unless groups, links and order agree.
  void check_integrity() const {
    require_integrity(groups_.size() + ended_.size() == place_.size(), "the number of groups is wrong");
    for (std::size_t place = 0; place < groups_.size(); ++place) {
      const Group& group = groups_[place];
      require_integrity(place_[index(group.id)] == place, "the index of the groups points to another group");
      const Ranked first = ranked(group.first.id);
      require_integrity(first.key == group.first.key && first.sequence == group.first.sequence,
                        "a group goes by another cost than its first block's");
      check_links(group);
    }
  }

 protected:
  struct Link {
    BlockId previous;
    BlockId next;
    GroupId group;
  };

  struct Cost {
    double cost_s;
    std::uint64_t sequence;
  };

  std::vector<Group> groups_;
  std::vector<Link> links_;
  std::vector<Cost> costs_;
  std::vector<std::size_t> place_;  // of each group in groups_
  std::vector<GroupId> ended_;

 private:
  static constexpr BlockId kNone = -1;

  Ranked ranked(BlockId id) const { return {costs_[index(id)].cost_s, costs_[index(id)].sequence, id}; }

  void put(const Ranked& block, const Link& link) {
    links_[index(block.id)] = link;
    costs_[index(block.id)] = {block.key, block.sequence};
  }

  GroupId unused_id() {
    if (ended_.empty()) {
      place_.push_back(0);
      return static_cast<GroupId>(place_.size() - 1);
    }
    const GroupId group = ended_.back();
    ended_.pop_back();
    return group;
  }

  // The last group moves into the gap.
  void end_group(GroupId group) {
    const std::size_t gap = place_[index(group)];
    groups_[gap] = groups_.back();
    place_[index(groups_[gap].id)] = gap;
    groups_.pop_back();
    ended_.push_back(group);
  }

  void check_links(const Group& group) const {
    BlockId previous = kNone;
    for (BlockId id = group.first.id; id != kNone; previous = id, id = links_[index(id)].next) {
      const Link& link = links_[index(id)];
      require_integrity(link.group == group.id && link.previous == previous, "links of a group disagree");
      require_integrity(previous == kNone || ranked(previous) < ranked(id), "a group is out of order");
    }
  }
};

}  // namespace agentcache
