// Pinned blocks: whose they are, and in which order they are lost.
#pragma once

#include <algorithm>
#include <cmath>
#include <compare>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <unordered_map>
#include <vector>

#include "core/block.hpp"
#include "core/errors.hpp"
#include "core/groups.hpp"
#include "core/rank_freed.hpp"

namespace agentcache {

/// How a block came to its pin: freed by the request that the pin is for; freed by another that used it; from the inner
/// evictor. Only of the first its return is still to be learnt from.
enum class Origin { kOwn, kReserved, kAdopted };

/// Blocks of a pin that came to it together.
struct PinnedGroup {
  double since_s;            ///< When they were freed.
  GroupContext context;      ///< Which all of them share.
  std::uint64_t sequence;    ///< Of its first block.
  std::vector<BlockId> ids;  ///< In the order in which they came.
};

/// The pin whose blocks are worth least goes first. To lose n blocks takes O(groups + n log groups).
class Pins {
 public:
  /// Makes room for blocks with the ids from 0 to `num_blocks` - 1. A pin's blocks go by position if `cheapest_first`,
  /// else in the order in which they came.
  Pins(std::size_t num_blocks, bool cheapest_first) : groups_(num_blocks), cheapest_first_(cheapest_first) {}

  /// Returns how many blocks all pins have; how many of them were adopted. O(1).
  std::size_t size() const { return size_; }
  std::size_t adopted() const { return adopted_; }
  /// Returns what each block of a pin is worth, and how many it has: 0 for a pin that there is not. O(1).
  double value_of(PinId pin) const {
    const auto found = pins_.find(pin);
    return found == pins_.end() ? 0.0 : found->second.value;
  }
  std::size_t size_of(PinId pin) const {
    const auto found = pins_.find(pin);
    return found == pins_.end() ? 0 : found->second.size;
  }

  /// Sets what each block of the pin is worth, now and later; the pin begins if need be. 0 at first. O(1).
  /// \throws std::invalid_argument unless it is finite and at least 0.
  void set_value(PinId pin, double value) {
    require_argument(value >= 0 && std::isfinite(value), "value must be finite and at least 0");
    record(pin).value = value;
  }

  /// Adds blocks that came to the pin together; the pin begins if need be. O(n log n).
  /// \pre None of them is in a pin.
  void add(PinId pin, const Freed& freed, Origin origin) {
    if (freed.size() == 0) return;
    const auto key_of = [this](std::int64_t position) { return cheapest_first_ ? static_cast<double>(position) : 0.0; };
    rank_freed(freed, key_of, ranked_);
    const GroupId group = groups_.add(ranked_, freed.last_s, freed.context);
    if (index(group) >= owners_.size()) owners_.resize(index(group) + 1);
    owners_[index(group)] = {&record(pin), freed.first_sequence, origin};
    owners_[index(group)].pin->size += freed.size();
    size_ += freed.size();
    if (origin == Origin::kAdopted) adopted_ += freed.size();
  }

  /// Returns the group that a block belongs to (valid until the next change), its pin, and how it came to it. O(1).
  /// \pre `id` is in a pin.
  const Group& group_of(BlockId id) const { return groups_.of(id); }
  PinId pin_of(BlockId id) const { return owner(groups_.of(id)).pin->id; }
  Origin origin_of(BlockId id) const { return owner(groups_.of(id)).origin; }

  /// Takes out a block that is used again. O(1).
  /// \pre `id` is in a pin.
  void erase(BlockId id) {
    const Owner& of = owner(groups_.of(id));
    --of.pin->size;
    --size_;
    if (of.origin == Origin::kAdopted) --adopted_;
    groups_.erase(id);
  }

  /// Ends a pin, and returns its groups and their blocks in the order in which they came. O(groups + n log n).
  std::vector<PinnedGroup> release(PinId pin) {
    const auto found = pins_.find(pin);
    if (found == pins_.end()) return {};
    std::vector<PinnedGroup> released;
    for (const Group& group : groups_) {
      if (owner(group).pin == &found->second) released.push_back(list(group));
    }
    std::ranges::sort(released, {}, &PinnedGroup::sequence);
    for (const PinnedGroup& group : released) {
      for (const BlockId id : group.ids) erase(id);
    }
    pins_.erase(found);
    return released;
  }

