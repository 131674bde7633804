// The real CamVid in layout `folder`, where a copy lies beside the project.

#include <doctest/doctest.h>

#include <array>
#include <cmath>
#include <cstdio>

#include "lockstep/data/loader.h"

namespace lockstep {
namespace {

TEST_CASE("CamVid has its known sizes and class shares") {
  DataOptions data;
  data.root = "../shared/camvid";
  data.num_classes = 11;
  data.ignore_index = 11;
  data.resize = Size{90, 120};
  if (!std::filesystem::is_directory(data.root)) {
    std::puts("SKIPPED: CamVid: ../shared/camvid is not there");
    return;
  }
  CHECK(make_dataset(data, Split::kVal, 0)->size() == 101);
  data.val = "test";
  CHECK(make_dataset(data, Split::kVal, 0)->size() == 233);
  CHECK(make_dataset(data, Split::kVal, 0)->image_size(0) == Size{360, 480});

  TrainLoader loader(data, {.batch = 367});
  CHECK(loader.batches_per_epoch() == 1);
  const Batch& batch = loader.next();
  const std::array<double, 11> shares{.169, .233, .010, .317, .045, .097,
                                      .012, .011, .059, .006, .003};
  for (std::size_t c = 0; c < shares.size(); ++c) {
    CAPTURE(c);
    const double share =
        static_cast<double>(batch.class_pixels[c]) / static_cast<double>(batch.labels.size());
    CHECK(std::abs(share - shares[c]) < 0.0015);
  }
}

}  // namespace
}  // namespace lockstep
