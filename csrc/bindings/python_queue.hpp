// The queue of free blocks for Python: blocks are objects there, known here by their id.
#pragma once

#include <pybind11/pybind11.h>

#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "bindings/python_attribute.hpp"
#include "bindings/python_sequence.hpp"
#include "core/free_queue.hpp"
#include "evictors/scanned_evictor.hpp"

namespace agentcache {

namespace py = pybind11;

/// FreeQueue with blocks as objects: translates them to ids and back.
///
/// It holds no object that knows it, such as the blocks (whose pool has the queue) or a scheduler's clock: Python's
/// garbage collector cannot look in here, and would never free such a circle. The caller brings them along.
class PythonQueue {
 public:
  /// As FreeQueue. Blocks are of the class `block_type`, whose attributes have the id and the position (None: 0).
  PythonQueue(std::size_t num_blocks, Evictor& evictor, bool notes_reuse, py::type block_type, py::str id_attribute,
              py::str position_attribute)
      : id_(block_type, std::move(id_attribute)),
        position_(block_type, std::move(position_attribute)),
        scans_(dynamic_cast<ScannedEvictor*>(&evictor) != nullptr),
        queue_(num_blocks, evictor, notes_reuse) {}

  // The methods of FreeQueue. In addition they throw error_already_set for objects that are no blocks.

  std::size_t num_free_blocks() const { return queue_.num_free_blocks(); }
  FreeContext context() const { return queue_.context(); }
  void set_context(const FreeContext& context) { queue_.set_context(context); }

  void free_n(const py::object& blocks, double now_s, std::optional<double> freed_s) {
    const Items items(blocks);
    if (items.size() == 0) return;
    for (PyObject* block : items) {
      id_.prefetch(block);
      position_.prefetch(block);
    }
    const std::vector<BlockId> ids = read_ids(items);
    std::vector<std::int64_t> positions;
    positions.reserve(items.size());
    for (PyObject* block : items) positions.push_back(read_position(block));
    queue_.free_n(ids, std::move(positions), now_s, freed_s);
  }

  void prepend_n(const py::object& blocks) { queue_.prepend_n(read_ids(Items(blocks))); }

  /// \pre `blocks[i]` has the id i, here, in `list_free` and in `list_first`.
  py::list take_n(const py::list& blocks, std::int64_t count, double now_s) {
    std::vector<BlockId> ids;
    {
      // Scans take long enough to let other threads run; the heaps' microseconds do not.
      std::optional<py::gil_scoped_release> unlocked;
      if (scans_) unlocked.emplace();
      ids = queue_.take_n(count, now_s);
    }
    return find_blocks(blocks, ids);
  }

  void remove(PyObject* block) { queue_.remove(read_id(block)); }

  void forget_kv_at(double now_s) { queue_.forget_kv_at(now_s); }

  py::list list_free(const py::list& blocks, double now_s) const {
    return find_blocks(blocks, queue_.list_free(now_s));
  }

  py::list list_first(const py::list& blocks, std::size_t count, double now_s) const {
    return find_blocks(blocks, queue_.list_first(count, now_s));
  }

  const Evictions& by_capacity() const { return queue_.by_capacity(); }
  const Evictions& by_reset() const { return queue_.by_reset(); }

 private:
  BlockId read_id(PyObject* block) const { return id_.read(block, to_integer<BlockId>); }

  // Without a hash, a block comes here only from a connector that may still read it: nothing to recompute.
  std::int64_t read_position(PyObject* block) const {
    return position_.read(
        block, [](PyObject* position) { return position == Py_None ? 0 : to_integer<std::int64_t>(position); });
  }

  std::vector<BlockId> read_ids(const Items& blocks) const {
    std::vector<BlockId> ids;
    ids.reserve(blocks.size());
    for (PyObject* block : blocks) ids.push_back(read_id(block));
    return ids;
  }

  // Blocks lie all over the memory: all are asked for before the first is waited for.
  static py::list find_blocks(const py::list& blocks, const std::vector<BlockId>& ids) {
    PyObject** items = reinterpret_cast<PyListObject*>(blocks.ptr())->ob_item;
    for (const BlockId id : ids) {
      if (id < 0 || index(id) >= blocks.size()) throw py::index_error("no block has the id " + std::to_string(id));
      __builtin_prefetch(&items[id]);
    }
    py::list found(ids.size());
    for (const BlockId id : ids) __builtin_prefetch(items[id], 1);
    for (std::size_t i = 0; i < ids.size(); ++i) {
      PyObject* block = items[ids[i]];
      Py_INCREF(block);
      PyList_SET_ITEM(found.ptr(), static_cast<Py_ssize_t>(i), block);
    }
    return found;
  }

  Attribute id_;
  Attribute position_;
  bool scans_;
  FreeQueue queue_;
};

}  // namespace agentcache
