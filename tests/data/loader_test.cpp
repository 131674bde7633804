#include "lockstep/data/loader.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <memory>
#include <set>

#include "data/augment.h"
#include "data/fixtures.h"
#include "data/procedural/streets.h"
#include "data/sampler.h"
#include "io/image_io.h"
#include "lockstep/core/check.h"
#include "support/with_timeout.h"

namespace lockstep {
namespace {

DataOptions street_options(int images = 10) {
  DataOptions data;
  data.layout = "streets";
  data.num_classes = 11;
  data.size = {20, 28};
  data.train_images = images;
  data.val_images = 3;
  data.augment = AugmentOptions{.crop = Size{16, 24},
                                .scale_lo = 0.7F,
                                .scale_hi = 1.4F,
                                .class_crops = 0.5F,
                                .hflip = 0.5F,
                                .vflip = 0.5F,
                                .photometric = true,
                                .gain = {0.8F, 1.2F},
                                .shift = 0.1F,
                                .noise = 0.1F};
  return data;
}

std::vector<Batch> take(TrainLoader& loader, int count) {
  std::vector<Batch> batches;
  for (int i = 0; i < count; ++i) batches.push_back(loader.next());
  return batches;
}

void check_equal(const Batch& a, const Batch& b) {
  CHECK(a.samples == b.samples);
  CHECK(a.epoch == b.epoch);
  CHECK(a.size == b.size);
  CHECK(a.images == b.images);
  CHECK(a.labels == b.labels);
  CHECK(a.class_pixels == b.class_pixels);
}

TEST_CASE("an epoch's order is a permutation that depends on seed and epoch") {
  std::vector<std::int64_t> first;
  epoch_order(100, true, 1, 0, first);
  CHECK(std::set<std::int64_t>(first.begin(), first.end()).size() == 100);
  CHECK(*std::max_element(first.begin(), first.end()) == 99);
  std::vector<std::int64_t> other;
  epoch_order(100, true, 1, 0, other);
  CHECK(first == other);
  epoch_order(100, true, 1, 1, other);
  CHECK(first != other);
  epoch_order(100, true, 2, 0, other);
  CHECK(first != other);
  epoch_order(3, false, 2, 0, other);
  CHECK(other == std::vector<std::int64_t>{0, 1, 2});
  epoch_order(0, true, 2, 0, other);
  CHECK(other.empty());
}

TEST_CASE("every place of the order is equally likely") {
  std::vector<int> at_front(5, 0);
  std::vector<std::int64_t> order;
  for (int seed = 0; seed < 2000; ++seed) {
    epoch_order(5, true, static_cast<std::uint64_t>(seed), 0, order);
    ++at_front[static_cast<std::size_t>(order[0])];
  }
  for (const int count : at_front) CHECK(std::abs(count - 400) < 80);
}

TEST_CASE("batches do not depend on workers, prefetch or cache") {
  const LoaderOptions options{.batch = 3, .seed = 5};
  DataOptions data = street_options(5);
  data.crops_per_image = 2;
  data.workers = 0;
  TrainLoader reference(data, options);
  const std::vector<Batch> expected = take(reference, 14);
  for (const int workers : {1, 3}) {
    for (const int prefetch : {1, 4}) {
      data.workers = workers;
      data.cache_mb = prefetch == 1 ? 0 : 512;
      TrainLoader loader(data, {.batch = 3, .seed = 5, .prefetch = prefetch});
      CHECK(loader.batches_per_epoch() == 3);
      CHECK(loader.size() == Size{16, 24});
      for (const Batch& batch : expected) check_equal(loader.next(), batch);
    }
  }
}

TEST_CASE("a loader started at any batch continues exactly") {
  DataOptions data = street_options(7);
  data.crops_per_image = 2;
  const LoaderOptions options{.batch = 4, .drop_last = false, .seed = 6};
  TrainLoader whole(data, options);
  const std::vector<Batch> expected = take(whole, 12);
  for (std::int64_t first : {0, 1, 3, 4, 7, 11}) {
    LoaderOptions later = options;
    later.first_batch = first;
    TrainLoader loader(data, later);
    check_equal(loader.next(), expected[static_cast<std::size_t>(first)]);
  }
}

TEST_CASE("an epoch shows every sample once; the last batch is smaller or dropped") {
  DataOptions data = street_options(7);
  TrainLoader keeping(data, {.batch = 3, .drop_last = false, .seed = 1});
  CHECK(keeping.batches_per_epoch() == 3);
  for (std::int64_t epoch = 0; epoch < 3; ++epoch) {
    std::set<std::int64_t> seen;
    for (const std::int64_t count : {3, 3, 1}) {
      const Batch& batch = keeping.next();
      CHECK(batch.epoch == epoch);
      CHECK(batch.count() == count);
      CHECK(batch.images.size() == static_cast<std::size_t>(count * 16 * 24 * 3));
      CHECK(batch.labels.size() == static_cast<std::size_t>(count * 16 * 24));
      seen.insert(batch.samples.begin(), batch.samples.end());
    }
    CHECK(seen.size() == 7);
  }
  TrainLoader dropping(data, {.batch = 3, .seed = 1});
  CHECK(dropping.batches_per_epoch() == 2);
  for (int i = 0; i < 5; ++i) CHECK(dropping.next().count() == 3);
}

/// Three images, which remembers how often they were read.
class Counting final : public Dataset {
 public:
  explicit Counting(int& loaded) : loaded_(loaded) {}
  std::int64_t size() const override { return 3; }
  void load(std::int64_t index, Sample& sample) const override {
    ++loaded_;
    sample.image = random_image({30, 30}, static_cast<std::uint64_t>(index));
    sample.labels = random_labels({30, 30}, 3, 1);
  }
  Size image_size(std::int64_t) const override { return {30, 30}; }
  std::string describe(std::int64_t index) const override { return concat("drawing ", index); }

