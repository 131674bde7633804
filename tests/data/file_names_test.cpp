#include "data/formats/file_names.h"

#include <doctest/doctest.h>

#include <filesystem>

#include "data/fixtures.h"
#include "data/formats/known_files.h"
#include "io/image_io.h"

namespace lockstep {

TEST_CASE("file names come back as they were, in the folder and elsewhere") {
  FileNames names("/data/mine/");
  const std::string large(std::size_t{3} << 20U, 'x');
  const std::vector<std::string> given{"/data/mine/a.png",
                                       "/data/mine/b/c.png",
                                       "/data/other.png",
                                       "relative.png",
                                       "/data/mine/",
                                       "",
                                       large,
                                       "/data/mine/d.png"};
  for (const std::string& name : given) names.add(name);
  REQUIRE(names.size() == given.size());
  for (std::size_t i = 0; i < given.size(); ++i) CHECK(names[i] == given[i]);
  FileNames many("/data/mine/");
  for (int i = 0; i < 100000; ++i) many.add("/data/mine/images/" + std::to_string(i));
  CHECK(many[0] == "/data/mine/images/0");
  CHECK(many[99999] == "/data/mine/images/99999");
}

TEST_CASE("the folder of two paths ends with both of them") {
  CHECK(common_folder("/d/images/a.png", "/d/masks/a.png") == "/d/");
  CHECK(common_folder("/d/im/a.png", "/d/images/a.png") == "/d/");
  CHECK(common_folder("a.png", "b.png").empty());
}

TEST_CASE("files are known whether few or many of a folder are asked for") {
  const TempFolder folder;
  for (int i = 0; i < 100; ++i) write_file(folder.file(std::to_string(i)), std::string("x"));
  std::filesystem::create_symlink(folder.path() / "7", folder.path() / "link");
  std::filesystem::create_directory(folder.path() / "folder");
  KnownFiles known;
  const std::string below = (folder.path() / "").string();
  for (int round = 0; round < 2; ++round) {
    CHECK(known.has(below + "link"));
    CHECK_FALSE(known.has(below + "folder"));
    CHECK_FALSE(known.has(below + "100"));
    CHECK_FALSE(known.has(below));
    CHECK_FALSE(known.has(below + "none/1"));
    for (int i = 0; i < 100; ++i) CHECK(known.has(below + std::to_string(i)));
  }
}

TEST_CASE("a list of many lines finds its files, and names the line of one that is not there") {
  const TempFolder folder;
  write_png(folder.file("images/a.png"), random_image({1, 2}, 1));
  write_png(folder.file("masks/a.png"), LabelMap{1, 2, {0, 1}});
  std::string text;
  for (int i = 0; i < 200; ++i) text += "images/a.png /elsewhere/masks/a.png\n";
  write_file(folder.file("train.txt"), text);
  DataOptions options;
  options.layout = "list";
  options.root = folder.path();
  options.num_classes = 2;
  const auto train = make_dataset(options, Split::kTrain, 0);
  CHECK(train->size() == 200);
  CHECK(train->load(199).labels.pixels == std::vector<Label>{0, 1});
  CHECK(train->files(0) == std::vector<std::string>{(folder.path() / "images/a.png").string(),
                                                    (folder.path() / "masks/a.png").string()});
  write_file(folder.file("train.txt"), text + "images/b.png masks/a.png\n");
  CHECK(contains(loading_failure(options), "train.txt:201: no tail of images/b.png"));
}

}  // namespace lockstep
