#include "kernels/thrust_loop.h"

#if defined(LOCKSTEP_TEST_THRUST)
#include <thrust/execution_policy.h>
#include <thrust/for_each.h>
#include <thrust/iterator/counting_iterator.h>
#endif

namespace lockstep::test {

#if defined(LOCKSTEP_TEST_THRUST)
emulation::Loop thrust_loop() {
  return [](std::int32_t items, const std::function<void(std::int32_t)>& function) {
    thrust::for_each_n(thrust::host, thrust::counting_iterator<std::int32_t>(0), items, function);
  };
}
#else
emulation::Loop thrust_loop() { return nullptr; }
#endif

}  // namespace lockstep::test
