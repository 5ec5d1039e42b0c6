// Which pins a block comes to when whoever uses it frees it.
#pragma once

#include <algorithm>
#include <cstddef>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "core/block.hpp"
#include "core/errors.hpp"

namespace agentcache {

/// The pins that have reserved each block. Several requests may have left the same block, a system prompt's, and each
/// is to find it again.
class PinReservations {
 public:
  /// Reserves a block for a pin. Does nothing if it is reserved for it already. O(1).
  void add(PinId pin, BlockId id) {
    if (blocks_[pin].insert(id).second) pins_[id].push_back(pin);
  }

  /// Returns the pins that have reserved a block, in the order in which they did. Valid until the next change. O(1).
  const std::vector<PinId>& of(BlockId id) const {
    static const std::vector<PinId> none;
    const auto found = pins_.find(id);
    return found == pins_.end() ? none : found->second;
  }

  /// Returns how many blocks a pin has reserved. O(1).
  std::size_t size_of(PinId pin) const {
    const auto found = blocks_.find(pin);
    return found == blocks_.end() ? 0 : found->second.size();
  }

  /// Drops the reservation of a block for a pin, if there is one. O(pins of the block).
  void drop(PinId pin, BlockId id) {
    const auto found = blocks_.find(pin);
    if (found == blocks_.end() || found->second.erase(id) == 0) return;
    if (found->second.empty()) blocks_.erase(found);
    erase_pin(pin, id);
  }

  /// Drops all reservations of a pin, which has ended.
  void drop_pin(PinId pin) {
    const auto found = blocks_.find(pin);
    if (found == blocks_.end()) return;
    for (const BlockId id : found->second) erase_pin(pin, id);
    blocks_.erase(found);
  }

  /// Drops all reservations of a block, whose KV is gone.
  void drop_block(BlockId id) {
    const std::vector<PinId> pins = of(id);
    for (const PinId pin : pins) drop(pin, id);
  }

  /// Checks blocks and pins against each other.
  /// \throws IntegrityError unless they agree on what is reserved for whom.
  void check_integrity() const {
    std::size_t by_block = 0;
    for (const auto& [id, pins] : pins_) {
      by_block += pins.size();
      require_integrity(!pins.empty(), "a block without reservations is listed");
      for (const PinId pin : pins) {
        const auto found = blocks_.find(pin);
        require_integrity(found != blocks_.end() && found->second.contains(id), "a pin does not know its reservation");
      }
    }
    std::size_t by_pin = 0;
    for (const auto& [pin, ids] : blocks_) by_pin += ids.size();
    require_integrity(by_block == by_pin, "a block does not know a reservation");
  }

 private:
  friend struct Damage;

  void erase_pin(PinId pin, BlockId id) {
    const auto found = pins_.find(id);
    std::erase(found->second, pin);
    if (found->second.empty()) pins_.erase(found);
  }

  std::unordered_map<BlockId, std::vector<PinId>> pins_;
  std::unordered_map<PinId, std::unordered_set<BlockId>> blocks_;
};

}  // namespace agentcache
