// Soft pins on top of any evictor: pinned blocks are free, and the last to be taken.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <map>
#include <span>
#include <unordered_map>
#include <vector>

#include "core/checked_evictor.hpp"
#include "pins/held_blocks.hpp"
#include "pins/pin_reservations.hpp"
#include "pins/pins.hpp"

namespace agentcache {

/// Blocks with KV are in a pin or in the inner evictor. Empty ones, which go before all others
/// in any case, stay here; at position 0 there is nothing to pin.
///
/// \note A pin begins with its first block, value or reservation, and ends with `release`.
class PinnedEvictor final : public CheckedEvictor {
 public:
  /// Knows the blocks from 0 to `num_blocks` - 1. A pin's blocks are lost by position if `cheapest_first`, else in the
  /// order in which they came.
  /// \pre `inner` outlives this evictor and is called by nothing else from now on.
  /// \throws std::invalid_argument unless `inner` is empty and knows as many blocks.
  PinnedEvictor(Evictor& inner, std::int64_t num_blocks, bool cheapest_first)
      : CheckedEvictor(num_blocks),
        inner_(inner),
        pins_(CheckedEvictor::num_blocks(), cheapest_first),
        reservations_(CheckedEvictor::num_blocks()),
        held_(CheckedEvictor::num_blocks()) {
    require_argument(inner.size() == 0, "the inner evictor holds blocks already");
    if (num_blocks == 0) return;
    // Refused now if the inner evictor has no such block, rather than in the midst of a call.
    const auto last = static_cast<BlockId>(num_blocks - 1);
    inner.add_empty({&last, 1});
    inner.remove(last);
  }

  /// Sets what the loss of each block of this pin would cost, against other pins. 0 at first. O(1).
  /// \throws std::invalid_argument unless the pin is at least 0, and the value finite and at least 0.
  void set_value(PinId pin, double value) {
    require_pin(pin);
    pins_.set_value(pin, value);
  }

  /// Reserves blocks of the pin's request that are in use: they come to it when they are freed. So do those that it
  /// had.
  /// \throws std::invalid_argument for a block that is free with KV, or that there is not.
  void reserve(PinId pin, std::span<const BlockId> ids) {
    require_pin(pin);
    for (const BlockId id : ids) {
      require_argument(held_.is_known(id), "there is no such block");
      require_argument(!held_.has_kv(id), "a block is free");
    }
    reservations_.add(pin, ids);
  }

  /// Ends the pin, and returns how many blocks it had. They age on in the inner evictor as if they had never been
  /// pinned, or in another pin that has reserved them.
  /// \throws std::invalid_argument unless the pin is at least 0 and `now_s` finite.
  std::size_t release(PinId pin, double now_s) {
    require_pin(pin);
    require_time(now_s);
    reservations_.drop_pin(pin);
    std::size_t count = 0;
    for (const PinnedGroup& group : pins_.release(pin)) {
      give_back(group.ids, group.since_s, group.context);
      count += group.ids.size();
    }
    return count;
  }

  /// Lets the `count` blocks that the pin would lose first go on as if it had been released, or all if it has fewer;
  /// returns how many. Throws as `release`.
  std::size_t release_some(PinId pin, std::size_t count, double now_s) {
    require_pin(pin);
    require_time(now_s);
    const std::vector<BlockId> ids = pins_.first_blocks_of(pin, std::min(count, pins_.size_of(pin)));
    for (std::span<const BlockId> rest = ids; !rest.empty();) {
      const Group group = pins_.group_of(rest.front());
      const auto end = std::ranges::find_if(rest, [&](BlockId id) { return pins_.group_of(id).id != group.id; });
      const auto alike = rest.first(static_cast<std::size_t>(end - rest.begin()));
      for (const BlockId id : alike) pins_.erase(id);
      reservations_.drop(pin, alike);
      give_back(alike, group.freed_s, group.context);
      rest = rest.subspan(alike.size());
    }
    return ids.size();
  }

