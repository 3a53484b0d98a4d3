// GCC 12's ThreadSanitizer does not see the lock that std::timed_mutex takes with a limit on a steady clock. This takes
// it in a way that it sees: in the engine's tests, and before Python's extension (.ci/readers.sh).
#include <pthread.h>
#include <sched.h>
#include <time.h>

#include <cerrno>
extern "C" __attribute__((visibility("default"))) int pthread_mutex_clocklock(pthread_mutex_t* mutex, clockid_t clock,
                                                                              const timespec* until) noexcept {
  for (;;) {
    if (pthread_mutex_trylock(mutex) == 0) return 0;
    timespec now;
    clock_gettime(clock, &now);
    if (now.tv_sec > until->tv_sec || (now.tv_sec == until->tv_sec && now.tv_nsec >= until->tv_nsec)) return ETIMEDOUT;
    sched_yield();
  }
}
