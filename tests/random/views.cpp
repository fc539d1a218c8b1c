// Views, copies, conversions, joins and indexing: elements move, and their gradients move back.
#include "operation.h"

#include <tutti/autograd/functions.h>
#include <tutti/autograd/indexing.h>

#include <algorithm>
#include <cmath>

namespace tutti::test {
namespace {

const Traits moving{.dtypes = {float32, float64, bfloat16, float16, int64, uint8, boolean},
                    .gradient_roundings = 0};
// Gradients that are summed need kernels that the CPU does not have for float16.
const Traits summing{.gradient_roundings = 0};

// Returns the elements of x in row-major order under another shape.
Array reshaped(const Array& x, const Shape& shape) {
  Array result = x;
  result.shape = shape;
  return result;
}

Operation reshape() {
  return {"Tensor::reshape(Shape)",
          [](Draw& draw) {
            const Shape shape = draw.shape();
            // Sizes are merged and split at random.
            Shape wanted;
            for (const std::int64_t size : shape) {
              if (!wanted.empty() && draw.chance(0.4))
                wanted[wanted.size() - 1] = wanted.back() * size;
              else wanted.push_back(size);
              if (size % 2 == 0 && size > 0 && wanted.back() == size && draw.chance(0.3)) {
                wanted[wanted.size() - 1] = 2;
                wanted.push_back(size / 2);
              }
            }
            Shape asked = wanted;
            if (!asked.empty() && numel(shape) > 0 && draw.chance(0.4))
              asked[static_cast<int>(draw.pick(0, asked.size() - 1))] = -1;
            return Trial{.inputs = {draw.tensor(shape)},
                         .call = [=](const auto& in) { return in[0].reshape(asked); },
                         .reference = [=](const Arrays& in) { return reshaped(in[0], wanted); },
                         .options = to_string(asked)};
          },
          moving};
}

Operation flatten_view() {
  return {"Tensor::flatten(std::int64_t, std::int64_t)",
          [](Draw& draw) {
            const Shape shape = draw.shape(1);
            const auto last = static_cast<int>(draw.pick(0, shape.size() - 1)),
                       first = static_cast<int>(draw.pick(0, last));
            Shape flat(shape.begin(), shape.begin() + first);
            flat.push_back(product(shape, first, last + 1));
            for (int d = last + 1; d < shape.size(); ++d) flat.push_back(shape[d]);
            const std::int64_t from_end = draw.chance(0.5) ? shape.size() : 0;
            return Trial{
                .inputs = {draw.tensor(shape)},
                .call = [=](const auto& in) { return in[0].flatten(first, last - from_end); },
                .reference = [=](const Arrays& in) { return reshaped(in[0], flat); },
                .options = fmt::format("{} to {}", first, last)};
          },
          moving};
}

Array permuted(const Array& x, const Dims& order) {
  Shape shape;
  for (const std::int64_t d : order) shape.push_back(x.shape[static_cast<int>(d)]);
  return gather(x, shape, [&](const Dims& index) {
    Dims source = index;
    for (int d = 0; d < order.size(); ++d) source[static_cast<int>(order[d])] = index[d];
    return source;
  });
}

Operation permute() {
  return {"Tensor::permute(const Dims&)",
          [](Draw& draw) {
            const Shape shape = draw.shape();
            const Dims order(default_generator().permutation(shape.size()));
            return Trial{.inputs = {draw.tensor(shape)},
                         .call = [=](const auto& in) { return in[0].permute(order); },
                         .reference = [=](const Arrays& in) { return permuted(in[0], order); },
                         .options = to_string(order)};
          },
          moving};
}

Operation transpose() {
  return {
      "Tensor::transpose(std::int64_t, std::int64_t)",
      [](Draw& draw) {
        const Shape shape = draw.shape(1);
        const std::int64_t a = draw.pick(0, shape.size() - 1), b = draw.pick(0, shape.size() - 1);
        return Trial{.inputs = {draw.tensor(shape)},
                     .call = [=](const auto& in) { return in[0].transpose(a, b - in[0].rank()); },
                     .reference =
                         [=](const Arrays& in) {
                           Dims order = all_dims(in[0].rank());
                           std::swap(order[static_cast<int>(a)], order[static_cast<int>(b)]);
                           return permuted(in[0], order);
                         },
                     .options = fmt::format("{} and {}", a, b)};
      },
      moving};
}

Operation slice() {
  return {"Tensor::slice(std::int64_t, std::int64_t, std::int64_t, std::int64_t)",
          [](Draw& draw) {
            const Shape shape = draw.shape(1);
            const auto d = static_cast<int>(draw.pick(0, shape.size() - 1));
            const std::int64_t start = draw.pick(0, shape[d]), stop = draw.pick(start, shape[d]),
                               step = draw.pick(1, 3);
            Shape sliced = shape;
            sliced[d] = (stop - start + step - 1) / step;
            return Trial{.inputs = {draw.tensor(shape)},
                         .call =
                             [=](const auto& in) {
                               return in[0].slice(d - in[0].rank(), start, stop, step);
                             },
                         .reference =
                             [=](const Arrays& in) {
                               return gather(in[0], sliced, [=](Dims index) {
                                 index[d] = start + index[d] * step;
                                 return index;
                               });
                             },
                         .options = fmt::format("dim {}: {} to {} by {}", d, start, stop, step)};
          },
          moving};
}

Operation select() {
  return {"Tensor::select(std::int64_t, std::int64_t)",
          [](Draw& draw) {
            Shape shape = draw.shape(draw.empty_batch() ? 2 : 1);
            const auto d = static_cast<int>(draw.pick(draw.empty_batch(), shape.size() - 1));
            shape[d] = std::max<std::int64_t>(1, shape[d]);
            const std::int64_t at = draw.pick(0, shape[d] - 1);
            Shape selected = shape;
            selected.erase(d);
            return Trial{
                .inputs = {draw.tensor(shape)},
                .call = [=](const auto& in) { return in[0].select(d, at - in[0].size(d)); },
                .reference =
                    [=](const Arrays& in) {
                      return gather(in[0], selected, [=](Dims index) {
                        index.insert(d, at);
                        return index;
                      });
                    },
                .options = fmt::format("dim {}: {}", d, at)};
          },
          moving};
}

Operation expand() {
  return {"Tensor::expand(const Shape&)",
          [](Draw& draw) {
            const Shape shape = draw.shape(), small = draw.broadcastable(shape);
            return Trial{.inputs = {draw.tensor(small)},
                         .call = [=](const auto& in) { return in[0].expand(shape); },
                         .reference = [=](const Arrays& in) { return broadcast_to(in[0], shape); },
                         .options = to_string(shape)};
          },
          summing};
}

Operation squeeze() {
  return {"Tensor::squeeze(std::int64_t)",
          [](Draw& draw) {
            Shape shape = draw.shape(0, 3);
            const Shape squeezed = shape;
            const auto d = static_cast<int>(draw.pick(0, shape.size()));
            const std::int64_t size = draw.chance(0.8) ? 1 : 2;  // one that is not 1 stays
            shape.insert(d, size);
            const Shape result = size == 1 ? squeezed : shape;
            return Trial{.inputs = {draw.tensor(shape)},
                         .call = [=](const auto& in) { return in[0].squeeze(d - in[0].rank()); },
                         .reference = [=](const Arrays& in) { return reshaped(in[0], result); },
                         .options = std::to_string(d)};
          },
          moving};
}

Operation unsqueeze() {
  return {"Tensor::unsqueeze(std::int64_t)",
          [](Draw& draw) {
            const Shape shape = draw.shape(0, 3);
            const auto d = static_cast<int>(draw.pick(0, shape.size()));
            Shape longer = shape;
            longer.insert(d, 1);
            return Trial{.inputs = {draw.tensor(shape)},
                         .call = [=](const auto& in) { return in[0].unsqueeze(d); },
                         .reference = [=](const Arrays& in) { return reshaped(in[0], longer); },
                         .options = std::to_string(d)};
          },
          moving};
}

// The operations that return the same values in other memory.
Operation same_values(const std::string& name, std::function<Tensor(const Tensor&)> call,
                      Traits traits) {
  return {"Tensor::" + name,
          [=](Draw& draw) {
            return Trial{.inputs = {draw.tensor(draw.shape())},
                         .call = [=](const auto& in) { return call(in[0]); },
                         .reference = [](const Arrays& in) { return in[0]; }};
          },
          traits};
}

Operation contiguous() {
  return {"Tensor::contiguous(MemoryFormat)",
          [](Draw& draw) {
            const MemoryFormat format = draw.chance(0.5) ? MemoryFormat::contiguous
                                                         : MemoryFormat::channels_last;
            return Trial{.inputs = {draw.tensor(draw.shape())},
                         .call = [=](const auto& in) { return in[0].contiguous(format); },
                         .reference = [](const Arrays& in) { return in[0]; },
                         .options = to_string(format)};
          },
          moving};
}

Operation alias() {
  return {"Tensor::alias(const Shape&, const Strides&, std::int64_t)",
          [](Draw& draw) {
            const Shape shape = draw.shape();
            return Trial{.inputs = {draw.tensor(shape)},
                         .call =
                             [](const auto& in) {
                               return in[0].alias(in[0].shape(), in[0].strides(), in[0].offset());
                             },
                         .reference = [](const Arrays& in) { return in[0]; }};
          },
          {.is_differentiable = false}};
}

// The conversion of a floating number to an integer dtype: without its fraction, at most the ends
// of the range, 0 for NaN.
Number integer(const Number& x, DType dtype) {
  const Real least = dtype == uint8 ? 0 : -0x1p63L, most = dtype == uint8 ? 255 : 0x1p63L - 1;
  return std::isnan(x.value()) ? 0 : std::clamp(std::trunc(x.value()), least, most);
}

// A conversion between floating dtypes rounds once; its gradient is rounded to the first dtype.
Operation convert() {
  return {
      "Tensor::to(DType)",
      [](Draw& draw) {
        const DType wanted =
            std::array{float32, float64, bfloat16, float16, int64, uint8}[static_cast<std::size_t>(
                draw.pick(0, 5))];
        const bool is_integer = !is_floating(wanted) && is_floating(draw.dtype());
        return Trial{.inputs = {draw.tensor(draw.shape(), Values::normal)},
                     .call = [=](const auto& in) { return in[0].to(wanted); },
                     .reference =
                         [=](const Arrays& in) {
                           return map(in[0], [=](const Number& x) {
                             return is_integer ? integer(x, wanted)
                                    // Integers wrap around.
                                    : wanted == uint8 ? Number(static_cast<std::uint8_t>(
                                                            static_cast<std::int64_t>(x.value())))
                                                      : x;
                           });
                         },
                     .options = to_string(wanted),
                     .dtype = wanted,
                     .differentiable_inputs = is_floating(wanted) ? 1u : 0u};
      },
      moving};
}

Operation cat() {
  return {"cat(const std::vector<Tensor>&, std::int64_t)",
          [](Draw& draw) {
            Shape shape = draw.shape(1);
            const auto d = static_cast<int>(draw.pick(0, shape.size() - 1));
            std::vector<Tensor> parts;
            std::vector<std::pair<std::size_t, std::int64_t>> sources;
            const std::int64_t count = draw.pick(1, 4);
            for (std::int64_t i = 0; i < count; ++i) {
              if (!draw.empty_batch() || d != 0) shape[d] = draw.pick(0, 4);
              for (std::int64_t j = 0; j < shape[d]; ++j)
                sources.emplace_back(static_cast<std::size_t>(i), j);
              parts.push_back(draw.tensor(shape));
            }
            shape[d] = static_cast<std::int64_t>(sources.size());
            return Trial{.inputs = parts,
                         .call = [=](const auto& in) { return cat(in, d - in[0].rank()); },
                         .reference =
                             [=](const Arrays& in) {
                               Array result(shape);
                               for_each_index(shape, [&](Dims index) {
                                 Number& to = result.at(index);
                                 const auto& [part, at] =
                                     sources[static_cast<std::size_t>(index[d])];
                                 index[d] = at;
                                 to = in[part].at(index);
                               });
                               return result;
                             },
                         .options = "dim " + std::to_string(d)};
          },
          moving};
}

Operation stack() {
  return {"stack(const std::vector<Tensor>&, std::int64_t)",
          [](Draw& draw) {
            const Shape shape = draw.shape(0, 3);
            const std::int64_t count = draw.pick(1, 4);
            std::vector<Tensor> parts;
            for (std::int64_t i = 0; i < count; ++i) parts.push_back(draw.tensor(shape));
            const auto d = static_cast<int>(draw.pick(0, shape.size()));
            Shape stacked = shape;
            stacked.insert(d, count);
            return Trial{.inputs = parts,
                         .call = [=](const auto& in) { return stack(in, d); },
                         .reference =
                             [=](const Arrays& in) {
                               Array result(stacked);
                               for_each_index(stacked, [&](Dims index) {
                                 Number& to = result.at(index);
                                 const auto part = static_cast<std::size_t>(index[d]);
                                 index.erase(d);
                                 to = in[part].at(index);
                               });
                               return result;
                             },
                         .options = "dim " + std::to_string(d)};
          },
          moving};
}

// Returns a shape and one of its dimensions that has elements.
std::pair<Shape, int> shape_and_filled_dim(Draw& draw) {
  Shape shape = draw.shape(draw.empty_batch() ? 2 : 1);
  const auto d = static_cast<int>(draw.pick(draw.empty_batch(), shape.size() - 1));
  shape[d] = std::max<std::int64_t>(1, shape[d]);
  return {shape, d};
}

Operation gathered() {
  return {"gather(const Tensor&, std::int64_t, const Tensor&)",
          [](Draw& draw) {
            const auto [shape, dim] = shape_and_filled_dim(draw);
            const auto d = dim;  // lambdas capture it
            Shape taken = shape;
            for (std::int64_t& size : taken) size = draw.pick(size > 0 ? 1 : 0, size);
            taken[d] = draw.pick(0, 9);
            return Trial{
                .inputs = {draw.tensor(shape), draw.indices(taken, shape[d])},
                .call = [d](const auto& in) { return gather(in[0], d - in[0].rank(), in[1]); },
                .reference =
                    [d](const Arrays& in) {
                      return gather(in[0], in[1].shape, [&](Dims index) {
                        index[d] = static_cast<std::int64_t>(in[1].at(index).value());
                        return index;
                      });
                    },
                .options = fmt::format("dim {}", d)};
          },
          summing};
}

Operation selected() {
  return {"index_select(const Tensor&, std::int64_t, const Tensor&)",
          [](Draw& draw) {
            const auto [shape, dim] = shape_and_filled_dim(draw);
            const auto d = dim;  // lambdas capture it
            Shape taken = shape;
            taken[d] = draw.pick(0, 9);
            return Trial{.inputs = {draw.tensor(shape), draw.indices({taken[d]}, shape[d])},
                         .call = [d](const auto& in) { return index_select(in[0], d, in[1]); },
                         .reference =
                             [d, taken](const Arrays& in) {
                               return gather(in[0], taken, [&](Dims index) {
                                 index[d] = static_cast<std::int64_t>(in[1].at({index[d]}).value());
                                 return index;
                               });
                             },
                         .options = fmt::format("dim {}", d)};
          },
          summing};
}

// The largest elements, or their indices. Both are compared with a sort of each slice.
enum class Order { topk, descending, ascending };

Operation ordered(Order kind, bool of_indices) {
  Traits traits{.dtypes = {float32, float64, bfloat16, int64, uint8}, .gradient_roundings = 0};
  traits.is_differentiable = !of_indices;
  return {kind == Order::topk ? "topk(const Tensor&, std::int64_t, std::int64_t)"
                              : "sort(const Tensor&, std::int64_t, bool)",
          [=](Draw& draw) {
            const auto [shape, dim] = shape_and_filled_dim(draw);
            const auto d = dim;  // lambdas capture it
            const std::int64_t k = kind == Order::topk ? draw.pick(0, shape[d]) : shape[d];
            const auto order_of = [d, kind](const Array& x, const Dims& index) {
              std::vector<std::int64_t> order;
              for (std::int64_t i = 0; i < x.size(d); ++i) order.push_back(i);
              const auto key = [&](std::int64_t i) {
                Dims at = index;
                at[d] = i;
                return x.at(at).value();
              };
              std::stable_sort(order.begin(), order.end(), [&](std::int64_t i, std::int64_t j) {
                if (kind == Order::ascending) std::swap(i, j);
                return key(i) > key(j) || (std::isnan(key(i)) && !std::isnan(key(j)));
              });
              return order[static_cast<std::size_t>(index[d])];
            };
            return Trial{.inputs = {draw.tensor(shape, Values::steps)},
                         .call =
                             [=](const auto& in) {
                               const auto [values, indices] =
                                   kind == Order::topk ? topk(in[0], k, d)
                                                       : sort(in[0], d, kind == Order::descending);
                               return of_indices ? indices : values;
                             },
                         .reference =
                             [=](const Arrays& in) {
                               Shape taken = in[0].shape;
                               taken[d] = k;
                               Array result(taken);
                               for_each_index(taken, [&](const Dims& index) {
                                 Dims at = index;
                                 at[d] = order_of(in[0], index);
                                 result.at(index) = of_indices ? Number(static_cast<Real>(at[d]))
                                                               : in[0].at(at);
                               });
                               return result;
                             },
                         .options = fmt::format("{} along dim {}", k, d),
                         .dtype = of_indices ? int64 : draw.dtype()};
          },
          traits};
}

Operation one_hot_vectors() {
  return {"one_hot(const Tensor&, std::int64_t)",
          [](Draw& draw) {
            const Shape shape = draw.shape(0, 3);
            const std::int64_t classes = draw.pick(1, 7);
            return Trial{.inputs = {draw.indices(shape, classes)},
                         .call = [=](const auto& in) { return one_hot(in[0], classes); },
                         .reference =
                             [=](const Arrays& in) {
                               Shape wide = in[0].shape;
                               wide.push_back(classes);
                               Array result(wide);
                               for_each_index(wide, [&](const Dims& index) {
                                 const Dims at(index.begin(), index.end() - 1);
                                 const auto i = static_cast<std::int64_t>(in[0].at(at).value());
                                 result.at(index) = i == index.back() ? 1 : 0;
                               });
                               return result;
                             },
                         .options = fmt::format("{} classes", classes)};
          },
          {.dtypes = {int64}, .is_differentiable = false}};
}

Operation flipped() {
  return {"flip(const Tensor&, const Dims&)",
          [](Draw& draw) {
            const Shape shape = draw.shape();
            const Dims dims = draw.dims(shape.size());
            return Trial{.inputs = {draw.tensor(shape)},
                         .call = [=](const auto& in) { return flip(in[0], dims); },
                         .reference =
                             [=](const Arrays& in) {
                               return gather(in[0], shape, [&](Dims index) {
                                 for (const std::int64_t dim : dims) {
                                   const auto d =
                                       static_cast<int>(dim < 0 ? dim + shape.size() : dim);
                                   index[d] = shape[d] - 1 - index[d];
                                 }
                                 return index;
                               });
                             },
                         .options = to_string(dims)};
          },
          moving};
}

Operation padded() {
  return {"pad(const Tensor&, const Dims&, double)",
          [](Draw& draw) {
            const Shape shape = draw.shape();
            const auto count = static_cast<int>(draw.pick(0, shape.size()));
            const auto value = static_cast<double>(draw.pick(0, 1));
            Dims padding, before = Dims::filled(shape.size(), 0);
            Shape wide = shape;
            for (int i = 0; i < count; ++i) {
              const int d = shape.size() - 1 - i;
              before[d] = draw.pick(std::max<std::int64_t>(-2, -shape[d]), 3);
              const std::int64_t after =
                  draw.pick(std::max<std::int64_t>(-2, -shape[d] - before[d]), 3);
              padding.push_back(before[d]);
              padding.push_back(after);
              wide[d] += before[d] + after;
            }
            return Trial{.inputs = {draw.tensor(shape)},
                         .call = [=](const auto& in) { return pad(in[0], padding, value); },
                         .reference =
                             [=](const Arrays& in) {
                               Array result(wide);
                               for_each_index(wide, [&](const Dims& index) {
                                 Dims at = index;
                                 bool is_inside = true;
                                 for (int d = 0; d < at.size(); ++d) {
                                   at[d] -= before[d];
                                   is_inside = is_inside && at[d] >= 0 && at[d] < shape[d];
                                 }
                                 result.at(index) = is_inside ? in[0].at(at) : Number(value);
                               });
                               return result;
                             },
                         .options = fmt::format("{} with {}", to_string(padding), value)};
          },
          moving};
}

}  // namespace

Family views() {
  Traits detached = moving;
  detached.is_differentiable = false;
  return {"views",
          {reshape(),
           flatten_view(),
           permute(),
           transpose(),
           slice(),
           select(),
           expand(),
           squeeze(),
           unsqueeze(),
           contiguous(),
           alias(),
           convert(),
           cat(),
           stack(),
           gathered(),
           selected(),
           ordered(Order::topk, false),
           ordered(Order::topk, true),
           ordered(Order::descending, true),
           ordered(Order::ascending, false),
           ordered(Order::ascending, true),
           one_hot_vectors(),
           flipped(),
           padded(),
           same_values(
               "clone()", [](const Tensor& x) { return x.clone(); }, moving),
           same_values(
               "to(Device)", [](const Tensor& x) { return x.to(Device::cpu()); }, moving),
           same_values(
               "detach()", [](const Tensor& x) { return x.detach(); }, detached)}};
}

}  // namespace tutti::test
