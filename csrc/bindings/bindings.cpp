// The Python module agentcache._evictor.
#include <pybind11/functional.h>
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <memory>
#include <optional>
#include <utility>

#include "bindings/python_evictor.hpp"
#include "bindings/python_queue.hpp"
#include "bindings/python_sequence.hpp"
#include "evictors/asymcache.hpp"
#include "evictors/asymcache_linear.hpp"
#include "evictors/lru.hpp"
#include "evictors/max_score.hpp"
#include "evictors/pensieve.hpp"
#include "evictors/return_time.hpp"
#include "pins/pinned.hpp"

namespace py = pybind11;
using namespace agentcache;

namespace {

// Scans take long enough to let other threads run; the heaps' microseconds do not.
template <typename Class>
void bind_heap_evict(Class& bound) {
  bound.def("evict", &Evictor::evict, py::arg("count"), py::arg("now_s"));
}

template <typename Class>
void bind_scan_evict(Class& bound) {
  bound.def("evict", &Evictor::evict, py::arg("count"), py::arg("now_s"), py::call_guard<py::gil_scoped_release>());
}

template <typename Policy, typename Class>
void bind_asymcache(Class& bound) {
  bound.def(py::init([](std::int64_t num_blocks, double alpha_s, double beta_s, double tau0_s, double slope_s,
                        double base_s, double floor_s, Lambda::Controller controller) {
              return std::make_unique<Policy>(num_blocks, ReuseFrequency(alpha_s, beta_s, tau0_s),
                                              RecomputeCost(slope_s, base_s, floor_s), std::move(controller));
            }),
            py::kw_only(), py::arg("num_blocks"), py::arg("alpha_s"), py::arg("beta_s"), py::arg("tau0_s"),
            py::arg("slope_s"), py::arg("base_s"), py::arg("floor_s"), py::arg("controller") = py::none());
  bound.def_property_readonly("lambda_value", [](Policy& evictor) { return evictor.lambda().value(); });
  bound.def("set_lambda", [](Policy& evictor, double value) { evictor.lambda().set(value); }, py::arg("value"));
}

void bind_evictor(py::module_& module) {
  py::class_<Evictor>(module, "Evictor")
      .def(
          "add",
          [](Evictor& evictor, const py::object& ids, const py::object& positions, double now_s,
             const FreeContext& context) {
            evictor.add(to_integers<BlockId>(ids), to_integers<std::int64_t>(positions), now_s, context);
          },
          py::arg("block_ids"), py::arg("positions"), py::arg("now_s"), py::arg("context") = FreeContext())
      .def(
          "add_empty", [](Evictor& evictor, const py::object& ids) { evictor.add_empty(to_integers<BlockId>(ids)); },
          py::arg("block_ids"))
      .def("remove", &Evictor::remove, py::arg("block_id"))
      .def("order", &Evictor::order, py::arg("now_s"), py::call_guard<py::gil_scoped_release>())
      .def("first", &Evictor::first, py::arg("count"), py::arg("now_s"), py::call_guard<py::gil_scoped_release>())
      .def("observe_reuse", &Evictor::observe_reuse, py::arg("idle_s"))
      .def(
          "reprice",
          [](Evictor& evictor, const std::vector<BlockId>& ids, double cost_s) { evictor.reprice(ids, cost_s); },
          py::arg("block_ids"), py::arg("cost_s"))
      .def("forget", &Evictor::forget, py::arg("block_id"))
      .def("__len__", &Evictor::size)
      .def("check_integrity", &Evictor::check_integrity);
}

void bind_pinned(py::module_& module) {
  py::class_<PinnedEvictor, Evictor> pinned(module, "PinnedEvictor", py::is_final());
  pinned
      .def(py::init<Evictor&, std::int64_t, bool>(), py::keep_alive<1, 2>(), py::arg("inner"), py::kw_only(),
           py::arg("num_blocks"), py::arg("cheapest_first"))
      .def(
          "reserve",
          [](PinnedEvictor& evictor, PinId pin, const py::object& ids) {
            evictor.reserve(pin, to_integers<BlockId>(ids));
          },
          py::arg("pin"), py::arg("block_ids"))
      .def("set_value", &PinnedEvictor::set_value, py::arg("pin"), py::arg("value"))
      .def("release_some", &PinnedEvictor::release_some, py::arg("pin"), py::arg("count"), py::arg("now_s"))
      .def("release", &PinnedEvictor::release, py::arg("pin"), py::arg("now_s"))
      .def(
          "adopt",
          [](PinnedEvictor& evictor, PinId pin, const py::object& ids, double now_s) {
            return evictor.adopt(pin, to_integers<BlockId>(ids), now_s);
          },
          py::arg("pin"), py::arg("block_ids"), py::arg("now_s"))
      .def("size_of", &PinnedEvictor::size_of, py::arg("pin"))
      .def("reserved_by", &PinnedEvictor::reserved_by, py::arg("pin"))
      .def_property_readonly("inner", &PinnedEvictor::inner)
      .def_property_readonly("pinned", &PinnedEvictor::pinned)
      .def_property_readonly("adopted", &PinnedEvictor::adopted)
      .def_property_readonly("reservations", &PinnedEvictor::reservations)
      .def("take_losses", &PinnedEvictor::take_losses);
  bind_heap_evict(pinned);
}

py::tuple to_tuple(const Evictions& evictions) {
  return py::make_tuple(evictions.blocks, evictions.age_s);
}

// The queue in a Python object of its class, or null before __init__. pybind11's own cast looks the class up each time.
PythonQueue* queue_in(PyObject* self) {
  const auto* instance = reinterpret_cast<py::detail::instance*>(self);
  return instance->simple_layout ? static_cast<PythonQueue*>(instance->simple_value_holder[0])
                                 : py::cast<PythonQueue*>(py::handle(self));
}

// vLLM removes blocks one by one; pybind11 would take as long to find this function as it takes to run. Python has
// checked `self` against the class that the function was made for.
PyObject* remove_block(PyObject* self, PyObject* block) {
  try {
    PythonQueue* queue = queue_in(self);
    require_argument(queue != nullptr, "the queue was not initialised");
    queue->remove(block);
    Py_RETURN_NONE;
  } catch (const NotFree&) {
    PyErr_Format(PyExc_RuntimeError, "remove() called on an invalid block: %S", block);
  } catch (py::error_already_set& error) {
    error.restore();
  } catch (const std::exception& error) {
    PyErr_SetString(PyExc_RuntimeError, error.what());
  }
  return nullptr;
}

FreeContext make_context(double factor, JobNumber job, FinishClass finish_class, bool prefix_only, bool superseded,
                         bool whole, std::optional<PinId> pin) {
  require_argument(!pin || *pin >= 0, "pin is negative");
  return {{factor, job, finish_class, prefix_only, superseded, whole}, pin.value_or(kNoPin)};
}

void bind_context(py::module_& module) {
  const FreeContext unknown;
  py::class_<FreeContext>(module, "FreeContext")
      .def(py::init(&make_context), py::kw_only(), py::arg("factor") = unknown.factor, py::arg("job") = unknown.job,
           py::arg("finish_class") = unknown.finish_class, py::arg("prefix_only") = unknown.prefix_only,
           py::arg("superseded") = unknown.superseded, py::arg("whole") = unknown.whole, py::arg("pin") = py::none())
      .def_readonly("factor", &FreeContext::factor)
      .def_readonly("job", &FreeContext::job)
      .def_readonly("finish_class", &FreeContext::finish_class)
      .def_property_readonly("prefix_only", [](const FreeContext& context) { return context.prefix_only; })
      .def_property_readonly("superseded", [](const FreeContext& context) { return context.superseded; })
      .def_property_readonly("whole", [](const FreeContext& context) { return context.whole; })
      .def("of_copy", &FreeContext::of_copy, py::arg("by"))
      .def("without_pin", &FreeContext::without_pin)
      .def_property_readonly("pin",
                             [](const FreeContext& context) {
                               return context.pin == kNoPin ? std::nullopt : std::optional<PinId>(context.pin);
                             })
      .def(
          "__eq__", [](const FreeContext& left, const FreeContext& right) { return left == right; }, py::is_operator())
      .def("__repr__", [](const FreeContext& context) {
        return py::str(
                   "FreeContext(factor={}, job={}, finish_class={}, prefix_only={}, superseded={}, whole={}, "
                   "pin={})")
            .format(context.factor, context.job, context.finish_class, context.prefix_only, context.superseded,
                    context.whole, context.pin == kNoPin ? py::object(py::none()) : py::int_(context.pin));
      });
}

void bind_queue(py::module_& module) {
  py::class_<PythonQueue> queue(module, "FreeQueue");
  queue
      .def(py::init<std::size_t, Evictor&, bool, py::type, py::str, py::str>(), py::keep_alive<1, 3>(), py::kw_only(),
           py::arg("num_blocks"), py::arg("evictor"), py::arg("notes_reuse"), py::arg("block_type"),
           py::arg("id_attribute"), py::arg("position_attribute"))
      .def_property("context", &PythonQueue::context, &PythonQueue::set_context)
      .def_property_readonly("num_free_blocks", &PythonQueue::num_free_blocks)
      .def("free_n", &PythonQueue::free_n, py::arg("blocks"), py::arg("now_s"), py::arg("freed_s") = py::none())
      .def("prepend_n", &PythonQueue::prepend_n, py::arg("blocks"))
      .def("take_n", &PythonQueue::take_n, py::arg("blocks"), py::arg("count"), py::arg("now_s"))
      .def_property_readonly("by_capacity", [](const PythonQueue& queue) { return to_tuple(queue.by_capacity()); })
      .def_property_readonly("by_reset", [](const PythonQueue& queue) { return to_tuple(queue.by_reset()); })
      .def("forget_kv_at", &PythonQueue::forget_kv_at, py::arg("now_s"))
      .def("list_free", &PythonQueue::list_free, py::arg("blocks"), py::arg("now_s"))
      .def("list_first", &PythonQueue::list_first, py::arg("blocks"), py::arg("count"), py::arg("now_s"));
  static PyMethodDef remove{"remove", remove_block, METH_O, nullptr};
  queue.attr("remove") =
      py::reinterpret_steal<py::object>(PyDescr_NewMethod(reinterpret_cast<PyTypeObject*>(queue.ptr()), &remove));
}

}  // namespace

