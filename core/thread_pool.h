// Threads that work through the shares of a loop beside their caller. Each thread that calls
// run_shares() has helpers of its own, which spin for some microseconds between loops and then
// sleep. What a share computes, and where it begins and ends, is decided by the caller.
#pragma once

namespace tutti::detail {

using ShareBody = void (*)(int share, int shares, void* context);

/// Calls body(share, shares, context) once for each share, on the calling thread and on shares - 1
/// helpers at most. Whichever is free takes the next share, so that the call waits only for shares
/// that a helper has begun. Throws the first exception of a share after the others have ended.
void run_shares(int shares, ShareBody body, void* context);
/// Whether the calling thread works on a share, where loops are serial.
inline constinit thread_local bool in_share = false;
/// Whether loops of the calling thread run on OpenMP's threads, because oneDNN's last call did: two
/// sets of threads would take the cores from each other while they spin.
inline constinit thread_local bool loops_use_openmp = false;
/// Ends the helpers of the calling thread, which start anew with the next loop.
void end_helpers();

}  // namespace tutti::detail
