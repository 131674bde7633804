// The names of a file and of a network, one of which has a wrapper's name in front.

#include "nn/graph/weight_names.h"

#include <cstring>
#include <limits>

#include "lockstep/core/check.h"
#include "lockstep/io/weights.h"
#include "nn/harness.h"

namespace lockstep::test {
namespace {

ShapesByName prefixed(const std::string& prefix, const ShapesByName& names) {
  ShapesByName result;
  for (const auto& [name, shape] : names) result[prefix + name] = shape;
  return result;
}

ShapesByName joined(ShapesByName a, const ShapesByName& b) {
  a.insert(b.begin(), b.end());
  return a;
}

const ShapesByName kBackbone = {{"conv1.weight", {8, 3, 7, 7}},
                                {"bn1.weight", {8}},
                                {"bn1.bias", {8}},
                                {"layer1.0.conv1.weight", {8, 8, 3, 3}},
                                {"layer1.1.conv1.weight", {8, 8, 3, 3}}};
const ShapesByName kFc = {{"fc.weight", {5, 8}}, {"fc.bias", {5}}};
const ShapesByName kHead = {{"head.0.weight", {4, 8, 3, 3}}, {"head.1.weight", {2, 4, 1, 1}}};

void check_mapping(const ShapesByName& file, const ShapesByName& network, const std::string& strip,
                   const std::string& add) {
  const NameMapping mapping = find_mapping(file, network);
  CHECK(mapping.strip == strip);
  CHECK(mapping.add == add);
}

TestNetwork small_network(const std::string& prefix, std::int64_t classes) {
  return TestNetwork(
      [=](NetworkBuilder& net, Value* x) {
        x = net.conv2d(x, prefix + "conv1", {.out_channels = 4, .kernel = 3});
        x = net.batch_norm_relu(x, prefix + "bn1");
        return net.conv2d(x, prefix + "fc", {.out_channels = classes, .bias = true});
      },
      {1, 4, 4, 3});
}

TensorMap renamed(const TensorMap& tensors, const std::string& prefix) {
  TensorMap result;
  for (const auto& [name, tensor] : tensors) result[prefix + name] = tensor;
  return result;
}

}  // namespace

TEST_CASE("weight names: wrappers are found on either side, and on both") {
  const ShapesByName plain = joined(kBackbone, kFc);
  check_mapping(plain, plain, "", "");
  for (const char* wrapper : {"module.", "backbone.", "model.", "encoder.", "module.model.net."}) {
    check_mapping(prefixed(wrapper, plain), plain, wrapper, "");
    check_mapping(plain, prefixed(wrapper, plain), "", wrapper);
  }
  check_mapping(prefixed("module.", plain), prefixed("backbone.", plain), "module.", "backbone.");
  // A backbone's file for a network around it, and the reverse.
  const ShapesByName whole = joined(prefixed("backbone.", kBackbone), kHead);
  check_mapping(plain, whole, "", "backbone.");
  check_mapping(whole, plain, "backbone.", "");
  check_mapping(prefixed("module.", whole), plain, "module.backbone.", "");
  check_mapping(prefixed("module.", whole), whole, "module.", "");
}

TEST_CASE("weight names: names without the prefix that is taken off stay as they are") {
  const ShapesByName file = joined(prefixed("trunk.", kBackbone), kHead);
  const ShapesByName network = joined(prefixed("backbone.", kBackbone), kHead);
  check_mapping(file, network, "trunk.", "backbone.");
  const NameMapping mapping{"trunk.", "backbone."};
  CHECK(mapping.source_of("backbone.bn1.bias", file) == "trunk.bn1.bias");
  CHECK(mapping.source_of("head.0.weight", file) == "head.0.weight");
  CHECK(mapping.source_of("trunk.bn1.bias", file).empty());
  CHECK(mapping.source_of("bn1.bias", file).empty());
}

TEST_CASE("weight names: shapes decide before names, and names where no shape fits") {
  ShapesByName wide = kBackbone;
  for (auto& [name, shape] : wide) shape[0] *= 2;
  const ShapesByName two = joined(prefixed("a.", wide), prefixed("b.", kBackbone));
  check_mapping(two, kBackbone, "b.", "");
  check_mapping(prefixed("module.", wide), kBackbone, "module.", "");
}

TEST_CASE("weight names: two prefixes that fit equally are refused, unchanged names are not") {
  check_mapping(joined(kBackbone, prefixed("ema.", kBackbone)), kBackbone, "", "");
  const ShapesByName two = joined(prefixed("student.", kBackbone), prefixed("teacher.", kBackbone));
  const auto refused = [](const ShapesByName& file, const ShapesByName& network) {
    try {
      find_mapping(file, network);
    } catch (const DataError& error) {
      return std::string(error.what());
    }
    return std::string();
  };
  CHECK(refused(two, kBackbone) ==
        "the file has weights for this network under \"student.\" and under \"teacher.\"; choose "
        "with model.weights_prefix = \"student.\" or \"teacher.\" (select_prefix in a program)");
  CHECK(refused(joined(prefixed("m.", kBackbone), prefixed("m.ema.", kBackbone)), kBackbone)
            .find("\"m.\" and under \"m.ema.\"") != std::string::npos);
  CHECK(refused(kBackbone, two).find("under \"student.\" and under \"teacher.\" alike") !=
        std::string::npos);
  // The two ways to say that nothing but "a." goes are one.
  const ShapesByName inner = prefixed("b.", kBackbone);
  check_mapping(prefixed("a.", inner), inner, "a.", "");
  // One of the two fits better by a tensor.
  check_mapping(joined(two, {{"teacher.fc.weight", {5, 8}}}), joined(kBackbone, kFc), "teacher.",
                "");
}

TEST_CASE("weights: of a file with several networks one is chosen by its prefix") {
  TestNetwork net = small_network("", 5);
  net.randomize(3);
  const TensorMap own = state_dict(net.store, *net.backend);
  net.randomize(4);
  TensorMap file = renamed(own, "teacher.");
  file.merge(renamed(state_dict(net.store, *net.backend), "student."));
  CHECK_THROWS_AS(load_state_dict(file, net.store, *net.backend, true), DataError);
  load_state_dict(select_prefix(file, "teacher."), net.store, *net.backend, true);
  CHECK(state_dict(net.store, *net.backend) == own);
  CHECK(select_prefix(own, "teacher.") == own);
}

TEST_CASE("weights: num_batches_tracked may be of any type of numbers") {
  TestNetwork net = small_network("", 5);
  TensorMap file = state_dict(net.store, *net.backend);
  const auto load = [&](const char* dtype, const auto value) {
    HostTensor& count = file.at("bn1.num_batches_tracked");
    const auto bytes = std::as_bytes(std::span(&value, 1));
    count = {dtype, {}, {bytes.begin(), bytes.end()}};
    load_state_dict(file, net.store, *net.backend, true);
    return net.store.batch_norms()[0]->num_batches_tracked;
  };
  CHECK(load("F32", 12.5F) == 13);
  CHECK(load("F64", 7.0) == 7);
  CHECK(load("F16", std::uint16_t{0x4500}) == 5);
  CHECK(load("BF16", std::uint16_t{0x40a0}) == 5);
  CHECK(load("I32", std::int32_t{9}) == 9);
  CHECK(load("I16", std::int16_t{8}) == 8);
  CHECK(load("U8", std::uint8_t{200}) == 200);
  CHECK(load("U16", std::uint16_t{60000}) == 60000);
  CHECK(load("U64", std::uint64_t{6}) == 6);
  for (const float no_count : {-1.0F, 1e30F, std::numeric_limits<float>::quiet_NaN()}) {
    CHECK_THROWS_WITH_AS(load("F32", no_count),
                         doctest::Contains("bn1.num_batches_tracked: F32 in the file, I64 here"),
                         DataError);
  }
  CHECK_THROWS_AS(load("F8_E4M3", std::uint8_t{1}), DataError);
}

TEST_CASE("weights: what cannot be a weight is passed over, by name") {
  TestNetwork net = small_network("", 5);
  const TensorMap own = state_dict(net.store, *net.backend);
  TensorMap file = renamed(own, "module.");
  for (const char* type : {"I64", "U16", "F8_E4M3", "BOOL", "F4"}) {
    file[std::string("extra.") + type] = {type, {1}, std::vector<std::byte>(1)};
  }
  file["n_averaged"] = {"F32", {}, std::vector<std::byte>(4)};
  ImportSummary summary;
  REQUIRE_NOTHROW(summary = load_state_dict(file, net.store, *net.backend, true));
  CHECK(summary.loaded == 8);
  CHECK(summary.file_prefix == "module.");
  CHECK(summary.unexpected == std::vector<std::string>{"extra.BOOL", "extra.F4", "extra.F8_E4M3",
                                                       "extra.I64", "extra.U16", "n_averaged"});
  file["extra.weight"] = {"F32", {}, std::vector<std::byte>(4)};
  CHECK_THROWS_WITH_AS(load_state_dict(file, net.store, *net.backend, true),
                       doctest::Contains("are unknown to the network:\n    extra.weight"),
                       DataError);
  TensorMap typed = own;
  typed.at("bn1.weight").dtype = "F8_E4M3";
  CHECK_THROWS_WITH_AS(load_state_dict(typed, net.store, *net.backend, true),
                       doctest::Contains("bn1.weight: F8_E4M3 in the file, F32 here"), DataError);
}

TEST_CASE("weights: ResNets that are nearly torchvision's are named, strict or not") {
  TestNetwork net = small_network("backbone.", 5);
  const TensorMap own = state_dict(net.store, *net.backend);
  const auto refused = [&](const std::string& name) {
    TensorMap file = own;
    file.erase("backbone.conv1.weight");
    file[name] = own.at("backbone.conv1.weight");
    std::string complaint;
    for (const bool strict : {false, true}) {
      try {
        load_state_dict(file, net.store, *net.backend, strict);
        complaint += "loaded;";
      } catch (const DataError& error) {
        complaint += error.what() + std::string(";");
      }
    }
    return complaint;
  };
  for (const char* stem : {"backbone.stem.6.weight", "backbone.conv1.6.weight", "stem.6.weight"}) {
    CAPTURE(stem);
    CHECK(refused(stem).find("a ResNet-v1c or v1d") != std::string::npos);
    CHECK(refused(stem).find("loaded") == std::string::npos);
  }
  CHECK(refused("backbone.bottom_up.stem.conv1.norm.weight").find("detectron2's") !=
        std::string::npos);
  CHECK(refused("backbone.other.weight").starts_with("loaded;"));  // no name that is known
  CHECK_THROWS_WITH_AS(check_convention({"layer0.0.weight"}, {"fc.weight", "conv1.weight"}),
                       doctest::Contains("not that of PSPNet; take the weights of a whole PSPNet"),
                       DataError);
}

TEST_CASE("weight names: a few names in common are no reason to rename") {
  const ShapesByName network = {{"encoder.0.bn.weight", {8}},
                                {"encoder.0.bn.bias", {8}},
                                {"encoder.0.conv.weight", {8, 3, 3, 3}},
                                {"head.weight", {2, 8}}};
  const ShapesByName other = {{"layers.bn.weight", {8}},
                              {"layers.a.weight", {8}},
                              {"layers.b.weight", {8}},
                              {"layers.c.weight", {8}}};
  check_mapping(other, network, "", "");
  check_mapping({}, network, "", "");
  check_mapping(other, {}, "", "");
}

TEST_CASE("weights: a backbone's file loads into a network around it, and the reverse") {
  TestNetwork plain = small_network("", 5), whole = small_network("backbone.", 3);
  const TensorMap file = state_dict(plain.store, *plain.backend);
  whole.randomize(7);
  const auto before = whole.reference().parameters;
  const ImportSummary summary = load_state_dict(file, whole.store, *whole.backend, false);
  CHECK(summary.file_prefix.empty());
  CHECK(summary.network_prefix == "backbone.");
  CHECK(summary.loaded == 6);
  CHECK(summary.skipped ==
        std::vector<std::string>{"backbone.fc.weight: [5, 4, 1, 1] in the file, [3, 4, 1, 1] here",
                                 "backbone.fc.bias: [5] in the file, [3] here"});
  CHECK(summary.missing.empty());
  CHECK(summary.unexpected.empty());
  const auto after = whole.reference().parameters;
  CHECK(after.at("backbone.conv1.weight") == plain.reference().parameters.at("conv1.weight"));
  CHECK(after.at("backbone.bn1.running_var") == plain.reference().parameters.at("bn1.running_var"));
  CHECK(after.at("backbone.fc.weight") == before.at("backbone.fc.weight"));

  TestNetwork again = small_network("", 3);
  again.randomize(8);
  const TensorMap wrapped = renamed(state_dict(whole.store, *whole.backend), "module.");
  CHECK_NOTHROW(load_state_dict(wrapped, again.store, *again.backend, true));
  CHECK(again.reference().parameters.at("fc.weight") == after.at("backbone.fc.weight"));
}

TEST_CASE("weights: what was imported is said in one paragraph") {
  ImportSummary summary;
  summary.loaded = 8;
  CHECK(describe_import(summary) == "8 of the network's 8 tensors loaded");
  summary.network_prefix = "backbone.";
  summary.skipped = {"fc.bias: [5] in the file, [3] here"};
  summary.missing = {"a", "b"};
  for (int i = 0; i < 10; ++i) summary.unexpected.push_back("x" + std::to_string(i));
  CHECK(describe_import(summary) ==
        "8 of the network's 11 tensors loaded (\"NAME\" in the file is \"backbone.NAME\" here); "
        "1 skipped: fc.bias: [5] in the file, [3] here; 2 not in the file: a, b; 10 of the file "
        "not used: x0, x1, x2, x3, x4, x5, x6, x7 and 2 more");
}

TEST_CASE("weights: half, bfloat16 and double become what the parameters are") {
  const auto tensor_of = [](const char* dtype, const auto& values) {
    HostTensor tensor{dtype, {static_cast<std::int64_t>(values.size())}, {}};
    const auto bytes = std::as_bytes(std::span(values));
    tensor.data.assign(bytes.begin(), bytes.end());
    return tensor;
  };
  TestNetwork net = small_network("", 3);
  TensorMap tensors = state_dict(net.store, *net.backend);
  // 1, -2.5, the smallest subnormal, the largest finite number.
  tensors["bn1.weight"] =
      tensor_of("F16", std::vector<std::uint16_t>{0x3c00, 0xc100, 0x0001, 0x7bff});
  tensors["bn1.bias"] =
      tensor_of("BF16", std::vector<std::uint16_t>{0x3f80, 0xc020, 0x0001, 0xff7f});
  tensors["bn1.running_mean"] = tensor_of("F64", std::vector<double>{1, 0.1, 1e-50, -3});
  load_state_dict(tensors, net.store, *net.backend, true);
  const auto loaded = net.reference().parameters;
  CHECK(download(*net.backend, net.store.batch_norms()[0]->running_mean, 4) ==
        Floats{1, 0.1F, 0, -3});
  CHECK(loaded.at("bn1.weight").size() == 4);
  const TensorMap exported = state_dict(net.store, *net.backend);
  const auto floats = [&](const char* name) {
    Floats values(4);
    std::memcpy(values.data(), exported.at(name).data.data(), 16);
    return values;
  };
  CHECK(floats("bn1.weight") == Floats{1, -2.5F, 0x1p-24F, 65504});
  CHECK(floats("bn1.bias") == Floats{1, -2.5F, 0x1p-133F, -0x1.fep127F});
}

}  // namespace lockstep::test
