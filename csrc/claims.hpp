// Which pins a block comes to when whoever uses it frees it.
#pragma once

#include <algorithm>
#include <cstddef>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "block.hpp"
#include "errors.hpp"
#include "pins.hpp"

namespace agentcache {

/// Several requests may have left the same block, a system prompt's, and each is to find it again.
class Claims {
 public:
  /// Does nothing if the pin claims the block already.
  void add(PinId pin, BlockId id) {
    if (blocks_[pin].insert(id).second) pins_[id].push_back(pin);
  }

  /// The pins that claim a block, in the order in which they did.
  const std::vector<PinId>& of(BlockId id) const {
    static const std::vector<PinId> none;
    const auto found = pins_.find(id);
    return found == pins_.end() ? none : found->second;
  }

  /// How many blocks a pin claims.
  std::size_t size_of(PinId pin) const {
    const auto found = blocks_.find(pin);
    return found == blocks_.end() ? 0 : found->second.size();
  }

  void drop(PinId pin, BlockId id) {
    const auto found = blocks_.find(pin);
    if (found == blocks_.end() || found->second.erase(id) == 0) return;
    if (found->second.empty()) blocks_.erase(found);
    forget(pin, id);
  }

  /// The pin has ended.
  void drop_pin(PinId pin) {
    const auto found = blocks_.find(pin);
    if (found == blocks_.end()) return;
    for (const BlockId id : found->second) forget(pin, id);
    blocks_.erase(found);
  }

  /// The block's KV is gone.
  void drop_block(BlockId id) {
    const std::vector<PinId> pins = of(id);
    for (const PinId pin : pins) drop(pin, id);
  }

  /// Throws IntegrityError unless blocks and pins agree on who claims what.
  void check_integrity() const {
    std::size_t by_block = 0;
    for (const auto& [id, pins] : pins_) {
      by_block += pins.size();
      require_integrity(!pins.empty(), "a block without claims is listed");
      for (const PinId pin : pins) {
        const auto found = blocks_.find(pin);
        require_integrity(found != blocks_.end() && found->second.contains(id), "a pin does not know its claim");
      }
    }
    std::size_t by_pin = 0;
    for (const auto& [pin, ids] : blocks_) by_pin += ids.size();
    require_integrity(by_block == by_pin, "a block does not know a claim");
  }

 protected:
  std::unordered_map<BlockId, std::vector<PinId>> pins_;
  std::unordered_map<PinId, std::unordered_set<BlockId>> blocks_;

 private:
  void forget(PinId pin, BlockId id) {
    const auto found = pins_.find(id);
    std::erase(found->second, pin);
    if (found->second.empty()) pins_.erase(found);
  }
};

}  // namespace agentcache
