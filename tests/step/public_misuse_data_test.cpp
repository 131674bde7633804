// Wrong arguments of networks, models, data sets, files and predictors (misuse_table.h).

#include <doctest/doctest.h>

#include <filesystem>
#include <functional>
#include <vector>

#include "step/misuse_table.h"
#include "support/temporary_folder.h"

namespace lockstep::test {
namespace {

Outputs small_model(NetworkBuilder& net, Value* x, const NormLayer& norm) {
  x = norm(net, net.conv2d(x, "c", {.out_channels = 3}), "bn");
  return {{"out", x}};
}

TensorMap small_weights() {
  const auto backend = cpu(1);
  ParameterStore store;
  build_network(small_model, BatchNorm2d(), {1, 4, 4, 3}, {}, *backend, store);
  return state_dict(store, *backend);
}

DataOptions street_data() {
  DataOptions data;
  data.layout = "streets";
  data.num_classes = 11;
  data.size = {16, 16};
  data.train_images = 4;
  data.val_images = 2;
  return data;
}

Misuse data_mistake(const char* what, const std::function<void(DataOptions&)>& change) {
  return {what, [change] {
            DataOptions data = street_data();
            change(data);
            TrainLoader(data, {.batch = 2}).next();
          }};
}

Misuse loader_mistake(const char* what, const std::function<void(LoaderOptions&)>& change) {
  return {what, [change] {
            LoaderOptions options{.batch = 2};
            change(options);
            TrainLoader(street_data(), options).next();
          }};
}

Misuse model_mistake(const char* what, const Model& model, const Shape& input = {1, 64, 64, 3}) {
  return {what, [=] {
            const auto backend = cpu(1);
            ParameterStore store;
            build_network(model, BatchNorm2d(), input, {}, *backend, store);
          }};
}

}  // namespace

TEST_CASE("misuse of networks, stores and models throws") {
  check_throw({
      {"a batch larger than planned", [] { Built().network->set_batch(3); }},
      {"a negative batch", [] { Built().network->set_batch(-1); }},
      {"an output that is not there", [] { Built().network->output_index("aux"); }},
      {"an output of number 7", [] { Built().network->output(7); }},
      {"an output gradient of number 7", [] { Built().network->output_grad(7); }},
      {"the work of layer 9", [] { Built().network->work(9, Direction::kForward); }},
      {"a backward pass without gradients", [] { Built(false).network->backward({}); }},
      {"a network of a null model",
       [] {
         const auto backend = cpu(1);
         ParameterStore store;
         build_network(nullptr, {}, {1, 4, 4, 3}, {}, *backend, store);
       }},
      model_mistake("a U-Net without classes", unet({})),
      model_mistake("a U-Net without width", unet({.width = 0, .num_classes = 2})),
      model_mistake("a U-Net without depth", unet({.depth = 0, .num_classes = 2})),
      model_mistake("a U-Net of a negative depth", unet({.depth = -3, .num_classes = 2})),
      model_mistake("a U-Net of depth 1000", unet({.depth = 1000, .num_classes = 2})),
      model_mistake("a U-Net of an odd image", unet({.num_classes = 2}), {1, 33, 64, 3}),
      model_mistake("a U-Net of rows", unet({.num_classes = 2}), {1, 64}),
      {"the divisor of depth 1000", [] { static_cast<void>(unet_size_divisor({.depth = 1000})); }},
      {"the divisor of depth 0", [] { static_cast<void>(unet_size_divisor({.depth = 0})); }},
      model_mistake("a ResNet without classes", resnet(ResNetOptions{}, 0)),
      model_mistake("a ResNet of negative classes", resnet(ResNetOptions{}, -2)),
      model_mistake("a ResNet without blocks", resnet({.blocks = {0, 0, 0, 0}}, 2)),
      model_mistake("a ResNet of negative blocks", resnet({.blocks = {1, -1, 1, 1}}, 2)),
      model_mistake("a ResNet without width", resnet({.width = 0}, 2)),
      model_mistake("a ResNet without groups", resnet({.groups = 0}, 2)),
      {"a ResNet of no name", [] { resnet_options("resnet17"); }},
      {"an output stride of 5", [] { with_output_stride(ResNetOptions{}, 5); }},
      model_mistake("an FCN without classes", fcn({})),
      {"a DeepLab of an output stride of 7",
       [] { deeplabv3({.num_classes = 2, .output_stride = 7}); }},
      {"a PSPNet with a dropout of 2",
       [] { model_mistake("", pspnet({.num_classes = 2, .dropout = 2.0F})).make(); }},
      {"an architecture that is not there",
       [] { find_architecture(builtin_models(), {.arch = "vgg"}); }},
      {"weights of another network",
       [] {
         Built built;
         TensorMap weights = small_weights();
         weights["c.weight"].shape = {1};
         load_state_dict(weights, built.store, *built.backend, true);
       }},
      {"weights that are shorter than their shape says",
       [] {
         Built built;
         TensorMap weights = state_dict(built.store, *built.backend);
         weights["c.weight"].data.resize(3);
         load_state_dict(weights, built.store, *built.backend, true);
       }},
      {"weights of no type",
       [] {
         Built built;
         TensorMap weights = state_dict(built.store, *built.backend);
         weights["c.weight"].dtype = "F31";
         load_state_dict(weights, built.store, *built.backend, true);
       }},
      {"a parameter of a store that is allocated",
       [] {
         Built built;
         built.store.parameter("new", {2}, ParameterKind::kWeight);
       }},
      {"a parameter of another kind",
       [] {
         Built built;
         built.store.parameter("c.bias", {3}, ParameterKind::kNorm);
       }},
      {"running statistics of no channels",
       [] {
         ParameterStore store;
         store.batch_norm("bn", 0);
       }},
      {"memory taken twice",
       [] {
         Built built;
         built.store.allocate(*built.backend);
       }},
      {"gradient parts of a store without memory",
       [] {
         ParameterStore store;
         const auto backend = cpu(1);
         store.parameter("p", {2}, ParameterKind::kWeight);
         store.reserve_gradient_parts(*backend, 2);
       }},
  });
}

TEST_CASE("misuse of data sets, loaders and files throws") {
  const TemporaryFolder folder;
  const std::filesystem::path nowhere = folder.path() / "no" / "such" / "file";
  const ValLoader loader(street_data(), 0);
  check_throw({
      data_mistake("a layout that is not there", [](auto& data) { data.layout = "tape"; }),
      data_mistake("a null table of layouts", [](auto& data) { data.layouts = nullptr; }),
      data_mistake("a root that is not there",
                   [&](auto& data) {
                     data.layout = "folder";
                     data.root = nowhere;
                   }),
      data_mistake("images of a negative size",
                   [](auto& data) {
                     data.size = {-16, 16};
                   }),
      data_mistake("no images", [](auto& data) { data.train_images = 0; }),
      data_mistake("a negative number of images", [](auto& data) { data.train_images = -4; }),
      data_mistake("a standard deviation of 0", [](auto& data) { data.std[1] = 0; }),
      data_mistake("a mean that is no number", [](auto& data) { data.mean[1] = kNaN; }),
      data_mistake("images resized to nothing",
                   [](auto& data) {
                     data.resize = Size{0, 0};
                   }),
      data_mistake("negative workers", [](auto& data) { data.workers = -1; }),
      data_mistake("a negative cache", [](auto& data) { data.cache_mb = -1; }),
      data_mistake("a crop of nothing",
                   [](auto& data) {
                     data.augment.emplace();
                     data.augment->crop = Size{0, 4};
                   }),
      data_mistake("a scale of nothing",
                   [](auto& data) {
                     data.augment.emplace();
                     data.augment->scale_lo = data.augment->scale_hi = 0;
                   }),
      loader_mistake("batches of nothing", [](auto& options) { options.batch = 0; }),
      loader_mistake("batches of less than nothing", [](auto& options) { options.batch = -2; }),
      loader_mistake("batches larger than an epoch", [](auto& options) { options.batch = 5; }),
      loader_mistake("a negative first batch", [](auto& options) { options.first_batch = -1; }),
      loader_mistake("no batches ahead", [](auto& options) { options.prefetch = -1; }),
      loader_mistake("places outside the batch",
                     [](auto& options) {
                       options.own_places = [](std::int64_t count) {
                         return std::vector<std::int64_t>{count};
                       };
                     }),
      loader_mistake("places before the batch",
                     [](auto& options) {
                       options.own_places = [](std::int64_t) {
                         return std::vector<std::int64_t>{-1};
                       };
                     }),
      {"validation from -1 on", [&] { loader.load(-1, 1, 1); }},
      {"validation beyond the end", [&] { loader.load(1, 2, 1); }},
      {"a huge number of images", [&] { loader.load(1, kHuge, 1); }},
      {"a divisor of 0", [&] { loader.load(0, 1, 0); }},
      {"a sampler without samples", [] { DistributedSampler(0, {}); }},
      {"a sampler of a negative rank", [] { DistributedSampler(4, {.ranks = 2, .rank = -1}); }},
      {"a sampler of a rank too many", [] { DistributedSampler(4, {.ranks = 2, .rank = 2}); }},
      {"a sampler without ranks", [] { DistributedSampler(4, {.ranks = 0}); }},
      {"safetensors of nowhere", [&] { load_safetensors(nowhere); }},
      {"a folder as safetensors", [&] { load_safetensors(folder.path()); }},
      {"pth of nowhere", [&] { load_pth(nowhere); }},
      {"weights of nowhere", [&] { load_weights(nowhere); }},
      {"weights without a name", [] { load_weights(""); }},
      {"safetensors to nowhere", [&] { save_safetensors(nowhere, {}); }},
      {"safetensors of a shape that its data do not have",
       [&] {
         save_safetensors(folder.path() / "a", {{"a", {"F32", {5}, std::vector<std::byte>(3)}}});
       }},
      {"safetensors of no type",
       [&] {
         save_safetensors(folder.path() / "a", {{"a", {"", {1}, std::vector<std::byte>(4)}}});
       }},
      {"safetensors of a negative extent",
       [&] {
         save_safetensors(folder.path() / "a", {{"a", {"F32", {-1}, {}}}});
       }},
      {"ONNX of a null model",
       [&] { save_onnx(folder.path() / "a", nullptr, BatchNorm2d(), small_weights()); }},
      {"ONNX without weights",
       [&] { save_onnx(folder.path() / "a", small_model, BatchNorm2d(), {}); }},
      {"ONNX of no output",
       [&] {
         save_onnx(folder.path() / "a", small_model, BatchNorm2d(), small_weights(),
                   {.outputs = {"aux"}});
       }},
      {"ONNX of no outputs at all",
       [&] {
         save_onnx(folder.path() / "a", small_model, BatchNorm2d(), small_weights(),
                   {.outputs = {}});
       }},
      {"ONNX of no channels",
       [&] {
         save_onnx(folder.path() / "a", small_model, BatchNorm2d(), small_weights(),
                   {.channels = 0});
       }},
      {"ONNX of negative sizes",
       [&] {
         save_onnx(folder.path() / "a", small_model, BatchNorm2d(), small_weights(),
                   {.height = -4, .width = 4});
       }},
      {"ONNX without a divisor",
       [&] {
         save_onnx(folder.path() / "a", small_model, BatchNorm2d(), small_weights(),
                   {.size_divisor = 0});
       }},
      {"ONNX to nowhere", [&] { save_onnx(nowhere, small_model, BatchNorm2d(), small_weights()); }},
      {"a predictor of a null model", [] { Predictor(nullptr, {}); }},
      {"a predictor without weights",
       [] {
         Predictor(small_model, {}).predict(std::vector<float>(48), {1, 4, 4, 3});
       }},
      {"a predictor of no output",
       [] {
         Predictor(small_model, small_weights(), {.output = "aux"})
             .predict(std::vector<float>(48), {1, 4, 4, 3});
       }},
      {"a predictor with negative threads",
       [] {
         Predictor(small_model, small_weights(), {.threads = -1})
             .predict(std::vector<float>(48), {1, 4, 4, 3});
       }},
      {"a prediction of nothing", [] { Predictor(small_model, small_weights()).predict({}, {}); }},
      {"a prediction of no images",
       [] {
         Predictor(small_model, small_weights()).predict({}, {0, 4, 4, 3});
       }},
      {"a prediction of too few values",
       [] {
         Predictor(small_model, small_weights()).predict(std::vector<float>(47), {1, 4, 4, 3});
       }},
      {"images beyond memory",
       [] {
         Predictor(small_model, small_weights())
             .predict(std::vector<float>(48), {1, kHuge, kHuge, 3});
       }},
  });
}

}  // namespace lockstep::test
