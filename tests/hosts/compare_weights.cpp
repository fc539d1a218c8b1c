// hosts_compare_weights A B TOLERANCE: fails where two safetensors files have other tensors, or
// where an element differs by more than TOLERANCE times the largest element of its tensor.
#include <tutti/core/create.h>
#include <tutti/core/state_dict.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>

using namespace tutti;

int main(int argc, char** argv) {
  if (argc != 3) return 64;
  const StateDict a = load_safetensors(argv[1]), b = load_safetensors(argv[2]);
  double worst = a.empty() || a.size() != b.size() ? INFINITY : 0;
  for (std::size_t i = 0; i < a.size() && i < b.size(); ++i) {
    const auto left = to_vector(a[i].second), right = to_vector(b[i].second);
    double largest = 0,
           difference = a[i].first == b[i].first && left.size() == right.size() ? 0 : INFINITY;
    for (std::size_t e = 0; e < left.size() && e < right.size(); ++e) {
      largest = std::max(largest, std::abs(left[e]));
      difference = std::max(difference, std::abs(left[e] - right[e]));
    }
    if (difference != 0)
      std::printf("%s differs by %g, its largest element is %g\n", a[i].first.c_str(), difference,
                  largest);
    worst = std::max(worst, largest > 0 ? difference / largest : difference);
  }
  std::printf("%zu tensors, the largest relative difference is %g\n", a.size(), worst);
  return worst == 0 ? 0 : 1;
}
