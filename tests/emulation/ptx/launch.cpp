// Launches PTX: the kernel that C++ names by its address is looked up by its name in nvcc's PTX. With
// FASTAGG_PTX_COUNTS=FILE in the environment, a process writes there at its end how often it has launched each kernel.
#include <cxxabi.h>
#include <dlfcn.h>
#include <elf.h>

#include <fstream>
#include <iterator>
#include <map>
#include <mutex>
#include <stdexcept>
#include <string>
#include <vector>

#include "machine.h"

namespace emulation::ptx {
namespace {

struct One {
  const Kernel* kernel = nullptr;
  long launches = 0;
};

// Both compilers' names of the same function: nvcc's anonymous namespace is one of the file's own, which the demangler
// reads as an anonymous one.
std::string plain(const char* mangled) {
  int status = 0;
  char* found = abi::__cxa_demangle(mangled, nullptr, nullptr, &status);
  const std::string name = found != nullptr ? found : mangled;
  free(found);
  return name;
}

class Kernels {
 public:
  ~Kernels() {
    const char* file = getenv("FASTAGG_PTX_COUNTS");
    if (file == nullptr) return;
    std::ofstream out(file, std::ios::app);
    for (const auto& [name, one] : named_) out << one.launches << ' ' << name << '\n';
  }
  void add(const File& file) {
    files_.push_back(file);
    for (int i = 0; i < file.count; ++i) {
      One& one = named_[plain(file.kernels[i].name)];
      if (one.kernel != nullptr) fault("two kernels have one name");
      one.kernel = &file.kernels[i];
    }
  }
  // Lets the error run that FASTAGG_PLANT names. It is read at every launch, so that a process can set it.
  void plant() {
    const char* wanted = getenv("FASTAGG_PLANT");
    if (planted_ == (wanted == nullptr ? "" : wanted)) return;
    planted_ = wanted == nullptr ? "" : wanted;
    for (const File& file : files_) {
      *file.plant = -1;
      for (size_t kind = 0; kind < file.kinds.size(); ++kind) {
        const std::string start = std::string(file.name) + ":" + file.kinds[kind] + ":";
        if (planted_.compare(0, start.size(), start) == 0)
          *file.plant = static_cast<int>(kind) * 1'000'000 + atoi(planted_.c_str() + start.size());
      }
    }
  }
  const Kernel& at(const void* address) {
    if (addressed_.empty()) read_symbols();
    const auto found = addressed_.find(reinterpret_cast<uintptr_t>(address));
    if (found == addressed_.end()) fault("a kernel without PTX");
    ++found->second->launches;
    return *found->second->kernel;
  }

 private:
  // Reads the symbols of the file that this code is in. The dynamic linker knows no names of hidden functions.
  void read_symbols() {
    Dl_info info;
    if (dladdr(reinterpret_cast<const void*>(&plain), &info) == 0) fault("this code is in no file");
    std::ifstream in(info.dli_fname, std::ios::binary);
    const std::vector<char> file((std::istreambuf_iterator<char>(in)), {});
    const auto* header = reinterpret_cast<const Elf64_Ehdr*>(file.data());
    const auto* sections = reinterpret_cast<const Elf64_Shdr*>(file.data() + header->e_shoff);
    for (int i = 0; i < header->e_shnum; ++i) {
      if (sections[i].sh_type != SHT_SYMTAB) continue;
      const char* names = file.data() + sections[sections[i].sh_link].sh_offset;
      const auto* symbols = reinterpret_cast<const Elf64_Sym*>(file.data() + sections[i].sh_offset);
      for (size_t s = 0; s < sections[i].sh_size / sizeof *symbols; ++s) {
        if (ELF64_ST_TYPE(symbols[s].st_info) != STT_FUNC || symbols[s].st_value == 0) continue;
        const auto one = named_.find(plain(names + symbols[s].st_name));
        if (one != named_.end())
          addressed_[reinterpret_cast<uintptr_t>(info.dli_fbase) + symbols[s].st_value] = &one->second;
      }
    }
  }

  std::vector<File> files_;
  std::string planted_;
  std::map<std::string, One> named_;
  std::map<uintptr_t, One*> addressed_;
};

Kernels& kernels() {
  static Kernels all;
  return all;
}

}  // namespace

void fault(const char* what) {
  fprintf(stderr, "PTX: block %u, thread %u: %s\n", blockIdx.x, threadIdx.x, what);
  abort();
}

Registered::Registered(const File& file) { kernels().add(file); }

void launch(const void* kernel, unsigned blocks, unsigned threads, const char* parameters, size_t bytes) {
  static std::mutex mutex;
  const Kernel* found = nullptr;
  {
    const std::lock_guard<std::mutex> lock(mutex);
    kernels().plant();
    found = &kernels().at(kernel);
  }
  if (found->bytes != bytes) fault("the host's parameters have another size than the kernel's");
  emulation::run(blocks, threads, [&] { found->run(parameters); });
}

}  // namespace emulation::ptx
