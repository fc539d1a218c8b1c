#include "record.h"

#include "../core/scoped_value.h"
#include "../core/trace.h"
#include "engine.h"

#include <algorithm>
#include <atomic>
#include <mutex>
#include <utility>

namespace tutti::autograd {
namespace {

// The number of recipes that may read each other in a row. More of them hold less memory from
// forward to backward, and more at once in backward (benchmarks/results/step_memory.md).
constexpr int longest_chain = 4;

// The name of the recipe whose inputs are read on this thread, for errors.
thread_local const std::string* recipe_name = nullptr;

void expect_unchanged(const Shape& shape, std::uint64_t version, std::uint64_t expected) {
  if (version == expected) return;
  const std::string which =
      recipe_name ? fmt::format(", from which the output of '{}' that it saved is computed again,",
                                *recipe_name)
                  : " that it saved";
  fail<Error>(
      "backward of '{}': a tensor of shape {}{} was changed in place since (version {}, expected "
      "{}); change a clone() instead, or run backward first",
      current_operation(), to_string(shape), which, version, expected);
}

}  // namespace

// A Recipe belongs to the closure of the operation that computed the value, and to all who saved
// it. It does not own the value's first memory.
class Recipe : public std::enable_shared_from_this<Recipe> {
 public:
  Recipe(const Tensor& output, std::string name, const std::vector<Saved>& inputs, Compute compute)
      : first_(output.storage()),
        version(output.storage()->version()),
        depth(1 + depth_of(inputs)),
        last_version_(version),
        name_(std::move(name)),
        inputs_(inputs),
        compute_(std::move(compute)) {}

  // Returns the recipe that lies beside this memory; null if it has ended or the memory has changed
  // since.
  static std::shared_ptr<Recipe> of(const Storage& storage);
  // Returns the length of the longest chain of recipes among the tensors.
  static int depth_of(const std::vector<Saved>& tensors);

  // Returns the memory of the value, which is computed if nobody holds it.
  std::shared_ptr<Storage> memory(const Shape& shape);
  void add_user() { count_users(1); }
  // Frees the value if it was computed again and this was its last user.
  void remove_user() { count_users(-1); }
  // Notes the version of the first memory, which is about to be freed.
  void forget_memory(std::uint64_t last_version) { last_version_ = last_version; }

 private:
  std::weak_ptr<Storage> first_;  // the memory that the forward has written

 public:
  const std::uint64_t version;
  const int depth;

 private:
  Tensor compute_again();
  void free_value();
  void count_users(int change);

  std::atomic<std::uint64_t> last_version_;
  const std::string name_;
  const std::vector<Saved> inputs_;
  const Compute compute_;
  std::mutex mutex_;  // guards what follows
  int users_ = 0;
  Tensor value_;  // computed again, until its last user has gone
};

// A tensor that was saved: a view of a recipe's value. Copies of a Saved share it.
struct RecipeUse {
  RecipeUse(std::shared_ptr<Recipe> of, const Tensor& tensor)
      : recipe(std::move(of)),
        shape(tensor.shape()),
        strides(tensor.strides()),
        offset(tensor.offset()),
        dtype(tensor.dtype()) {
    set_counted(true);
  }
  ~RecipeUse() { set_counted(false); }
  RecipeUse(const RecipeUse&) = delete;
  RecipeUse& operator=(const RecipeUse&) = delete;

  // Sets whether the value must stay for this user once it has been computed again.
  void set_counted(bool on) {
    if (counted.exchange(on) == on) return;
    if (on) recipe->add_user();
    else recipe->remove_user();
  }

  const std::shared_ptr<Recipe> recipe;
  const Shape shape;
  const Strides strides;
  const std::int64_t offset;
  const DType dtype;
  std::atomic<bool> counted{false};
};

namespace {

// Lies beside the first memory of a recipe's value.
struct RecipeOfStorage : Storage::Companion {
  RecipeOfStorage(const Storage& beside, const std::shared_ptr<Recipe>& of)
      : storage(beside), recipe(of) {}
  ~RecipeOfStorage() override {
    if (const auto alive = recipe.lock()) alive->forget_memory(storage.version());
  }
  const Storage& storage;
  const std::weak_ptr<Recipe> recipe;
};

}  // namespace

std::shared_ptr<Recipe> Recipe::of(const Storage& storage) {
  auto recipe = static_cast<const RecipeOfStorage&>(*storage.recipe).recipe.lock();
  return recipe && recipe->version == storage.version() ? recipe : nullptr;
}

int Recipe::depth_of(const std::vector<Saved>& tensors) {
  int depth = 0;
  for (const Saved& each : tensors)
    if (each.use_) depth = std::max(depth, each.use_->recipe->depth);
  return depth;
}

std::shared_ptr<Storage> Recipe::memory(const Shape& shape) {
  if (const std::shared_ptr<Storage> first = first_.lock()) {
    expect_unchanged(shape, first->version(), version);
    return first;
  }
  expect_unchanged(shape, last_version_, version);
  const std::lock_guard lock(mutex_);
  if (!value_.defined()) {
    value_ = compute_again();
    // With retain_graph the users stay after a backward.
    if (current_backward() != 0)
      at_end_of_backward([recipe = weak_from_this()] {
        if (const auto alive = recipe.lock()) alive->free_value();
      });
  }
  return value_.storage();
}

Tensor Recipe::compute_again() {
  const trace::Span span([this] { return name_ + " again"; });
  const NoGrad no_grad;
  std::vector<Tensor> tensors;
  {
    const ScopedValue named(recipe_name, &name_);
    for (const Saved& input : inputs_) {
      if (input.use_) input.use_->set_counted(true);
      tensors.push_back(input.get());
    }
  }
  Tensor value = compute_(tensors);
  // An input that was computed for this recipe alone is not needed any longer.
  for (const Saved& input : inputs_)
    if (input.use_) input.use_->set_counted(false);
  return value;
}

void Recipe::free_value() {
  const std::lock_guard lock(mutex_);
  value_ = {};
}

void Recipe::count_users(int change) {
  const std::lock_guard lock(mutex_);
  users_ += change;
  if (users_ == 0) value_ = {};
}

std::shared_ptr<Recipe> set_recipe(const Tensor& output, std::string name,
                                   const std::vector<Saved>& inputs, Compute compute) {
  if (Recipe::depth_of(inputs) >= longest_chain) return nullptr;
  auto recipe = std::make_shared<Recipe>(output, std::move(name), inputs, std::move(compute));
  Storage& storage = *output.storage();
  storage.recipe = std::make_unique<RecipeOfStorage>(storage, recipe);
  return recipe;
}

Saved::Saved(const Tensor& tensor) {
  if (!tensor.defined()) return;
  const Storage& storage = *tensor.storage();
  version_ = storage.version();
  if (auto recipe = storage.recipe ? Recipe::of(storage) : nullptr)
    use_ = std::make_shared<RecipeUse>(std::move(recipe), tensor);
  else tensor_ = tensor.detach();
}

Tensor Saved::get() const {
  if (use_)
    return {use_->recipe->memory(use_->shape), use_->shape, use_->strides, use_->offset,
            use_->dtype};
  if (tensor_.defined()) expect_unchanged(tensor_.shape(), tensor_.storage()->version(), version_);
  return tensor_;
}

Tensor Saved::take() {
  const Tensor tensor = get();
  *this = {};
  return tensor;
}

}  // namespace tutti::autograd
