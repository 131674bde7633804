// Lists of images and masks: the layouts list, camvid and voc read theirs over one folder.

#include "data/formats/file_pairs.h"
#include "fuzz/fuzz.h"

using namespace lockstep;

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t bytes) {
  static const test::FuzzFolder folder;
  static const auto image = folder.write("a.png", ""), mask = folder.write("b c.png", "");
  folder.write("train.txt", test::text_of(data, bytes));
  test::may_complain([&] {
    for (const FilePair& pair : list_pairs(folder.path(), "train").pairs) {
      if (pair.image.empty() || pair.mask.empty()) std::abort();
    }
  });
  test::may_complain([&] { camvid_pairs(folder.path(), "train"); });
  return 0;
}
