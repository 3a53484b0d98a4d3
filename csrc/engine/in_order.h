// What is asked of a device between two points comes after all before, and is marked.
#pragma once

#include "../runner.h"

namespace fastagg::engine {

class InOrder {
 public:
  explicit InOrder(Runner& runner) : runner_(runner) { runner_.begin(); }
  InOrder(const InOrder&) = delete;
  InOrder& operator=(const InOrder&) = delete;
  ~InOrder() { runner_.end(); }

 private:
  Runner& runner_;
};

}  // namespace fastagg::engine