  /// Protects blocks for a request that is about to use them: those free with KV that no pin has yet. Returns how many.
  /// For the inner evictor they are used again now. They are lost in the order given unless by position. Throws as
  /// `release`.
  std::size_t adopt(PinId pin, std::span<const BlockId> ids, double now_s) {
    require_pin(pin);
    require_time(now_s);
    std::vector<BlockId> adopted;
    for (const BlockId id : ids) {
      if (!can_be_adopted(id)) continue;
      inner_.remove(id);
      held_.set_pinned(id, true);
      adopted.push_back(id);
    }
    const auto differ = [this](BlockId left, BlockId right) {
      return held_.context_of(left) != held_.context_of(right);
    };
    for (std::span<const BlockId> rest = adopted; !rest.empty();) {
      const auto last = std::ranges::adjacent_find(rest, differ);
      const auto alike =
          rest.first(last == rest.end() ? rest.size() : static_cast<std::size_t>(last - rest.begin()) + 1);
      pin_group(pin, alike, now_s, Origin::kAdopted);
      rest = rest.subspan(alike.size());
    }
    return adopted.size();
  }

  /// Returns how many blocks a pin has now, 0 if there is no such pin. O(1).
  std::size_t size_of(PinId pin) const { return pins_.size_of(pin); }
  /// Returns how many blocks are reserved for the pin, those that it has included, but not those that it adopted.
  /// O(reservations).
  std::size_t reserved_by(PinId pin) const { return reservations_.size_of(pin); }
  /// Returns how many reservations there are: pins, counted once for each set of blocks that they alone have reserved.
  /// Each takes 8 bytes, and to end a pin takes O(reservations) with a small factor. O(1).
  std::size_t reservations() const { return reservations_.entries(); }
  /// Returns how many blocks all pins have; how many of them were adopted. O(1).
  std::size_t pinned() const { return pins_.size(); }
  std::size_t adopted() const { return pins_.adopted(); }
  /// Returns how many blocks each pin had or had reserved that were evicted since the last call, released pins' too.
  std::map<PinId, std::size_t> take_losses() { return reservations_.take_losses(); }

  /// Returns the evictor that orders the blocks in no pin.
  Evictor& inner() { return inner_; }

  // What comes back is the inner evictor's to learn from, here as well.
  void observe_reuse(double idle_s) override { inner_.observe_reuse(idle_s); }
  bool learns_reuse() const override { return inner_.learns_reuse(); }
  void forget(BlockId id) override {
    reservations_.drop_block(id);
    inner_.forget(id);
  }

 protected:
  void insert(const Freed& freed) override {
    const PinId pin = freed.context.pin;
    const GroupContext& unpinned = freed.context;
    std::vector<BlockId> own;
    std::vector<BlockId> others;
    for (std::size_t i = 0; i < freed.size(); ++i) {
      const BlockId id = freed.ids[i];
      held_.hold(id, freed.positions[i], unpinned);
      if (freed.positions[i] == 0) reservations_.drop_block(id);
      (pin != kNoPin && freed.positions[i] > 0 ? own : others).push_back(id);
    }
    give_back(others, freed.last_s, unpinned);
    if (pin == kNoPin) return;
    reservations_.add(pin, own);
    pin_group(pin, own, freed.last_s, Origin::kOwn);
  }

  void insert_empty(std::span<const BlockId> ids) override {
    for (const BlockId id : ids) forget(id);
  }

  void erase(BlockId id) override {
    if (!held_.is_pinned(id)) {
      inner_.remove(id);
    } else {
      pins_.erase(id);
    }
    held_.drop(id);
  }

  void take(std::size_t count, double now_s, std::vector<BlockId>& victims) override {
    const std::size_t from_inner = std::min(count, inner_.size());
    for (const BlockId id : inner_.evict(static_cast<std::int64_t>(from_inner), now_s)) {
      victims.push_back(id);
      held_.drop(id);
    }
    for (const BlockId id : pins_.first_blocks(count - from_inner)) {
      victims.push_back(id);
      lose(id);
    }
  }

