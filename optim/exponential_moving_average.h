// ExponentialMovingAverage: an average of a model's weights over the steps of training, which often
// classifies better than the last weights do (Polyak and Juditsky, "Acceleration of stochastic
// approximation by averaging", 1992). It averages parameters and buffers as the class of this name
// in PyTorch's references/classification does. It knows tensors by name, and no modules.
#pragma once

#include "../core/state_dict.h"

#include <cstdint>

namespace tutti::optim {

/// Keeps the averages of a list of tensors. After every step of the optimizer:
///
///   average = decay * average + (1 - decay) * tensor
///
/// The first update copies the tensors. Integer tensors, such as the batches that a BatchNorm has
/// counted, are copied in every update. To evaluate or to save the averages, exchange them with the
/// model's values, and exchange them again before training goes on:
///
///   optim::ExponentialMovingAverage average(net.named_parameters(), net.named_buffers(), 0.999);
///   average.update();   // after each step
///   {
///     const optim::ExponentialMovingAverage::Exchange exchange(average);
///     evaluate(net);
///   }
///
/// Every rank keeps averages of its own. They are the same on all ranks where the tensors are.
class ExponentialMovingAverage {
 public:
  /// Begins with copies of the present values, of the tensors' dtypes and on their devices. In
  /// 16-bit tensors the average stands still where (1 - decay) times a change is lost in rounding.
  /// ValueError unless 0 <= decay < 1.
  ExponentialMovingAverage(const StateDict& parameters, const StateDict& buffers, double decay);
  ExponentialMovingAverage(const ExponentialMovingAverage&) = delete;
  ExponentialMovingAverage& operator=(const ExponentialMovingAverage&) = delete;

  /// Takes in the present values.
  void update();
  /// Makes the next update copy the values, for instance while a warm-up goes on.
  void restart() { updates_ = 0; }
  /// The number of updates since the start.
  std::int64_t updates() const { return updates_; }

  /// Exchanges the averages with the values of the tensors, in place. The averages that
  /// state_dict() returns and that update() changes are then the model's values.
  void exchange();
  /// Exchanges them for its life.
  class Exchange {
   public:
    explicit Exchange(ExponentialMovingAverage& average) : average_(average) { average.exchange(); }
    ~Exchange() {
      try {
        average_.exchange();
      } catch (const Error&) {}  // the device has failed, as the error under way says
    }
    Exchange(const Exchange&) = delete;
    Exchange& operator=(const Exchange&) = delete;

   private:
    ExponentialMovingAverage& average_;
  };

  /// Returns "updates", an int64 tensor of shape (), and the averages under the names of the
  /// tensors with the prefix "average.". The averages share their storage with this object.
  StateDict state_dict() const;
  /// Throws a CheckpointError that names the entry unless the state has the entries of
  /// state_dict(), each with its shape and dtype, and a number of updates that is not negative.
  void check_state_dict(const StateDict& state) const;
  /// Checks the state, and then copies its values. Throws the errors of check_state_dict(), and
  /// changes nothing then.
  void load_state_dict(const StateDict& state);

 private:
  struct Entry {
    std::string name;
    Tensor tensor, average;
  };
  std::vector<Entry> entries_;
  double decay_;
  std::int64_t updates_ = 0;
};

}  // namespace tutti::optim
