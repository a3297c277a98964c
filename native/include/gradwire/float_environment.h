// Kernels must give the same bytes whatever the calling thread did to its floating-point control register (PyTorch's
// set_flush_denormal changes it), so each call, and each thread that it starts, runs under the default environment.
#pragma once

#if defined(__SSE__)
#include <xmmintrin.h>
#endif

namespace gradwire {

class FloatEnvironment {
 public:
#if defined(__SSE__)
  FloatEnvironment() : saved_(_mm_getcsr()) { _mm_setcsr(0x1F80); }
  ~FloatEnvironment() { _mm_setcsr(saved_); }
#else
  FloatEnvironment() = default;
#endif
  FloatEnvironment(const FloatEnvironment&) = delete;
  FloatEnvironment& operator=(const FloatEnvironment&) = delete;

 private:
#if defined(__SSE__)
  unsigned int saved_;
#endif
};

}  // namespace gradwire
