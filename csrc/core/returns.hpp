// Blocks that were used again and are yet to be learnt from: a removal does not tell the time, the next call does.
#pragma once

#include <vector>

#include "core/block.hpp"
#include "core/groups.hpp"

namespace agentcache {

/// Returns of groups that were noted and not settled yet.
class Returns {
 public:
  /// Notes that a block of this group was removed. Blocks of one group that are removed one after the other are one
  /// return. O(1).
  void note(const Group& group) {
    const bool is_same = !noted_.empty() && noted_.back().freed_s == group.freed_s &&
                         noted_.back().finish_class == group.context.finish_class;
    if (!is_same) noted_.push_back({group.freed_s, group.context.finish_class, 0.0});
    noted_.back().share += group.share();
  }

  /// Calls `observe(finish_class, age_s, share)` for each return since the last call, as of `now_s`.
  template <typename Observe>
  void settle(double now_s, const Observe& observe) {
    for (const Return& back : noted_) observe(back.finish_class, now_s - back.freed_s, back.share);
    noted_.clear();
  }

 private:
  struct Return {
    double freed_s;
    FinishClass finish_class;
    double share;  // Of a group.
  };

  std::vector<Return> noted_;
};

}  // namespace agentcache
