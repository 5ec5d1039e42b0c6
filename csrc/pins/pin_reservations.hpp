// Which pins a block joins when its user frees it.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <map>
#include <span>
#include <unordered_map>
#include <utility>
#include <vector>

#include "core/block.hpp"
#include "core/errors.hpp"

namespace agentcache {

/// The pins that have reserved each block. Several requests may have left the same block, a system prompt's, and each
/// is to find it again.
///
/// Blocks that the same pins have reserved are one set: a context costs its blocks once, and each pin that shares it
/// one number, however long it is. An *entry* is a pin in a set.
class PinReservations {
 public:
  using SetId = std::uint32_t;

  /// The set of the blocks that no pin has reserved.
  static constexpr SetId kNoSet = 0;

  /// Makes room for blocks with the ids from 0 to `num_blocks` - 1.
  explicit PinReservations(std::size_t num_blocks) : sets_(1), places_(num_blocks) {}

  /// Reserves blocks for a pin, but for those that are reserved for it already. O(blocks + entries of their sets).
  void add(PinId pin, std::span<const BlockId> ids) {
    regroup(ids, [pin](std::vector<PinId>& pins) {
      if (std::ranges::find(pins, pin) == pins.end()) pins.push_back(pin);
    });
  }

  /// Returns the set of a block. O(1).
  SetId set_of(BlockId id) const { return places_[index(id)].set; }
  /// Returns the pins that have reserved the blocks of a set, in the order in which they did. Valid until the next
  /// change. O(1).
  const std::vector<PinId>& pins_of(SetId set) const { return sets_[set].pins; }

  /// Returns how many blocks a pin has reserved. O(entries).
  std::size_t size_of(PinId pin) const {
    std::size_t size = 0;
    for (const Set& set : sets_) size += std::ranges::count(set.pins, pin) * set.blocks.size();
    return size;
  }

  /// Returns the number of entries, each of which takes 8 bytes. O(1).
  std::size_t entries() const { return entries_; }

  /// Drops the reservations of blocks for a pin, where there are any. O(blocks + entries of their sets).
  void drop(PinId pin, std::span<const BlockId> ids) {
    regroup(ids, [pin](std::vector<PinId>& pins) { std::erase(pins, pin); });
  }

  /// Drops all reservations of a pin, which has ended. O(entries + blocks of the pin).
  void drop_pin(PinId pin) {
    for (SetId set = kNoSet + 1; set < sets_.size(); ++set) {
      std::vector<PinId>& pins = sets_[set].pins;
      const auto found = std::ranges::find(pins, pin);
      if (found == pins.end()) continue;
      settle(sets_[set]);
      pins.erase(found);
      --entries_;
      if (!pins.empty()) continue;
      for (const BlockId id : sets_[set].blocks) places_[index(id)] = {};
      close(set);
    }
  }

  /// Drops all reservations of a block, whose KV is gone. O(1).
  void drop_block(BlockId id) {
    const SetId set = set_of(id);
    move(id, kNoSet);
    if (set != kNoSet && sets_[set].blocks.empty()) close(set);
  }

  /// Counts as a loss of each pin that has reserved it that a block was evicted, and drops its reservations. O(1).
  void lose(BlockId id) {
    Set& set = sets_[set_of(id)];
    if (set.lost++ == 0) lossy_.push_back(set_of(id));
    drop_block(id);
  }

  /// Counts as a loss that the pin has lost a block that was not reserved.
  void note_loss(PinId pin) { ++losses_[pin]; }

  /// Returns how many blocks each pin has lost since the last call, by pin. O(entries of the sets that lost blocks).
  std::map<PinId, std::size_t> take_losses() {
    for (const SetId set : std::exchange(lossy_, {})) settle(sets_[set]);
    return std::exchange(losses_, {});
  }

