#include "data/fingerprint.h"

#include <doctest/doctest.h>

#include <cstdlib>

#include "data/content_cache.h"
#include "data/fixtures.h"
#include "io/image_io.h"

namespace lockstep {
namespace {

namespace fs = std::filesystem;

/// Three training images and one to validate on.
struct Place {
  TempFolder folder;

  Place() {
    for (const char* name : {"train/a", "train/b", "train/c", "val/d"}) write(name, 0);
  }
  void write(const std::string& name, Label label) const {
    write_png(folder.file("images/" + name + ".png"), Image{1, 2, {1, 2, 3, 4, 5, 6}});
    write_png(folder.file("masks/" + name + ".png"), LabelMap{1, 2, {0, label}});
  }
  DataOptions options(const fs::path& root) const {
    DataOptions options;
    options.root = root;
    options.num_classes = 2;
    return options;
  }
  /// What `visit` makes of the fingerprint.
  template <typename Visit>
  auto with(const fs::path& root, const Visit& visit) const {
    const DataOptions data = options(root);
    const auto train = make_dataset(data, Split::kTrain, 0);
    const auto val = make_dataset(data, Split::kVal, 0);
    return visit(Fingerprint(*train, *val, data));
  }
  std::string hash(const fs::path& root) const {
    return with(root, [](const Fingerprint& found) { return found.hash(); });
  }
  std::string hash() const { return hash(folder.path()); }
};

}  // namespace

TEST_CASE("the same files under another path are the same data, and other contents are not") {
  const Place place;
  const std::string before = place.hash();
  CHECK(before.size() == 16);
  const TempFolder other;
  fs::copy(place.folder.path(), other.path() / "moved", fs::copy_options::recursive);
  CHECK(place.hash(other.path() / "moved") == before);
  CHECK(place.hash(other.path() / "moved" / "") == before);
  place.write("train/b", 1);
  CHECK(place.hash() != before);
  place.write("train/b", 0);
  CHECK(place.hash() == before);
}

TEST_CASE("what has changed since a list was written is told by counts and names") {
  const Place place;
  const fs::path list = place.folder.path() / "data.tsv";
  const auto changes = [&] {
    return place.with(place.folder.path(),
                      [&](const Fingerprint& found) { return found.changes_since(list); });
  };
  CHECK(contains(changes(), "there is no list"));
  place.with(place.folder.path(), [&](const Fingerprint& found) {
    found.write(list);
    CHECK(found.files() == 8);
    return 0;
  });
  place.write("train/b", 1);
  CHECK(changes() == "1 file changed (masks/train/b.png)");
  place.write("val/e", 1);
  CHECK(contains(changes(), "2 files added (images/val/e.png, masks/val/e.png)"));
  for (const char* kind : {"images", "masks"})
    fs::remove(place.folder.path() / kind / "train" / "a.png");
  CHECK(contains(changes(), "2 files removed (images/train/a.png, masks/train/a.png)"));
  for (const char* name : {"train/f", "train/g"}) place.write(name, 0);
  CHECK(contains(changes(),
                 "6 files added (images/train/f.png, masks/train/f.png, "
                 "images/train/g.png, ...)"));
}

TEST_CASE("an image's every file counts, however many it has") {
  const TempFolder folder;
  const auto write = [&](const std::string& name, Label value) {
    write_png(folder.file(name + ".png"), LabelMap{1, 2, {0, value}});
  };
  for (const std::string split : {"train/a", "train/b", "val/c"}) {
    for (const char* end : {"_0000", "_0001", "_0002"}) write("images/" + split + end, 7);
    write("masks/" + split, 1);
  }
  DataOptions options;
  options.root = folder.path();
  options.num_classes = 2;
  options.channels = 3;
  options.channel_files = {"_0000", "_0001", "_0002"};
  const fs::path list = folder.path() / "data.tsv";
  const auto train = make_dataset(options, Split::kTrain, 0);
  const auto val = make_dataset(options, Split::kVal, 0);
  Fingerprint(*train, *val, options).write(list);
  write("images/train/b_0002", 8);
  const Fingerprint changed(*train, *val, options);
  CHECK(changed.files() == 12);
  CHECK(changed.changes_since(list) == "1 file changed (images/train/b_0002.png)");
}

TEST_CASE("generated images have no fingerprint") {
  DataOptions options;
  options.layout = "streets";
  options.size = {16, 16};
  const auto train = make_dataset(options, Split::kTrain, 0);
  const auto val = make_dataset(options, Split::kVal, 0);
  CHECK(Fingerprint(*train, *val, options).hash().empty());
}

TEST_CASE("contents are read once, and again when a file changes, whatever its time says") {
  const TempFolder folder;
  ::setenv("LOCKSTEP_DATA_CACHE", (folder.path() / "cache").c_str(), 1);
  std::vector<std::string> files;
  for (int i = 0; i < 1001; ++i) {
    files.push_back(folder.file("data/" + std::to_string(i)).string());
    write_file(files.back(), std::to_string(i));
  }
  const auto read = [&](std::time_t later) {
    ContentCache cache(folder.path() / "data", std::time(nullptr) + later);
    std::vector<std::uint64_t> contents;
    for (const std::string& file : files) contents.push_back(cache.hash_of(file));
    cache.save();
    return std::pair{contents, cache.bytes_read()};
  };
  const auto first = read(0);  // just written: not kept
  const auto again = read(60);
  CHECK(first.second == again.second);
  const auto kept = read(60);
  CHECK(kept.second == 0);
  CHECK(kept.first == first.first);
  const auto time = fs::last_write_time(files[7]);
  write_file(files[7], std::string("x"));
  fs::last_write_time(files[7], time);
  const auto changed = read(60);
  CHECK(changed.second == 1);
  CHECK(changed.first[7] != first.first[7]);
  CHECK(changed.first[8] == first.first[8]);
  write_file(
      folder.path() / "cache" / fs::directory_iterator(folder.path() / "cache")->path().filename(),
      std::string("damaged"));
  CHECK(read(60).first == changed.first);
  ::unsetenv("LOCKSTEP_DATA_CACHE");
}

}  // namespace lockstep
