/* The yardstick of the minibatch benchmark: TunaMH on logistic regression with a normal prior, in C.

   The same algorithm as the library's compiled loop, step for step: joint normal proposal, public bound
   b = sigmoid(max(s(theta), s(theta'))) * sum |delta_j| on the box [-1, 1]^d, B ~ Poisson(lambda + N b) uniform rows, each
   kept with probability (r + (dU + b)/2) / (r + b) where r = lambda/N, log-ratio sum log((2r + b - dU)/(2r + b + dU)),
   Metropolis acceptance.

   What an expert does for speed, done here: rows drawn and prefetched a tile ahead of their use; both dot products in
   one pass, vectorised, with the number of columns known while compiling (COLUMNS); exp, expm1 and log1p on whole tiles
   (libmvec); one logarithm a tile for the weights; a small fast generator (xoshiro256+, which is not secure); rows
   picked by a multiplication; normals by the block. */
#include <math.h>
#include <stdint.h>
#include <string.h>

#define TILE 128
#define BLOCK 512
#define MAX_COLUMNS 256
#ifndef COLUMNS
#define COLUMNS columns
#endif
#ifndef REAL
#define REAL double
#endif

typedef struct {
    uint64_t word[4];
    double normal[BLOCK];
    long used;
} Stream;

static inline uint64_t rotate(uint64_t x, int k) { return (x << k) | (x >> (64 - k)); }

static inline uint64_t next_word(Stream *stream) {
    uint64_t *s = stream->word, result = s[0] + s[3], t = s[1] << 17;
    s[2] ^= s[0];
    s[3] ^= s[1];
    s[1] ^= s[2];
    s[0] ^= s[3];
    s[2] ^= t;
    s[3] = rotate(s[3], 45);
    return result;
}

static inline double uniform(Stream *stream) { return (double)(next_word(stream) >> 11) * 0x1p-53; }

static inline long pick(Stream *stream, long n) {
    return (long)(((unsigned __int128)next_word(stream) * (uint64_t)n) >> 64);
}

/* Box and Muller's normals, a block at a time so that log, sin and cos are vectorised. */
static void more_normals(Stream *stream) {
    double radius[BLOCK / 2], angle[BLOCK / 2];
    for (long k = 0; k < BLOCK / 2; k++) {
        radius[k] = (double)((next_word(stream) >> 11) + 1) * 0x1p-53;
        angle[k] = uniform(stream);
    }
    for (long k = 0; k < BLOCK / 2; k++) radius[k] = sqrt(-2.0 * log(radius[k]));
    for (long k = 0; k < BLOCK / 2; k++) stream->normal[k] = radius[k] * cos(2.0 * M_PI * angle[k]);
    for (long k = 0; k < BLOCK / 2; k++) stream->normal[k + BLOCK / 2] = radius[k] * sin(2.0 * M_PI * angle[k]);
    stream->used = 0;
}

static inline double normal(Stream *stream) {
    if (stream->used == BLOCK) more_normals(stream);
    return stream->normal[stream->used++];
}

/* log k! by Stirling's series, exact for small k. */
static double log_factorial(long k) {
    static const double small[10] = {0.0, 0.0, 0.6931471805599453, 1.791759469228055, 3.178053830347946,
        4.787491742782046, 6.579251212010101, 8.525161361065415, 10.60460290274525, 12.80182748008147};
    if (k < 10) return small[k];
    double n = (double)k + 1.0, s = 1.0 / (n * n);
    return (n - 0.5) * log(n) - n + 0.9189385332046727 + (1.0 / 12.0 - s * (1.0 / 360.0 - s / 1260.0)) / n;
}

/* Hormann's transformed rejection (1993); multiplication of uniforms below a mean of 10. */
static long poisson(Stream *stream, double mean) {
    if (mean < 10.0) {
        double limit = exp(-mean), product = uniform(stream);
        long k = 0;
        while (product > limit) {
            product *= uniform(stream);
            k++;
        }
        return k;
    }
    double root = sqrt(mean), log_mean = log(mean), b = 0.931 + 2.53 * root, a = -0.059 + 0.02483 * b;
    double inverse_alpha = 1.1239 + 1.1328 / (b - 3.4), least = 0.9277 - 3.6224 / (b - 2.0);
    for (;;) {
        double u = uniform(stream) - 0.5, v = uniform(stream), us = 0.5 - fabs(u);
        double k = floor((2.0 * a / us + b) * u + mean + 0.43);
        if (us >= 0.07 && v <= least) return (long)k;
        if (k < 0.0 || (us < 0.013 && v > us)) continue;
        if (log(v) + log(inverse_alpha) - log(a / (us * us) + b) <= k * log_mean - mean - log_factorial((long)k))
            return (long)k;
    }
}

