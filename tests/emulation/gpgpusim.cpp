// Executes nvcc's PTX of the kernels in GPGPU-Sim, an outside simulator of NVIDIA's GPUs, for the emulation of CUDA
// (README.md). Its functional mode alone: no timing. Global memory is this process's own, so the emulation's streams
// and copies serve it unchanged.
#include <cxxabi.h>
#include <dlfcn.h>
#include <fcntl.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <map>
#include <string>

#include "libcuda/gpgpu_context.h"
#include "src/cuda-sim/ptx_ir.h"
#include "src/cuda-sim/ptx_sim.h"
#include "src/gpgpu-sim/gpu-sim.h"
#include "src/stream_manager.h"

// What parts of GPGPU-Sim define that are left out: its runtime, the interconnect, the power model.
gpgpu_context* GPGPU_Context() {
  static gpgpu_context* const made = new gpgpu_context();
  return made;
}
void ptxinfo_data::ptxinfo_addinfo() {}
class InterconnectInterface* g_icnt_interface;
extern "C" void no_power_model() asm("_ZN17gpgpu_sim_wrapperC1EbPcib");  // its constructor
void no_power_model() {}
extern void register_ptx_function(const char* name, function_info* function);

namespace {

struct Argument {  // emulation::Argument (cuda_runtime.h)
  const void* value;
  size_t size, alignment;
};

// The device's memory, at the addresses of this process. Static variables of PTX, below the first page that a process
// may have, are GPGPU-Sim's.
class HostMemory : public memory_space_impl<8192> {
 public:
  HostMemory() : memory_space_impl<8192>("global", 64) {}
  void write(mem_addr_t address, size_t length, const void* data, ptx_thread_info* thread,
             const ptx_instruction* instruction) override {
    if (address < kFirstPage) return memory_space_impl<8192>::write(address, length, data, thread, instruction);
    memcpy(reinterpret_cast<void*>(address), data, length);
  }
  void read(mem_addr_t address, size_t length, void* data) const override {
    if (address < kFirstPage) return memory_space_impl<8192>::read(address, length, data);
    memcpy(data, reinterpret_cast<const void*>(address), length);
  }

 private:
  static constexpr mem_addr_t kFirstPage = 1 << 16;
};

// Opens a private member: an explicit instantiation may name one.
memory_space* gpgpu_t::* global_memory();
template <memory_space* gpgpu_t::* member>
struct Opened {
  friend memory_space* gpgpu_t::* global_memory() { return member; }
};
template struct Opened<&gpgpu_t::m_global_mem>;

[[noreturn]] void fail(const std::string& what) {
  fprintf(stderr, "gpgpusim: %s\n", what.c_str());
  abort();
}

// GPGPU-Sim talks: into a file.
class Silence {
 public:
  explicit Silence(const std::string& folder) : stdout_(dup(1)) {
    fflush(stdout);
    const int log = open((folder + "/gpgpusim.log").c_str(), O_WRONLY | O_CREAT | O_APPEND, 0666);
    dup2(log, 1);
    close(log);
  }
  ~Silence() {
    fflush(stdout);
    dup2(stdout_, 1);
    close(stdout_);
  }

 private:
  int stdout_;
};

std::string demangled(const std::string& name) {
  int status = 0;
  char* const plain = abi::__cxa_demangle(name.c_str(), nullptr, nullptr, &status);
  const std::string result = status == 0 ? plain : name;
  free(plain);
  return result;
}

std::map<std::string, function_info*> functions;  // of the PTX, by their plain names

// The folder that .ci/gpgpusim.sh made: gpgpusim.config, the files of PTX, and `kernels`, which has a line for every
// kernel of the emulation's library: its offset there and its name.
class Simulator {
 public:
  static Simulator& instance() {
    static Simulator made(getenv("FASTAGG_GPGPUSIM"));
    return made;
  }

  void launch(const void* kernel, unsigned blocks, unsigned threads, const Argument* arguments, size_t count) {
    const Silence silence(folder_);
    Dl_info library;
    if (dladdr(kernel, &library) == 0) fail("a kernel of no library");
    const auto offset = static_cast<const char*>(kernel) - static_cast<const char*>(library.dli_fbase);
    const auto name = names_.find(offset);
    if (name == names_.end()) fail("a kernel without a name");
    const auto entry = functions.find(name->second);
    if (entry == functions.end()) fail("no PTX of " + name->second);
    function_info* const function = entry->second;
    if (!function->is_pdom_set()) {
      function->do_pdom();
      function->set_pdom();
    }
    kernel_info_t grid(dim3(blocks), dim3(threads), function, 0);
    for (size_t i = 0, at = 0; i < count; at += arguments[i++].size) {
      at = (at + arguments[i].alignment - 1) / arguments[i].alignment * arguments[i].alignment;
      gpgpu_ptx_sim_arg argument(arguments[i].value, arguments[i].size, at);
      function->add_param_data(static_cast<unsigned>(i), &argument);
    }
    function->finalize(grid.get_param_memory());
    gpgpu_sim* const gpu = context_->the_gpgpusim->g_the_gpu;
    unsigned& executed = context_->func_sim->g_ptx_sim_num_insn;
    const unsigned before = executed;
    gpu->functional_launch(&grid);
    while (!grid.no_more_ctas_to_run()) {
      functionalCoreSim block(&grid, gpu, 32);
      block.execute(0, grid.get_next_cta_id_single());
    }
    gpu->finish_functional_sim(&grid);
    counts_ << executed - before << '\t' << blocks << '\t' << threads << '\t' << name->second << std::endl;
  }

 private:
  explicit Simulator(const char* folder) : folder_(folder), counts_(folder_ + "/counts", std::ios::app) {
    const Silence silence(folder_);
    char here[4096];
    if (getcwd(here, sizeof here) == nullptr || chdir(folder) != 0) fail("no folder " + folder_);
    gpgpu_sim* const gpu = context_->gpgpu_ptx_sim_init_perf();
    gpu->*global_memory() = new HostMemory;
    std::ifstream files("files"), kernels("kernels");
    for (std::string file; files >> file;) {
      context_->init_parser(file.c_str());
      if (context_->ptx_parser->g_error_detected) fail("cannot read " + file);
    }
    std::string offset, name;
    while (kernels >> offset >> name) names_[static_cast<long>(std::stoul(offset, nullptr, 16))] = demangled(name);
    if (chdir(here) != 0) fail("cannot go back");
  }

  const std::string folder_;
  std::ofstream counts_;
  gpgpu_context* const context_ = GPGPU_Context();
  std::map<long, std::string> names_;
};

}  // namespace

void register_ptx_function(const char* name, function_info* function) { functions[demangled(name)] = function; }

extern "C" void fastagg_simulate(const void* kernel, unsigned blocks, unsigned threads, const Argument* arguments,
                                 size_t count) {
  Simulator::instance().launch(kernel, blocks, threads, arguments, count);
}
