// A scope with the default floating-point environment. Kernels must give the same bytes whatever the calling thread's
// floating-point control register holds (PyTorch's set_flush_denormal changes it), so each call, and each thread that
// it starts, uses this scope.
#pragma once

#include <cstdint>

#if defined(__SSE__)
#include <xmmintrin.h>
#endif

namespace gradwire {

class FloatEnvironment {
 public:
  FloatEnvironment() : saved_(control()) { set_control(kDefault); }
  ~FloatEnvironment() { set_control(saved_); }
  FloatEnvironment(const FloatEnvironment&) = delete;
  FloatEnvironment& operator=(const FloatEnvironment&) = delete;

 private:
#if defined(__SSE__)
  using Control = unsigned int;
  static constexpr Control kDefault = 0x1F80;
  static Control control() { return _mm_getcsr(); }
  static void set_control(Control value) { _mm_setcsr(value); }
#elif defined(__aarch64__)
  using Control = std::uint64_t;
  static constexpr Control kDefault = 0;
  static Control control() {
    Control value;
    asm volatile("mrs %0, fpcr" : "=r"(value));
    return value;
  }
  static void set_control(Control value) { asm volatile("msr fpcr, %0" : : "r"(value)); }
#else
#error "gradwire's kernels are written for x86-64 and aarch64; this processor is neither"
#endif

  Control saved_;
};

}  // namespace gradwire
