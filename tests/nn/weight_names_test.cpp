// The names of a file and of a network, one of which has a wrapper's name in front.

#include "nn/graph/weight_names.h"

#include <cstring>

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

TEST_CASE("weight names: equals are decided by what changes least") {
  const ShapesByName two = joined(prefixed("student.", kBackbone), prefixed("teacher.", kBackbone));
  check_mapping(two, kBackbone, "student.", "");
  check_mapping(joined(prefixed("zz.", kBackbone), prefixed("aaa.", kBackbone)), kBackbone, "zz.",
                "");
  check_mapping(joined(kBackbone, prefixed("ema.", kBackbone)), kBackbone, "", "");
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
