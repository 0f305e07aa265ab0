// What races.cpp is told, and what it found. Without -DFOLIO_RACES, nothing is recorded.

#pragma once

namespace emulator::races {

#ifdef FOLIO_RACES
void launch_begins();
void launch_ends();
void block_begins(unsigned id);
void block_met();
void warp_met(unsigned warp);
// By the running thread. `place` is in the kernel's code.
void fence();
void atomic(const void *at, unsigned bytes, const void *place);
void read(const void *at, unsigned bytes, const void *place);
// A product reads shared memory; `proxy_fence` orders this thread's writes before such reads.
void product(const void *at, unsigned bytes, const void *place);
void proxy_fence();
void copy_begins(const Copy &copy, const void *place);
void copy_ends(const Copy &copy);
// The races of the last launch, or null.
const char *found();
#else
inline void launch_begins() {}
inline void launch_ends() {}
inline void block_begins(unsigned) {}
inline void block_met() {}
inline void warp_met(unsigned) {}
inline void fence() {}
inline void atomic(const void *, unsigned, const void *) {}
inline void read(const void *, unsigned, const void *) {}
inline void product(const void *, unsigned, const void *) {}
inline void proxy_fence() {}
inline void copy_begins(const Copy &, const void *) {}
inline void copy_ends(const Copy &) {}
inline const char *found() { return nullptr; }
#endif

}  // namespace emulator::races
