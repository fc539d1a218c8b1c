// Threads take one sample at a time, so that all of them work on the batch that is needed first.
// The image is copied into the batch at once; a batch never holds its samples twice.
#include "loader.h"

#include "../core/create.h"
#include "../core/cuda/pinned_memory.h"
#include "../core/fork.h"
#include "../core/parallel.h"
#include "../core/trace.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <condition_variable>
#include <cstring>
#include <deque>
#include <exception>
#include <mutex>
#include <new>
#include <thread>
#include <utility>

namespace tutti::data {
namespace {

// The form of an image. All images of a batch have the same.
struct Layout {
  Shape shape;
  Strides strides;
  DType dtype = uint8;
  bool has_mask = false;
  bool operator==(const Layout&) const = default;
};

std::string to_string(const Layout& layout) {
  return fmt::format("{} {} with strides {}{}", tutti::to_string(layout.dtype),
                     tutti::to_string(layout.shape), fmt::join(layout.strides, ", "),
                     layout.has_mask ? " and a mask" : "");
}

// Calls `call`. What it throws is thrown anew with the name of what is loaded in front. What the
// machine lacks, memory or a file that the system cannot read now, is no fault of the data.
template <class Call>
void with_name(const std::string& name, const Call& call) {
  try {
    call();
  } catch (const std::exception& error) {
    const std::string what = error.what();
    const std::string text = what.find(name) == std::string::npos ? name + ": " + what : what;
    if (dynamic_cast<const FileError*>(&error)) throw FileError(text);
    if (dynamic_cast<const OutOfMemoryError*>(&error) ||
        dynamic_cast<const std::bad_alloc*>(&error))
      throw OutOfMemoryError(text);
    throw DataError(text);
  } catch (...) {
    fail<DataError>("{}: something that is no std::exception was thrown", name);
  }
}

// What is known about a sample of a batch.
struct Slot {
  std::string name;
  std::exception_ptr error;
  Layout layout;
};

std::shared_ptr<Storage> allocate(std::int64_t elements, DType dtype, Device user) {
  const std::size_t bytes = static_cast<std::size_t>(elements) * size_of(dtype);
  return user.is_cuda() ? cuda::pinned_storage(bytes, user.index())
                        : std::make_shared<Storage>(bytes, Device::cpu());
}

// Returns an uninitialised batch of `count` tensors of this form.
Tensor empty_batch(Shape shape, Strides strides, DType dtype, std::int64_t count, Device user) {
  const std::int64_t elements = numel(shape);
  shape.insert(0, count);
  strides.insert(0, elements);
  return Tensor(allocate(count * elements, dtype, user), shape, strides, 0, dtype);
}

// Copies the bytes of an image into its place of a batch. An image of another size stays out.
void copy_image(const Tensor& image, std::int64_t count, std::size_t index, const Tensor& batch) {
  const std::size_t bytes = static_cast<std::size_t>(image.numel()) * size_of(image.dtype());
  if (count > 0 && batch.dtype() == image.dtype() && batch.numel() == count * image.numel())
    std::memcpy(static_cast<char*>(batch.raw()) + bytes * index, image.raw(), bytes);
}

// Copies the label of a sample, or its mask, into its place of the batch's labels.
void copy_label(const Sample& sample, std::int64_t count, std::size_t index, const Tensor& labels) {
  if (count == 0) return;
  const std::int64_t size = sample.mask.defined() ? sample.mask.numel() : 1;
  if (labels.numel() != count * size) return;
  std::int64_t* const to = labels.data<std::int64_t>() + static_cast<std::int64_t>(index) * size;
  if (sample.mask.defined()) std::copy_n(sample.mask.data<std::uint8_t>(), size, to);
  else *to = sample.label;
}

}  // namespace

// A batch under way. The mutex of the queue guards `claimed`, `finished` and `done`; `allocation`
// guards the first assignment of batch.images and batch.labels, since allocating pinned memory
// takes long. A task has its slot, its label or mask and its image for itself; the thread that
// finishes the last task has the whole job.
struct DataLoader::Job {
  Batch batch;
  // The samples to load. For an empty batch it is one that shows the shape of the images.
  std::vector<std::int64_t> tasks;
  std::vector<Slot> slots;
  std::size_t claimed = 0, finished = 0;
  bool done = false;
  std::exception_ptr error;  // why the batch cannot be used
  std::mutex allocation;
};

struct DataLoader::Queue {
  ProcessMark process;  // of the process that has the threads
  std::mutex mutex;
  std::condition_variable_any changed;
  std::deque<std::shared_ptr<Job>> jobs;  // the next batches, in order
  std::vector<std::jthread> threads;

