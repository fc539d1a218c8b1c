// Objects and results that do nothing unless they are kept. Every line that is marked must be
// warned of; discarded.cmake compares.
#include <tutti/tutti.h>

using namespace tutti;

void discard(nn::Sequential& net, const ProcessGroup& group, const Tensor& x) {
  NoGrad();                                                        // warned
  NoGrad{true};                                                    // warned
  EnableGrad();                                                    // warned
  Autocast{bfloat16};                                              // warned
  DataParallel(net.named_parameters(), {}, group);                 // warned
  distributed::Join(group, {});                                    // warned
  trace::Profile("profile.json");                                  // warned
  cuda::DeviceScope(0);                                            // warned
  autograd::gradcheck([](const auto& in) { return in[0]; }, {x});  // warned
  optim::GradScaler().scale(x);                                    // warned
  group.all_reduce(x);                                             // warned
  x.to(bfloat16);                                                  // warned
  x.contiguous();                                                  // warned
  x.detach();                                                      // warned
  x.clone();                                                       // warned
}
