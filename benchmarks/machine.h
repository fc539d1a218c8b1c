// What stands in the JSON beside every figure: on what it was measured.
#pragma once

namespace tutti::benchmarks {

/// Processor, compiler and library versions into Google Benchmark's context.
void add_machine_context();

}  // namespace tutti::benchmarks
