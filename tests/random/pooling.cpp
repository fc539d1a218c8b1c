// Pooling and interpolation over one to three spatial dimensions.
#include "operation.h"
#include "reference.h"

#include <tutti/nn/functional/interpolate.h>
#include <tutti/nn/functional/pooling.h>
#include <tutti/nn/upsample.h>

#include <cmath>
#include <memory>

namespace tutti::test {
namespace {

Shape image(Draw& draw) {
  const std::int64_t spatial = draw.pick(1, 3);
  Shape shape{draw.batch(3), draw.chance(0.3) ? draw.pick(15, 40) : draw.pick(1, 5)};
  for (std::int64_t d = 0; d < spatial; ++d) shape.push_back(draw.pick(1, spatial == 3 ? 4 : 8));
  return shape;
}

nn::PoolOptions windows(Draw& draw, const Shape& x) {
  nn::PoolOptions options;
  for (int d = 2; d < x.size(); ++d) {
    const std::int64_t kernel = draw.pick(1, std::min<std::int64_t>(4, x[d]));
    options.kernel.push_back(kernel);
    options.stride.push_back(draw.pick(1, 3));
    options.padding.push_back(draw.pick(0, kernel / 2));
  }
  options.count_include_pad = draw.chance(0.5);
  options.ceil_mode = draw.chance(0.3);
  return options;
}

Operation pool(const std::string& name, Tensor (*call)(const Tensor&, const nn::PoolOptions&),
               Array (*reference)(const Array&, const nn::PoolOptions&), Traits traits) {
  return {"nn::" + name + "(const Tensor&, const PoolOptions&)",
          [=](Draw& draw) {
            const Shape shape = image(draw);
            const nn::PoolOptions options = windows(draw, shape);
            return Trial{.inputs = {draw.tensor(shape, Values::steps)},
                         .call = [=](const auto& in) { return call(in[0], options); },
                         .reference = [=](const Arrays& in) { return reference(in[0], options); },
                         .options = fmt::format(
                             "kernel {} stride {} padding {} {} {}", to_string(options.kernel),
                             to_string(options.stride), to_string(options.padding),
                             options.count_include_pad ? "counted" : "",
                             options.ceil_mode ? "ceil_mode" : "")};
          },
          traits};
}

Operation adaptive_pool() {
  return {"nn::adaptive_avg_pool(const Tensor&, const Dims&)",
          [](Draw& draw) {
            const Shape shape = image(draw);
            Dims output;
            for (int d = 2; d < shape.size(); ++d) output.push_back(draw.pick(1, 6));
            return Trial{
                .inputs = {draw.tensor(shape)},
                .call = [=](const auto& in) { return nn::adaptive_avg_pool(in[0], output); },
                .reference =
                    [=](const Arrays& in) { return reference::adaptive_avg_pool(in[0], output); },
                .options = to_string(output)};
          },
          {.gradient_roundings = 0}};
}

// Random options of an interpolation of `shape`, and those of its reference.
nn::InterpolateOptions interpolation(Draw& draw, const Shape& shape,
                                     reference::Interpolation& expected) {
  nn::InterpolateOptions options;
  const bool has_factors = draw.chance(0.5);
  if (draw.chance(0.7)) options.mode = static_cast<nn::InterpolateMode>(shape.size() - 2);
  expected.linear = options.mode != nn::InterpolateMode::nearest;
  expected.align_corners = options.align_corners = expected.linear && draw.chance(0.5);
  for (int d = 2; d < shape.size(); ++d) {
    const auto in = static_cast<double>(shape[d]),
               factor = 0.25 * static_cast<double>(draw.pick(4, 10));
    const std::int64_t out = has_factors ? static_cast<std::int64_t>(std::floor(in * factor))
                                         : draw.pick(1, 9);
    if (has_factors) options.scale_factor.push_back(factor);
    else options.size.push_back(out);
    const Real between = out > 1 ? Real(in - 1) / static_cast<Real>(out - 1) : 0;
    const bool copies = expected.linear && shape[d] == out;  // whatever the factor
    expected.scales.push_back(copies                   ? 1
                              : expected.align_corners ? between
                              : has_factors            ? 1 / Real(factor)
                                                       : Real(in) / static_cast<Real>(out));
    expected.output.push_back(out);
  }
  return options;
}

Operation interpolate(const std::string& name, bool is_layer) {
  return {
      name,
      [=](Draw& draw) {
        const Shape shape = image(draw);
        reference::Interpolation expected;
        const nn::InterpolateOptions options = interpolation(draw, shape, expected);
        const auto layer = std::make_shared<nn::Upsample>(options);
        return Trial{
            .inputs = {draw.tensor(shape)},
            .call =
                [=](const auto& in) {
                  return is_layer ? (*layer)(in[0]) : nn::interpolate(in[0], options);
                },
            .reference = [=](const Arrays& in) { return reference::interpolate(in[0], expected); },
            .options = layer->describe()};
      },
      // Positions are rounded, too.
      {.gradient_roundings = 0,
       .error_growth = 32,
       .takes_infinite = false,
       .nan_spread = NanSpread::samples}};
}

}  // namespace

Family pooling() {
  return {"pooling",
          {pool("max_pool", nn::max_pool, reference::max_pool, {.gradient_roundings = 0}),
           pool("avg_pool", nn::avg_pool, reference::avg_pool, {.gradient_roundings = 0}),
           adaptive_pool(),
           interpolate("nn::interpolate(const Tensor&, const InterpolateOptions&)", false),
           interpolate("nn::Upsample", true)}};
}

}  // namespace tutti::test
