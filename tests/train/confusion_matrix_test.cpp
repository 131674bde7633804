#include "run/confusion_matrix.h"

#include <doctest/doctest.h>

#include "lockstep/core/check.h"

namespace lockstep {

TEST_CASE("two classes by hand") {
  // Row: label, column: prediction.
  const std::vector<std::int64_t> confusion{3, 1,  //
                                            2, 4};
  const ConfusionMetrics metrics = confusion_metrics(confusion, 2);
  CHECK(metrics.iou[0].value() == doctest::Approx(100.0 * 3 / 6));
  CHECK(metrics.iou[1].value() == doctest::Approx(100.0 * 4 / 7));
  CHECK(metrics.acc[0].value() == doctest::Approx(75));
  CHECK(metrics.acc[1].value() == doctest::Approx(100.0 * 4 / 6));
  CHECK(metrics.a_acc.value() == doctest::Approx(70));
  CHECK(metrics.m_acc.value() == doctest::Approx((75 + 100.0 * 4 / 6) / 2));
  CHECK(metrics.m_iou.value() == doctest::Approx((50 + 100.0 * 4 / 7) / 2));
}

TEST_CASE("a class that is only predicted counts for mIoU and not for mIoU_present") {
  const std::vector<std::int64_t> confusion{8, 2, 0,  //
                                            0, 0, 0,  //
                                            0, 0, 0};
  const ConfusionMetrics metrics = confusion_metrics(confusion, 3);
  CHECK(metrics.iou[1].value() == 0);
  CHECK_FALSE(metrics.acc[1]);
  CHECK_FALSE(metrics.iou[2]);
  CHECK_FALSE(metrics.acc[2]);
  CHECK(metrics.m_iou.value() == doctest::Approx(40));          // mmsegmentation: (80 + 0) / 2
  CHECK(metrics.m_iou_present.value() == doctest::Approx(80));  // detectron2: 80 / 1
  CHECK(metrics.m_acc.value() == doctest::Approx(80));
}

TEST_CASE("nothing labelled is undefined, not zero") {
  const ConfusionMetrics metrics = confusion_metrics(std::vector<std::int64_t>(4, 0), 2);
  CHECK_FALSE(metrics.a_acc);
  CHECK_FALSE(metrics.m_acc);
  CHECK_FALSE(metrics.m_iou);
  CHECK_FALSE(metrics.m_iou_present);
}

TEST_CASE("counts beyond 32 bits") {
  const std::vector<std::int64_t> confusion{std::int64_t{6} << 40, std::int64_t{2} << 40, 0, 0};
  CHECK(confusion_metrics(confusion, 2).a_acc.value() == doctest::Approx(75));
}

TEST_CASE("a matrix of the wrong size is an error") {
  CHECK_THROWS_AS(confusion_metrics(std::vector<std::int64_t>(5), 2), Error);
}

}  // namespace lockstep
