// The module ringcoll._core: the C ABI, for use by the package ringcoll only. The public interface
// is ringcoll/communicator.py.
#include <fmt/core.h>
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <string>
#include <utility>

#include "python/agent.h"
#include "python/comm.h"
#include "python/custom_rules.h"
#include "python/delta.h"
#include "python/interpreter.h"
#include "python/rules.h"
#include "python/tables.h"
#include "python/tensor.h"
#include "ringcoll/ringcoll.h"

namespace py = pybind11;

namespace ringcoll::python {
namespace {

using Guard = py::call_guard<Inside>;

/// Binds a method that takes the arguments of a collective call: Comm.run or Comm.start.
template <typename Class, typename Result>
void def_call(Class& cls, const char* name, Result (Comm::*method)(const CallArguments&),
              const char* doc) {
  cls.def(
      name,
      [method](Comm& self, std::string collective, py::sequence inputs, py::sequence outputs,
               std::string op, int root, Counts counts, Counts recv_counts, double prescale,
               double postscale, double timeout) {
        return (self.*method)(CallArguments{
            std::move(collective), std::move(op), root, std::move(inputs), std::move(outputs),
            std::move(counts), std::move(recv_counts), prescale, postscale, timeout});
      },
      py::arg("collective"), py::arg("inputs"), py::arg("outputs"), py::arg("op") = "sum",
      py::arg("root") = 0, py::arg("counts") = py::none(), py::arg("recv_counts") = py::none(),
      py::arg("prescale") = 1.0, py::arg("postscale") = 1.0, py::arg("timeout") = 0.0, doc,
      Guard());
}

/// Binds a method that takes the arguments of a message: send, recv, isend or irecv.
template <typename Class, typename Result>
void def_message(Class& cls, const char* name, Result (Comm::*method)(const MessageArguments&),
                 const char* doc) {
  cls.def(
      name,
      [method](Comm& self, py::object buffer, int64_t peer, int64_t tag, double timeout) {
        return (self.*method)(MessageArguments{std::move(buffer), peer, tag, timeout});
      },
      py::arg("buffer"), py::arg("peer"), py::arg("tag"), py::arg("timeout") = 0.0, doc, Guard());
}

void bind_comm(py::module_& module) {
  py::class_<Comm> comm(module, "Comm", "A communicator of the library.");
  comm.def(py::init<int, int, std::string, std::string, double>(), py::arg("rank"), py::arg("size"),
           py::arg("store"), py::arg("name") = "world", py::arg("timeout") = 0.0, Guard())
      .def_property_readonly("rank", &Comm::rank)
      .def_property_readonly("size", &Comm::size)
      .def_property_readonly("closed", &Comm::closed)
      .def("split", &Comm::split, py::arg("ranks"), py::arg("name"), Guard())
      .def("shrink", &Comm::shrink, py::arg("name"), Guard())
      .def("stats", &Comm::stats, Guard())
      .def("abort", &Comm::abort, py::arg("reason"), Guard())
      .def("close", &Comm::close, Guard());
  def_call(comm, "run", &Comm::run, "Runs a call to its end in this thread, without the GIL.");
  def_call(comm, "start", &Comm::start, "Starts a call.");
  def_message(comm, "send", &Comm::send, "Sends a message, without the GIL.");
  def_message(comm, "recv", &Comm::recv, "Receives one: (source, tag, bytes, elements).");
  def_message(comm, "isend", &Comm::isend, "Starts to send a message.");
  def_message(comm, "irecv", &Comm::irecv, "Starts to receive one.");
}

void bind_request(py::module_& module) {
  py::class_<Request>(module, "Request", "A call or a message in flight; keeps its tensors alive.")
      .def("wait", &Request::wait, py::arg("timeout") = -1.0,
           "True once the call has ended, False if timeout seconds passed first.", Guard())
      .def("done", &Request::done, Guard())
      .def("received", &Request::received,
           "(source, tag, bytes, elements), once a receive has ended.", Guard())
      .def("add_done_callback", &Request::add_done_callback, py::arg("function"),
           "Has the library's thread call function() once the call has ended; False if it has.",
           Guard());
}

void check_abi() {
  if (ringcoll_abi_version() == RINGCOLL_ABI_VERSION &&
      ringcoll_abi_revision() >= RINGCOLL_ABI_REVISION)
    return;
  std::string message = fmt::format(
      "libringcoll.so has ABI {}.{} (ringcoll {}), and ringcoll._core was built for {}.{}: install "
      "ringcoll again",
      ringcoll_abi_version(), ringcoll_abi_revision(), ringcoll_version(), RINGCOLL_ABI_VERSION,
      RINGCOLL_ABI_REVISION);
  throw py::import_error(message);
}

}  // namespace
}  // namespace ringcoll::python

PYBIND11_MODULE(_core, module) {
  using namespace ringcoll::python;
  check_abi();
  watch_interpreter();
  module.doc() = "The C ABI of ringcoll for the package's own use.";
  bind_comm(module);
  bind_request(module);
  bind_agent(module);
  bind_delta(module);
  bind_rules(module);
  bind_tables(module);
  bind_custom_rules(module);
  module.def("version", [] { return std::string(ringcoll_version()); });
  module.def("abi_version", &ringcoll_abi_version);
  module.def("info", &info, Guard());
  module.def("collectives", &collectives);
  module.def("simulate", &simulate, py::arg("request"), Guard());
  module.def(
      "dtype_of",
      [](py::object tensor) {
        return name_of(Tensor(std::move(tensor), Access::kRead, "the tensor").dtype());
      },
      py::arg("tensor"), Guard());
}
