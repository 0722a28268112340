/* An image of Python's small objects, shared by the processes forked after it was taken.
 *
 * A forked process copies a page at its first write, and an interpreter writes to every object it looks at:
 * it counts references. Most counts come back to what they were, so that a rank ends up with thousands of
 * private pages whose bytes equal the ones it inherited. Here the allocator's arenas lie in one region; the
 * image maps that region privately from a file in memory; and a process may give back each of its copies that
 * still equals the file, which shows the file's page again in its place.
 *
 * Nobody but the holder of the interpreter's lock writes to an arena, so the caller must hold it (call through
 * a library handle that keeps it) and be the only Python thread: another one might have lent a small buffer
 * to a system call.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/types.h>
#include <unistd.h>

enum { PAGE = 4096, ENTRIES = 512, MOST_FREED = 1024 };
#define HUGE_PAGE ((size_t)2 << 20)
#define REGION ((size_t)256 << 20)
#define PRESENT ((uint64_t)1 << 63)
#define OF_FILE ((uint64_t)1 << 61)

static char *base, *top, *end;    /* the region; [base, top) has been handed out */
static char *freed[MOST_FREED];   /* arenas given back, all of one size */
static size_t num_freed, freed_size;
static const char *image;         /* the file, mapped for reading */
static size_t image_bytes;

/* The allocator of arenas; beyond the region it does what Python's own does. */
static void *new_arena(void *context, size_t size) {
    (void)context;
    if (num_freed && size == freed_size) return freed[--num_freed];
    if (size <= (size_t)(end - top)) {
        char *arena = top;
        top += size;
        return arena;
    }
    void *p = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    return p == MAP_FAILED ? NULL : p;
}

static void free_arena(void *context, void *arena, size_t size) {
    (void)context;
    char *p = arena;
    if (p < base || p >= end) {
        munmap(p, size);
        return;
    }
    madvise(p, size, MADV_DONTNEED);
    if (num_freed < MOST_FREED && (!num_freed || size == freed_size)) {
        freed_size = size;
        freed[num_freed++] = p;
    }
}

/* Loaded before the interpreter starts: set a region of address space aside for all of its arenas. */
__attribute__((constructor)) static void reserve(void) {
    static struct { void *context, *(*alloc)(void *, size_t); void (*free)(void *, void *, size_t); } allocator;
    void (*install)(void *) = (void (*)(void *))dlsym(RTLD_DEFAULT, "PyObject_SetArenaAllocator");
    if (!install) return; /* no Python, or one that hides its interface */
    int flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE;
    void *p = mmap(NULL, REGION + HUGE_PAGE, PROT_READ | PROT_WRITE, flags, -1, 0);
    if (p == MAP_FAILED) return;
    base = top = (char *)(((uintptr_t)p + HUGE_PAGE - 1) & ~(uintptr_t)(HUGE_PAGE - 1));
    end = base + REGION;
    allocator.alloc = new_arena;
    allocator.free = free_arena;
    install(&allocator);
}

static int write_all(int fd, const char *from, size_t bytes) {
    while (bytes) {
        ssize_t n = write(fd, from, bytes);
        if (n <= 0) return -1;
        from += n;
        bytes -= (size_t)n;
    }
    return 0;
}

/* Take the image of all arenas so far and put it in their place; returns its bytes, or -1 and nothing has changed.
   The process must have one thread. */
long image_take(void) {
    size_t bytes = (size_t)(top - base) & ~(size_t)(PAGE - 1);
    int fd = bytes ? memfd_create("superpod-image", MFD_CLOEXEC) : -1;
    if (fd < 0) return -1;
    void *view = MAP_FAILED;
    if (!write_all(fd, base, bytes)) view = mmap(NULL, bytes, PROT_READ, MAP_SHARED, fd, 0);
    if (view != MAP_FAILED
        && mmap(base, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_FIXED | MAP_NORESERVE, fd, 0) == MAP_FAILED) {
        munmap(view, bytes);
        view = MAP_FAILED;
    }
    close(fd);
    if (view == MAP_FAILED) return -1;
    if (image) munmap((void *)image, image_bytes);
    image = view;
    image_bytes = bytes;
    return (long)bytes;
}

/* Whether a page is a copy of this process's own, and still equal to the file's. */
static int is_spare(uint64_t entry, size_t page) {
    return (entry & PRESENT) && !(entry & OF_FILE) && !memcmp(base + page * PAGE, image + page * PAGE, PAGE);
}

/* Give back every copy that equals the image; returns the number of pages, or -1 where /proc does not tell. */
long image_give_back(void) {
    uint64_t entries[ENTRIES];
    size_t pages = image_bytes / PAGE;
    long given = 0;
    int fd = open("/proc/self/pagemap", O_RDONLY | O_CLOEXEC);
    if (fd < 0) return -1;
    for (size_t first = 0; first < pages; first += ENTRIES) {
        size_t many = pages - first < ENTRIES ? pages - first : ENTRIES;
        off_t where = (off_t)(((uintptr_t)base / PAGE + first) * sizeof *entries);
        if (pread(fd, entries, many * sizeof *entries, where) != (ssize_t)(many * sizeof *entries)) break;
        for (size_t i = 0; i < many; i++) {
            size_t run = 0;
            while (i + run < many && is_spare(entries[i + run], first + i + run)) run++;
            if (run && !madvise(base + (first + i) * PAGE, run * PAGE, MADV_DONTNEED)) given += (long)run;
            i += run;
        }
    }
    close(fd);
    return given;
}