PYBIND11_MODULE(_evictor, module) {
  module.doc() = "Evictors and the queue of free blocks, in C++. The module's .pyi documents them.";
  py::register_exception<IntegrityError>(module, "IntegrityError",
                                         py::module_::import("agentcache.errors").attr("IntegrityError"));
  py::register_exception<NotFree>(module, "NotFreeError", PyExc_KeyError);
  module.attr("SHARED_CLASS") = kSharedClass;
  bind_context(module);
  module.attr("UNKNOWN_REQUEST") = FreeContext();
  bind_evictor(module);
  bind_queue(module);

  py::class_<LruEvictor, Evictor> lru(module, "LruEvictor", py::is_final());
  lru.def(py::init<>());
  bind_heap_evict(lru);

  py::class_<PythonEvictor, Evictor>(module, "PythonEvictor").def(py::init<>());

  py::class_<AsymCacheEvictor, Evictor> asymcache(module, "AsymCacheEvictor", py::is_final());
  bind_asymcache<AsymCacheEvictor>(asymcache);
  bind_heap_evict(asymcache);

  py::class_<AsymCacheLinearEvictor, Evictor> asymcache_linear(module, "AsymCacheLinearEvictor", py::is_final());
  bind_asymcache<AsymCacheLinearEvictor>(asymcache_linear);
  bind_scan_evict(asymcache_linear);

  py::list edges;
  for (std::size_t bin = 0; bin <= AgeBins::kCount; ++bin) edges.append(AgeBins::edge_s(bin));
  module.attr("AGE_EDGES_S") = py::tuple(edges);
  py::class_<ReturnWaits>(module, "ReturnWaits")
      .def(py::init<double>(), py::kw_only(), py::arg("least_wait_s"))
      .def("expect", &ReturnWaits::expect, py::arg("finish_class"), py::arg("away"));

  py::class_<ReturnTimeEvictor, Evictor> return_time(module, "ReturnTimeEvictor", py::is_final());
  return_time.def(
      py::init([](std::int64_t num_blocks, double slope_s, double base_s, double floor_s, ReturnWaits& waits) {
        return std::make_unique<ReturnTimeEvictor>(num_blocks, RecomputeCost(slope_s, base_s, floor_s), waits);
      }),
      py::keep_alive<1, 6>(), py::kw_only(), py::arg("num_blocks"), py::arg("slope_s"), py::arg("base_s"),
      py::arg("floor_s"), py::arg("waits"));
  bind_heap_evict(return_time);

  py::class_<MaxScoreEvictor, Evictor> max_score(module, "MaxScoreEvictor", py::is_final());
  max_score.def(py::init([](std::int64_t num_blocks, double alpha_s, double beta_s, double tau0_s) {
                  return std::make_unique<MaxScoreEvictor>(num_blocks, ReuseFrequency(alpha_s, beta_s, tau0_s));
                }),
                py::kw_only(), py::arg("num_blocks"), py::arg("alpha_s"), py::arg("beta_s"), py::arg("tau0_s"));
  bind_scan_evict(max_score);

  py::class_<PensieveEvictor, Evictor> pensieve(module, "PensieveEvictor", py::is_final());
  pensieve.def(py::init([](std::int64_t num_blocks, double slope_s, double base_s, double floor_s) {
                 return std::make_unique<PensieveEvictor>(num_blocks, RecomputeCost(slope_s, base_s, floor_s));
               }),
               py::kw_only(), py::arg("num_blocks"), py::arg("slope_s"), py::arg("base_s"), py::arg("floor_s"));
  bind_scan_evict(pensieve);

  bind_pinned(module);
}
