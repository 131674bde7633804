// PyTorch's files made by hand, byte by byte: what must be read, and every lie that must not be
// believed. Files that PyTorch itself has written are in tests/oracle.

#include <doctest/doctest.h>

#include <cstring>
#include <map>
#include <random>
#include <string>
#include <vector>

#include "io/pth_zip.h"
#include "lockstep/core/check.h"
#include "lockstep/io/weights.h"
#include "support/pth_writer.h"
#include "support/temporary_folder.h"

namespace lockstep::test {
namespace {

namespace fs = std::filesystem;

using namespace pth;

// --- contents ---

std::string bytes_of(const std::vector<float>& values) {
  return {reinterpret_cast<const char*>(values.data()), values.size() * sizeof(float)};
}

std::vector<float> floats_of(const HostTensor& tensor) {
  REQUIRE(tensor.dtype == "F32");
  std::vector<float> values(tensor.data.size() / sizeof(float));
  if (!values.empty()) std::memcpy(values.data(), tensor.data.data(), tensor.data.size());
  return values;
}

const std::string kFloats = "FloatStorage";

// Two rows of three; [[0, 1, 2], [3, 4, 5]].
Storages six() { return {{"0", bytes_of({0, 1, 2, 3, 4, 5})}}; }
std::string six_storage() { return storage(kFloats, "0", 6); }
std::string sound_tensor() { return tensor(six_storage(), 0, {2, 3}, {3, 1}); }
std::string named(const std::string& value) { return dict(text("w") + value); }

struct Place {
  TemporaryFolder folder;
  fs::path path = folder.path() / "w.pth";

