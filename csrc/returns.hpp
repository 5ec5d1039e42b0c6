// Blocks that were used again and are yet to be learnt from: a removal does not tell the time, the next call does.
#pragma once

#include <vector>

#include "block.hpp"
#include "groups.hpp"

namespace agentcache {

class Returns {
 public:
  /// A block of this group was removed. Blocks of one group that are removed one after the other are one return.
  void note(const Group& group) {
    const bool is_same =
        !noted_.empty() && noted_.back().freed_s == group.freed_s && noted_.back().end_class == group.ending.end_class;
    if (!is_same) noted_.push_back({group.freed_s, group.ending.end_class, 0.0});
    noted_.back().share += group.share();
  }

  /// Calls `observe(end_class, age_s, share)` for each return since the last call.
  template <typename Function>
  void settle(double now_s, const Function& observe) {
    for (const Return& back : noted_) observe(back.end_class, now_s - back.freed_s, back.share);
    noted_.clear();
  }

 private:
  struct Return {
    double freed_s;
    EndClass end_class;
    double share;  // Of a group.
  };

  std::vector<Return> noted_;
};

}  // namespace agentcache
