// Binds the log: the journal of a folder, its records, and the disk that tests put in place of the system's.
#include "../log/journal.h"
#include "../log/operation.h"
#include "../store/process.h"
#include "host.h"
#include "ids.h"
#include "structs.h"

namespace fastagg::bindings {
namespace {

using namespace log;
using py::arg;

// A disk in Python, for tests: it may lose power. It has the methods of fastagg.durable.disk.Disk.
class PythonDisk : public Disk {
 public:
  explicit PythonDisk(py::object disk) : disk_(owner_of(std::move(disk))) {}

  int open(const std::string& name) override {
    return ask<int>(false, [&](py::handle disk) { return disk.attr("open")(name, arg("create") = true); });
  }
  void close(int file) noexcept override {
    try {
      tell(false, [&](py::handle disk) { disk.attr("close")(file); });
    } catch (const DiskFailed&) {  // the file is not written to any more
    }
  }
  uint64_t size(int file) override {
    return ask<uint64_t>(false, [&](py::handle disk) { return disk.attr("size")(file); });
  }
  void allocate(int file, uint64_t nbytes) override {
    tell(false, [&](py::handle disk) { disk.attr("allocate")(file, nbytes); });
  }
  void write(int file, std::vector<iovec>& buffers, uint64_t offset) override {
    tell(false, [&](py::handle disk) {
      py::list views;
      for (const iovec& one : buffers)
        views.append(py::memoryview::from_memory(one.iov_base, static_cast<py::ssize_t>(one.iov_len), true));
      disk.attr("write")(file, views, offset);
    });
  }
  void write_block(int file, const void* data, size_t nbytes, uint64_t offset) override {
    std::vector<iovec> one{{const_cast<void*>(data), nbytes}};
    write(file, one, offset);
  }
  void sync(int file) override {
    tell(true, [&](py::handle disk) { disk.attr("sync")(file); });
  }
  void sync_folder() override {
    tell(true, [&](py::handle disk) { disk.attr("sync_folder")(); });
  }
  void rename(const std::string& old_name, const std::string& new_name) override {
    tell(false, [&](py::handle disk) { disk.attr("rename")(old_name, new_name); });
  }

 private:
  // `final`: if it fails, nothing in this folder can be relied on any more.
  template <typename Act>
  void tell(bool final, Act act) {
    if (Py_IsInitialized() == 0) throw DiskFailed("Python has ended", true);
    const Holds held;
    try {
      act(py::handle(object_of(disk_)));
    } catch (py::error_already_set& error) {
      const bool of_disk = error.matches(PyExc_OSError);
      const std::string name = py::str(error.type().attr("__name__")), said = py::str(error.value());
      throw DiskFailed((name + ": " + said).c_str(), final || !of_disk);
    }
  }
  template <typename T, typename Act>
  T ask(bool final, Act act) {
    T found{};
    tell(final, [&](py::handle disk) { found = py::cast<T>(act(disk)); });
    return found;
  }

