// The compiled half of the Python module: verbs as functions of texts of JSON. Users see
// foretrain/__init__.py.
//
// A verb runs on a thread of its own, without the interpreter's lock. The thread that called it
// looks for signals meanwhile: where Python raises for one, the verb stops first.
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <exception>
#include <mutex>
#include <thread>

#include "sim/base/stop.h"
#include "tools/python/calls.h"
#include "tools/version.h"

namespace py = pybind11;

namespace {

using foretrain::CallResult;

/// A verb on its own thread, which ends with this.
class Working {
 public:
  Working(const std::string& verb, const std::string& request)
      : x_thread([this, verb, request] { work(verb, request); }) {}
  ~Working() {
    x_stop = true;
    if (x_thread.joinable()) x_thread.join();
  }
  Working(const Working&) = delete;
  Working& operator=(const Working&) = delete;

  /// Whether it ended within `most`.
  bool wait(std::chrono::milliseconds most) {
    std::unique_lock lock(x_mutex);
    return x_changed.wait_for(lock, most, [this] { return x_done; });
  }

  CallResult take() {
    x_thread.join();
    if (x_thrown) std::rethrow_exception(x_thrown);
    return std::move(x_result);
  }

 private:
  void work(const std::string& verb, const std::string& request) {
    const foretrain::StopScope scope(&x_stop);
    try {
      x_result = foretrain::call_verb(verb, request);
    } catch (...) {
      x_thrown = std::current_exception();
    }
    const std::lock_guard lock(x_mutex);
    x_done = true;
    x_changed.notify_one();
  }

  std::atomic<bool> x_stop{false};
  std::mutex x_mutex;
  std::condition_variable x_changed;
  bool x_done = false;
  std::exception_ptr x_thrown;
  CallResult x_result;
  std::thread x_thread;  ///< last: it uses the others
};

/// Kind of error or "", JSON of the result or "", messages, warnings.
py::tuple call(const std::string& verb, const std::string& request) {
  constexpr std::chrono::milliseconds kBetweenLooks{50};
  CallResult result;
  bool raised = false;
  {
    const py::gil_scoped_release unlocked;
    Working working(verb, request);
    while (!raised && !working.wait(kBetweenLooks)) {
      const py::gil_scoped_acquire locked;
      raised = PyErr_CheckSignals() != 0;
    }
    if (!raised) result = working.take();
  }
  if (raised) throw py::error_already_set();  // style: allow
  return py::make_tuple(result.error, result.json, result.messages, result.warnings);
}

}  // namespace

PYBIND11_MODULE(_foretrain, module) {
  module.doc() = "The compiled half of foretrain; import foretrain instead.";
  module.attr("version") = std::string(foretrain::kVersion);
  module.attr("revision") = std::string(foretrain::kRevision);
  module.def("call", &call, py::arg("verb"), py::arg("request"));
}
