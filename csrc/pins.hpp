// Pinned blocks: whose they are, and in which order they are lost.
#pragma once

#include <algorithm>
#include <cmath>
#include <compare>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <unordered_map>
#include <utility>
#include <vector>

#include "block.hpp"
#include "errors.hpp"
#include "groups.hpp"

namespace agentcache {

/// A pin's id: any number of the caller's from 0.
using PinId = std::int64_t;

/// How a block came to its pin: freed by the request that the pin is for; freed by another that used it; from the inner
/// evictor. Only of the first its return is still to be learnt from.
enum class Origin { kOwn, kClaimed, kAdopted };

/// Blocks of a pin that came to it together.
struct PinnedGroup {
  double since_s;
  Ending ending;
  std::uint64_t sequence;  ///< Of its first block.
  std::vector<BlockId> ids;
};

/// The pin whose blocks are worth least goes first. To lose n blocks takes O(groups + n log groups).
class Pins {
 public:
  /// Blocks have the ids from 0 to `num_blocks` - 1. A pin's blocks go by position if `cheapest_first`, else in the
  /// order in which they came.
  Pins(std::size_t num_blocks, bool cheapest_first) : groups_(num_blocks), cheapest_first_(cheapest_first) {}

  std::size_t size() const { return size_; }
  /// Those that were adopted.
  std::size_t adopted() const { return adopted_; }
  double value_of(PinId pin) const {
    const auto found = pins_.find(pin);
    return found == pins_.end() ? 0.0 : found->second.value;
  }
  std::size_t size_of(PinId pin) const {
    const auto found = pins_.find(pin);
    return found == pins_.end() ? 0 : found->second.size;
  }

  /// What each block of the pin is worth, now and later. 0 at first.
  void set_value(PinId pin, double value) {
    require_argument(value >= 0 && std::isfinite(value), "value must be finite and at least 0");
    record(pin).value = value;
  }

  void add(PinId pin, const Freed& freed, Origin origin) {
    if (freed.size() == 0) return;
    sort_by_loss(freed);
    const GroupId group = groups_.add(sorted_, freed.last_s, freed.ending);
    if (index(group) >= owners_.size()) owners_.resize(index(group) + 1);
    owners_[index(group)] = {&record(pin), freed.first_sequence, origin};
    owners_[index(group)].pin->size += freed.size();
    size_ += freed.size();
    if (origin == Origin::kAdopted) adopted_ += freed.size();
  }

  /// The group that a pinned block belongs to, its pin, and how it came to it.
  const Group& group_of(BlockId id) const { return groups_.of(id); }
  PinId pin_of(BlockId id) const { return owner(groups_.of(id)).pin->id; }
  Origin origin_of(BlockId id) const { return owner(groups_.of(id)).origin; }

  /// The block is used again.
  void erase(BlockId id) {
    const Owner& of = owner(groups_.of(id));
    --of.pin->size;
    --size_;
    if (of.origin == Origin::kAdopted) --adopted_;
    groups_.erase(id);
  }

  /// The block is evicted.
  void lose(BlockId id) {
    note_loss(pin_of(id));
    erase(id);
  }

  /// The pin has lost a block that another had.
  void note_loss(PinId pin) { ++losses_[pin]; }

  /// How many blocks each pin has lost since the last call, by pin.
  std::map<PinId, std::size_t> take_losses() { return std::exchange(losses_, {}); }

  /// Ends a pin, and gives back its groups and their blocks in the order in which they came.
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

  /// The `count` blocks to lose first, of at least so many.
  std::vector<BlockId> first_blocks(std::size_t count) const {
    return count == 0 ? std::vector<BlockId>{} : first_of(first_of_groups(nullptr), count);
  }

  /// The `count` blocks that the pin would lose first, of at least so many.
  std::vector<BlockId> first_blocks_of(PinId pin, std::size_t count) const {
    const auto found = pins_.find(pin);
    return found == pins_.end() ? std::vector<BlockId>{} : first_of(first_of_groups(&found->second), count);
  }

  /// Throws IntegrityError unless the groups are right and the pins have as many blocks as they say.
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

 protected:
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

  Groups groups_;
  std::vector<Owner> owners_;            // of each group
  std::unordered_map<PinId, Pin> pins_;  // Its entries stay where they are.
  std::size_t size_ = 0;
  std::size_t adopted_ = 0;

 private:
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

  void sort_by_loss(const Freed& freed) {
    sorted_.clear();
    for (std::size_t i = 0; i < freed.size(); ++i) {
      const double key = cheapest_first_ ? static_cast<double>(freed.positions[i]) : 0.0;
      sorted_.push_back({key, freed.first_sequence + i, freed.ids[i]});
    }
    // A request's blocks come from its end to its start, as a rule.
    if (std::is_sorted(sorted_.rbegin(), sorted_.rend())) std::reverse(sorted_.begin(), sorted_.end());
    if (!std::is_sorted(sorted_.begin(), sorted_.end())) std::sort(sorted_.begin(), sorted_.end());
  }

  PinnedGroup list(const Group& group) const {
    std::vector<Ranked> blocks{group.first};
    while (!groups_.is_last(blocks.back().id)) blocks.push_back(groups_.next(blocks.back().id));
    std::ranges::sort(blocks, {}, &Ranked::sequence);
    PinnedGroup listed{group.freed_s, group.ending, owner(group).sequence, {}};
    for (const Ranked& block : blocks) listed.ids.push_back(block.id);
    return listed;
  }

  bool cheapest_first_;
  std::map<PinId, std::size_t> losses_;
  std::vector<Ranked> sorted_;  // Kept for its memory.
};

}  // namespace agentcache
