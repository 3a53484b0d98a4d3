// The plainest loop of each formula, which the compiler vectorises: what anybody can write in C++ in an afternoon.
// plain.py compiles this file and calls it.
#include <cmath>
#include <thread>
#include <vector>

#define LOOP extern "C" __attribute__((noinline)) void
using Vector = float* __restrict;
using Given = const float* __restrict;

struct Settings {  // the factors in a loop
  float b1, b2, lr, eps, scale;
};

LOOP amsgrad(long n, Vector x, Given d, Vector m, Vector v, Vector top, Settings s) {
  const float c1 = 1 - s.b1, c2 = 1 - s.b2;
  for (long i = 0; i < n; i++) {
    m[i] = s.b1 * m[i] + c1 * d[i];
    v[i] = s.b2 * v[i] + c2 * (d[i] * d[i]);
    top[i] = top[i] > v[i] ? top[i] : v[i];
    x[i] += s.lr * m[i] / (sqrtf(top[i]) + s.eps);
  }
}

LOOP adam(long n, Vector x, Given d, Vector m, Vector v, Settings s) {
  const float c1 = 1 - s.b1, c2 = 1 - s.b2;
  for (long i = 0; i < n; i++) {
    m[i] = s.b1 * m[i] + c1 * d[i];
    v[i] = s.b2 * v[i] + c2 * (d[i] * d[i]);
    x[i] += s.lr * m[i] / (sqrtf(v[i]) + s.eps);
  }
}

LOOP accumulate(long n, Vector acc, Given d) {
  for (long i = 0; i < n; i++) acc[i] += d[i];
}

LOOP apply(long n, Vector x, Given d, Settings s) {
  for (long i = 0; i < n; i++) x[i] += s.lr * d[i];
}

LOOP fedbuff_flush(long n, Vector x, Given d, Given acc, Settings s) {
  for (long i = 0; i < n; i++) x[i] += s.lr * ((acc[i] + d[i]) * s.scale);
}

LOOP fadas_flush(long n, Vector x, Given d, Vector m, Vector v, Vector top, Given acc, Settings s) {
  const float c1 = 1 - s.b1, c2 = 1 - s.b2;
  for (long i = 0; i < n; i++) {
    const float mean = (acc[i] + d[i]) * s.scale;
    m[i] = s.b1 * m[i] + c1 * mean;
    v[i] = s.b2 * v[i] + c2 * (mean * mean);
    top[i] = top[i] > v[i] ? top[i] : v[i];
    x[i] += s.lr * m[i] / (sqrtf(top[i]) + s.eps);
  }
}

LOOP ace_fp32(long n, Vector x, Given d, Vector row, Vector sum, Settings s) {
  const float step = s.lr * s.scale;
  for (long i = 0; i < n; i++) {
    sum[i] += d[i] - row[i];
    row[i] = d[i];
    x[i] -= step * sum[i];
  }
}

LOOP mixing(long n, Vector x, Given d, Given base, Settings s) {
  for (long i = 0; i < n; i++) x[i] += s.lr * ((base[i] - x[i]) + d[i]);
}

LOOP ca2fl_arrival(long n, Vector acc, Given d, Given old, Vector row) {
  for (long i = 0; i < n; i++) {
    acc[i] += d[i] - old[i];
    row[i] = d[i];
  }
}

LOOP distances(long n, Given x, Given d, Given base, double* found) {
  double moved = 0, norm = 0;
#pragma omp simd reduction(+ : moved, norm)
  for (long i = 0; i < n; i++) {
    const double here = x[i] - base[i], update = d[i];
    moved += here * here;
    norm += update * update;
  }
  found[0] = moved;
  found[1] = norm;
}

LOOP inspect(long n, Given d, double* found) {
  double norm = 0;
#pragma omp simd reduction(+ : norm)
  for (long i = 0; i < n; i++) {
    const double update = d[i];
    norm += update * update;
  }
  found[0] = norm;
}

// One prepared call. plain.py fills it once, so that the timed call passes only a pointer.
struct Call {
  float* v[6];  // in the order of the loop's parameters
  Settings s;
  long n, threads;
  double found[2];
};

// The first part runs on this thread. Every other part runs on a thread that is started for this call.
template <class Part>
static void parts(Call& call, Part part) {
  const long each = (call.n / call.threads + 15) / 16 * 16;
  std::vector<std::thread> others;
  std::vector<double> found(2 * call.threads, 0.0);
  const auto one = [&](long t) {
    const long from = t * each, to = t + 1 == call.threads ? call.n : from + each;
    float* v[6];
    for (int k = 0; k < 6; k++) v[k] = call.v[k] + from;
    part(to - from, v, &found[2 * t]);
  };
  for (long t = 1; t < call.threads; t++) others.emplace_back(one, t);
  one(0);
  for (auto& other : others) other.join();
  call.found[0] = call.found[1] = 0;
  for (long t = 0; t < 2 * call.threads; t++) call.found[t % 2] += found[t];
}

// Without threads, the call goes directly to the loop.
template <class Part>
static void run(Call& call, Part part) {
  if (call.threads > 1) return parts(call, part);
  part(call.n, call.v, call.found);
}

#define CALL(name, ...) \
  extern "C" void call_##name(Call& c) { \
    run(c, [&c](long n, float** v, double* found) { (void)found, name(n, __VA_ARGS__); }); \
  }

CALL(amsgrad, v[0], v[1], v[2], v[3], v[4], c.s)
CALL(adam, v[0], v[1], v[2], v[3], c.s)
CALL(accumulate, v[0], v[1])
CALL(apply, v[0], v[1], c.s)
CALL(fedbuff_flush, v[0], v[1], v[2], c.s)
CALL(fadas_flush, v[0], v[1], v[2], v[3], v[4], v[5], c.s)
CALL(ace_fp32, v[0], v[1], v[2], v[3], c.s)
CALL(mixing, v[0], v[1], v[2], c.s)
CALL(ca2fl_arrival, v[0], v[1], v[2], v[3])
CALL(distances, v[0], v[1], v[2], found)
CALL(inspect, v[0], found)
