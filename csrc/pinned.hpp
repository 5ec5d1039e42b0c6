// Soft pins on top of any evictor: pinned blocks are free, and the last to be taken.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <vector>

#include "checked_evictor.hpp"
#include "claims.hpp"
#include "pins.hpp"
#include "returns.hpp"

namespace agentcache {

/// Blocks with KV are in a pin or in the inner evictor, which learns from both. Empty ones, which go before all others
/// in any case, stay here; at position 0 there is nothing to pin.
class Pinned : public CheckedEvictor {
 public:
  /// `inner` must be empty, must outlive this evictor, and is called by nobody else from now on.
  Pinned(Evictor& inner, std::int64_t num_blocks, bool cheapest_first)
      : CheckedEvictor(num_blocks),
        inner_(inner),
        pins_(CheckedEvictor::num_blocks(), cheapest_first),
        held_(CheckedEvictor::num_blocks()) {
    require_argument(inner.size() == 0, "the inner evictor holds blocks already");
    if (num_blocks == 0) return;
    // Refused now if the inner evictor has no such block, rather than in the midst of a call.
    const auto last = static_cast<BlockId>(num_blocks - 1);
    inner.add_empty_n({&last, 1});
    inner.remove(last);
  }

  /// Whose the blocks with KV are that are added from now on; none: not pinned.
  void pin_next(std::optional<PinId> pin) {
    if (pin) require_pin(*pin);
    next_pin_ = pin;
  }

  /// What the loss of each block of this pin would cost, against other pins. 0 at first.
  void set_value(PinId pin, double value) {
    require_pin(pin);
    pins_.set_value(pin, value);
  }

  /// These blocks of the pin's request, which are in use, come to it when they are freed. So do those that it had.
  void claim(PinId pin, std::span<const BlockId> ids) {
    require_pin(pin);
    for (const BlockId id : ids) {
      require_argument(id >= 0 && index(id) < held_.size(), "there is no such block");
      require_argument(held_[index(id)].position == 0, "a block is free");
    }
    for (const BlockId id : ids) claims_.add(pin, id);
  }

  /// Ends the pin. The blocks left age on in the inner evictor as if they had never been pinned, or in another pin that
  /// claims them; their number.
  std::size_t release(PinId pin, double now_s) {
    require_pin(pin);
    require_time(now_s);
    learn(now_s);
    claims_.drop_pin(pin);
    std::size_t count = 0;
    for (const PinnedGroup& group : pins_.release(pin)) {
      give_back(group.ids, group.since_s, group.ending);
      count += group.ids.size();
    }
    return count;
  }

  /// The `count` blocks that the pin would lose first go on as if it had been released; how many there were.
  std::size_t release_some(PinId pin, std::size_t count, double now_s) {
    require_pin(pin);
    require_time(now_s);
    learn(now_s);
    const std::vector<BlockId> ids = pins_.first_blocks_of(pin, std::min(count, pins_.size_of(pin)));
    for (std::span<const BlockId> rest = ids; !rest.empty();) {
      const Group group = pins_.group_of(rest.front());
      const auto end = std::ranges::find_if(rest, [&](BlockId id) { return pins_.group_of(id).id != group.id; });
      const auto alike = rest.first(static_cast<std::size_t>(end - rest.begin()));
      for (const BlockId id : alike) {
        pins_.erase(id);
        claims_.drop(pin, id);
      }
      give_back(alike, group.freed_s, group.ending);
      rest = rest.subspan(alike.size());
    }
    return ids.size();
  }

