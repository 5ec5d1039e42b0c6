// What is known of the request that frees blocks: it travels with them to the evictor.
#pragma once

#include <cstdint>

namespace agentcache {

/// How the request finished, as a number of the caller's from 0: which tool it called, say. 0: unknown.
using FinishClass = std::int16_t;
constexpr FinishClass kMaxFinishClasses = 1024;
/// Of blocks that many jobs wait for: how one of them finished does not tell when the first of all comes back.
constexpr FinishClass kSharedClass = 3;

/// The agent's job that freed blocks, as a number of the caller's. kNoJob: unknown.
using JobNumber = std::int64_t;
constexpr JobNumber kNoJob = 0;

/// A pin, as any number of the caller's from 0. kNoPin: not pinned.
using PinId = std::int64_t;
constexpr PinId kNoPin = -1;

/// What blocks that were freed together keep of their request. Three words, because every group of blocks has one.
struct GroupContext {
  double factor = 1.0;           ///< Multiplies the value of the blocks. Above 0.
  JobNumber job = kNoJob;        ///< Whose request it was.
  FinishClass finish_class = 0;  ///< How it finished. Below kMaxFinishClasses.
  /// A later request can reuse the blocks as a prefix only, so the last of them is the first to lose.
  bool prefix_only : 1 = false;
  /// A later state of the same sequence makes the blocks needless: they go before all blocks that are worth something.
  bool superseded : 1 = false;
  /// The blocks are of use together alone: with the first that is lost, the others are worth nothing.
  bool whole : 1 = false;

  /// Compares field by field.
  bool operator==(const GroupContext&) const = default;
};

/// What the blocks that one request frees have in common.
struct FreeContext : GroupContext {
  PinId pin = kNoPin;  ///< Keeps the blocks, if the evictor knows pins.

  /// Compares field by field.
  bool operator==(const FreeContext&) const = default;

  /// Returns the context of blocks that another cache has as well, with `by` times their value.
  FreeContext of_copy(double by) const {
    FreeContext context = *this;
    context.factor *= by;
    return context;
  }

  /// Returns the same context without its pin.
  FreeContext without_pin() const {
    FreeContext context = *this;
    context.pin = kNoPin;
    return context;
  }
};

}  // namespace agentcache