static inline void ask_for(const float *row, long columns) {
    const char *first = (const char *)row, *last = (const char *)(row + columns) - 1;
    for (const char *at = first; at < last; at += 64) __builtin_prefetch(at);
    __builtin_prefetch(last);
}

/* log of the product of the kept rows' weights over n <= TILE rows. */
static double tile_ratio(const float *x, const float *y, long rows, long columns, const REAL *theta, const REAL *delta,
                         double rate, double bound, long n, Stream *stream) {
    long index[TILE];
    double keep[TILE], eta[TILE], step[TILE], sign[TILE];
    for (long t = 0; t < n; t++) {
        long i = index[t] = pick(stream, rows);
        ask_for(x + i * COLUMNS, COLUMNS);
        __builtin_prefetch(y + i);
        keep[t] = uniform(stream) * (rate + bound) - rate - 0.5 * bound;
    }
    for (long t = 0; t < n; t++) {
        const float *row = x + index[t] * COLUMNS;
        REAL at = 0, move = 0;
        for (long j = 0; j < COLUMNS; j++) {
            at += row[j] * theta[j];
            move += row[j] * delta[j];
        }
        sign[t] = 1.0 - 2.0 * (double)y[index[t]];
        eta[t] = sign[t] * (double)at;
        step[t] = sign[t] * (double)move;
    }
    double weight[TILE], product = 1.0, middle = 2.0 * rate + bound;
    for (long t = 0; t < n; t++) {
        double change = log1p(expm1(step[t]) / (1.0 + exp(-eta[t])));
        change = fmin(fmax(change, -bound), bound);
        double if_kept = (middle - change) / (middle + change);
        weight[t] = keep[t] < 0.5 * change ? if_kept : 1.0;
    }
    for (long t = 0; t < n; t++) product *= weight[t];
    return log(product);
}

/* ``steps`` steps from ``theta``; every ``thin``-th state goes to ``draws``. Returns the number of accepted moves. */
long advance(const float *x, const float *y, long rows, long columns, double lambda, double scale, double prior_scale,
             double *theta, uint64_t seed, long steps, long thin, double *draws, long *rows_read) {
    Stream stream = {.used = BLOCK};
    for (int k = 0; k < 4; k++) { /* splitmix64 */
        uint64_t z = (seed += 0x9E3779B97F4A7C15u);
        z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9u;
        z = (z ^ (z >> 27)) * 0x94D049BB133111EBu;
        stream.word[k] = z ^ (z >> 31);
    }
    REAL here[MAX_COLUMNS], move[MAX_COLUMNS];
    double delta[MAX_COLUMNS], rate = lambda / (double)rows, half_precision = 0.5 / (prior_scale * prior_scale);
    long accepted = 0;
    for (long step = 0; step < steps; step++) {
        double size = 0.0, spread = 0.0, spread_next = 0.0, ratio = 0.0;
        for (long j = 0; j < COLUMNS; j++) delta[j] = scale * normal(&stream);
        for (long j = 0; j < COLUMNS; j++) {
            here[j] = (REAL)theta[j];
            move[j] = (REAL)delta[j];
            size += fabs(delta[j]);
            spread += fabs(theta[j]);
            spread_next += fabs(theta[j] + delta[j]);
            ratio -= half_precision * delta[j] * (2.0 * theta[j] + delta[j]);
        }
        double bound = size / (1.0 + exp(-fmax(spread, spread_next)));
        long count = poisson(&stream, (double)rows * (rate + bound));
        *rows_read += count;
        /* a weight lies within ((r + b)/r)^(+-1): so many of them multiply without overflow */
        long most = (long)fmax(1.0, fmin((double)TILE, 690.0 / log1p(bound / rate)));
        for (long done = 0; done < count;) {
            long n = count - done < most ? count - done : most;
            ratio += tile_ratio(x, y, rows, columns, here, move, rate, bound, n, &stream);
            done += n;
        }
        if (log(uniform(&stream)) < ratio) {
            accepted++;
            for (long j = 0; j < COLUMNS; j++) theta[j] += delta[j];
        }
        if ((step + 1) % thin == 0) memcpy(draws + ((step + 1) / thin - 1) * COLUMNS, theta, COLUMNS * sizeof(double));
    }
    return accepted;
}
