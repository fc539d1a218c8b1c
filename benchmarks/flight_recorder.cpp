// Times what the flight recorder costs each collective: recording the call when it is issued, and
// the end of the wait for it. It prints the median of many rounds. It needs no Google Benchmark.
#include <tutti/core/create.h>
#include <tutti/core/ticks.h>
#include <tutti/distributed/flight_recorder.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <vector>

using namespace tutti;
using namespace tutti::distributed;

int main() {
  const auto recorder = std::make_shared<FlightRecorder>();
  const auto group = recorder->add_group("world", {0, 1});
  const Tensor x = ones({64});
  Collective call{.operation = Operation::all_reduce,
                  .input = x,
                  .output = x,
                  .options = {.name = "SyncBatchNorm 'layer3.5.bn2' forward #1234"}};
  constexpr int rounds = 201, calls = 10'000;
  std::vector<double> recording, finishing;  // nanoseconds of each call
  for (int round = 0; round < rounds; ++round) {
    double issued = 0, finished = 0;
    for (int part = 0; part < calls / 100; ++part) {  // calls in flight, as a backward has them
      RecordedCall recorded[100];
      const auto start = std::chrono::steady_clock::now();
      for (RecordedCall& each : recorded) {
        ++call.sequence;
        call.fingerprint = fingerprint(call);
        each = recorder->record(*group, call.fingerprint);
        each.recorder = recorder;
      }
      const auto middle = std::chrono::steady_clock::now();
      for (RecordedCall& each : recorded) {
        each.recorder->finish(each, ticks_now());
        each = {};
      }
      const auto end = std::chrono::steady_clock::now();
      issued += std::chrono::duration<double, std::nano>(middle - start).count();
      finished += std::chrono::duration<double, std::nano>(end - middle).count();
    }
    recording.push_back(issued / calls);
    finishing.push_back(finished / calls);
  }
  const auto median = [](std::vector<double> values) {
    std::nth_element(values.begin(), values.begin() + rounds / 2, values.end());
    return values[rounds / 2];
  };
  const double issue = median(recording), finish = median(finishing);
  std::printf("record a call: %.0f ns; end of its wait: %.0f ns; together %.0f ns\n", issue, finish,
              issue + finish);
}