  /// Checks blocks and sets against each other.
  /// \throws IntegrityError unless they agree on what is reserved for which pins.
  void check_integrity() const {
    std::size_t entries = 0;
    std::size_t reserved = 0;
    for (SetId id = kNoSet; id < sets_.size(); ++id) {
      const Set& set = sets_[id];
      require_integrity(set.pins.empty() == set.blocks.empty(),
                        "a set has pins without blocks, or blocks without pins");
      for (std::size_t i = 0; i < set.blocks.size(); ++i) {
        const Place& place = places_[index(set.blocks[i])];
        require_integrity(place.set == id && place.index == i, "a block does not know its set");
      }
      std::vector<PinId> pins = set.pins;
      std::ranges::sort(pins);
      require_integrity(std::ranges::adjacent_find(pins) == pins.end(), "a pin is in a set twice");
      entries += set.pins.size();
      reserved += set.blocks.size();
    }
    require_integrity(entries == entries_, "the number of entries is wrong");
    const auto in_no_set = std::ranges::count(places_, kNoSet, &Place::set);
    require_integrity(reserved + static_cast<std::size_t>(in_no_set) == places_.size(), "a set does not know a block");
  }

 private:
  friend struct Damage;

  struct Set {
    std::vector<PinId> pins;
    std::vector<BlockId> blocks;
    std::size_t lost = 0;  // Blocks that are in no pin's losses yet.
  };

  struct Place {
    SetId set = kNoSet;
    std::uint32_t index = 0;  // Among the set's blocks.
  };

  // Moves each block to the set with the pins that `change` makes of those of its own.
  template <typename Change>
  void regroup(std::span<const BlockId> ids, const Change& change) {
    std::unordered_map<SetId, SetId> targets;
    SetId target = kNoSet;
    for (const BlockId id : ids) {
      const SetId from = set_of(id);
      const auto [found, is_new] = targets.try_emplace(from, from);
      if (is_new) {
        std::vector<PinId> pins = sets_[from].pins;
        change(pins);
        // Blocks of one context are neighbours: what other pins have left of its sets becomes one again.
        if (pins != sets_[from].pins) found->second = pins == sets_[target].pins ? target : open(std::move(pins));
      }
      target = found->second;
      move(id, target);
    }
    // Not before: a set that is opened in between must not get the number of one that is in `targets`.
    for (const auto& [from, to] : targets) {
      if (from != to && from != kNoSet && sets_[from].blocks.empty()) close(from);
    }
  }

  SetId open(std::vector<PinId> pins) {
    if (pins.empty()) return kNoSet;
    entries_ += pins.size();
    if (unused_.empty()) {
      sets_.push_back({std::move(pins), {}});
      return static_cast<SetId>(sets_.size() - 1);
    }
    const SetId set = unused_.back();
    unused_.pop_back();
    sets_[set].pins = std::move(pins);
    return set;
  }

  // Of a set without blocks, or without pins.
  void close(SetId set) {
    settle(sets_[set]);
    entries_ -= sets_[set].pins.size();
    sets_[set] = {};
    unused_.push_back(set);
  }

  void settle(Set& set) {
    if (set.lost == 0) return;
    for (const PinId pin : set.pins) losses_[pin] += set.lost;
    set.lost = 0;
  }

  void move(BlockId id, SetId to) {
    Place& place = places_[index(id)];
    if (place.set == to) return;
    if (place.set != kNoSet) {
      std::vector<BlockId>& blocks = sets_[place.set].blocks;
      blocks[place.index] = blocks.back();
      places_[index(blocks.back())].index = place.index;
      blocks.pop_back();
    }
    place = {to, 0};
    if (to == kNoSet) return;
    place.index = static_cast<std::uint32_t>(sets_[to].blocks.size());
    sets_[to].blocks.push_back(id);
  }

  std::vector<Set> sets_;      // The first is of the blocks that no pin has reserved, and does not know them.
  std::vector<SetId> unused_;  // Numbers of sets that were closed.
  std::vector<Place> places_;  // of each block
  std::size_t entries_ = 0;
  std::vector<SetId> lossy_;  // Sets that have lost blocks; some may be closed since.
  std::map<PinId, std::size_t> losses_;
};

}  // namespace agentcache
