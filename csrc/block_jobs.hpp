// Whose a block is that several jobs have used: jobs that wait for it, and what each of them left.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <optional>
#include <unordered_map>
#include <vector>

#include "block.hpp"
#include "errors.hpp"
#include "groups.hpp"

namespace agentcache {

/// Remembers, for each block, the last jobs that left it besides the one whose group it is in or came from. A third is
/// forgotten: what so many share is used too often to be at risk.
class BlockJobs {
 public:
  /// Blocks have the ids from 0 to `num_blocks` - 1.
  explicit BlockJobs(std::size_t num_blocks) : jobs_(num_blocks, Jobs{kNoJob, kNoJob}) {}

  /// The group that a job left last.
  void begin_group(JobNumber job, GroupId group) {
    if (job != kNoJob) newest_[job] = group;
  }

  void end_group(JobNumber job, GroupId group) {
    const auto found = newest_.find(job);
    if (found != newest_.end() && found->second == group) newest_.erase(found);
  }

  /// A block that was in a group of `job` is used again.
  void note_use(BlockId id, JobNumber job) {
    Jobs& others = jobs_[index(id)];
    if (job != kNoJob && job != others[0]) others = {job, others[0]};
  }

  /// `job` frees a block. Calls `is_better(group)` with what each other job that had it left last, if that still waits;
  /// the last group of which this was true is to have the block.
  template <typename Function>
  std::optional<GroupId> find_home(BlockId id, JobNumber job, const Function& is_better) {
    Jobs& others = jobs_[index(id)];
    std::optional<GroupId> home;
    if (others[0] == kNoJob) return home;
    JobNumber host = job;
    for (JobNumber& other : others) {
      const auto found = other == job ? newest_.end() : newest_.find(other);
      if (found == newest_.end()) {
        other = kNoJob;
      } else if (is_better(found->second)) {
        home = found->second;
        host = other;
      }
    }
    if (home) std::ranges::replace(others, host, job);
    if (others[0] == kNoJob) others = {others[1], kNoJob};
    return home;
  }

  /// The block's content is gone.
  void forget(BlockId id) { jobs_[index(id)] = {kNoJob, kNoJob}; }

  /// Throws IntegrityError unless each job's group is its own.
  void check_integrity(const Groups& groups) const {
    std::unordered_map<GroupId, JobNumber> owners;
    for (const Group& group : groups) owners[group.id] = group.ending.job;
    for (const auto& [job, group] : newest_) {
      const auto found = owners.find(group);
      require_integrity(found != owners.end() && found->second == job, "a job's group is over, or another's");
    }
  }

 protected:
  using Jobs = std::array<JobNumber, 2>;

  std::vector<Jobs> jobs_;                         // of each block, the latest first
  std::unordered_map<JobNumber, GroupId> newest_;  // of each job
};

}  // namespace agentcache
