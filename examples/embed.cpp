// Uses tutti inside a host program: saves the weights of a network, loads them into a second one,
// and predicts with it. Training is examples/minimal.cpp; see docs/embed.md.
#include <tutti/tutti.h>

#include <cstdio>
using namespace tutti;

// [snippet]
// A host program keeps a Classifier: a network with its weights, ready to predict.
class Classifier {
 public:
  // Throws CheckpointError where the file is missing or its tensors do not fit the network.
  explicit Classifier(const std::string& weights_file) {
    net_.load_state_dict(load_safetensors(weights_file));
    net_.eval();  // batch norm uses its running statistics from here on
  }

  // The class of each of the N images, of shape (N, 1, 28, 28).
  std::vector<double> predict(const Tensor& images) {
    const NoGrad no_grad;  // nothing is kept for a backward pass
    return to_vector(argmax(net_(images), 1));
  }

 private:
  nn::ResNet net_{{.depth = 20, .classes = 10, .channels = 1}};
};
// [/snippet]

int main() {
  const std::string file = "embed_weights.safetensors";
  const nn::ResNet trained({.depth = 20, .classes = 10, .channels = 1});
  save_safetensors(file, trained.state_dict());
  try {
    Classifier classifier(file);
    for (const double label : classifier.predict(rand({4, 1, 28, 28}))) std::printf("%g ", label);
    std::printf("\n");
  } catch (const Error& error) {
    std::printf("cannot predict: %s\n", error.what());
    return 1;
  }
  std::remove(file.c_str());
}