  // Returns the first job with a sample that no thread has taken, or null. Needs the mutex.
  std::shared_ptr<Job> open_job() const {
    for (const auto& job : jobs)
      if (job->claimed < job->tasks.size()) return job;
    return nullptr;
  }
};

DataLoader::DataLoader(std::shared_ptr<const Dataset> dataset, Options options)
    : dataset_(std::move(dataset)),
      options_(std::move(options)),
      sampler_(dataset_ ? dataset_->size() : 0, options_.sampler),
      queue_(std::make_unique<Queue>()) {
  if (!dataset_) fail<ValueError>("DataLoader: expected a dataset, got null");
  if (options_.workers < 0 || options_.prefetch < 1)
    fail<ValueError>(
        "DataLoader: expected at least 0 workers and a prefetch of at least 1, got {} and {}",
        options_.workers, options_.prefetch);
  allocate(1, uint8, options_.pin_memory_for);  // throws where it cannot be done
  for (int worker = 0; worker < options_.workers; ++worker)
    queue_->threads.emplace_back([this, worker](const std::stop_token& stop) {
      trace::name_thread(fmt::format("data worker {}", worker));
      set_num_threads(1);  // the workers are the parallelism
      std::unique_lock lock(queue_->mutex);
      std::shared_ptr<Job> job;
      while (
          queue_->changed.wait(lock, stop, [&] { return (job = queue_->open_job()) != nullptr; })) {
        if (stop.stop_requested()) return;
        const std::size_t task = job->claimed++;
        lock.unlock();
        run_task(*job, task);
        lock.lock();
      }
    });
}

DataLoader::~DataLoader() {
  if (queue_->process.is_of_parent()) (void)queue_.release();  // a join would never return
  else
    for (std::jthread& thread : queue_->threads) thread.request_stop();
}

void DataLoader::set_state(State state) {
  if (state.epoch < 0 || state.batch < 0 || state.batch > batches_per_epoch())
    fail<ValueError>(
        "DataLoader: expected an epoch of at least 0 and a batch from 0 to {}, got {} and {}",
        batches_per_epoch(), state.epoch, state.batch);
  const std::lock_guard lock(queue_->mutex);
  queue_->jobs.clear();
  state_ = state;
}

std::optional<Batch> DataLoader::next() {
  if (options_.workers > 0 && queue_->process.is_of_parent())
    fail<Error>("DataLoader: its threads are in the process that this one was forked from");
  if (state_.batch == batches_per_epoch()) {
    set_state({.epoch = state_.epoch + 1});
    return std::nullopt;
  }
  fill_queue(options_.prefetch);
  const auto begin = std::chrono::steady_clock::now();
  const trace::Span span("wait for data");
  std::unique_lock lock(queue_->mutex);
  const std::shared_ptr<Job> job = queue_->jobs.front();
  while (options_.workers == 0 && !job->done) {
    lock.unlock();
    run_task(*job, job->claimed++);
    lock.lock();
  }
  queue_->changed.wait(lock, [&] { return job->done; });
  lock.unlock();
  waited_ += std::chrono::steady_clock::now() - begin;
  if (job->error) {
    // This thread alone holds the error from here on. ThreadSanitizer does not see how the library
    // counts the holders of an exception, and would take its end on a worker for a race.
    job->slots.clear();
    const std::exception_ptr error = std::exchange(job->error, nullptr);
    set_state(state_);  // drops what was loaded ahead, so that the next call starts anew
    std::rethrow_exception(error);
  }
  fill_queue(options_.prefetch + 1);  // the threads go on while the caller computes
  lock.lock();
  queue_->jobs.pop_front();
  lock.unlock();
  ++state_.batch;
  return std::move(job->batch);
}

// Adds jobs until there are `most`, or one for each batch that the epoch still has. Only the
// calling thread changes the list of jobs.
void DataLoader::fill_queue(int most) {
  for (;;) {
    const std::int64_t number = state_.batch + static_cast<std::int64_t>(queue_->jobs.size());
    if (number >= batches_per_epoch() || queue_->jobs.size() >= static_cast<std::size_t>(most))
      return;
    auto job = make_job(number);
    {
      const std::lock_guard lock(queue_->mutex);
      queue_->jobs.push_back(std::move(job));
    }
    queue_->changed.notify_all();
  }
}

std::shared_ptr<DataLoader::Job> DataLoader::make_job(std::int64_t number) {
  if (order_epoch_ != state_.epoch) {
    order_ = sampler_.order(state_.epoch);
    order_epoch_ = state_.epoch;
  }
  const auto [first, last] = sampler_.global_range(number);
  const auto [begin, end] = sampler_.rank_range(number);
  auto job = std::make_shared<Job>();
  job->batch.indices.assign(order_.begin() + begin, order_.begin() + end);
  job->batch.epoch = state_.epoch;
  job->batch.number = number;
  job->batch.global_size = last - first;
  job->tasks = job->batch.indices;
  if (begin == end) job->tasks.push_back(order_[static_cast<std::size_t>(first)]);
  job->slots.resize(job->tasks.size());
  return job;
}

// Loads a sample of a job. An error stays in the job, for the thread that calls next().
void DataLoader::run_task(Job& job, std::size_t task) {
  Slot& slot = job.slots[task];
  try {
    load(job, task);
  } catch (...) {
    slot.error = std::current_exception();
  }
  {
    const std::lock_guard lock(queue_->mutex);
    if (++job.finished < job.tasks.size()) return;
  }
  try {
    complete(job);
  } catch (...) {
    job.error = std::current_exception();
  }
  {
    const std::lock_guard lock(queue_->mutex);
    job.done = true;
  }
  queue_->changed.notify_all();
}

void DataLoader::load(Job& job, std::size_t task) const {
  const trace::Span span("load sample");
  const std::int64_t index = job.tasks[task];
  Slot& slot = job.slots[task];
  Sample sample;
  with_name(slot.name, [&] {
    slot.name = dataset_->describe(index);
    sample = dataset_->get(index);
    if (!sample.name.empty()) slot.name = sample.name;
    sample = apply_transforms(
        options_.transforms, std::move(sample),
        {.seed = options_.sampler.seed, .epoch = job.batch.epoch, .sample = index});
    if (!sample.image.is_dense() || !sample.image.device().is_cpu())
      fail<DataError>("expected a dense image on the CPU from the transforms");
  });
  const Tensor &image = sample.image, &mask = sample.mask;
  slot.layout = {image.shape(), image.strides(), image.dtype(), mask.defined()};
  const auto count = static_cast<std::int64_t>(job.batch.indices.size());
  Tensor images, labels;
  const std::string what = fmt::format("batch {} of epoch {}, {} images such as {}",
                                       job.batch.number, job.batch.epoch, count, slot.name);
  with_name(what, [&] {
    const std::lock_guard lock(job.allocation);
    if (!job.batch.images.defined()) {
      const Device user = options_.pin_memory_for;
      const Shape of_label = mask.defined() ? Shape{mask.size(0), mask.size(1)} : Shape{};
      job.batch.labels = empty_batch(of_label, dense_strides(of_label), int64, count, user);
      job.batch.images = empty_batch(image.shape(), image.strides(), image.dtype(), count, user);
    }
    images = job.batch.images;
    labels = job.batch.labels;
  });
  // complete() finds images of another layout.
  copy_image(image, count, task, images);
  copy_label(sample, count, task, labels);
}

// Checks a job whose samples have been loaded, and applies the transforms of batches.
void DataLoader::complete(Job& job) const {
  for (const Slot& slot : job.slots)
    if (slot.error) std::rethrow_exception(slot.error);
  const Slot& first = job.slots[0];
  for (const Slot& slot : job.slots)
    if (slot.layout != first.layout)
      fail<DataError>(
          "the images of a batch must have one shape, layout and dtype, but {} is {} and {} is {}; "
          "let the transforms make them equal (RandomResizedCrop, or Resize and CenterCrop)",
          first.name, to_string(first.layout), slot.name, to_string(slot.layout));
  const std::string name = fmt::format("batch {} of epoch {}", job.batch.number, job.batch.epoch);
  with_name(name, [&] { apply_batch_transforms(job.batch); });
}

void DataLoader::apply_batch_transforms(Batch& batch) const {
  for (std::size_t i = 0; i < options_.batch_transforms.size(); ++i) {
    std::vector<Generator> randoms;
    for (const std::int64_t index : batch.indices)
      randoms.push_back(
          RandomKey{.seed = options_.sampler.seed, .epoch = batch.epoch, .sample = index}.generator(
              options_.transforms.size() + i));
    options_.batch_transforms[i](batch, randoms);
  }
}

}  // namespace tutti::data
