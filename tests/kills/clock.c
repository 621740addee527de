/* Shifts the wall clock of a process by the seconds in the first 8 bytes of the file that
   CLOCK_SHIFT names, a long. Loaded with LD_PRELOAD. The monotonic clock stays as it is, as it does
   when a real clock is set. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/time.h>
#include <threads.h>
#include <time.h>

#define WALL_S 1000000000 /* Larger times are of the wall clock, not since the start. */

static volatile long *shift;
static int (*real_gettime)(clockid_t, struct timespec *);
static int (*real_wait)(pthread_cond_t *, pthread_mutex_t *, const struct timespec *);
static int (*real_wait_c11)(cnd_t *, mtx_t *, const struct timespec *);

__attribute__((constructor)) static void begin(void) {
    real_gettime = dlsym(RTLD_NEXT, "clock_gettime");
    real_wait = dlvsym(RTLD_NEXT, "pthread_cond_timedwait", "GLIBC_2.3.2");
    real_wait_c11 = dlsym(RTLD_NEXT, "cnd_timedwait");
    const char *name = getenv("CLOCK_SHIFT");
    int file = name ? open(name, O_RDONLY | O_CLOEXEC) : -1;
    void *found = file < 0 ? MAP_FAILED : mmap(0, sizeof(long), PROT_READ, MAP_SHARED, file, 0);
    if (found != MAP_FAILED) shift = found;
}

static long shifted(void) { return shift ? *shift : 0; }

int clock_gettime(clockid_t clock, struct timespec *now) {
    if (!real_gettime) begin();
    int failed = real_gettime(clock, now);
    if (clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE) now->tv_sec += shifted();
    return failed;
}

int gettimeofday(struct timeval *now, void *zone) {
    struct timespec found;
    (void)zone;
    clock_gettime(CLOCK_REALTIME, &found);
    now->tv_sec = found.tv_sec;
    now->tv_usec = found.tv_nsec / 1000;
    return 0;
}

time_t time(time_t *now) {
    struct timespec found;
    clock_gettime(CLOCK_REALTIME, &found);
    if (now) *now = found.tv_sec;
    return found.tv_sec;
}

/* Some wait until a moment of the wall clock, which the kernel does not shift: librdkafka does. */
static struct timespec unshifted(const struct timespec *until) {
    struct timespec real = *until;
    if (real.tv_sec > WALL_S) real.tv_sec -= shifted();
    return real;
}

int pthread_cond_timedwait(pthread_cond_t *cond, pthread_mutex_t *mutex, const struct timespec *until) {
    struct timespec real = unshifted(until);
    return real_wait(cond, mutex, &real);
}

int cnd_timedwait(cnd_t *cond, mtx_t *mutex, const struct timespec *until) {
    struct timespec real = unshifted(until);
    return real_wait_c11(cond, mutex, &real);
}
