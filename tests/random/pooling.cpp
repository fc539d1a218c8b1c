// Pooling over one to three spatial dimensions.
#include "operation.h"
#include "reference.h"

#include <tutti/nn/functional/pooling.h>

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

Operation adaptive() {
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

}  // namespace

Family pooling() {
  return {
      "pooling",
      {pool("max_pool", nn::max_pool, reference::max_pool, {.gradient_roundings = 0}),
       pool("avg_pool", nn::avg_pool, reference::avg_pool, {.gradient_roundings = 0}), adaptive()}};
}

}  // namespace tutti::test
