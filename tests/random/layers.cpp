// Layers of fixed dimensions, batch and instance normalisation, and the parts of networks. Layers
// that have the options of a function stand beside it, in the other families.
#include "operation.h"
#include "reference.h"

#include <tutti/autograd/functions.h>
#include <tutti/distributed/process_group.h>
#include <tutti/nn/activation.h>
#include <tutti/nn/batch_norm/sync_batch_norm.h>
#include <tutti/nn/conv.h>
#include <tutti/nn/conv_transpose.h>
#include <tutti/nn/flatten.h>
#include <tutti/nn/instance_norm.h>
#include <tutti/nn/linear.h>
#include <tutti/nn/models/resnet.h>
#include <tutti/nn/pooling.h>

#include <memory>

namespace tutti::test {
namespace {

using ReferenceCall = std::function<Array(const Arrays&)>;

// Converts a layer to the trial's dtype and gives its parameters random values.
void randomise(nn::Module& layer, Draw& draw) {
  layer.to(draw.dtype());
  for (const Tensor& parameter : layer.parameters())
    parameter.detach().copy_(randn(parameter.shape()));
}

// Returns the trial of a layer: its inputs are x and the parameters, in the order of their names.
Trial trial_of(const std::shared_ptr<nn::Layer>& layer, const Tensor& x, Draw& draw,
               ReferenceCall reference) {
  randomise(*layer, draw);
  std::vector<Tensor> inputs{x};
  for (const Tensor& parameter : layer->parameters()) inputs.push_back(parameter);
  return {.inputs = inputs,
          .call = [layer](const auto& in) { return (*layer)(in[0]); },
          .reference = std::move(reference),
          .options = layer->describe(),
          .dtype = draw.dtype()};
}

// Returns an option of `spatial` equal numbers.
Dims all(int spatial, std::int64_t number) { return Dims::filled(spatial, number); }

Array input_or_nothing(const Arrays& in, std::size_t i) { return i < in.size() ? in[i] : Array(); }

template <class Layer>
Operation convolution(const std::string& name, int spatial) {
  return {"nn::" + name,
          [=](Draw& draw) {
            const std::int64_t groups = draw.pick(1, 2), stride = draw.pick(1, 2),
                               padding = draw.pick(0, 1);
            const typename Layer::Options options{.in = groups * draw.pick(1, 3),
                                                  .out = groups * draw.pick(1, 3),
                                                  .kernel = draw.pick(1, 3),
                                                  .stride = stride,
                                                  .padding = padding,
                                                  .groups = groups,
                                                  .bias = draw.chance(0.5)};
            Shape x{draw.batch(2), options.in};
            for (int d = 0; d < spatial; ++d) x.push_back(draw.pick(3, 5));
            const kernels::ConvOptions expanded{all(spatial, stride), all(spatial, padding),
                                                all(spatial, 1), groups};
            return trial_of(
                std::make_shared<Layer>(options), draw.tensor(x), draw, [=](const Arrays& in) {
                  return reference::convolution(in[0], in[1], input_or_nothing(in, 2), expanded);
                });
          },
          {.gradient_roundings = 0, .takes_infinite = false, .nan_spread = NanSpread::samples}};
}

template <class Layer>
Operation transposed_convolution(const std::string& name, int spatial) {
  return {"nn::" + name,
          [=](Draw& draw) {
            const std::int64_t groups = draw.pick(1, 2), stride = draw.pick(1, 2),
                               more = draw.pick(0, stride - 1), kernel = draw.pick(1, 3);
            const typename Layer::Options options{.in = groups * draw.pick(1, 3),
                                                  .out = groups * draw.pick(1, 3),
                                                  .kernel = kernel,
                                                  .stride = stride,
                                                  .output_padding = more,
                                                  .groups = groups,
                                                  .bias = draw.chance(0.5)};
            Shape x{draw.batch(2), options.in};
            Dims output;
            for (int d = 0; d < spatial; ++d) {
              x.push_back(draw.pick(2, 4));
              output.push_back((x[d + 2] - 1) * stride + kernel + more);
            }
            const kernels::ConvOptions expanded{all(spatial, stride), all(spatial, 0),
                                                all(spatial, 1), groups};
            Trial trial = trial_of(std::make_shared<Layer>(options), draw.tensor(x), draw,
                                   [=](const Arrays& in) {
                                     return reference::conv_transpose(
                                         in[0], in[1], input_or_nothing(in, 2), expanded, output);
                                   });
            trial.more_roundings = 1;  // the sum without the bias
            return trial;
          },
          {.gradient_roundings = 0, .takes_infinite = false, .nan_spread = NanSpread::samples}};
}

Operation flatten() {
  return {"nn::Flatten", [](Draw& draw) {
            return trial_of(std::make_shared<nn::Flatten>(), draw.tensor(draw.shape(2)), draw,
                            [](const Arrays& in) {
                              Array y = in[0];
                              y.shape = {y.size(0), product(y.shape, 1, y.rank())};
                              return y;
                            });
          }};
}

template <class Layer>
Operation pool(const std::string& name, int spatial,
               Array (*reference)(const Array&, const nn::PoolOptions&), Traits traits) {
  return {"nn::" + name,
          [=](Draw& draw) {
            const std::int64_t kernel = draw.pick(1, 3), stride = draw.pick(1, 3),
                               padding = draw.pick(0, kernel / 2);
            const bool ceil_mode = draw.chance(0.3);
            const auto layer = std::make_shared<Layer>(typename Layer::Options{
                .kernel = kernel, .stride = stride, .padding = padding, .ceil_mode = ceil_mode});
            const nn::PoolOptions options{.kernel = all(spatial, kernel),
                                          .stride = all(spatial, stride),
                                          .padding = all(spatial, padding),
                                          .ceil_mode = ceil_mode};
            Shape shape{draw.batch(3), draw.pick(1, 20)};
            for (int d = 0; d < spatial; ++d) shape.push_back(draw.pick(3, spatial == 3 ? 4 : 7));
            return trial_of(layer, draw.tensor(shape, Values::steps), draw,
                            [=](const Arrays& in) { return reference(in[0], options); });
          },
          traits};
}

Operation adaptive() {
  return {"nn::AdaptiveAvgPool2d",
          [](Draw& draw) {
            const std::int64_t output = draw.pick(1, 4);
            const Shape shape{draw.batch(3), draw.pick(1, 20), draw.pick(3, 7), draw.pick(3, 7)};
            return trial_of(std::make_shared<nn::AdaptiveAvgPool2d>(
                                nn::AdaptiveAvgPool2d::Options{.output = output}),
                            draw.tensor(shape), draw, [=](const Arrays& in) {
                              return reference::adaptive_avg_pool(in[0], all(2, output));
                            });
          },
          {.gradient_roundings = 0}};
}

// Returns a shape of `rank` dimensions with several values in each channel, unless it is empty.
Shape batch_shape(Draw& draw, int rank) {
  Shape shape = draw.shape(rank, rank);
  for (int d = 1; d < rank; ++d) shape[d] = std::max<std::int64_t>(1, shape[d]);
  if (shape[0] == 1) shape[0] = 2;
  return shape;
}

template <class Layer>
Operation batch_norm(const std::string& name, int least_rank, int most_rank) {
  return {"nn::" + name,
          [=](Draw& draw) {
            const Shape shape =
                batch_shape(draw, static_cast<int>(draw.pick(least_rank, most_rank)));
            // A SyncBatchNorm of one rank; more ranks are in sync_batch_norm_case.h.
            const auto layer = std::make_shared<Layer>(
                nn::BatchNorm::Options{.channels = shape[1], .group = ProcessGroup()});
            return trial_of(layer, draw.tensor(shape), draw, [](const Arrays& in) {
              return reference::batch_norm(in[0], {.weight = in[1], .bias = in[2]});
            });
          },
          {.takes_infinite = false}};
}

// Each channel of a sample is a group of its own.
template <class Layer>
Operation instance_norm(const std::string& name, int rank) {
  return {"nn::" + name,
          [=](Draw& draw) {
            Shape shape = draw.shape(rank, rank);
            for (int d = 1; d < rank; ++d) shape[d] = std::max<std::int64_t>(1, shape[d]);
            if (product(shape, 2, rank) == 1) shape[2] = 2;
            const auto layer = std::make_shared<Layer>(
                nn::InstanceNorm::Options{.channels = shape[1], .affine = true});
            return trial_of(layer, draw.tensor(shape), draw, [=](const Arrays& in) {
              return reference::group_norm(in[0], shape[1], in[1], in[2], 1e-5);
            });
          },
          {.gradient_roundings = 1, .takes_infinite = false}};
}

Operation sequential() {
  return {"nn::Sequential",
          [](Draw& draw) {
            const auto net = std::make_shared<nn::Sequential>();
            const std::int64_t in = draw.pick(1, 9), between = draw.pick(1, 9);
            net->append<nn::Linear>({.in = in, .out = between});
            net->append<nn::ReLU>();
            net->append<nn::Linear>({.in = between, .out = draw.pick(1, 9)});
            return trial_of(net, draw.tensor({draw.batch(9), in}), draw, [](const Arrays& a) {
              return reference::linear(reference::relu(reference::linear(a[0], a[1], a[2])), a[3],
                                       a[4]);
            });
          },
          {.dtypes = {float32, float64}}};
}

// The parts of a residual network without bias: a convolution with 3x3 or 1x1 kernels, and the
// normalisation after it. The parameters begin at in[first].
Array convolved(const Array& x, const Arrays& in, std::size_t first, std::int64_t stride,
                std::int64_t groups = 1) {
  const std::int64_t padding = in[first].size(2) / 2;
  return reference::convolution(x, in[first], {},
                                {all(2, stride), all(2, padding), all(2, 1), groups});
}

Array normalised(const Array& x, const Arrays& in, std::size_t first, bool relu,
                 const Array& residual = {}) {
  return reference::batch_norm(
      x, {.weight = in[first], .bias = in[first + 1], .residual = residual, .relu = relu});
}

// Returns the shortcut of a block: its projection, whose parameters begin at in[first], or x.
Array shortcut(const Array& x, const Arrays& in, std::size_t first, std::int64_t stride) {
  return first < in.size() ? normalised(convolved(x, in, first, stride), in, first + 1, false) : x;
}

// Small batches multiply rounding errors, so blocks are compared in float64.
const Traits block_traits{.dtypes = {float64}, .takes_nonfinite = false};

Operation projection() {
  return {"nn::Projection",
          [](Draw& draw) {
            const nn::Projection::Options options{2, 3, draw.pick(1, 2)};
            return trial_of(
                std::make_shared<nn::Projection>(options),
                draw.tensor({draw.empty_batch() ? 0 : 2, 2, 4, 5}), draw,
                [=](const Arrays& in) { return shortcut(in[0], in, 1, options.stride); });
          },
          block_traits};
}

Operation basic_block() {
  return {
      "nn::BasicBlock",
      [](Draw& draw) {
        const std::int64_t stride = draw.pick(1, 2);
        const nn::BasicBlock::Options options{2, stride == 1 && draw.chance(0.5) ? 2 : 3, stride};
        return trial_of(std::make_shared<nn::BasicBlock>(options),
                        draw.tensor({draw.empty_batch() ? 0 : 2, 2, 4, 4}), draw,
                        [=](const Arrays& in) {
                          const Array h = normalised(convolved(in[0], in, 1, stride), in, 2, true);
                          return normalised(convolved(h, in, 4, 1), in, 5, true,
                                            shortcut(in[0], in, 7, stride));
                        });
      },
      block_traits};
}

Operation bottleneck() {
  return {"nn::Bottleneck",
          [](Draw& draw) {
            // The 3x3 convolution has one channel in a group, or two groups of one or two.
            const std::int64_t groups = draw.pick(1, 2);
            const nn::Bottleneck::Options options{.in = draw.chance(0.5) ? 4 : 2,
                                                  .width = 1,
                                                  .stride = draw.pick(1, 2),
                                                  .groups = groups,
                                                  .width_per_group = 64 * draw.pick(1, 2)};
            return trial_of(std::make_shared<nn::Bottleneck>(options),
                            draw.tensor({draw.empty_batch() ? 0 : 2, options.in, 4, 4}), draw,
                            [=](const Arrays& in) {
                              Array h = normalised(convolved(in[0], in, 1, 1), in, 2, true);
                              h = normalised(convolved(h, in, 4, options.stride, groups), in, 5,
                                             true);
                              return normalised(convolved(h, in, 7, 1), in, 8, true,
                                                shortcut(in[0], in, 10, options.stride));
                            });
          },
          block_traits};
}

// A whole network on an empty batch; its values are compared with fixtures
// (nn/resnet_fixture_test.cpp).
Operation resnet() {
  return {"nn::ResNet",
          [](Draw& draw) {
            static const auto net = std::make_shared<nn::ResNet>(nn::ResNet::Options{.depth = 20});
            net->zero_grad();
            return Trial{.inputs = {draw.tensor({0, 3, 8, 8}), net->fc->weight},
                         .call = [](const auto& in) { return (*net)(in[0]); },
                         .reference =
                             [](const Arrays&) {
                               return Array(Shape{0, 10});
                             }};
          },
          {.dtypes = {float32}}};
}

}  // namespace

Family layers() {
  Family family{"layers", {}};
  for (const Operation& operation :
       {convolution<nn::Conv1d>("Conv1d", 1),
        convolution<nn::Conv2d>("Conv2d", 2),
        convolution<nn::Conv3d>("Conv3d", 3),
        transposed_convolution<nn::ConvTranspose1d>("ConvTranspose1d", 1),
        transposed_convolution<nn::ConvTranspose2d>("ConvTranspose2d", 2),
        transposed_convolution<nn::ConvTranspose3d>("ConvTranspose3d", 3),
        flatten(),
        pool<nn::MaxPool1d>("MaxPool1d", 1, reference::max_pool, {.gradient_roundings = 0}),
        pool<nn::MaxPool3d>("MaxPool3d", 3, reference::max_pool, {.gradient_roundings = 0}),
        pool<nn::MaxPool2d>("MaxPool2d", 2, reference::max_pool, {.gradient_roundings = 0}),
        pool<nn::AvgPool2d>("AvgPool2d", 2, reference::avg_pool, {.gradient_roundings = 0}),
        adaptive(),
        batch_norm<nn::BatchNorm>("BatchNorm", 2, 5),
        batch_norm<nn::BatchNorm1d>("BatchNorm1d", 2, 3),
        batch_norm<nn::BatchNorm2d>("BatchNorm2d", 4, 4),
        batch_norm<nn::BatchNorm3d>("BatchNorm3d", 5, 5),
        batch_norm<nn::SyncBatchNorm>("SyncBatchNorm", 2, 5),
        instance_norm<nn::InstanceNorm1d>("InstanceNorm1d", 3),
        instance_norm<nn::InstanceNorm2d>("InstanceNorm2d", 4),
        instance_norm<nn::InstanceNorm3d>("InstanceNorm3d", 5),
        sequential(),
        projection(),
        basic_block(),
        bottleneck(),
        resnet()})
    family.operations.push_back(operation);
  return family;
}

}  // namespace tutti::test
