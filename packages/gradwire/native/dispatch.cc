// The choice of a target. Only this file queries the CPU's features.
#include <atomic>
#include <cstring>

#include "gradwire/target.h"

#if defined(GRADWIRE_AARCH64)
#include <asm/hwcap.h>
#include <sys/auxv.h>
#endif

namespace gradwire {

extern const Target kScalarTarget;
#if defined(GRADWIRE_X86)
extern const Target kAvx2Target;
extern const Target kAvx512Target;
#elif defined(GRADWIRE_AARCH64)
extern const Target kNeonTarget;
#endif

bool cpu_runs_scalar() { return true; }

#if defined(GRADWIRE_X86)
bool cpu_runs_avx2() {
  return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("bmi2") && __builtin_cpu_supports("f16c") &&
         __builtin_cpu_supports("popcnt") && __builtin_cpu_supports("sse4.2") &&
         __builtin_cpu_supports("pclmul");
}

bool cpu_runs_avx512() {
  return cpu_runs_avx2() && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
         __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl");
}

bool cpu_multiplies_vectors() {
  static const bool found = __builtin_cpu_supports("vpclmulqdq");
  return found;
}
#elif defined(GRADWIRE_AARCH64)
bool cpu_runs_neon() {
  constexpr unsigned long kWanted = HWCAP_ASIMD | HWCAP_CRC32;
  return (getauxval(AT_HWCAP) & kWanted) == kWanted;
}
#endif

namespace {

const Target* const kAllTargets[] = {
    &kScalarTarget,
#if defined(GRADWIRE_X86)
    &kAvx2Target,
    &kAvx512Target,
#elif defined(GRADWIRE_AARCH64)
    &kNeonTarget,
#endif
};
constexpr std::size_t kTargetCount = sizeof(kAllTargets) / sizeof(kAllTargets[0]);

struct Available {
  const Target* targets[kTargetCount + 1] = {};
  std::size_t count = 0;

  Available() {
    for (const Target* target : kAllTargets) {
      if (target->supported()) targets[count++] = target;
    }
  }
};

const Available& available() {
  static const Available instance;
  return instance;
}

std::atomic<const Target*>& selected() {
  static std::atomic<const Target*> target{available().targets[available().count - 1]};
  return target;
}

}  // namespace

const Target* const* available_targets() { return available().targets; }

const Target& current_target() { return *selected().load(std::memory_order_relaxed); }

bool set_target(const char* name) {
  for (std::size_t i = 0; i < available().count; ++i) {
    if (std::strcmp(available().targets[i]->name, name) == 0) {
      selected().store(available().targets[i], std::memory_order_relaxed);
      return true;
    }
  }
  return false;
}

}  // namespace gradwire
