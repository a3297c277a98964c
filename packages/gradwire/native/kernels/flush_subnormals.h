// A scope in which subnormal operands are flushed to zero, for code whose results they can't change. They would cost
// about 150 cycles per vector.
#pragma once

#include <xmmintrin.h>

namespace gradwire {

namespace {

class FlushSubnormals {
 public:
  explicit FlushSubnormals(bool wanted) : saved_(_mm_getcsr()) {
    constexpr unsigned kFlushToZero = 0x8000;
    constexpr unsigned kDenormalsAreZero = 0x0040;
    if (wanted) _mm_setcsr(saved_ | kFlushToZero | kDenormalsAreZero);
  }
  ~FlushSubnormals() { _mm_setcsr(saved_); }
  FlushSubnormals(const FlushSubnormals&) = delete;
  FlushSubnormals& operator=(const FlushSubnormals&) = delete;

 private:
  unsigned saved_;
};

}  // namespace

}  // namespace gradwire