  store::Owner disk_;
};

Digest digest_of(const std::string& bytes) {
  Digest digest;
  if (bytes.size() != digest.size()) throw Refused("digest: expected 32 bytes");
  std::memcpy(digest.data(), bytes.data(), bytes.size());
  return digest;
}

std::shared_ptr<Journal> begin_journal(py::object disk, const py::dict& given) {
  using Start = Journal::Start;
  Start start;
  set_fields(start, given, "folder", &Start::folder, "folder_id", &Start::folder_id, "sequence", &Start::sequence,
             "number", &Start::number, "segment_bytes", &Start::segment_bytes, "pending_bytes", &Start::pending_bytes,
             "free", &Start::free, "place", &Start::place, "number_here", &Start::number_here);
  start.digest = digest_of(py::cast<std::string>(given["digest"]));
  for (const auto& [name, first] : py::cast<std::vector<std::pair<std::string, uint64_t>>>(given["busy"]))
    start.busy.push_back({name, first});
  std::unique_ptr<Disk> on;
  if (const py::object folder = disk.attr("descriptor"); folder.is_none()) {
    on = std::make_unique<PythonDisk>(std::move(disk));
  } else {
    on = std::make_unique<SystemDisk>(py::cast<int>(folder));
  }
  return Journal::begin(std::move(on), std::move(start));
}

template <typename Data>
py::bytes bytes_of(const Data& data) {
  return {reinterpret_cast<const char*>(data.data()), data.size()};
}

Bytes bytes_in(py::object held) {
  const py::buffer_info info = py::reinterpret_borrow<py::buffer>(held).request();
  return {static_cast<const uint8_t*>(info.ptr), static_cast<size_t>(info.size), owner_of(std::move(held))};
}

// `files`: of each segment its name for messages, its number, its bytes, and its first block. `load(i)` reads all of
// one.
std::shared_ptr<Reader> read_log(const std::vector<std::tuple<std::string, uint64_t, uint64_t, std::string>>& files,
                                 const py::function& load, uint64_t sequence, uint64_t folder,
                                 const std::string& digest, uint64_t end) {
  std::vector<Reader::File> given;
  for (const auto& [name, number, size, block] : files)
    given.push_back({name, number, size, {block.begin(), block.end()}});
  const auto loaded = [load](size_t file) { return bytes_in(load(file)); };
  return std::make_shared<Reader>(given, loaded, Reader::After{sequence, folder, digest_of(digest), end});
}

struct ReadRecord {
  std::optional<Operation> operation;
  std::string wrong;  // why there is none
  uint64_t sequence, length;
  size_t segment, begin;
  py::object body;  // keeps the memory of its parts
};

py::object read_record(const std::optional<Record>& record) {
  if (!record) return py::none();
  ReadRecord found{std::nullopt,
                   "",
                   record->head.sequence,
                   record->head.length,
                   record->segment,
                   record->begin,
                   py::reinterpret_borrow<py::object>(object_of(record->owner))};
  try {
    found.operation = read(record->head.kind, record->body, record->head.length);
  } catch (const Refusal& refused) {
    found.wrong = refused.what();
  }
  return py::cast(std::move(found));
}

py::dict described(const Operation& operation) {
  py::dict found;
  found["kind"] = name_of(operation.kind);
  found["client"] = to_python(operation.client);
  found["version"] = operation.version;
  found["incarnation"] = operation.incarnation;
  found["rate"] = operation.rate;
  found["task"] = operation.task;
  found["share"] = operation.share;
  const Decided& said = operation.decided;
  found["known"] = said.known != 0;
  found["decided"] = py::make_tuple(said.applied != 0, int64_t{said.version}, double{said.step_size},
                                    double{said.weight}, double{said.norm});
  py::list parts;
  for (const Part& part : operation.parts) parts.append(py::make_tuple(part.role, part.dtype, part.count));
  found["parts"] = parts;
  return found;
}

}  // namespace

void bind_log(py::module_& m) {
  const py::kw_only by_name;
  py::class_<Blob, std::shared_ptr<Blob>>(m, "Blob")
      .def(py::init([](uint64_t number, uint64_t nbytes, uint32_t crc, int dtype) {
             auto blob = std::make_shared<Blob>();
             blob->number = number, blob->nbytes = nbytes, blob->crc = crc, blob->dtype = static_cast<uint8_t>(dtype);
             return blob;
           }),
           by_name, arg("number"), arg("nbytes"), arg("crc"), arg("dtype"))
      .def_property_readonly("sequence", [](const Blob& blob) { return blob.sequence.load(); });

  py::class_<Journal, std::shared_ptr<Journal>>(m, "Journal")
      .def(py::init(&begin_journal), arg("disk"), arg("start"))
      .def_property(
          "mode", [](const Journal& one) { return static_cast<int>(one.mode.load()); },
          [](Journal& one, const std::string& mode) {
            one.mode = mode == "arrival" ? Journal::Mode::kArrival
                       : mode == "step"  ? Journal::Mode::kStep
                                         : Journal::Mode::kNone;
          })
      .def_property(
          "max_waiting", [](const Journal& one) { return one.max_waiting.load(); },
          [](Journal& one, int64_t most) { one.max_waiting = most; })
      .def("check", &Journal::check)
      .def("wait", &Journal::wait)
      .def("wait_written", &Journal::wait_written)
      .def("nudge", &Journal::nudge)
      .def("close", &Journal::close)
      .def("release",
           [](Journal& one, uint64_t sequence) {
             try {
               return one.release(sequence);
             } catch (const DiskFailed& failed) {
               PyErr_SetString(PyExc_OSError, failed.what());
               throw py::error_already_set();
             }
           })
      .def("reuse", &Journal::reuse)
      .def("give_up", &Journal::give_up)
      .def_property_readonly("failure", &Journal::failure)
      .def_property_readonly("ended", &Journal::ended)
      .def("digest",
           [](const Journal& one, uint64_t sequence) -> py::object {
             const auto found = one.digest(sequence);
             return found ? bytes_of(*found) : py::object(py::none());
           })
      .def("mark", &Journal::mark)
      .def_property_readonly("last", &Journal::last)
      .def_property_readonly("durable", [](const Journal& one) { return one.durable.load(); })
      .def_property_readonly("syncs", [](const Journal& one) { return one.syncs.load(); })
      .def_property_readonly("groups", [](const Journal& one) { return one.groups.load(); })
      .def_property_readonly("written", [](const Journal& one) { return one.written.load(); })
      .def_property_readonly("pending", [](const Journal& one) { return one.pending.load(); })
      .def_property_readonly("waiting", [](const Journal& one) { return one.waiting.load(); })
      .def_static("waited", &Journal::waited);

  m.def("keep_from_children", &store::keep_from_children);
  m.def("share", &store::share);
  py::class_<Operation>(m, "Operation")
      .def_property_readonly("kind", [](const Operation& one) { return name_of(one.kind); })
      .def_property_readonly("client", [](const Operation& one) { return to_python(one.client); })
      .def_readonly("version", &Operation::version)
      .def_readonly("rate", &Operation::rate)
      .def("describe", &described)
      .def("again",
           [](const Operation& one, int64_t version, uint64_t incarnation) {
             Operation made = one;
             made.version = version, made.incarnation = incarnation, made.again = true;
             return made;
           })
      .def_property_readonly("streamed", [](const Operation& one) -> py::object {
        if (!one.streamed) return py::none();
        return py::make_tuple(one.streamed->number, one.streamed->nbytes, one.streamed->crc, one.streamed->dtype);
      });
  py::class_<ReadRecord>(m, "Record")
      .def_property_readonly("operation", [](const ReadRecord& one) { return one.operation; })
      .def_readonly("wrong", &ReadRecord::wrong)
      .def_readonly("sequence", &ReadRecord::sequence)
      .def_readonly("length", &ReadRecord::length)
      .def_property_readonly("place", [](const ReadRecord& one) { return py::make_tuple(one.segment, one.begin); })
      .def_readonly("body", &ReadRecord::body);
  m.def("records_in", [](py::object held) {
    py::list found;
    for (const Record& record : records_in(bytes_in(std::move(held)))) found.append(read_record(record));
    return found;
  });
  py::class_<Reader, std::shared_ptr<Reader>>(m, "Reader")
      .def(py::init(&read_log), by_name, arg("files"), arg("load"), arg("sequence"), arg("folder"), arg("digest"),
           arg("end"))
      .def("next", [](Reader& one) { return read_record(one.next()); })
      .def_property_readonly("last", &Reader::last)
      .def_property_readonly("digest", [](const Reader& one) { return bytes_of(one.digest()); })
      .def_property_readonly("is_torn", &Reader::is_torn)
      .def_property_readonly("passed", &Reader::passed)
      .def_property_readonly("segments",
                             [](const Reader& one) {
                               py::list found;
                               for (const Reader::Segment& segment : one.segments())
                                 found.append(py::make_tuple(segment.number, segment.head.first));
                               return found;
                             })
      .def_property_readonly("mark", &Reader::mark)
      .def_property_readonly("end",
                             [](const Reader& one) { return py::make_tuple(one.segment(), one.place(), one.tail()); });
}

}  // namespace fastagg::bindings
