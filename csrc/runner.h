// Where a server's kernels run: at once, or written down until `launch`. In between `prepare` gets ready what they
// need. It may fail, and then nothing has been done and `forget` drops what was asked for.
//
// Where they are not called at once, all that an arrival asks for comes between `begin` and `end`, also what the host
// language asks for itself: it is done when all before it is done.
#pragma once

#include <memory>
#include <vector>

#include "plan.h"
#include "store/vector.h"
#include "verdict.h"

namespace fastagg {

namespace cpu {
class Tensors;
}

class Runner {
 public:
  virtual ~Runner() = default;
  virtual void step(const Update& update, const Direction& direction, const Optimizer& optimizer) = 0;
  // [count, count], in double, on the diagonal and above it: the sums over all elements of the products of two updates,
  // each times what it is multiplied by; if `apart`, of the squares of their differences. `wanted`, [count, count]: the
  // pairs; null: all. At once, everywhere.
  virtual std::vector<double> pair_sums(const std::vector<Held>& held, int64_t size, const uint8_t* wanted,
                                        bool apart) = 0;
  // `upper` is for the processor alone.
  virtual void accumulate(const Update& update, const float* acc, double weight, float* out, const Upper& upper) = 0;
  virtual void recompute_sum(const Rows& rows, const float* weights, float* sum) = 0;
  virtual void add_rows(const Rows& rows, const std::vector<RowJob>& jobs, const float* weights, float weight) = 0;
  virtual void settle_rows(const std::vector<RowJob>& jobs, float* sum, int64_t size) = 0;
  virtual void zero(void* memory, int64_t bytes) = 0;
  // Whether a kernel is done when its call returns.
  virtual bool synchronous() const { return true; }
  virtual void settle() noexcept {}  // waits for all
  virtual void begin() {}
  virtual void end() noexcept {}
  // What reads a version on the caller's stream waits for it there.
  virtual void follow() {}
  // Keeps memory until the arrival's work is done.
  virtual void hold(const store::Owner&) {}
  // Gets the kernels of this optimizer, and of what else a rule needs, ready, so that the first arrival need not.
  struct Needs {
    int format = -1;  // of rows; negative: there are none
    bool noise = false, turns = false, combines = false;
  };
  virtual void load(const Optimizer&, const Needs&) {}

  // An update that the host does not read. Judging it brings it to the device, if it lies in host memory, and asks for
  // its norm.
  struct Unread {
    Update& update;
    store::Owner& owner;  // of its memory
    bool in_host;
    bool stays;        // it is read again later,
    bool encoded;      // and if it is encoded, its bytes alone
    bool waits;        // the caller waits for the verdict, before it asks for more
    double clip_norm;  // 0: none
  };
  virtual std::shared_ptr<Judgement> judge(const Unread&) { return nullptr; }
  // Finds what is asked of each tensor of an update on the device, and waits for it.
  virtual void sum_tensors(const Update&, cpu::Tensors&) {}
  // Lets an update that its sender may change become a copy, where `judge` is not asked.
  virtual void keep(Update&, store::Owner&) {}
  // The verdict of the last judge on the device, and whether the kernels of the next `prepare` obey one (cuda.h). Null:
  // none.
  virtual const void* verdict() const { return nullptr; }
  // Brings a verdict of somebody else's, which the device computes, to the host.
  virtual std::shared_ptr<Judgement> coming(const void*) { return nullptr; }
  virtual void obey(const void*) {}
  virtual void prepare() {}
  virtual void launch() {}
  virtual void forget() noexcept {}
};

// What is asked of a device between two points comes after all before, and is marked.
class InOrder {
 public:
  explicit InOrder(Runner& runner) : runner_(runner) { runner_.begin(); }
  InOrder(const InOrder&) = delete;
  InOrder& operator=(const InOrder&) = delete;
  ~InOrder() { runner_.end(); }

 private:
  Runner& runner_;
};

}  // namespace fastagg
