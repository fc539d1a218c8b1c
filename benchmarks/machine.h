// Describes the machine in the context of Google Benchmark, which --benchmark_out writes beside the
// figures.
#pragma once

namespace tutti::benchmarks {

/// Adds the processor and the compiler.
void add_machine_context();

}  // namespace tutti::benchmarks
