/* The files of compiled CUDA code: SHA-256 by the vectors of FIPS 180-4, and which files are believed. No GPU and no
 * NVRTC is needed. */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include "cuda/driver.h"
#include "test.h"

/* ---------------------------------------------------------------- the digest */
static void expect_digest(const char *text, size_t times, size_t piece, const char *want) {
    weft__sha256 s;
    char got[65];
    const size_t n = strlen(text);
    weft__sha256_start(&s);
    for (size_t t = 0; t < times; t++)
        for (size_t i = 0; i < n; i += piece) weft__sha256_add(&s, text + i, WEFT__MIN(piece, n - i));
    const weft__digest d = weft__sha256_end(&s);
    for (int i = 0; i < 32; i++) snprintf(got + 2 * i, 3, "%02x", d.byte[i]);
    CHECK(strcmp(got, want) == 0, "'%.20s' x %zu by %zu: %s", text, times, piece, got);
}

TEST(sha256_of_the_standard) {
    static const char two[] = "abcdbcdecdefdefgefghfghighijhijkijkljklmklmnlmnomnopnopq";
    static const char four[] =
        "abcdefghbcdefghicdefghijdefghijkefghijklfghijklmghijklmnhijklmnoijklmnopjklmnopqklmnopqr"
        "lmnopqrsmnopqrstnopqrstu";
    for (size_t piece = 1; piece < 130; piece += 7) {
        expect_digest("", 1, piece, "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
        expect_digest("abc", 1, piece, "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
        expect_digest(two, 1, piece, "248d6a61d20638b8e5c026930c3e6039a33ce45964ff2167f6ecedd419db06c1");
        expect_digest(four, 1, piece, "cf5b16a778af8380036ce59e7b0492370b249b11e8f07a51afac45037afee9d1");
    }
    expect_digest("a", 1000000, 1, "cdc76e5c9914fb9281a1c7e284d73e67f1809a48a497200e046d39ccc7112cd0");
}

/* ---------------------------------------------------------------- files */
static char folder[64];
static weft_ctx *ctx;
static const weft__digest key = {{7, 1, 255}};
static const weft__code sample = {"some code", 9};

static const char *path_of(const char *name) {
    static char path[200];
    snprintf(path, sizeof(path), "%s/%s", folder, name);
    return path;
}
static const char *file(void) {
    char name[80] = "";
    for (int i = 0; i < 32; i++) snprintf(name + 2 * i, 3, "%02x", key.byte[i]);
    return path_of(strcat(name, ".cubin"));
}

static void open_folder(void) {
    snprintf(folder, sizeof(folder), "/tmp/weft-store-XXXXXX");
    CHECK(mkdtemp(folder), "%s", strerror(errno));
    ctx = test_context(1);
    CHECK(weft__store_write(folder, &key, &sample), "not written");
}

static void close_folder(void) {
    remove(file());
    CHECK(rmdir(folder) == 0, "%s: %s", folder, strerror(errno));
    weft_ctx_release(ctx);
}

static bool readable(void) {
    weft__code code = {NULL, 0};
    const bool found = weft__store_read(ctx, folder, &key, &code);
    CHECK(!found || (code.size == 9 && memcmp(code.bytes, sample.bytes, 9) == 0), "other code than was written");
    weft__free(ctx, code.bytes);
    return found;
}

TEST(what_was_written_is_read) {
    open_folder();
    CHECK(readable(), "not read");
    weft__digest other = key;
    other.byte[31] = 1;
    weft__code code = {NULL, 0};
    CHECK(!weft__store_read(ctx, folder, &other, &code) && !code.bytes, "read under another key");
    close_folder();
}

/* Every byte of the file counts. */
TEST(a_changed_byte_is_noticed) {
    open_folder();
    struct stat st;
    CHECK(stat(file(), &st) == 0, "%s", file());
    for (off_t i = 0; i < st.st_size; i++) {
        int fd = open(file(), O_RDWR);
        unsigned char byte = 0, changed;
        CHECK(fd >= 0 && pread(fd, &byte, 1, i) == 1, "%s", file());
        changed = byte ^ 0x10;
        CHECK(pwrite(fd, &changed, 1, i) == 1 && !readable(), "byte %lld of %lld", (long long)i, (long long)st.st_size);
        CHECK(pwrite(fd, &byte, 1, i) == 1, "%s", file());
        close(fd);
    }
    CHECK(readable(), "not read after it was put right");
    close_folder();
}

TEST(a_file_that_others_can_write) {
    static const mode_t modes[] = {0620, 0602, 0666};
    open_folder();
    for (size_t i = 0; i < WEFT__COUNT(modes); i++) {
        chmod(file(), modes[i]);
        CHECK(!readable(), "a file of mode %o is read", modes[i]);
    }
    chmod(file(), 0644);
    CHECK(readable(), "a file of mode 644 is not read");
    close_folder();
}

TEST(a_folder_that_others_can_write) {
    open_folder();
    chmod(folder, 0777);
    CHECK(!readable(), "a folder of mode 777 is read from");
    CHECK(!weft__store_write(folder, &key, &sample), "a folder of mode 777 is written to");
    chmod(folder, 0755);
    CHECK(readable(), "a folder of mode 755 is not read from");
    close_folder();
}

TEST(a_file_of_somebody_else) {
    if (geteuid() != 0) SKIP("only root can give a file away");
    open_folder();
    CHECK(chown(file(), 12345, 12345) == 0, "chown");
    CHECK(!readable(), "a stranger's file is read");
    CHECK(chown(file(), 0, 0) == 0 && readable(), "root's file is not read");
    CHECK(chown(folder, 12345, 12345) == 0, "chown");
    CHECK(!readable(), "a stranger's folder is read from");
    close_folder();
}

TEST(what_is_not_a_file) {
    char real[200];
    open_folder();
    snprintf(real, sizeof(real), "%s", path_of("real"));
    CHECK(rename(file(), real) == 0 && symlink(real, file()) == 0, "%s", strerror(errno));
    CHECK(!readable(), "read through a link");
    remove(file()), remove(real);
    CHECK(mkfifo(file(), 0600) == 0, "%s", strerror(errno));
    CHECK(!readable(), "read from a pipe"); /* and does not wait for a writer */
    remove(file());
    CHECK(mkdir(file(), 0700) == 0 && !readable(), "read from a folder");
    rmdir(file());
    close_folder();
}

/* What is in the way of a file, and a device that is full: not written, what was there stays, and nothing is left. */
static int names_in(const char *path) {
    DIR *d = opendir(path);
    int n = -2; /* . and .. */
    for (; d && readdir(d);) n++;
    if (d) closedir(d);
    return n;
}

TEST(a_failed_write_leaves_nothing) {
    open_folder();
    struct rlimit before, none;
    static char large[100000];
    const weft__code code = {large, sizeof(large)};
    CHECK(getrlimit(RLIMIT_FSIZE, &before) == 0, "no limit");
    void (*handler)(int) = signal(SIGXFSZ, SIG_IGN);
    for (rlim_t bytes = 0; bytes < sizeof(large); bytes += 40000) {
        none = before, none.rlim_cur = bytes;
        fflush(NULL);
        CHECK(setrlimit(RLIMIT_FSIZE, &none) == 0, "%s", strerror(errno));
        const bool written = weft__store_write(folder, &key, &code);
        setrlimit(RLIMIT_FSIZE, &before);
        CHECK(!written && readable() && names_in(folder) == 1, "written %d, %d files", written, names_in(folder));
    }
    signal(SIGXFSZ, handler);
    remove(file());
    CHECK(mkdir(file(), 0700) == 0, "%s", strerror(errno));
    CHECK(!weft__store_write(folder, &key, &sample), "a folder is replaced");
    CHECK(names_in(folder) == 1, "%d names are left", names_in(folder));
    rmdir(file());
    close_folder();
}

/* ---------------------------------------------------------------- memory */
static int taken, given;
static void *counting_alloc(void *user, size_t bytes) { return (void)user, taken++, malloc(bytes); }
static void counting_free(void *user, void *block) { (void)user, given++, free(block); }

TEST(memory_is_of_the_contexts_allocator) {
    weft_ctx_opts opts = WEFT_CTX_OPTS_INIT;
    weft_ctx *own = NULL;
    size_t size;
    opts.alloc = counting_alloc, opts.free = counting_free, opts.threads = 1, opts.cache_dir = "";
    opts.nvrtc = "/nowhere/libnvrtc.so";
    OK(weft_ctx_create(&own, &opts));
    const int before = taken;
    FAILS(weft__cuda_compile(own, "text", "", "sm_90", &size), WEFT_ERR_UNSUPPORTED, "libnvrtc");
    CHECK(taken >= before + 2, "%d allocations to compile", taken - before);
    weft_ctx_release(own);
    CHECK(taken == given, "%d allocated, %d freed", taken, given);
}