 private:
  int& loaded_;
};

TEST_CASE("an epoch has crops_per_image crops of every image, which is read once") {
  int loaded = 0;
  const LayoutTable layouts{{"own", [&](const DataOptions&, Split, std::uint64_t) {
                               return std::make_unique<Counting>(loaded);
                             }}};
  DataOptions data;
  data.layout = "own";
  data.layouts = &layouts;
  data.num_classes = 3;
  data.workers = 0;
  data.augment = AugmentOptions{.crop = Size{8, 8}, .hflip = 0.5F, .noise = 0.1F};
  data.crops_per_image = 4;
  for (const bool shuffle : {true, false}) {
    data.shuffle = shuffle;
    loaded = 0;
    TrainLoader loader(data, {.batch = 5, .drop_last = false, .seed = 3});
    CHECK(loader.samples_per_epoch() == 12);
    CHECK(loader.batches_per_epoch() == 3);
    std::vector<int> seen(3, 0);
    std::set<std::vector<float>> crops;
    for (int epoch = 0; epoch < 2; ++epoch) {
      for (const int count : {5, 5, 2}) {
        const Batch& batch = loader.next();
        CHECK(batch.epoch == epoch);
        REQUIRE(batch.count() == count);
        for (int i = 0; i < count; ++i) {
          ++seen[static_cast<std::size_t>(batch.samples[static_cast<std::size_t>(i)])];
          const auto first = batch.images.begin() + std::ptrdiff_t{i} * 8 * 8 * 3;
          crops.insert(std::vector<float>(first, first + 8 * 8 * 3));
        }
      }
    }
    CHECK(seen == std::vector<int>{8, 8, 8});
    CHECK(crops.size() == 24);
    CHECK(loaded == 3);
  }
}

TEST_CASE("an image's first crop is what it is alone") {
  DataOptions data = street_options(4);
  data.shuffle = false;
  TrainLoader alone(data, {.batch = 4, .seed = 3});
  data.crops_per_image = 3;
  TrainLoader of_three(data, {.batch = 4, .seed = 3});
  check_equal(alone.next(), of_three.next());
  CHECK(of_three.next().epoch == 0);
  of_three.next();
  check_equal(alone.next(), of_three.next());
}

TEST_CASE("an epoch's augmentation differs from the next one's") {
  DataOptions data = street_options(2);
  data.shuffle = false;
  TrainLoader loader(data, {.batch = 2});
  const Batch first = loader.next();
  const Batch& second = loader.next();
  CHECK(first.samples == second.samples);
  CHECK(first.images != second.images);
}

TEST_CASE("class_pixels counts what is not ignored") {
  DataOptions data = street_options();
  TrainLoader loader(data, {.batch = 4, .seed = 2});
  for (int i = 0; i < 4; ++i) {
    const Batch& batch = loader.next();
    REQUIRE(batch.class_pixels.size() == 11);
    std::int64_t valid = 0;
    for (std::size_t c = 0; c < 11; ++c) {
      CHECK(batch.class_pixels[c] == std::count(batch.labels.begin(), batch.labels.end(), c));
      valid += batch.class_pixels[c];
    }
    CHECK(valid == static_cast<std::int64_t>(batch.labels.size()) -
                       std::count(batch.labels.begin(), batch.labels.end(), 255));
  }
  data.ignore_index = 3;  // the road: a class of the data set may be ignored
  TrainLoader roadless(data, {.batch = 4, .seed = 2});
  const Batch& batch = roadless.next();
  CHECK(batch.class_pixels[3] == 0);
  CHECK(std::count(batch.labels.begin(), batch.labels.end(), 3) == 0);
  CHECK(std::count(batch.labels.begin(), batch.labels.end(), ignored_label(data)) > 0);
  CHECK(ignored_label(data) >= class_count(data));
  const Batch validation = ValLoader(data, 2).load(0, 1, 64);
  CHECK(std::count(validation.labels.begin(), validation.labels.end(), 3) == 0);
}

TEST_CASE("buffers are reused") {
  const DataOptions data = street_options(8);
  TrainLoader loader(data, {.batch = 2, .drop_last = false, .prefetch = 2});
  std::set<const float*> buffers;
  for (int i = 0; i < 40; ++i) buffers.insert(loader.next().images.data());
  CHECK(buffers.size() == 3);
}

TEST_CASE("a loader stops at any time") {
  for (int taken = 0; taken < 8; ++taken) {
    DataOptions data = street_options();
    data.workers = taken % 4;
    TrainLoader loader(data, {.batch = 3, .prefetch = 2});
    for (int i = 0; i < taken; ++i) loader.next();
  }
}

TEST_CASE("a sample that fails fails its own batch, whatever the workers, and no other") {
  const TempFolder folder;
  DataOptions data = street_options(6);
  write_streets(folder.path(), data, 1);
  data.layout = "folder";
  data.root = folder.path();
  data.shuffle = false;
  std::vector<std::uint8_t> bytes = read_file(folder.path() / "images/train/00003.png");
  bytes.resize(bytes.size() / 2);
  write_file(folder.path() / "images/train/00003.png", bytes);
  for (const int workers : {0, 1, 3}) {
    data.workers = workers;
    TrainLoader loader(data, {.batch = 2});
    for (int epoch = 0; epoch < 2; ++epoch) {
      CHECK(loader.next().samples == std::vector<std::int64_t>{0, 1});
      CHECK(contains(message_of<DataError>([&] { loader.next(); }), "00003.png"));
      CHECK(loader.next().samples == std::vector<std::int64_t>{4, 5});
    }
  }
}

/// One class too high in the label map of sample 2: what a data set of a user's own may give.
class OneBadLabel final : public Dataset {
 public:
  std::int64_t size() const override { return 4; }
  void load(std::int64_t index, Sample& sample) const override {
    sample.image = random_image({8, 8}, 1);
    sample.labels = random_labels({8, 8}, 3, 1);
    if (index == 2) sample.labels.pixels[5] = 3;
  }
  Size image_size(std::int64_t) const override { return {8, 8}; }
  std::string describe(std::int64_t index) const override { return concat("drawing ", index); }
};

TEST_CASE("a label that is no class is told with its sample, in training and validation") {
  const LayoutTable layouts{{"own", [](const DataOptions&, Split, std::uint64_t) {
                               return std::make_unique<OneBadLabel>();
                             }}};
  DataOptions data;
  data.layout = "own";
  data.layouts = &layouts;
  data.num_classes = 3;
  data.shuffle = false;
  data.workers = 0;
  TrainLoader training(data, {.batch = 2});
  CHECK(training.next().count() == 2);
  const std::string trained = message_of<DataError>([&] { training.next(); });
  const ValLoader validation(data, 1);
  CHECK(validation.load(0, 2, 1).count() == 2);
  const std::string evaluated = message_of<DataError>([&] { validation.load(2, 1, 1); });
  for (const std::string& text : {trained, evaluated})
    for (const char* part : {"drawing 2", "label 3"}) CHECK(contains(text, part));
}

TEST_CASE("too few images for a batch, and images of different sizes, are told with advice") {
  DataOptions data = street_options(3);
  CHECK(contains(message_of<ConfigError>([&] { TrainLoader(data, {.batch = 4}); }),
                 "drop_last = false"));
  CHECK(TrainLoader(data, {.batch = 4, .drop_last = false}).next().count() == 3);

  const TempFolder folder;
  for (const int width : {20, 24}) {
    write_png(folder.file(concat("images/train/", width, ".png")), random_image({16, width}, 1));
    write_png(folder.file(concat("masks/train/", width, ".png")),
              random_labels({16, width}, 11, 1));
  }
  data.layout = "folder";
  data.root = folder.path();
  data.augment.reset();
  const std::string text = message_of<ConfigError>([&] { TrainLoader(data, {.batch = 2}); });
  for (const char* part : {"20.png", "24.png", "16x20", "16x24", "data.resize"})
    CHECK(contains(text, part));
  data.resize = Size{8, 10};
  CHECK(TrainLoader(data, {.batch = 2}).next().size == Size{8, 10});
  data.resize.reset();
  data.augment = AugmentOptions{.crop = Size{18, 22}};
  CHECK(TrainLoader(data, {.batch = 2}).next().size == Size{18, 22});
}

TEST_CASE("options that cannot work are refused") {
  const auto refused = [](const DataOptions& data) {
    return !message_of<ConfigError>([&] { TrainLoader(data, {.batch = 2}); }).empty();
  };
  DataOptions data = street_options();
  CHECK_FALSE(refused(data));
  data.augment->crop.reset();
  CHECK(refused(data));  // scales differ
  data = street_options();
  data.augment->scale_lo = 0;
  CHECK(refused(data));
  data = street_options();
  data.augment->hflip = 1.5F;
  CHECK(refused(data));
  data = street_options();
  data.augment->gain = {1, 0.5F};
  CHECK(refused(data));
  data = street_options();
  data.augment->noise = -1;
  CHECK(refused(data));
  data = street_options();
  data.augment->class_crops_of = {11};
  CHECK(refused(data));
  data = street_options();
  data.crops_per_image = 0;
  CHECK(refused(data));
  data = street_options();
  data.workers = -1;
  CHECK(refused(data));
  data = street_options();
  data.std[1] = 0;
  CHECK(refused(data));
  data = street_options();
  data.exposure = ExposureOptions{0, 10};
  CHECK(refused(data));
  data = street_options();
  data.resize = Size{0, 10};
  CHECK(refused(data));
  data = street_options();
  data.val_crop = Size{10, 0};
  CHECK(refused(data));
  data = street_options();
  data.augment->crop = Size{16, 0};
  CHECK(refused(data));
  data = street_options();
  data.augment->scale_lo = data.augment->scale_hi = 1;
  data.augment->crop_area = {0.5F, 0.2F};
  CHECK(refused(data));
  data.augment->crop_area = {0.2F, 0.5F};
  CHECK_FALSE(refused(data));
}

TEST_CASE("exposure changes images and no labels, in train and val alike, and not with the epoch") {
  DataOptions data = street_options(4);
  data.augment.reset();
  data.shuffle = false;
  TrainLoader plain(data, {.batch = 4, .seed = 3});
  const ValLoader plain_val(data, 3);
  data.exposure = ExposureOptions{0.15F, 80};
  TrainLoader exposed(data, {.batch = 4, .seed = 3});
  const ValLoader exposed_val(data, 3);
  const Batch first = exposed.next();
  CHECK(first.images != plain.next().images);
  CHECK(first.images == exposed.next().images);
  CHECK(first.labels == plain.next().labels);
  CHECK(exposed_val.load(0, 1, 1).images != plain_val.load(0, 1, 1).images);
  CHECK(exposed_val.load(0, 1, 1).labels == plain_val.load(0, 1, 1).labels);
}

TEST_CASE(
    "validation pads to the divisor with the mean colour and ignore_index, and never augments") {
  const DataOptions data = street_options();
  const ValLoader loader(data, 4);
  CHECK(loader.size() == 3);
  const Batch exact = loader.load(2, 1, 1);
  CHECK(exact.size == Size{20, 28});
  CHECK(exact.count() == 1);
  CHECK(exact.samples[0] == 2);
  const Batch padded = loader.load(2, 1, 16);
  REQUIRE(padded.size == Size{32, 32});
  CHECK(padded.class_pixels == exact.class_pixels);
  for (std::size_t y = 0; y < 32; ++y) {
    for (std::size_t x = 0; x < 32; ++x) {
      const bool inside = y < 20 && x < 28;
      const std::size_t to = y * 32 + x;
      CHECK(padded.labels[to] == (inside ? exact.labels[y * 28 + x] : 255));
      CHECK(padded.images[to * 3] == (inside ? exact.images[(y * 28 + x) * 3] : 0.0F));
    }
  }
  const Sample drawn = make_dataset(data, Split::kVal, 4)->load(2);
  CHECK(exact.labels == drawn.labels.pixels);
  CHECK(denormalize(loader.load(1, 2, 1), 1, data).pixels == drawn.image.pixels);
  CHECK_THROWS_AS(loader.load(2, 1, 0), Error);
}

TEST_CASE("what fails while a batch is opened is thrown by next, whatever the workers") {
  for (const int workers : {0, 3}) {
    CAPTURE(workers);
    DataOptions data = street_options();
    data.workers = workers;
    TrainLoader loader(data,
                       {.batch = 4, .own_places = [](std::int64_t) -> std::vector<std::int64_t> {
                          throw std::bad_alloc();
                        }});
    for (int time = 0; time < 2; ++time) CHECK_THROWS_AS(loader.next(), std::bad_alloc);
  }
}

// Three processes of one rank each, and a fourth that has nothing in a small batch.
TEST_CASE("a process decodes its own places, and the counts of all add up") {
  for (const int workers : {0, 3}) {
    CAPTURE(workers);
    DataOptions data = street_options(5);
    data.crops_per_image = 2;
    data.workers = workers;
    const LoaderOptions whole{.batch = 4, .drop_last = false, .seed = 3};
    TrainLoader reference(data, whole);
    std::vector<std::unique_ptr<TrainLoader>> loaders;
    for (std::int64_t process = 0; process < 4; ++process) {
      LoaderOptions options = whole;
      options.own_places = [process](std::int64_t count) {
        return process < count ? std::vector{process} : std::vector<std::int64_t>{};
      };
      loaders.push_back(std::make_unique<TrainLoader>(data, options));
    }
    for (int index = 0; index < 7; ++index) {  // the third batch of an epoch has two samples
      CAPTURE(index);
      const Batch& expected = reference.next();
      CHECK_FALSE(expected.own_places_only);
      std::vector<std::int64_t> counts(expected.class_pixels.size());
      for (std::size_t process = 0; process < loaders.size(); ++process) {
        const Batch& own = loaders[process]->next();
        CHECK(own.own_places_only);
        CHECK(own.samples == expected.samples);
        CHECK(own.epoch == expected.epoch);
        for (std::size_t c = 0; c < counts.size(); ++c) counts[c] += own.class_pixels[c];
        if (process >= expected.samples.size()) continue;
        const auto same = [&](const auto& a, const auto& b) {
          const std::size_t size = a.size() / expected.samples.size();
          const auto begin = static_cast<std::ptrdiff_t>(process * size);
          return std::equal(a.begin() + begin,
                            a.begin() + begin + static_cast<std::ptrdiff_t>(size),
                            b.begin() + begin);
        };
        CHECK(same(expected.images, own.images));
        CHECK(same(expected.labels, own.labels));
      }
      CHECK(counts == expected.class_pixels);
    }
  }
}

// Whoever asks is told of a batch with nothing to decode, too: here it always asks before.
TEST_CASE("a process without places gets every batch") {
  DataOptions data = street_options();
  data.workers = 2;
  test::with_timeout(std::chrono::seconds(60), [&] {
    TrainLoader loader(data, {.batch = 2, .prefetch = 1, .own_places = [](std::int64_t) {
                                return std::vector<std::int64_t>{};
                              }});
    for (int index = 0; index < 3000; ++index) CHECK(loader.next().count() == 2);
  });
}

}  // namespace
}  // namespace lockstep
