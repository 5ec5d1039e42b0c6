// Whose a block is that several jobs have used: jobs that wait for it, and what each of them left.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <optional>
#include <unordered_map>
#include <vector>

#include "core/block.hpp"
#include "core/errors.hpp"
#include "core/groups.hpp"

namespace agentcache {

/// Remembers, for each block, the last two jobs that left it besides the one whose group it is in or came from. More
/// need no names: blocks that three jobs wait for are learnt of together.
class SharedBlockOwners {
 public:
  /// Makes room for blocks with the ids from 0 to `num_blocks` - 1.
  explicit SharedBlockOwners(std::size_t num_blocks) : others_(num_blocks, Jobs{kNoJob, kNoJob}) {}

  /// Notes the group that a job left last. O(1).
  void begin_group(JobNumber job, GroupId group) {
    if (job != kNoJob) newest_[job] = group;
  }

  /// Notes that a group of the job's has no block left. O(1).
  void end_group(JobNumber job, GroupId group) {
    const auto found = newest_.find(job);
    if (found != newest_.end() && found->second == group) newest_.erase(found);
  }

  /// Notes that the blocks of one group are in another now. O(1).
  void move_group(JobNumber job, GroupId from, GroupId to) {
    const auto found = newest_.find(job);
    if (found != newest_.end() && found->second == from) found->second = to;
  }

  /// Notes that a block that was in a group of `job` is used again. O(1).
  void note_use(BlockId id, JobNumber job) {
    Jobs& others = others_[index(id)];
    if (job != kNoJob && job != others[0]) others = {job, others[0]};
  }

  /// Finds the group that is to have a block, which `job` frees. Calls `is_better(group)` with what each other job that
  /// had it left last, if that still waits. O(1).
  /// \return The last group of which this was true.
  template <typename IsBetter>
  std::optional<GroupId> find_better_group(BlockId id, JobNumber job, const IsBetter& is_better) {
    Jobs& others = others_[index(id)];
    std::optional<GroupId> better;
    if (others[0] == kNoJob) return better;
    JobNumber owner = job;
    for (JobNumber& other : others) {
      const auto found = other == job ? newest_.end() : newest_.find(other);
      if (found == newest_.end()) {
        other = kNoJob;
      } else if (is_better(found->second)) {
        better = found->second;
        owner = other;
      }
    }
    if (better) std::ranges::replace(others, owner, job);
    if (others[0] == kNoJob) others = {others[1], kNoJob};
    return better;
  }

  /// Tells whether two jobs besides `job` wait for a block. O(1).
  bool is_awaited_by_others(BlockId id, JobNumber job) const {
    return std::ranges::all_of(others_[index(id)], [&](JobNumber other) {
      return other != kNoJob && other != job && newest_.contains(other);
    });
  }

  /// Forgets who left a block: its content is gone. O(1).
  void forget(BlockId id) { others_[index(id)] = {kNoJob, kNoJob}; }

  /// Checks the jobs' groups. O(groups + jobs).
  /// \throws IntegrityError unless each job's group is its own.
  void check_integrity(const Groups& groups) const {
    std::unordered_map<GroupId, JobNumber> owners;
    for (const Group& group : groups) owners[group.id] = group.context.job;
    for (const auto& [job, group] : newest_) {
      const auto found = owners.find(group);
      require_integrity(found != owners.end() && found->second == job, "a job's group is over, or another's");
    }
  }

 private:
  using Jobs = std::array<JobNumber, 2>;

  std::vector<Jobs> others_;                       // of each block, the latest first
  std::unordered_map<JobNumber, GroupId> newest_;  // of each job
};

}  // namespace agentcache
