// Copies of rows between host memory and the device, on streams of their own (csrc/store/copies.h).
#include <memory>

#include "launch.cuh"

namespace fastagg::cuda {
namespace {

class OnStreams : public store::Copies {
 public:
  explicit OnStreams(int device) : device_(device) {
    const DeviceGuard guard(device_);
    check(cudaStreamCreateWithFlags(&up_, cudaStreamNonBlocking), "a stream of copies");
    const cudaError_t second = cudaStreamCreateWithFlags(&down_, cudaStreamNonBlocking);
    if (second != cudaSuccess) (void)cudaStreamDestroy(up_);
    check(second, "a stream of copies");
  }

  ~OnStreams() override {
    int before = 0;
    (void)cudaGetDevice(&before);
    (void)cudaSetDevice(device_);
    (void)cudaDeviceSynchronize();
    for (const cudaEvent_t each : events_) (void)cudaEventDestroy(each);
    (void)cudaStreamDestroy(up_);
    (void)cudaStreamDestroy(down_);
    if (before != device_) (void)cudaSetDevice(before);
    (void)cudaGetLastError();
  }

  Mark mark() override {
    const DeviceGuard guard(device_);
    events_.reserve(events_.size() + 1);
    cudaEvent_t made{};
    check(cudaEventCreateWithFlags(&made, cudaEventDisableTiming | cudaEventBlockingSync), "an event");
    events_.push_back(made);
    return made;
  }

  bool pin(void* begin, size_t bytes) noexcept override {
    int before = 0;
    (void)cudaGetDevice(&before);
    (void)cudaSetDevice(device_);
    const bool pinned = cudaHostRegister(begin, bytes, cudaHostRegisterPortable) == cudaSuccess;
    if (!pinned) (void)cudaGetLastError();  // clears the error, so that the next call does not report it
    if (before != device_) (void)cudaSetDevice(before);
    return pinned;
  }

  void unpin(void* begin) noexcept override {
    if (cudaHostUnregister(begin) != cudaSuccess) (void)cudaGetLastError();
  }

  void up(void* device, Mark there, const void* host, Mark here, size_t bytes) override {
    copy(up_, device, host, bytes, cudaMemcpyHostToDevice, there, here);
  }

  void down(void* host, Mark here, const void* device, Mark there, size_t bytes) override {
    copy(down_, host, device, bytes, cudaMemcpyDeviceToHost, here, there);
  }

  void before(void* stream, const std::vector<Mark>& marks) override {
    const DeviceGuard guard(device_);
    for (const Mark mark : marks) follow(static_cast<cudaStream_t>(stream), mark);
  }

  void after(void* stream, const std::vector<Mark>& marks) override {
    const DeviceGuard guard(device_);
    for (const Mark mark : marks) record(static_cast<cudaStream_t>(stream), mark);
  }

  void wait(Mark mark) override {
    const DeviceGuard guard(device_);
    check(cudaEventSynchronize(event(mark)), "a copy of rows");
  }

  void put(void* device, const void* host, size_t bytes) override {
    settle();
    const DeviceGuard guard(device_);
    check(cudaMemcpy(device, host, bytes, cudaMemcpyHostToDevice), "copy to the device");
  }

  void get(void* host, const void* device, size_t bytes) override {
    settle();
    const DeviceGuard guard(device_);
    check(cudaMemcpy(host, device, bytes, cudaMemcpyDeviceToHost), "copy from the device");
  }

  void settle() override {
    const DeviceGuard guard(device_);
    check(cudaDeviceSynchronize(), "what was launched before");
  }

 private:
  static cudaEvent_t event(Mark mark) { return static_cast<cudaEvent_t>(mark); }
  void follow(cudaStream_t stream, Mark mark) { check(cudaStreamWaitEvent(stream, event(mark), 0), "wait for a row"); }
  void record(cudaStream_t stream, Mark mark) { check(cudaEventRecord(event(mark), stream), "mark a row"); }

  void copy(cudaStream_t stream, void* to, const void* from, size_t bytes, cudaMemcpyKind kind, Mark one, Mark other) {
    const DeviceGuard guard(device_);
    for (const Mark mark : {one, other}) follow(stream, mark);
    check(cudaMemcpyAsync(to, from, bytes, kind, stream), "copy a row");
    for (const Mark mark : {one, other}) record(stream, mark);
  }

  int device_;
  cudaStream_t up_{}, down_{};
  std::vector<cudaEvent_t> events_;
};

}  // namespace

std::unique_ptr<store::Copies> copies_on(int device) { return std::make_unique<OnStreams>(device); }

}  // namespace fastagg::cuda
