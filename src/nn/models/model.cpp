#include "lockstep/nn/model.h"

#include <algorithm>
#include <ranges>
#include <utility>

#include "core/words.h"
#include "lockstep/nn/models.h"

namespace lockstep {
namespace {

using Convert = std::function<void(BatchNormOptions& options, const Shape& input)>;

Model converted(Model model, const Convert& convert) {
  return [model = std::move(model), convert](NetworkBuilder& net, Value* input,
                                             const NormLayer& norm) {
    const NetworkBuilder::NormConversion scope(net, [&convert](NormLayer& layer, const Shape& x) {
      const bool batch_norm = layer.options.statistics() != StatisticsOf::kImage;
      if (batch_norm && !layer.is_frozen()) convert(layer.options, x);
    });
    return model(net, input, norm);
  };
}

}  // namespace

std::unique_ptr<Network> build_network(const Model& model, const NormLayer& norm,
                                       const Shape& input, const PlanOptions& plan,
                                       Backend& backend, ParameterStore& store) {
  LOCKSTEP_CHECK(model != nullptr, "a network needs a model: a function that declares its layers");
  NetworkBuilder net(backend, store, norm);
  Value* x = net.input(input);
  return net.build(model(net, x, norm), plan);
}

Model convert_sync_batchnorm(Model model, const RankPartition& process_groups) {
  return converted(std::move(model), [process_groups](BatchNormOptions& options, const Shape&) {
    options.mode = BatchNormMode::kSync;
    if (!process_groups.empty()) options.process_groups = process_groups;
  });
}

Model revert_sync_batchnorm(Model model) {
  return converted(std::move(model), [](BatchNormOptions& options, const Shape&) {
    if (options.mode == BatchNormMode::kSync) options.mode = BatchNormMode::kLocal;
  });
}

Model normalize_by_batch(Model model) {
  return converted(std::move(model), [](BatchNormOptions& options, const Shape& input) {
    if (input.rows() == 1) return;
    options.mode = BatchNormMode::kLocal;
    options.track_running_stats = false;
  });
}

Model normalize_by_image(Model model) {
  return converted(std::move(model), [](BatchNormOptions& options, const Shape& input) {
    options.by_image = input.rows_per_sample() > 1;
  });
}

const ModelTable& builtin_models() {
  static const ModelTable models{{"unet", make_unet},
                                 {"fcn_resnet50", make_segmentation},
                                 {"fcn_resnet101", make_segmentation},
                                 {"deeplabv3_resnet50", make_segmentation},
                                 {"deeplabv3_resnet101", make_segmentation},
                                 {"pspnet_resnet50", make_segmentation},
                                 {"pspnet_resnet101", make_segmentation},
                                 {"resnet18", make_resnet},
                                 {"resnet34", make_resnet},
                                 {"resnet50", make_resnet},
                                 {"resnet101", make_resnet},
                                 {"resnext50_32x4d", make_resnet}};
  return models;
}

namespace {

/// The model's one logit against one of 0: the softmax of both is the sigmoid of the one, so that
/// losses, scores and maps of two classes are those of one logit.
Model with_zero_logit(Model model) {
  return [model = std::move(model)](NetworkBuilder& net, Value* input, const NormLayer& norm) {
    Outputs outputs = model(net, input, norm);
    for (Output& output : outputs) {
      Value* zero = net.sub(output.value, output.value);
      output.value = net.concat({zero, output.value});
    }
    return outputs;
  };
}

Architecture make_with_one_logit(const ModelEntry& entry, ModelOptions options) {
  // 0: not counted yet.
  if (options.num_classes != 0 && options.num_classes != 2) {
    throw ConfigError(concat("model.one_logit tells two classes apart, and there are ",
                             options.num_classes, "; leave it out"));
  }
  options.num_classes = 1;
  Architecture architecture = entry.make(options);
  architecture.model = with_zero_logit(std::move(architecture.model));
  return architecture;
}

}  // namespace

Architecture find_architecture(const ModelTable& models, const ModelOptions& options) {
  const auto found = std::find_if(models.begin(), models.end(), [&](const ModelEntry& entry) {
    return entry.name == options.arch;
  });
  if (found != models.end())
    return options.one_logit ? make_with_one_logit(*found, options) : found->make(options);
  throw ConfigError(concat("there is no model '", options.arch, "'; expected one of: ",
                           joined(models | std::views::transform(&ModelEntry::name))));
}

}  // namespace lockstep
