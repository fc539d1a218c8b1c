// Tests of the engine: accumulation, order, hooks, callbacks, saved tensors, deep graphs.
#include <tutti/autograd/engine.h>
#include <tutti/autograd/functions.h>
#include <tutti/autograd/grad_mode.h>
#include <tutti/autograd/record.h>
#include <tutti/core/create.h>

#include <gtest/gtest.h>

#include <thread>

namespace tutti {
namespace {

using autograd::record;
using autograd::Saved;

// Returns factor * x, recorded as `name`.
Tensor scale(const Tensor& x, double factor, const std::string& name = "scale") {
  const Tensor y = x.detach().clone();
  y.mul_(factor);
  return record(name, y, {x}, [factor](const Tensor& g) {
    const Tensor r = g.clone();
    r.mul_(factor);
    return r;
  });
}

Tensor add(const Tensor& a, const Tensor& b) {
  const Tensor y = a.detach().clone();
  y.add_(b.detach());
  return record("add", y, {a, b}, [](const Tensor& g) { return std::vector{g, g}; });
}

TEST(Engine, AccumulatesOverUsesAndOverBackwards) {
  const Tensor x = full({}, 2).requires_grad_();
  const Tensor y = add(scale(x, 3), scale(x, 4));
  y.backward();
  EXPECT_EQ(x.grad().item<double>(), 7);
  scale(x, 5).backward();
  EXPECT_EQ(x.grad().item<double>(), 12);
  x.set_grad({});
  EXPECT_FALSE(x.grad().defined());
}

TEST(Engine, LeafGradientsNeverShareMemory) {
  // Addition passes the same gradient to both inputs; each leaf must end up with its own.
  const Tensor a = full({2}, 1).requires_grad_(), b = full({2}, 1).requires_grad_();
  add(a, b).backward(ones({2}));
  EXPECT_NE(a.grad().raw(), b.grad().raw());
  a.grad().mul_(5);
  EXPECT_EQ(to_vector(b.grad()), (std::vector<double>{1, 1}));
}

// An identity that notes the address of the gradient that it gets, and passes on `kept` if that is
// defined, else a new gradient.
Tensor witness(const Tensor& x, std::vector<const void*>& seen, const Tensor& kept = {}) {
  return record("witness", x.detach().clone(), {x}, [&seen, kept](const Tensor& g) {
    const Tensor made = kept.defined() ? kept : g.clone();
    seen.push_back(made.raw());
    return made;
  });
}

TEST(Engine, SecondGradientIsAddedInPlaceOnlyWhereNobodyElseHoldsTheFirst) {
  std::vector<const void*> made, arrived;
  const Tensor x = full({3}, 1).requires_grad_();
  const auto source = [&] {
    return record("source", x.detach().clone(), {x}, [&](const Tensor& g) {
      arrived.push_back(g.raw());
      return g;
    });
  };
  Tensor y = source();
  add(witness(y, made), witness(y, made)).backward(ones({3}));
  EXPECT_EQ(arrived[0], made[0]) << "the first gradient was copied though it was nobody else's";
  EXPECT_EQ(to_vector(x.grad()), (std::vector<double>{2, 2, 2}));

  // The test holds the gradient as a handle or as another view of its storage, or it is an expanded
  // tensor, whose elements share memory.
  const Tensor held = full({3}, 5), whole = full({2, 3}, 5), one = full({1}, 5);
  for (const Tensor& kept : {held, whole.select(0, 1), one.expand({3})}) {
    x.set_grad({});
    y = source();
    const Tensor second = witness(y, made),
                 first = witness(y, made, kept);  // backward visits the later one first
    add(first, second).backward(ones({3}));
    EXPECT_EQ(to_vector(x.grad()), (std::vector<double>{6, 6, 6}));
  }
  for (const Tensor& kept : {held, whole, one})
    EXPECT_EQ(to_vector(kept), std::vector<double>(kept.numel(), 5));

  // Both inputs get the same gradient.
  x.set_grad({});
  y = source();
  add(y, y).backward(ones({3}));
  EXPECT_EQ(to_vector(x.grad()), (std::vector<double>{2, 2, 2}));
}

TEST(Engine, CallersGradientIsNeitherKeptNorChanged) {
  const Tensor x = full({2}, 1).requires_grad_(), g = ones({2});
  x.backward(g);
  x.backward(g);
  EXPECT_EQ(to_vector(g), (std::vector<double>{1, 1}));
  EXPECT_EQ(to_vector(x.grad()), (std::vector<double>{2, 2}));
}

TEST(Engine, VisitsOperationsInDescendingOrderOfRecording) {
  std::vector<std::string> visited;
  const auto op = [&](const Tensor& x, const std::string& name) {
    return record(name, x.detach().clone(), {x}, [&visited, name](const Tensor& g) {
      visited.push_back(name);
      return g;
    });
  };
  const Tensor x = full({}, 1).requires_grad_();
  const Tensor left = op(x, "a"), right = op(op(x, "b"), "c");
  add(op(right, "d"), left).backward();
  EXPECT_EQ(visited, (std::vector<std::string>{"d", "c", "b", "a"}));
}

TEST(Engine, HookRunsOnceWhenTheGradientIsCompleteAndBeforeOlderOperations) {
  std::vector<std::string> events;
  const Tensor x = full({}, 1).requires_grad_(), w = full({}, 1).requires_grad_();
  const Tensor first = record("first", x.detach().clone(), {x}, [&](const Tensor& g) {
    events.push_back("first");
    return g;
  });
  const Tensor y = add(add(first, w), w);  // w is used twice
  const auto id = autograd::add_leaf_hook(
      w, [&](Tensor& g) { events.push_back("w=" + std::to_string(g.item<int>())); });
  y.backward();
  EXPECT_EQ(events, (std::vector<std::string>{"w=2", "first"}));
  autograd::remove_leaf_hook(w, id);
  events.clear();
  add(scale(x, 1), w).backward();
  EXPECT_TRUE(events.empty());
}

TEST(Engine, HookMayReplaceTheGradient) {
  const Tensor w = full({}, 1).requires_grad_(), bucket = zeros({});
  autograd::add_leaf_hook(w, [&](Tensor& g) {
    bucket.copy_(g);
    g = bucket;
  });
  scale(w, 3).backward();
  EXPECT_EQ(w.grad().raw(), bucket.raw());
  EXPECT_EQ(bucket.item<double>(), 3);
}

TEST(Engine, HooksOfALeafRunInTheOrderInWhichTheyWereAddedAndEndOneByOne) {
  const Tensor w = full({}, 1).requires_grad_();
  std::string events;
  const auto add_hook = [&](const char* name) {
    return autograd::add_leaf_hook(w, [&events, name](Tensor& g) {
      events += name;
      g.mul_(10);
    });
  };
  const auto a = add_hook("a"), b = add_hook("b");
  scale(w, 3).backward();
  EXPECT_EQ(events, "ab");
  EXPECT_EQ(w.grad().item<double>(), 300) << "each hook gets the gradient of the one before";
  autograd::remove_leaf_hook(w, a);
  const auto c = add_hook("c");  // has a number that no other hook has
  autograd::remove_leaf_hook(w, b);
  events.clear();
  scale(w, 3).backward();
  EXPECT_EQ(events, "c");
  autograd::remove_leaf_hook(w, c);
  events.clear();
  scale(w, 3).backward();
  EXPECT_EQ(events, "");
}

// An identity whose backward returns a new gradient of 16 bits, as convolutions do.
Tensor narrow(const Tensor& x, double gradient) {
  return record("narrow", x.detach().clone(), {x}, [gradient, shape = x.shape()](const Tensor&) {
    return full(shape, gradient, {.dtype = bfloat16});
  });
}

// In bfloat16, 256 + 1 is 256.
TEST(Engine, SixteenBitGradientsAreAddedInTheDtypeOfTheInput) {
  const Tensor w = full({2}, 1).requires_grad_();
  add(narrow(w, 1), narrow(w, 256)).backward(ones({2}));
  EXPECT_EQ(w.grad().dtype(), float32);
  EXPECT_EQ(to_vector(w.grad()), (std::vector<double>{257, 257}));
  narrow(w, 1).backward(ones({2}));  // to the gradient of an earlier backward
  EXPECT_EQ(to_vector(w.grad()), (std::vector<double>{258, 258}));

  // The same for the output of an operation.
  const Tensor x = full({2}, 1).requires_grad_();
  std::vector<DType> arrived;
  const Tensor y = record("inner", x.detach().clone(), {x}, [&](const Tensor& g) {
    arrived.push_back(g.dtype());
    return g;
  });
  add(narrow(y, 1), narrow(y, 256)).backward(ones({2}), true);
  EXPECT_EQ(to_vector(x.grad()), (std::vector<double>{257, 257}));
  narrow(y, 1).backward(ones({2}));
  EXPECT_EQ(arrived, (std::vector<DType>{float32, float32}));
}

TEST(Engine, OnlyHooksThatTake16BitsGetThem) {
  const Tensor w = full({2}, 1).requires_grad_();
  std::vector<DType> seen;
  const autograd::LeafHook note = [&](Tensor& g) { seen.push_back(g.dtype()); };
  const auto first = autograd::add_leaf_hook(w, note, true);
  autograd::add_leaf_hook(w, note, false);
  narrow(w, 3).backward(ones({2}));
  EXPECT_EQ(seen, (std::vector<DType>{bfloat16, float32}));
  EXPECT_EQ(w.grad().dtype(), float32);
  autograd::remove_leaf_hook(w, first);
  w.set_grad({});
  narrow(w, 3).backward(ones({2}));
  EXPECT_EQ(seen, (std::vector<DType>{bfloat16, float32, float32}));
}

// Optimizers and buckets take both as flat memory.
TEST(Engine, TheGradientOfALeafHasItsMemoryLayout) {
  for (const Tensor& leaf :
       {zeros({2, 3, 4, 5}).contiguous(MemoryFormat::channels_last), zeros({5, 4}).transpose(0, 1)})
    for (const bool is_kept : {false, true}) {
      const Tensor w = leaf.detach().requires_grad_();
      Tensor kept;
      record("row_major", w.detach().clone(), {w}, [&](const Tensor& g) {
        const Tensor made = randn(g.shape());
        if (is_kept) kept = made;
        return made;
      }).backward(ones(w.shape()));
      EXPECT_EQ(w.grad().strides(), w.strides());
      if (is_kept) {
        EXPECT_EQ(to_vector(w.grad()), to_vector(kept));
      }
    }
}

TEST(Engine, ExpandedGradientsAreAdded) {
  const Tensor x = full({3}, 1).requires_grad_();
  const auto expanded = [&](double value) {
    return record("expanded", x.detach().clone(), {x},
                  [value](const Tensor&) { return full({1}, value).expand({3}); });
  };
  add(expanded(2), expanded(5)).backward(ones({3}));
  EXPECT_EQ(to_vector(x.grad()), (std::vector<double>{7, 7, 7}));
}

TEST(Engine, ALeafCountsItsUsesWithoutBackward) {
  const Tensor w = full({}, 1).requires_grad_();
  const auto uses = [&] { return w.meta()->uses_without_backward.load(); };
  const Tensor y = add(scale(w, 2), w);
  EXPECT_EQ(uses(), 2);
  y.backward();
  EXPECT_EQ(uses(), 0);
  w.backward();
  EXPECT_EQ(uses(), 0);
}

TEST(Engine, EndCallbackRunsAfterEverythingAndNotAfterAFailure) {
  const Tensor x = full({}, 1).requires_grad_();
  int ran = 0;
  const auto with_callback = [&](bool fails) {
    const Tensor inner =
        record("inner", x.detach().clone(), {x}, [fails](const Tensor& g) -> Tensor {
          if (fails) fail<Error>("broken");
          return g;
        });
    return record("outer", inner.detach().clone(), {inner}, [&](const Tensor& g) {
      autograd::at_end_of_backward([&] {
        ++ran;
        EXPECT_TRUE(x.grad().defined());
      });
      return g;
    });
  };
  with_callback(false).backward();
  EXPECT_EQ(ran, 1);
  EXPECT_THROW(with_callback(true).backward(), Error);
  scale(x, 1).backward();
  EXPECT_EQ(ran, 1);
  EXPECT_THROW(autograd::at_end_of_backward([] {}), Error);
}

TEST(Engine, ABackwardInsideOfABackwardIsAnErrorThatNamesTheOperation) {
  const Tensor x = full({}, 1).requires_grad_(), other = full({}, 1).requires_grad_();
  const Tensor y = record("outer", x.detach().clone(), {x}, [&](const Tensor& g) {
    const EnableGrad enable_grad;
    scale(other, 2).backward();
    return g;
  });
  try {
    y.backward();
    ADD_FAILURE() << "the inner backward ran";
  } catch (const Error& error) {
    EXPECT_NE(std::string(error.what()).find("inside of the backward of 'outer'"),
              std::string::npos)
        << error.what();
  }
  EXPECT_EQ(autograd::current_backward(), 0u);
  scale(other, 2).backward();
  EXPECT_EQ(other.grad().item<double>(), 2) << "and the thread goes on";
}

TEST(Engine, NoGradOfFalseDoesNotSwitchRecordingOn) {
  const Tensor x = full({}, 1).requires_grad_();
  const NoGrad no_grad;
  const NoGrad off(false);
  EXPECT_FALSE(scale(x, 2).requires_grad());
}

TEST(Engine, NoGradRecordsNothing) {
  const Tensor x = full({}, 1).requires_grad_();
  const NoGrad no_grad;
  EXPECT_FALSE(scale(x, 2).requires_grad());
}

TEST(Engine, AutocastLeavesIntegersAndEndsInAScopeOfFloat32) {
  const Autocast on(bfloat16);
  EXPECT_EQ(autocast("test", ones({2})).dtype(), bfloat16);
  EXPECT_EQ(autocast("test", ones({2}, {.dtype = int64})).dtype(), int64);
  {
    const Autocast off(float32);
    EXPECT_FALSE(autocast_dtype().has_value());
    EXPECT_EQ(autocast("test", ones({2}, {.dtype = float64})).dtype(), float64);
  }
  EXPECT_EQ(autocast_dtype(), bfloat16);
}

TEST(Engine, SavedTensorChangedInPlaceNamesTheOperation) {
  const Tensor x = full({2}, 3).requires_grad_(), factor = full({2}, 2);
  const Tensor y =
      record("by_factor", x.detach().clone(), {x}, [s = Saved(factor)](const Tensor& g) {
        g.copy_(s.get());
        return g;
      });
  factor.slice(0, 0, 1).fill_(9);  // through a view
  try {
    y.backward(ones({2}));
    FAIL() << "expected an Error";
  } catch (const Error& error) {
    EXPECT_NE(std::string(error.what()).find("'by_factor'"), std::string::npos) << error.what();
  }
}

TEST(Engine, SecondBackwardNeedsRetainGraph) {
  const Tensor x = full({}, 1).requires_grad_();
  const Tensor y = scale(x, 2);
  y.backward({}, true);
  y.backward();
  EXPECT_EQ(x.grad().item<double>(), 4);
  EXPECT_THROW(y.backward(), Error);
}

TEST(Engine, ChecksGradientsOfClosures) {
  const Tensor x = full({2}, 1).requires_grad_();
  EXPECT_THROW(record("bad", x.detach().clone(), {x}, [](const Tensor&) { return ones({3}); })
                   .backward(ones({2})),
               ShapeError);
  EXPECT_THROW(
      record("bad", x.detach().clone(), {x}, [](const Tensor&) { return std::vector<Tensor>{}; })
          .backward(ones({2})),
      Error);
  EXPECT_THROW(record("bad", x.detach().clone(), {x},
                      [](const Tensor&) { return ones({2}, {.dtype = float64}); })
                   .backward(ones({2})),
               ShapeError);
  EXPECT_THROW(x.backward(), ShapeError) << "two elements have no default gradient";
  EXPECT_THROW(ones({}).backward(), Error) << "does not require grad";
}

TEST(Engine, InPlaceNeedsNoGradOnLeaves) {
  const Tensor x = full({}, 1).requires_grad_();
  EXPECT_THROW(x.fill_(3), Error);
  EXPECT_THROW(scale(x, 2).fill_(3), Error);
  const NoGrad no_grad;
  x.fill_(3);
  EXPECT_EQ(x.item<double>(), 3);
}

TEST(Engine, OtherDataHasNoGradientYet) {
  const Tensor x = full({2}, 3).requires_grad_();
  scale(x, 2).backward(ones({2}));
  x.set_data(ones({4}));
  EXPECT_FALSE(x.grad().defined());
  EXPECT_TRUE(x.requires_grad());
}

TEST(Engine, DeepGraphNeitherOverflowsNorLeaks) {
  const std::size_t live = allocator(Device::cpu()).stats().live;
  {
    const Tensor x = full({}, 1).requires_grad_();
    Tensor y = x, z = x;
    for (int i = 0; i < 100000; ++i) y = scale(y, 1);
    y.backward();
    EXPECT_EQ(x.grad().item<double>(), 1);
    // This graph is dropped without a backward, and its closures hold their inputs, not detached.
    for (int i = 0; i < 100000; ++i)
      z = record("holds", z.detach().clone(), {z}, [z](const Tensor& g) { return g; });
  }
  EXPECT_EQ(allocator(Device::cpu()).stats().live, live);
}

TEST(Engine, BackwardFreesWhatWasSaved) {
  const Tensor x = full({1000}, 1).requires_grad_();
  const std::size_t before = allocator(Device::cpu()).stats().live;
  Tensor y = x;
  for (int i = 0; i < 10; ++i)
    y = record("saving", y.detach().clone(), {y},
               [s = Saved(y.detach().clone())](const Tensor& g) { return g; });
  const std::size_t forward = allocator(Device::cpu()).stats().live;
  y.backward(ones({1000}));
  EXPECT_GE(forward - before, 10 * 4000u);
  EXPECT_LE(allocator(Device::cpu()).stats().live, before + 3 * 5000u)
      << "only y and the gradient may be left";
}

TEST(Engine, ThreadsRunTheirOwnGraphs) {
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t)
    threads.emplace_back([t] {
      const Tensor x = full({}, 1).requires_grad_();
      for (int i = 0; i < 50; ++i) scale(scale(x, 2), t).backward();
      EXPECT_EQ(x.grad().item<double>(), 100.0 * t);
    });
  for (auto& thread : threads) thread.join();
}

// Returns a * b, whose gradient for b is deferred; `log` says when it is computed.
Tensor product_in_halves(const Tensor& a, const Tensor& b, std::vector<std::string>& log) {
  const Tensor y = a.detach().clone();
  y.mul_(b.item<double>());
  return record("product", y, {a, b}, [a = Saved(a), b = Saved(b), &log](const Tensor& g) {
    const Tensor da = g.clone();
    da.mul_(b.get().item<double>());
    log.push_back("first half");
    autograd::defer_gradients([a, g, &log] {
      const Tensor db = g.clone();
      db.mul_(a.get().item<double>());
      log.push_back("second half of " + autograd::current_operation());
      return std::vector<Tensor>{{}, db};
    });
    return std::vector<Tensor>{da, {}};
  });
}

// An identity. If it waits for ranks, it computes the deferred gradients after its "start".
Tensor pass(const Tensor& x, bool waits, std::vector<std::string>& log) {
  const Tensor y = record("pass", x.detach().clone(), {x}, [waits, &log](const Tensor& g) {
    log.push_back("start");
    if (waits) autograd::compute_deferred_gradients();
    log.push_back("end");
    return g.clone();
  });
  if (waits) autograd::mark_waits_for_ranks(y, &log);
  return y;
}

using Log = std::vector<std::string>;

TEST(Engine, AWaitingOperationHidesWhatWasDeferred) {
  for (const bool waits : {false, true}) {
    Log log;
    const Tensor x = full({}, 3).requires_grad_(), w = full({}, 5).requires_grad_();
    const Tensor y = product_in_halves(pass(x, waits, log), w, log);
    for (int run = 1; run <= 2; ++run) {
      log.clear();
      y.backward({}, run == 1);
      EXPECT_EQ(log, waits ? (Log{"first half", "start", "second half of product", "end"})
                           : (Log{"first half", "second half of product", "start", "end"}));
      EXPECT_EQ(x.grad().item<double>(), 5 * run);
      EXPECT_EQ(w.grad().item<double>(), 3 * run);
    }
  }
}

TEST(Engine, DeferredGradientsOfComputedInputsAndOfTheLastOperationComeInTime) {
  Log log;
  const Tensor x = full({}, 3).requires_grad_(), w = full({}, 5).requires_grad_();
  // Here an operation that waits for ranks computed the second input.
  product_in_halves(x, pass(w, true, log), log).backward();
  EXPECT_EQ(log, (Log{"first half", "second half of product", "start", "end"}));
  EXPECT_EQ(w.grad().item<double>(), 3);
  log.clear();
  product_in_halves(x, x, log).backward();  // a leaf used twice: its hooks run once, with the sum
  EXPECT_EQ(x.grad().item<double>(), 5 + 6);
}

TEST(Engine, AWaitingOperationThatDoesNotAskLosesNothing) {
  Log log;
  const Tensor x = full({}, 3).requires_grad_(), w = full({}, 5).requires_grad_();
  const Tensor middle = pass(x, false, log);
  autograd::mark_waits_for_ranks(middle, &log);
  product_in_halves(middle, w, log).backward();
  EXPECT_EQ(log, (Log{"first half", "start", "end", "second half of product"}));
  EXPECT_EQ(w.grad().item<double>(), 3);
}

TEST(Engine, DeferringOutsideOfABackwardIsAnError) {
  EXPECT_THROW(autograd::defer_gradients([] { return std::vector<Tensor>{}; }), Error);
  autograd::compute_deferred_gradients();
}

// A gradient of no elements may have strides of 0, and is added in place like any other.
TEST(Engine, EmptyExpandedGradientsAreAdded) {
  for (const bool clones : {false, true}) {
    const Tensor x = zeros({0, 3, 2, 2}).requires_grad_();
    const Tensor y = clones ? x.clone() : x;
    (sum(mean(y, {2, 3})) + sum(y * y) + sum(mean(y, {2, 3}))).backward();
    EXPECT_EQ(x.grad().shape(), x.shape());
  }
  const Tensor none = zeros({0, 1}).expand({0, 3});
  // No elements share memory.
  none.add_(ones({0, 3})).mul_(2).fill_(1).copy_(ones({3}));
  EXPECT_THROW(zeros({1}).expand({3}).add_(ones({3})), ShapeError);
}

}  // namespace
}  // namespace tutti