  /// A request that is about to use these blocks protects them: those with KV that no pin has yet; their number. For
  /// the inner evictor they are used again now. They are lost in the order given unless by position.
  std::size_t adopt(PinId pin, std::span<const BlockId> ids, double now_s) {
    require_pin(pin);
    require_time(now_s);
    std::vector<BlockId> adopted;
    for (const BlockId id : ids) {
      if (!can_be_adopted(id)) continue;
      inner_.remove(id);
      held_[index(id)].is_pinned = true;
      adopted.push_back(id);
    }
    learn(now_s);
    const auto differ = [this](BlockId left, BlockId right) {
      return held_[index(left)].ending != held_[index(right)].ending;
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

  std::size_t size_of(PinId pin) const { return pins_.size_of(pin); }
  /// How many blocks the pin has or claims, those that it adopted not counted.
  std::size_t claimed_by(PinId pin) const { return claims_.size_of(pin); }
  std::size_t pinned() const { return pins_.size(); }
  std::size_t adopted() const { return pins_.adopted(); }
  std::map<PinId, std::size_t> take_losses() { return pins_.take_losses(); }

 protected:
  void insert(const Freed& freed) override {
    learn_returns(freed.last_s);
    std::vector<BlockId> own;
    std::vector<BlockId> others;
    for (std::size_t i = 0; i < freed.size(); ++i) {
      const BlockId id = freed.ids[i];
      held_[index(id)] = {freed.positions[i], freed.ending, false};
      if (freed.positions[i] == 0) claims_.drop_block(id);
      (next_pin_ && freed.positions[i] > 0 ? own : others).push_back(id);
    }
    // Even without blocks: the inner evictor learns the time and the class.
    give_back(others, freed.last_s, freed.ending);
    if (!next_pin_) return;
    for (const BlockId id : own) claims_.add(*next_pin_, id);
    pin_group(*next_pin_, own, freed.last_s, Origin::kOwn);
  }

  void insert_empty(std::span<const BlockId> ids) override {
    for (const BlockId id : ids) {
      claims_.drop_block(id);
      inner_.forget(id);
    }
  }

  // As from the inner evictor, what was removed is learnt from with the next call that tells the time.
  void erase(BlockId id) override {
    if (!held_[index(id)].is_pinned) {
      inner_.remove(id);
    } else {
      if (pins_.origin_of(id) == Origin::kOwn) returns_.note(pins_.group_of(id));
      pins_.erase(id);
    }
    held_[index(id)] = {};
  }

  void take(std::size_t count, double now_s, std::vector<BlockId>& victims) override {
    learn_returns(now_s);
    const std::size_t from_inner = std::min(count, inner_.size());
    for (const BlockId id : inner_.evict_n(static_cast<std::int64_t>(from_inner), now_s)) {
      victims.push_back(id);
      held_[index(id)] = {};
    }
    for (const BlockId id : pins_.first_blocks(count - from_inner)) {
      victims.push_back(id);
      lose(id, now_s);
    }
  }

  std::vector<BlockId> order_with_kv(double now_s) const override {
    std::vector<BlockId> order = inner_.order(now_s);
    const std::vector<BlockId> pinned = pins_.first_blocks(pins_.size());
    order.insert(order.end(), pinned.begin(), pinned.end());
    return order;
  }

  void check_with_kv() const override {
    inner_.check_integrity();
    pins_.check_integrity();
    for (const BlockId id : pins_.first_blocks(pins_.size())) {
      require_integrity(held_[index(id)].is_pinned, "a pin has a block that is not pinned");
    }
    const auto pinned = std::ranges::count(held_, true, &Held::is_pinned);
    require_integrity(static_cast<std::size_t>(pinned) == pins_.size(), "a pinned block is in no pin");
    claims_.check_integrity();
    for (std::size_t i = 0; i < held_.size(); ++i) {
      const auto id = static_cast<BlockId>(i);
      if (held_[i].position == 0 || claims_.of(id).empty()) continue;
      require_integrity(held_[i].is_pinned, "a free block is claimed and not pinned");
    }
  }

  /// What is known of a block with KV.
  struct Held {
    std::int64_t position = 0;  // 0: nothing to recompute, or not free.
    Ending ending;
    bool is_pinned = false;
  };

  Evictor& inner_;
  Pins pins_;
  Claims claims_;
  std::vector<Held> held_;  // of each block

 private:
  static void require_pin(PinId pin) { require_argument(pin >= 0, "the pin is negative"); }
  static void require_time(double now_s) { require_argument(std::isfinite(now_s), "now_s must be finite"); }

  bool can_be_adopted(BlockId id) const {
    if (id < 0 || index(id) >= held_.size()) return false;
    return held_[index(id)].position > 0 && !held_[index(id)].is_pinned;
  }

  std::vector<std::int64_t> positions_of(std::span<const BlockId> ids) const {
    std::vector<std::int64_t> positions;
    positions.reserve(ids.size());
    for (const BlockId id : ids) positions.push_back(held_[index(id)].position);
    return positions;
  }

  // Blocks with KV that are in no pin go to one that claims them, else to the inner evictor.
  void give_back(std::span<const BlockId> ids, double freed_s, const Ending& ending) {
    std::map<PinId, std::vector<BlockId>> claimed;
    std::vector<BlockId> others;
    for (const BlockId id : ids) {
      held_[index(id)].is_pinned = false;
      const std::vector<PinId>& pins = claims_.of(id);
      if (pins.empty()) {
        others.push_back(id);
      } else {
        claimed[*std::ranges::max_element(pins, {}, [this](PinId pin) { return pins_.value_of(pin); })].push_back(id);
      }
    }
    inner_.add_n(others, positions_of(others), freed_s, ending);
    for (const auto& [pin, its] : claimed) pin_group(pin, its, freed_s, Origin::kClaimed);
  }

  // Blocks of one ending.
  void pin_group(PinId pin, std::span<const BlockId> ids, double now_s, Origin origin) {
    if (ids.empty()) return;
    for (const BlockId id : ids) held_[index(id)].is_pinned = true;
    const Held& shared = held_[index(ids.front())];
    const std::vector<std::int64_t> positions = positions_of(ids);
    pins_.add(pin, {ids, positions, now_s, shared.ending, next_sequence_}, origin);
    next_sequence_ += ids.size();
  }

  void lose(BlockId id, double now_s) {
    const Group& group = pins_.group_of(id);
    if (pins_.origin_of(id) == Origin::kOwn) {
      inner_.observe_departure(group.ending.end_class, now_s - group.freed_s, group.share(), false);
    }
    for (const PinId pin : claims_.of(id)) {
      if (pin != pins_.pin_of(id)) pins_.note_loss(pin);
    }
    claims_.drop_block(id);
    pins_.lose(id);
    inner_.forget(id);
    held_[index(id)] = {};
  }

  // The inner evictor learns with what it is told next; what it is told of times that are past must not come first.
  void learn(double now_s) {
    learn_returns(now_s);
    inner_.evict_n(0, now_s);
  }

  void learn_returns(double now_s) {
    returns_.settle(now_s, [this](EndClass end_class, double age_s, double share) {
      inner_.observe_departure(end_class, age_s, share, true);
    });
  }

  std::optional<PinId> next_pin_;
  Returns returns_;
  std::uint64_t next_sequence_ = 0;
};

}  // namespace agentcache