  TensorMap load(const std::string& bytes) const {
    fs::remove(path);  // a file that is cut to nothing and rewritten costs some disks milliseconds
    folder.write("w.pth", bytes);
    return load_pth(path);
  }
  void refuses(const std::string& bytes, const char* complaint) const {
    CAPTURE(complaint);
    CHECK_THROWS_WITH_AS(load(bytes), doctest::Contains(complaint), DataError);
    CHECK_THROWS_WITH_AS(load_pth(path), doctest::Contains(path.c_str()), DataError);
  }
  // In both containers.
  void refuses_value(const std::string& value, const char* complaint) const {
    refuses(archive(value, six()), complaint);
    const bool has_tensors = value.find(kFloats) != std::string::npos;
    refuses(legacy(value, has_tensors ? six() : Storages(), 4), complaint);
  }
};

// A file of both formats with a bit of everything.
std::string rich_value() {
  const std::string optimizer =
      dict(text("state") + dict("") + text("lr") + "G" + number(0, 8) + text("flags") + "](NK\x05" +
           "M\x05\x05" + "J" + number(77, 4) + "e");
  const std::string state = global("collections", "OrderedDict") + ")R(" + text("a") + "q\x01" +
                            sound_tensor() + text("b") + tensor(six_storage(), 1, {2, 2}, {2, 1}) +
                            text("c") + tensor(storage("LongStorage", "1", 1), 0, {}, {}) + "u" +
                            dict(text("_metadata") + "h\x01") + "b";
  return dict(text("epoch") + integer(3) + text("optimizer") + optimizer + text("state_dict") +
              state);
}

Storages rich_storages() {
  Storages storages = six();
  storages["1"] = number(41, 8);
  return storages;
}

std::string rich_legacy() {
  // Both storages have eight bytes or more; six floats count as such, one long as one.
  std::string file = legacy(rich_value(), six(), 4);
  const std::string one_key = "](" + text("0") + "e", two_keys = "](" + text("0") + text("1") + "e";
  file.replace(file.rfind(one_key), one_key.size(), two_keys);
  return file + number(1, 8) + number(41, 8);
}

bool is_whole(const HostTensor& tensor) {
  std::size_t elements = 1;
  for (const std::int64_t extent : tensor.shape) elements *= static_cast<std::size_t>(extent);
  return elements == 0 ? tensor.data.empty() : tensor.data.size() % elements == 0;
}

// Either DataError, or tensors that are whole.
void check_survives(const Place& place, const std::string& bytes) {
  try {
    for (const auto& [name, tensor] : place.load(bytes)) CHECK(is_whole(tensor));
  } catch (const DataError&) {
  }
}

}  // namespace

TEST_CASE("pth: CRC-32 is that of zip archives") {
  CHECK(crc32({}) == 0);
  CHECK(crc32(std::as_bytes(std::span("123456789", 9))) == 0xcbf43926U);
  // The standard's definition, bit by bit, for every length about the blocks of eight.
  std::string data;
  for (int length = 0; length < 40; ++length) {
    std::uint32_t crc = ~0U;
    for (const char c : data) {
      crc ^= static_cast<unsigned char>(c);
      for (int bit = 0; bit < 8; ++bit) crc = crc >> 1 ^ ((crc & 1) != 0 ? 0xedb88320U : 0);
    }
    CHECK(crc32(std::as_bytes(std::span(data))) == ~crc);
    data += static_cast<char>(length * 71 + 200);
  }
}

TEST_CASE("pth: tensors of every place and stride are read") {
  const Place place;
  const std::string value =
      dict(text("whole") + sound_tensor() + text("transposed") +
           tensor(six_storage(), 0, {3, 2}, {1, 3}) + text("column") +
           tensor(six_storage(), 1, {2}, {3}) + text("last") + tensor(six_storage(), 5, {}, {}) +
           text("repeated") + tensor(six_storage(), 2, {2, 2}, {0, 3}) + text("empty") +
           tensor(six_storage(), 6, {0, 4}, {4, 1}) + text("of_one") +
           tensor(six_storage(), 3, {1, 3}, {999, 1}) + text("note") + text("no tensor"));
  for (const std::string& file : {archive(value, six()), legacy(value, six(), 4)}) {
    const TensorMap tensors = place.load(file);
    CHECK(tensors.size() == 7);
    CHECK(tensors.at("whole").shape == std::vector<std::int64_t>{2, 3});
    CHECK(floats_of(tensors.at("whole")) == std::vector<float>{0, 1, 2, 3, 4, 5});
    CHECK(floats_of(tensors.at("transposed")) == std::vector<float>{0, 3, 1, 4, 2, 5});
    CHECK(floats_of(tensors.at("column")) == std::vector<float>{1, 4});
    CHECK(tensors.at("last").shape.empty());
    CHECK(floats_of(tensors.at("last")) == std::vector<float>{5});
    CHECK(floats_of(tensors.at("repeated")) == std::vector<float>{2, 5, 2, 5});
    CHECK(tensors.at("empty").shape == std::vector<std::int64_t>{0, 4});
    CHECK(tensors.at("empty").data.empty());
    CHECK(floats_of(tensors.at("of_one")) == std::vector<float>{3, 4, 5});
  }
}

TEST_CASE("pth: types that PyTorch 2.3 and later write are read by name, of storages of bytes") {
  const Place place;
  const auto typed = [](const std::string& type, std::int64_t offset, std::int64_t elements) {
    const std::string storage = tuple(text("storage") + global("torch.storage", "UntypedStorage") +
                                      text("0") + text("cpu") + integer(24)) +
                                "Q";
    return global("torch._utils", "_rebuild_tensor_v3") +
           tuple(storage + integer(offset) + integers({elements}) + integers({1}) + "\x89" +
                 global("collections", "OrderedDict") + ")R" + global("torch", type)) +
           "R";
  };
  const std::string value =
      dict(text("w") + typed("float32", 1, 5) + text("u") + typed("uint16", 2, 10) + text("f") +
           typed("float8_e4m3fn", 0, 24));
  const TensorMap tensors = place.load(archive(value, six()));
  CHECK(floats_of(tensors.at("w")) == std::vector<float>{1, 2, 3, 4, 5});
  CHECK(tensors.at("u").dtype == "U16");
  CHECK(tensors.at("u").data.size() == 20);
  CHECK(tensors.at("f").dtype == "F8_E4M3");
  CHECK(tensors.at("f").shape == std::vector<std::int64_t>{24});
  place.refuses(archive(named(typed("uint16", 0, 13)), six()),
                "tensor w reaches outside of its storage, which has 12 elements");
  for (const char* type : {"FloatStorage", "bits8"}) {
    place.refuses(archive(named(typed(type, 0, 1)), six()),
                  concat("a tensor of torch.", type, ", expected plain numbers").c_str());
  }
  for (const char* type : {"uint16", "QInt8Storage"}) {
    place.refuses(archive(named(tensor(storage(type, "0", 6), 0, {2}, {1})), six()),
                  concat("a storage of torch.", type, ", expected plain numbers").c_str());
  }
}

TEST_CASE("pth: the model's tensors of a checkpoint are found, under any of three keys") {
  const Place place;
  for (const std::string& file : {archive(rich_value(), rich_storages()), rich_legacy()}) {
    const TensorMap tensors = place.load(file);
    CHECK(tensors.size() == 3);
    CHECK(floats_of(tensors.at("b")) == std::vector<float>{1, 2, 3, 4});
    CHECK(tensors.at("c").dtype == "I64");
    CHECK(tensors.at("c").data[0] == std::byte{41});
  }
  for (const char* key : {"state_dict", "model", "model_state_dict"}) {
    CHECK(place.load(archive(dict(text(key) + named(sound_tensor())), six())).count("w") == 1);
  }
  // A model's name is not the model; neither is a layer that happens to have such a name.
  CHECK(
      place.load(archive(dict(text("model") + text("resnet") + text("w") + sound_tensor()), six()))
          .count("w") == 1);
  CHECK(place.load(archive(dict(text("model") + sound_tensor()), six())).count("model") == 1);
}

TEST_CASE("pth: what checkpoints hold beside weights is read over, whatever it is") {
  const Place place;
  const std::string arguments =
      global("argparse", "Namespace") + ")\x81" + dict(text("lr") + "G" + number(0, 8)) + "b";
  const std::string score = global("numpy.core.multiarray", "scalar") +
                            tuple(global("numpy", "dtype") + tuple(text("f8")) + "R" + text("x")) +
                            "R";
  const std::string beside = text("args") + arguments + text("best") + score;
  CHECK(place.load(archive(dict(beside + text("model") + named(sound_tensor())), six())).size() ==
        1);
  std::string types = text("w") + global("torch._utils", "_rebuild_parameter_with_state") +
                      tuple(sound_tensor() + "\x88" + global("collections", "OrderedDict") + ")R" +
                            dict(text("tag") + text("x"))) +
                      "R";
  for (const char* type : {"bool", "bytearray", "complex", "slice", "unicode"}) {
    types += text(type) + global("__builtin__", type) + ")R";
  }
  // A deque, a member of an Enum inside of another class, and a module of one's own as PyTorch
  // wrote them before zip archives.
  types += text("ellipsis") + global("__builtin__", "Ellipsis") + text("deque") +
           global("collections", "deque") + tuple("]" + integer(5)) + "R(" + integer(1) + "e" +
           text("inside") + global("__builtin__", "getattr") +
           tuple(global("mine", "Outer") + text("Mode")) + "R" + tuple(integer(1)) + "R" +
           text("net") +
           tuple(text("module") + global("mine", "Net") + text("mine.py") + text("source")) +
           "Q)\x81" + dict(text("training") + "\x88") + "b";
  CHECK(floats_of(place
                      .load(archive(dict(text("model") + dict(text("w") + sound_tensor()) +
                                         text("more") + dict(types)),
                                    six()))
                      .at("w"))
            .size() == 6);
  CHECK(place.load(archive(dict(text("w") + sound_tensor() + beside), six())).size() == 1);
}

TEST_CASE("pth: OrderedDicts of Python 2 and its strings are read") {
  const Place place;
  const std::string pair = "](U\x01w" + sound_tensor() + "e";
  const std::string value = global("collections", "OrderedDict") + tuple("](" + pair + "e") + "R";
  CHECK(floats_of(place.load(archive(value, six())).at("w")).size() == 6);
}

TEST_CASE("pth: archives with ZIP64 records and with comments are read") {
  const Place place;
  const std::vector<Entry> entries = entries_of(named(sound_tensor()), six());
  CHECK(place.load(zip(entries, {.zip64 = true})).size() == 1);
  CHECK(place.load(zip(entries, {.comment = "PK\x05\x06 and more of a comment"})).size() == 1);
}

TEST_CASE("pth: a name that is no part of weights is refused, and nothing is executed") {
  const Place place;
  const fs::path trace = place.folder.path() / "trace";
  const std::string command = text("touch " + trace.string());
  const std::string call = global("os", "system") + tuple(command) + "R";
  place.refuses_value(call, "names os.system, which is no part of weights; nothing of the file");
  place.refuses_value(named(call), "names os.system");
  place.refuses_value(dict(text("state_dict") + named(sound_tensor()) + text("x") + call),
                      "names os.system");
  place.refuses_value("(" + command + "ios\nsystem\n", "names os.system");
  place.refuses_value(text("os") + text("system") + "\x93" + tuple(command) + "R",
                      "names os.system");
  place.refuses_value(named(global("builtins", "eval") + tuple(command) + "R"), "builtins.eval");
  place.refuses_value(global("os" + std::string(1, '.') + std::string(300, '\x01'), "f") + ")R",
                      "???...");
  CHECK_FALSE(fs::exists(trace));
}

TEST_CASE("pth: tensors that reach outside of their storage are refused") {
  const Place place;
  const auto refuses = [&](const std::string& value, const char* complaint) {
    place.refuses_value(named(value), complaint);
  };
  const std::string six = six_storage();
  const char* outside = "tensor w reaches outside of its storage, which has 6 elements";
  constexpr std::int64_t kMost = std::numeric_limits<std::int64_t>::max();
  refuses(tensor(six, 0, {7}, {1}), outside);
  refuses(tensor(six, 1, {2, 3}, {3, 1}), outside);
  refuses(tensor(six, 6, {}, {}), outside);
  refuses(tensor(six, 7, {0}, {1}), outside);
  refuses(tensor(six, 0, {2, 3}, {4, 1}), outside);
  refuses(tensor(six, 0, {2}, {6}), outside);
  refuses(tensor(six, 0, {2}, {kMost}), outside);
  refuses(tensor(six, kMost, {2}, {kMost}), outside);
  // The way to the last element wraps around to 0, by a product and by a sum.
  refuses(tensor(six, 0, {5}, {std::int64_t{1} << 62}), outside);
  refuses(tensor(six, 2, {3, 2}, {kMost, 2}), outside);
  refuses(tensor(six, -1, {2}, {1}), "tensor w has the offset -1");
  refuses(tensor(six, 0, {-2}, {1}), "tensor w has the extent -2");
  refuses(tensor(six, 5, {2}, {-1}), "tensor w has the stride -1");
  refuses(tensor(six, 0, {2, 3}, {1}), "tensor w has 2 extents and 1 strides");
  refuses(tensor(six, 0, std::vector<std::int64_t>(65, 1), std::vector<std::int64_t>(65, 1)),
          "tensor w has 65 extents");
  refuses(tensor(six, 0, {kMost, kMost, 4}, {0, 0, 0}), "tensor w has an impossible shape");
}

TEST_CASE("pth: tensors that repeat few elements without end are refused") {
  const Place place;
  place.refuses_value(named(tensor(six_storage(), 0, {std::int64_t{1} << 40}, {0})),
                      "would take more than");
  std::string many;
  for (int i = 0; i < 40; ++i) {
    many += text("w" + std::to_string(i)) + tensor(six_storage(), 0, {1 << 20}, {0});
  }
  place.refuses_value(dict(many), "would take more than");
  CHECK(place.load(archive(named(tensor(six_storage(), 0, {1 << 20}, {0})), six())).size() == 1);
}

TEST_CASE("pth: storages whose sizes lie are refused") {
  const Place place;
  const auto with = [](std::int64_t elements) {
    return named(tensor(storage(kFloats, "0", elements), 0, {2}, {1}));
  };
  for (const std::int64_t elements : {5, 7, 1 << 30}) {
    place.refuses(archive(with(elements), six()), "bytes, but has 24");
    place.refuses(legacy(with(elements), six(), 4), "elements, but has 6");
  }
  for (const std::int64_t elements : {std::int64_t{-1}, std::int64_t{1} << 62}) {
    place.refuses_value(with(elements), "impossible number of elements");
  }
  const std::string large = number(1 << 28, 8);
  std::string file = legacy(with(1 << 28), six(), 4);
  file.replace(file.size() - 32, 8, large);
  place.refuses(file, "should have 1073741824 bytes");
  place.refuses(archive(with(6), {}), "archive/data/0 is missing");
  place.refuses(legacy(with(6), {}, 4), "storage 0 is missing");
  const std::string twice = dict(text("v") + tensor(six_storage(), 0, {2}, {1}) + text("w") +
                                 tensor(storage("DoubleStorage", "0", 3), 0, {2}, {1}));
  place.refuses(legacy(twice, six(), 4), "storage 0 is given two sizes");
}

TEST_CASE("pth: archives that are damaged, packed or lie are refused") {
  const Place place;
  const std::vector<Entry> sound = entries_of(named(sound_tensor()), six());
  const auto refuses = [&](std::size_t at, const Entry& entry, const char* complaint) {
    std::vector<Entry> entries = sound;
    entries[at] = entry;
    place.refuses(zip(entries), complaint);
  };
  const Entry pickled = sound[0], stored = sound[1];
  CHECK(place.load(zip(sound)).size() == 1);
  refuses(0, {pickled.name, pickled.data, 8}, "archive/data.pkl is compressed (method 8)");
  refuses(1, {stored.name, stored.data, 12}, "archive/data/0 is compressed (method 12)");
  refuses(1, {stored.name, stored.data, 0, 1}, "archive/data/0 is encrypted");
  refuses(1, {"archive/data/9", stored.data}, "archive/data/0 is missing");
  refuses(1, pickled, "has archive/data.pkl twice");
  refuses(0, {"archive/other.pkl", pickled.data},
          "torch.save has not written: data.pkl is missing");
  refuses(2, {"archive/constants.pkl", ""}, "TorchScript");
  refuses(2, {"archive/byteorder", "big"}, "big-endian");
  CHECK_NOTHROW(place.load(zip({sound[0], sound[1], {"archive/byteorder", "little"}})));
  place.refuses(zip({}), "data.pkl is missing");
  place.refuses(zip(sound, {.more_bytes = 1}), "CRC-32");
  place.refuses(zip(sound, {.zip64 = true, .more_bytes = std::int64_t{1} << 40}),
                "expected at most");
  const std::string whole = zip(sound);
  const std::size_t directory = whole.find("PK\x01\x02"), begin = whole.find(pickled.data);
  const std::size_t into = directory - begin - pickled.data.size() + 10;
  place.refuses(zip(sound, {.more_bytes = static_cast<std::int64_t>(into)}),
                "but the zip directory begins at byte");
  place.refuses(zip(sound, {.more_entries = 1}), "should have 4 entries, but has 3");
  place.refuses(zip(sound, {.displaced = 1}), "is not where the zip directory says");
  place.refuses(zip(sound, {.zip64 = true, .displaced = std::int64_t{1} << 60}), "cut off");
  std::string damaged = zip(sound);
  damaged[damaged.find(six()["0"]) + 3] ^= 1;
  place.refuses(damaged, "archive/data/0 is damaged: its checksum");
  damaged = zip(sound);
  damaged.replace(damaged.size() - 6, 4, number(damaged.size() - 21, 4));
  place.refuses(damaged, "but the archive ends at byte");
}

TEST_CASE("pth: damaged pickles are refused") {
  const Place place;
  place.refuses_value("", "lacks a value");
  place.refuses_value("0", "the operation 48 at byte 2");
  place.refuses_value("NN", "ends with more than one value");
  place.refuses_value("(N", "ends with more than one value");
  place.refuses_value("N(R", "lacks a value");
  place.refuses_value("t", "lacks a mark");
  place.refuses_value("Na", "lacks a value");
  place.refuses_value("NNa", "appends to what is no list");
  place.refuses_value("NNNs", "sets items of what is no dict");
  place.refuses_value("}(Nu", "a key without a value");
  place.refuses_value("h\x05", "recalls what it has not remembered");
  place.refuses_value("NNb", "gives a state to what has none");
  place.refuses_value("NNR", "calls what is no name");
  place.refuses_value(global("torch", kFloats) + ")R", "calls a type of storages");
  place.refuses_value("NQ", "a storage is not of");
  place.refuses_value(global("torch._utils", "_rebuild_parameter") + ")R", "of no tensor");
  place.refuses_value(global("torch._utils", "_rebuild_tensor_v2") + ")R", "too few or many parts");
  place.refuses_value(global("torch._utils", "_rebuild_tensor_v2") + tuple("NNNNNN") + "R",
                      "not of a storage, an offset");
  place.refuses_value(global("collections", "OrderedDict") + tuple("N") + "R", "of no list");
  place.refuses_value(global("collections", "OrderedDict") + tuple("](Ne") + "R", "no pair");
  place.refuses_value("X" + number(0xffffffff, 4), "cut off");
  place.refuses_value("cos", "cut off");
  place.refuses(zip({{"a/data.pkl", "\x80\x03N."}}), "protocol 3, expected 2");
  place.refuses(zip({{"a/data.pkl", "N."}}), "does not begin as one");
  place.refuses(zip({{"a/data.pkl", ""}}), "cut off");
}

TEST_CASE("pth: pickles that would grow without end are refused") {
  const Place place;
  place.refuses_value(std::string(5000, '('), "nested too deeply");
  place.refuses(archive(std::string((2 << 20) + 1, '}'), {}), "more than 2097152 values");
  const std::string deep = "N" + std::string(200'000, '\x85');
  CHECK(place.load(archive(dict(text("v") + sound_tensor() + text("w") + deep), six())).size() ==
        1);
  // A list and a dict that hold themselves.
  const std::string itself("]q\0h\0a", 6);
  CHECK(place.load(archive(dict(text("v") + sound_tensor() + text("w") + itself), six())).size() ==
        1);
  place.refuses_value(std::string("}q\0(X\x0a\0\0\0state_dicth\0u", 22), "state dict");
  // One list of items, given to many dicts.
  std::string items = "](";
  for (int i = 0; i < 5000; ++i) items += "NN\x86";
  std::string dicts =
      items + "e\x85q" + std::string(1, '\0') + global("collections", "OrderedDict") + "q\x01";
  for (int i = 0; i < 1000; ++i) dicts += std::string("h\x01h\0R", 5);
  place.refuses_value(dicts, "OrderedDicts have too many items");
}

TEST_CASE("pth: what is no state dict is refused, saying what it is") {
  const Place place;
  place.refuses_value("N", "it holds None");
  place.refuses_value("]", "it holds a list");
  place.refuses_value(sound_tensor(), "it holds a tensor");
  place.refuses_value("}", "it holds a dict of []");
  place.refuses_value(dict(text("epoch") + integer(3) + text("net") + named(sound_tensor())),
                      "under 'state_dict', 'model' or 'model_state_dict'; it holds a dict of "
                      "[epoch, net]. If you trust the file, load it in Python and save the model's "
                      "state_dict() alone");
  const std::string network = global("mine", "Net") + ")\x81" + dict("") + "b";
  place.refuses_value(network, "it holds an object of mine.Net. If you trust the file");
  place.refuses_value(dict(text("epoch") + integer(3) + text("model") + network),
                      "it holds a dict of [epoch, model (an object of mine.Net)]");
  place.refuses_value(global(std::string(300, '\x01'), "f") + ")R", "an object of ???");
  const std::string sparse = global("torch._utils", "_rebuild_sparse_tensor") + ")R";
  place.refuses_value(
      dict(text("w") + sound_tensor() + text("x") + global("torch._utils", "_rebuild_parameter") +
           tuple(sparse + "\x88") + "R"),
      "expected a tensor under x in the state dict, got an object of "
      "torch._utils._rebuild_sparse_tensor");
  place.refuses_value(dict(text("w") + sound_tensor() + text("x") + named(sound_tensor())),
                      "expected a tensor under x in the state dict, got a dict");
  place.refuses_value(dict(text("w") + sound_tensor() + integer(3) + sound_tensor()),
                      "a name in the state dict is an int");
  place.refuses_value(dict(text("\xff") + sound_tensor()), "not UTF-8");
  place.refuses_value(dict(text("w") + sound_tensor() + text("w") + sound_tensor()), "w twice");
}

TEST_CASE("pth: the older format's own lies are refused") {
  const Place place;
  const std::string value = named(sound_tensor());
  place.refuses(legacy(value, six(), 4, "\x89"), "big-endian");
  place.refuses(legacy(value, {{"0", six()["0"]}, {"1", "...."}}, 4), "a storage of no tensor");
  const std::string magic = legacy(value, six(), 4).substr(0, 15);
  place.refuses(magic + pickle(integer(7)), "version is not 1001");
  place.refuses(magic + pickle(integer(1001)) + pickle("N"), "sys_info is no dict");
}

TEST_CASE("pth: a file cut off anywhere is refused") {
  const Place place;
  for (const std::string& file : {archive(rich_value(), rich_storages()), rich_legacy(),
                                  zip(entries_of(named(sound_tensor()), six()), {.zip64 = true})}) {
    CHECK_NOTHROW(place.load(file));
    for (std::size_t length = 0; length < file.size(); ++length) {
      CAPTURE(length);
      CHECK_THROWS_AS(place.load(file.substr(0, length)), DataError);
    }
  }
}

TEST_CASE("pth: flipped bytes are refused or change values only, and never crash") {
  const Place place;
  std::mt19937 random(7);
  const auto flipped = [&](std::string bytes) {
    const int flips = 1 + static_cast<int>(random() % 3);
    for (int i = 0; i < flips; ++i) {
      bytes[random() % bytes.size()] = static_cast<char>(random() & 0xff);
    }
    return bytes;
  };
  const std::string zipped = archive(rich_value(), rich_storages()), old = rich_legacy();
  const std::string wide = zip(entries_of(named(sound_tensor()), six()), {.zip64 = true});
  for (int i = 0; i < 5000; ++i) {
    check_survives(place, flipped(zipped));
    check_survives(place, flipped(old));
    check_survives(place, flipped(wide));
    // Behind a checksum that is right.
    check_survives(place, archive(flipped(rich_value()), rich_storages()));
  }
}

}  // namespace lockstep::test
