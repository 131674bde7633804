// The program is compiled for processors with AVX2. On an older one it would end by an illegal
// instruction; this file is compiled for any, and runs before all others.

#include <unistd.h>

namespace {

[[gnu::constructor(101)]] void check_processor() {
  __builtin_cpu_init();
  if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") &&
      __builtin_cpu_supports("bmi2")) {
    return;
  }
  constexpr char kText[] =
      "lockstep: error: this program needs a processor with AVX2, FMA and BMI2 (x86-64-v3: Intel "
      "since Haswell, AMD since Excavator), and this one lacks them; use another machine\n";
  [[maybe_unused]] const auto written = write(STDERR_FILENO, kText, sizeof kText - 1);
  _exit(1);
}

}  // namespace
