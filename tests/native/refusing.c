// The machine refuses: an allocation, a thread or a call for a file fails, the n-th from now on. It is loaded before
// all else (LD_PRELOAD), and Python is told to allocate by malloc (PYTHONMALLOC). Used by tests/support/refusing.py.
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <execinfo.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/types.h>
#include <sys/uio.h>
#include <unistd.h>

enum { kMemory = 1, kThread = 2, kFile = 4 };
enum { kMine = 1, kOthers = 2 };  // whose: the calling thread's, other threads'

static atomic_long left = -1, times, seen;
static atomic_int kinds, whose, number, busy;
static atomic_long owner;
static void* where[40];
static int deep;
static __thread int inside;

static long self(void) { return (long)pthread_self(); }

// Whether this call is refused.
static int refused(int kind) {
  if (!(atomic_load(&kinds) & kind) || inside) return 0;
  if (!(atomic_load(&whose) & (self() == atomic_load(&owner) ? kMine : kOthers))) return 0;
  atomic_fetch_add(&seen, 1);
  if (atomic_fetch_sub(&left, 1) > 0) return 0;
  if (atomic_fetch_sub(&times, 1) <= 0) return 0;
  if (!atomic_exchange(&busy, 1)) {  // where the first was refused
    inside = 1;
    deep = backtrace(where, 40);
    inside = 0;
  }
  errno = atomic_load(&number);
  return 1;
}

static void on_crash(int signal_number) {
  static const char text[] = "refused at:\n";
  if (write(2, text, sizeof text - 1) > 0) backtrace_symbols_fd(where, deep, 2);
  signal(signal_number, SIG_DFL);
  raise(signal_number);
}

// `count` calls are refused after the next `after`.
void refuse(int of, int by, long after, long count, int error) {
  void* one[2];
  backtrace(one, 2);  // it allocates when it is called first
  for (int k = 0; k < 3; ++k) signal((int[]){SIGSEGV, SIGABRT, SIGBUS}[k], on_crash);
  owner = self();
  number = error;
  whose = by;
  seen = 0;
  busy = 0;
  left = after;
  times = count;
  kinds = of;
}

// Ends it. Returns how many calls there were.
long allow(void) {
  kinds = 0;
  return seen;
}

static void* real(const char* name) {
  const int was = inside;
  inside = 1;
  void* const found = dlsym(RTLD_NEXT, name);
  inside = was;
  return found;
}

extern void* __libc_malloc(size_t);
extern void* __libc_calloc(size_t, size_t);
extern void* __libc_realloc(void*, size_t);
extern void* __libc_memalign(size_t, size_t);

void* malloc(size_t size) { return refused(kMemory) ? NULL : __libc_malloc(size); }
void* calloc(size_t count, size_t size) { return refused(kMemory) ? NULL : __libc_calloc(count, size); }
void* realloc(void* old, size_t size) { return refused(kMemory) ? NULL : __libc_realloc(old, size); }
void* memalign(size_t by, size_t size) { return refused(kMemory) ? NULL : __libc_memalign(by, size); }
void* aligned_alloc(size_t by, size_t size) { return refused(kMemory) ? NULL : __libc_memalign(by, size); }
int posix_memalign(void** out, size_t by, size_t size) {
  if (refused(kMemory)) return ENOMEM;
  return (*out = __libc_memalign(by, size)) == NULL ? ENOMEM : 0;
}

#define CALL(kind, failed, type, name, arguments, given)     \
  type name arguments {                                      \
    static type(*next) arguments;                            \
    if (next == NULL) next = (type(*) arguments)real(#name); \
    if (refused(kind)) return failed;                        \
    return next given;                                       \
  }

CALL(kMemory, MAP_FAILED, void*, mmap, (void* at, size_t size, int may, int how, int file, off_t from),
     (at, size, may, how, file, from))
CALL(kThread, EAGAIN, int, pthread_create, (pthread_t * out, const pthread_attr_t* with, void* (*act)(void*), void* of),
     (out, with, act, of))
CALL(kFile, -1, ssize_t, pread, (int file, void* to, size_t size, off_t at), (file, to, size, at))
CALL(kFile, -1, ssize_t, pread64, (int file, void* to, size_t size, off_t at), (file, to, size, at))
CALL(kFile, -1, ssize_t, pwrite, (int file, const void* from, size_t size, off_t at), (file, from, size, at))
CALL(kFile, -1, ssize_t, pwrite64, (int file, const void* from, size_t size, off_t at), (file, from, size, at))
CALL(kFile, -1, ssize_t, pwritev, (int file, const struct iovec* from, int count, off_t at), (file, from, count, at))
CALL(kFile, -1, ssize_t, pwritev64, (int file, const struct iovec* from, int count, off_t at), (file, from, count, at))
CALL(kFile, -1, ssize_t, pwritev64v2, (int file, const struct iovec* from, int count, off_t at, int how),
     (file, from, count, at, how))
CALL(kFile, -1, ssize_t, preadv64v2, (int file, const struct iovec* to, int count, off_t at, int how),
     (file, to, count, at, how))
CALL(kFile, -1, int, fsync, (int file), (file))
CALL(kFile, -1, int, fdatasync, (int file), (file))
CALL(kFile, -1, int, ftruncate, (int file, off_t size), (file, size))
CALL(kFile, -1, int, ftruncate64, (int file, off_t size), (file, size))
CALL(kFile, atomic_load(&number), int, posix_fallocate, (int file, off_t at, off_t size), (file, at, size))
CALL(kFile, atomic_load(&number), int, posix_fallocate64, (int file, off_t at, off_t size), (file, at, size))
CALL(kFile, -1, int, renameat, (int from, const char* old, int to, const char* name), (from, old, to, name))
CALL(kFile, -1, int, unlinkat, (int folder, const char* name, int how), (folder, name, how))
CALL(kFile, -1, int, mkdirat, (int folder, const char* name, mode_t mode), (folder, name, mode))

static int opened(int folder, const char* name, int how, mode_t mode) {
  return refused(kFile) ? -1 : (int)syscall(SYS_openat, folder, name, how, mode);
}
static mode_t mode_of(int how, va_list more) { return how & O_CREAT ? va_arg(more, mode_t) : 0; }
#define OPENS(name, before, folder)                 \
  int name(before const char* path, int how, ...) { \
    va_list more;                                   \
    va_start(more, how);                            \
    const mode_t mode = mode_of(how, more);         \
    va_end(more);                                   \
    return opened(folder, path, how, mode);         \
  }
#define NOTHING
#define FOLDER int folder,
OPENS(open, NOTHING, AT_FDCWD)
OPENS(open64, NOTHING, AT_FDCWD)
OPENS(openat, FOLDER, folder)
OPENS(openat64, FOLDER, folder)
