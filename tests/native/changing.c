// Memory that changes between every two reads of it: its owner writes to it at the worst moment. A page is closed until
// somebody reads it. As soon as a few others were read it is changed and closed again, so a second read sees other
// numbers. Used by tests/durable/test_changing.py.
#define _GNU_SOURCE
#include <signal.h>
#include <stdatomic.h>
#include <stdint.h>
#include <sys/mman.h>

enum { kPage = 4096, kOpen = 4 };  // a load may lie in two pages, and two threads may read

static char* begin;
static long pages;
static long open_pages[kOpen];
static int next_open;
static atomic_long faults;
static atomic_flag busy = ATOMIC_FLAG_INIT;
static struct sigaction before;

static void change(long page) {
  char* const at = begin + page * kPage;
  mprotect(at, kPage, PROT_READ | PROT_WRITE);
  float* const numbers = (float*)at;
  for (int k = 0; k < kPage / 4; ++k) numbers[k] = 0.25f - numbers[k];
  mprotect(at, kPage, PROT_NONE);
}

static void on_fault(int number, siginfo_t* info, void* context) {
  (void)number;
  (void)context;
  char* const at = (char*)info->si_addr;
  if (begin == 0 || at < begin || at >= begin + pages * kPage) {
    sigaction(SIGSEGV, &before, 0);  // not ours: it is raised again
    return;
  }
  while (atomic_flag_test_and_set(&busy)) {
  }
  const long page = (at - begin) / kPage;
  int is_open = 0;
  for (int k = 0; k < kOpen; ++k) is_open |= open_pages[k] == page;
  if (!is_open) {  // otherwise another thread has just opened it
    ++faults;
    if (open_pages[next_open] >= 0) change(open_pages[next_open]);
    open_pages[next_open] = page;
    next_open = (next_open + 1) % kOpen;
    mprotect(begin + page * kPage, kPage, PROT_READ | PROT_WRITE);
  }
  atomic_flag_clear(&busy);
}

// From now on the memory changes. It is whole pages.
void watch(void* memory, long nbytes) {
  begin = (char*)memory;
  pages = nbytes / kPage;
  faults = 0;
  next_open = 0;
  for (int k = 0; k < kOpen; ++k) open_pages[k] = -1;
  struct sigaction mine = {0};
  mine.sa_sigaction = on_fault;
  mine.sa_flags = SA_SIGINFO | SA_NODEFER;
  sigemptyset(&mine.sa_mask);
  sigaction(SIGSEGV, &mine, &before);
  mprotect(memory, (size_t)nbytes, PROT_NONE);
}

// The memory is its owner's again. Returns how often a closed page was read.
long unwatch(void) {
  mprotect(begin, (size_t)(pages * kPage), PROT_READ | PROT_WRITE);
  sigaction(SIGSEGV, &before, 0);
  begin = 0;
  return faults;
}
