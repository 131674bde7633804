#include "train/fault_injection.h"

#include <doctest/doctest.h>

#include "lockstep/core/check.h"

namespace lockstep {

TEST_CASE("no text, no fault") {
  const FaultInjection none("");
  CHECK_FALSE(none.active());
  CHECK_FALSE(none.hook());
}

TEST_CASE("a fault strikes one rank in one call of one step") {
  FaultInjection fault("skip:rank=1,step=3,call=2");
  const auto hook = fault.hook();
  for (std::int64_t step = 2; step < 5; ++step) {
    fault.set_step(step);
    for (int rank = 0; rank < 2; ++rank) {
      for (int call = 0; call < 4; ++call) {
        CAPTURE(step);
        CAPTURE(rank);
        CAPTURE(call);
        CHECK(hook(rank, SyncCall{}) == !(step == 3 && rank == 1 && call == 2));
      }
    }
  }
}

TEST_CASE("throwing says where") {
  FaultInjection fault("throw:rank=0,step=0");
  fault.set_step(0);
  CHECK_THROWS_WITH_AS(fault.hook()(0, SyncCall{}), "injected failure in step 0, call 0", Error);
}

TEST_CASE("a fault that does not exist is a usage error that lists those that do") {
  for (const char* text : {"explode", "throw:rank", "throw:rank=x", "throw:seconds=1",
                           "delay:seed=-1", "skip:rank=1,,step=2"}) {
    CAPTURE(text);
    CHECK_THROWS_WITH_AS(FaultInjection{text}, doctest::Contains("throw:rank=R,step=S"),
                         ConfigError);
  }
}

}  // namespace lockstep