  /// Returns the `count` blocks to lose first. O(groups + n log groups).
  /// \pre There are at least so many.
  std::vector<BlockId> first_blocks(std::size_t count) const {
    return count == 0 ? std::vector<BlockId>{} : first_of(first_of_groups(nullptr), count);
  }

  /// Returns the `count` blocks that the pin would lose first. O(groups + n log groups).
  /// \pre It has at least so many.
  std::vector<BlockId> first_blocks_of(PinId pin, std::size_t count) const {
    const auto found = pins_.find(pin);
    return found == pins_.end() ? std::vector<BlockId>{} : first_of(first_of_groups(&found->second), count);
  }

  /// Checks groups and pins against each other.
  /// \throws IntegrityError unless the groups are right and the pins have as many blocks as they say.
  void check_integrity() const {
    groups_.check_integrity();
    std::unordered_map<const Pin*, std::size_t> sizes;
    std::size_t size = 0;
    std::size_t adopted = 0;
    for (const Group& group : groups_) {
      const std::size_t blocks = list(group).ids.size();
      sizes[owner(group).pin] += blocks;
      size += blocks;
      if (owner(group).origin == Origin::kAdopted) adopted += blocks;
    }
    require_integrity(size == size_, "the number of pinned blocks is wrong");
    require_integrity(adopted == adopted_, "the number of adopted blocks is wrong");
    for (const auto& [id, pin] : pins_) {
      const auto found = sizes.find(&pin);
      const std::size_t blocks = found == sizes.end() ? 0 : found->second;
      require_integrity(pin.id == id && pin.size == blocks, "a pin's number of blocks is wrong");
    }
  }

 private:
  friend struct Damage;

  struct Pin {
    PinId id;
    double value = 0.0;
    std::size_t size = 0;
  };

  struct Owner {
    Pin* pin;
    std::uint64_t sequence;
    Origin origin;
  };

  /// A group's first block that is left, by what decides.
  struct Candidate {
    double value;
    PinId pin;
    double key;
    std::uint64_t sequence;
    BlockId id;

    auto operator<=>(const Candidate&) const = default;

    void move_to(const Ranked& block) {
      key = block.key;
      sequence = block.sequence;
      id = block.id;
    }
  };

  const Owner& owner(const Group& group) const { return owners_[index(group.id)]; }
  Pin& record(PinId pin) { return pins_.try_emplace(pin, Pin{pin}).first->second; }

  std::vector<BlockId> first_of(std::vector<Candidate> candidates, std::size_t count) const {
    std::vector<BlockId> ids;
    ids.reserve(count);
    std::ranges::make_heap(candidates, std::greater<>());
    while (ids.size() < count) {
      std::ranges::pop_heap(candidates, std::greater<>());
      Candidate& first = candidates.back();
      ids.push_back(first.id);
      if (groups_.is_last(first.id)) {
        candidates.pop_back();
      } else {
        first.move_to(groups_.next(first.id));
        std::ranges::push_heap(candidates, std::greater<>());
      }
    }
    return ids;
  }

  // Of all pins, or of one.
  std::vector<Candidate> first_of_groups(const Pin* only) const {
    std::vector<Candidate> candidates;
    for (const Group& group : groups_) {
      const Pin& pin = *owner(group).pin;
      if (only != nullptr && &pin != only) continue;
      candidates.push_back({pin.value, pin.id, group.first.key, group.first.sequence, group.first.id});
    }
    return candidates;
  }

  PinnedGroup list(const Group& group) const {
    std::vector<Ranked> blocks{group.first};
    while (!groups_.is_last(blocks.back().id)) blocks.push_back(groups_.next(blocks.back().id));
    std::ranges::sort(blocks, {}, &Ranked::sequence);
    PinnedGroup listed{group.freed_s, group.context, owner(group).sequence, {}};
    for (const Ranked& block : blocks) listed.ids.push_back(block.id);
    return listed;
  }

  Groups groups_;
  std::vector<Owner> owners_;            // of each group
  std::unordered_map<PinId, Pin> pins_;  // Its entries stay where they are.
  std::size_t size_ = 0;
  std::size_t adopted_ = 0;
  bool cheapest_first_;
  std::vector<Ranked> ranked_;  // Kept for its memory.
};

}  // namespace agentcache