  std::vector<BlockId> first_with_kv(std::size_t count, double now_s) const override {
    std::vector<BlockId> first = inner_.first(count, now_s);
    return first.size() == count ? first : CheckedEvictor::first_with_kv(count, now_s);
  }

  std::vector<BlockId> order_with_kv(double now_s) const override {
    std::vector<BlockId> order = inner_.order(now_s);
    const std::vector<BlockId> pinned = pins_.first_blocks(pins_.size());
    order.insert(order.end(), pinned.begin(), pinned.end());
    return order;
  }

  void change_cost(std::span<const BlockId> ids, double cost_s) override {
    std::vector<BlockId> unpinned;
    std::ranges::copy_if(ids, std::back_inserter(unpinned), [this](BlockId id) { return !held_.is_pinned(id); });
    inner_.reprice(unpinned, cost_s);
  }

  void check_with_kv() const override {
    inner_.check_integrity();
    pins_.check_integrity();
    for (const BlockId id : pins_.first_blocks(pins_.size())) {
      require_integrity(held_.is_pinned(id), "a pin has a block that is not pinned");
    }
    require_integrity(held_.count_pinned() == pins_.size(), "a pinned block is in no pin");
    reservations_.check_integrity();
    for (BlockId id = 0; held_.is_known(id); ++id) {
      if (!held_.has_kv(id) || reservations_.set_of(id) == PinReservations::kNoSet) continue;
      require_integrity(held_.is_pinned(id), "a free block is reserved and not pinned");
    }
  }

 private:
  friend struct Damage;

  static void require_pin(PinId pin) { require_argument(pin >= 0, "the pin is negative"); }
  static void require_time(double now_s) { require_argument(std::isfinite(now_s), "now_s must be finite"); }

  bool can_be_adopted(BlockId id) const { return held_.is_known(id) && held_.has_kv(id) && !held_.is_pinned(id); }

  // Blocks with KV that are in no pin go to one that has reserved them, else to the inner evictor.
  void give_back(std::span<const BlockId> ids, double freed_s, const GroupContext& context) {
    std::map<PinId, std::vector<BlockId>> reserved;
    std::unordered_map<PinReservations::SetId, PinId> best;
    std::vector<BlockId> others;
    for (const BlockId id : ids) {
      held_.set_pinned(id, false);
      const PinReservations::SetId set = reservations_.set_of(id);
      if (set == PinReservations::kNoSet) {
        others.push_back(id);
        continue;
      }
      const auto [found, is_new] = best.try_emplace(set, kNoPin);
      if (is_new) found->second = best_of(reservations_.pins_of(set));
      reserved[found->second].push_back(id);
    }
    inner_.add(others, held_.positions_of(others), freed_s, FreeContext{context});
    for (const auto& [pin, its] : reserved) pin_group(pin, its, freed_s, Origin::kReserved);
  }

  PinId best_of(const std::vector<PinId>& pins) const {
    return *std::ranges::max_element(pins, {}, [this](PinId pin) { return pins_.value_of(pin); });
  }

  // Blocks of one context.
  void pin_group(PinId pin, std::span<const BlockId> ids, double now_s, Origin origin) {
    if (ids.empty()) return;
    for (const BlockId id : ids) held_.set_pinned(id, true);
    const std::vector<std::int64_t> positions = held_.positions_of(ids);
    pins_.add(pin, {ids, positions, now_s, {held_.context_of(ids.front())}, next_sequence_}, origin);
    next_sequence_ += ids.size();
  }

  void lose(BlockId id) {
    // What a pin has adopted it has not reserved, nor has another.
    if (pins_.origin_of(id) == Origin::kAdopted) {
      reservations_.note_loss(pins_.pin_of(id));
    } else {
      reservations_.lose(id);
    }
    pins_.erase(id);
    inner_.forget(id);
    held_.drop(id);
  }

  Evictor& inner_;
  Pins pins_;
  PinReservations reservations_;
  HeldBlocks held_;
  std::uint64_t next_sequence_ = 0;
};

}  // namespace agentcache
